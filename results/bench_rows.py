"""Rows of the few-shot benchmark: files for `ttabench`, and an lm-eval task with the same
demonstrations.

`ttabench` draws its demonstrations from the training rows. lm-eval gets the same ones in the same
order, and puts the first `shots` of them before every document.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttabench.mini.demonstrations import superglue
from ttabench.readers import load
from ttabench.readers.demonstrations import Demonstrations

TEMPLATES = {"copa": "super_glue/copa/default.yaml", "sst2": "glue/sst2/default.yaml"}
Rows = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Rows of one task from one source."""

    task: str
    kind: str
    """`files` (published) or `mini` (the synthetic world)."""
    folder: Path
    """Folder with train.jsonl and validation.jsonl for `ttabench`, and with the task of lm-eval."""
    limit: int
    """Number of evaluated documents, evenly spaced over all."""

    @property
    def lm_eval_name(self) -> str:
        """Name of lm-eval's task."""
        return f"bench_{self.task}_{self.kind}"

    def ours(self, shots: int) -> Demonstrations:
        """Bind the task as `ttabench eval --task superglue --source FOLDER` does: read files and
        make prompts.
        """
        options = {"task": self.task, "shots": shots}
        bound = load(
            "superglue", source=str(self.folder), seed=0, limit=self.limit, options=options
        )
        assert isinstance(bound, Demonstrations), "superglue is a task of demonstrations"
        return bound


def published(task: str, folder: Path) -> dict[str, Rows]:
    """Read the published rows."""
    if task == "copa":
        names = {"train": "train.jsonl", "validation": "val.jsonl"}
        return {
            split: [
                json.loads(line)
                for line in (folder / name).read_text(encoding="utf-8").splitlines()
            ]
            for split, name in names.items()
        }
    published_rows = {}
    for split, name in {"train": "train.tsv", "validation": "dev.tsv"}.items():
        with (folder / name).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        published_rows[split] = [
            {"sentence": row["sentence"], "label": int(row["label"])} for row in rows
        ]
    return published_rows


def synthetic_rows(task: str, count: int) -> dict[str, Rows]:
    """Generate rows of the synthetic world."""
    made = superglue(task, "test", 0, demonstrations=96, queries=count)
    return {split: [dict(row) for row in rows] for split, rows in made.items()}


def prepare(task: str, rows: dict[str, Rows], source: Source, shots: Sequence[int]) -> Source:
    """Write numbered rows, and an lm-eval task with the same demonstrations and documents as
    `ttabench`.
    """
    source.folder.mkdir()
    for split, some in rows.items():
        _write(
            source.folder / f"{split}.jsonl",
            [{**row, "idx": number} for number, row in enumerate(some)],
        )
    (drawn,) = source.ours(max(shots)).parts
    files = {}
    for split, items, some in (
        ("train", drawn.shown, rows["train"]),
        ("validation", drawn.query_rows, rows["validation"]),
    ):
        files[split] = str(source.folder / f"lm-eval-{split}.json")
        _write(Path(files[split]), [some[int(item.id)] for item in items])
    _write_task(task, files, source)
    return source


def _write(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _write_task(task: str, files: dict[str, str], source: Source) -> None:
    """Write lm-eval's own template for these rows, with the same demonstrations for every document."""
    import lm_eval

    config = {
        "include": str(Path(lm_eval.__file__).parent / "tasks" / TEMPLATES[task]),
        "task": source.lm_eval_name,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": files},
        "fewshot_split": "train",
        "fewshot_config": {"sampler": "first_n"},
    }
    (source.folder / f"{source.lm_eval_name}.yaml").write_text(json.dumps(config), encoding="utf-8")
