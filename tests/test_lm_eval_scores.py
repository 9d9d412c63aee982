"""Reader, runner and scoring give, document by document, the numbers of lm-evaluation-harness's own evaluation.

The tokenizer has a token a byte, so that it does not matter that we tokenise demonstrations apart.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from tests.choice_files import TRICKY
from tests.qa_files import write_jsonl
from tests.test_harness import hf
from tests.tiny import tiny_llama
from ttabench.lm import LM
from ttabench.methods.icl import InContext, InContextSettings
from ttabench.mini.demonstrations import superglue, unseen
from ttabench.readers import load
from ttabench.readers.cards import SubTask, load_card
from ttabench.runner import Bench, run_episodes
from ttabench.store import RunFolder, Sample

pytestmark = pytest.mark.filterwarnings("ignore")  # lm-eval, datasets and transformers warn about each other
TEMPLATES = {
    "boolq": "super_glue/boolq/default", "cb": "super_glue/cb/default", "copa": "super_glue/copa/default",
    "rte": "super_glue/rte/default", "sst2": "glue/sst2/default", "hellaswag": "hellaswag/hellaswag",
    "winogrande": "winogrande/default", "openbookqa": "openbookqa/openbookqa", "arc_easy": "arc/arc_easy",
    "arc_challenge": "arc/arc_challenge", "piqa": "piqa/piqa",
}  # fmt: skip
BLANK_AT_THE_END: dict[str, list[dict[str, Any]]] = {
    "openbookqa": [{
        "question_stem": "Which of these is \t ", "answerKey": "C",
        "choices": {"text": ["a longer answer", "b", "cc", "d"], "label": list("ABCD")},
    }],
    "winogrande": [{"sentence": "So _ left.", "option1": "Ann  ", "option2": "Bo", "answer": "2"}],
}  # fmt: skip
"""Prompts that end in blanks, which lm-evaluation-harness scores with the option."""
SHOTS, SEED = 2, 3


@pytest.fixture(scope="module")
def lm() -> LM:
    return tiny_llama()


@dataclass(frozen=True)
class Files:
    """One sub-task on disk: a folder in a published layout, and the rows in it, in the columns of the hub."""

    card: str
    part: str
    folder: Path
    train: list[dict[str, Any]]
    asked: list[dict[str, Any]]


def sub_task(name: str) -> tuple[str, SubTask]:
    card = "superglue" if name in load_card("superglue").parts else name
    return card, load_card(card).parts[name]


def files(name: str, base: Path) -> Files:
    """Rows of the miniature world and awkward ones; SST-2 in its published tsv, the others as jsonl."""
    card, part = sub_task(name)
    make = superglue if card == "superglue" else unseen
    made: dict[str, list[dict[str, Any]]] = make(name, "validation", 1, 5, 6)
    awkward = [*TRICKY.get(name, []), *BLANK_AT_THE_END.get(name, [])]
    train, asked = (
        [{key: value for key, value in row.items() if key not in ("id", "idx")} for row in rows]
        for rows in (made["train"], [*made["validation"], *awkward])
    )
    folder = base / part.folders[0]
    folder.mkdir(parents=True)
    for split, rows in ((part.train, train), (part.test, asked)):
        stem = folder / split.files[0]
        if name == "sst2":
            lines = ["sentence\tlabel", *(f"{row['sentence']}\t{row['label']}" for row in rows)]
            stem.with_suffix(".tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        else:
            write_jsonl(stem.with_suffix(".jsonl"), rows)
    return Files(card, name, base, train, asked)


def ours(lm: LM, held: Files, scratch: Path) -> tuple[list[str], list[Sample]]:
    """(keys of the demonstrations, what became of each query in file order)."""
    task = load(held.card, source=str(held.folder), seed=SEED, options={"task": held.part, "shots": SHOTS})
    (episode,) = task.episodes()
    sink = RunFolder(scratch, "ours")
    bench = Bench(
        lm=lm, method=InContext(lm, InContextSettings(max_tokens=340)), metrics=task.card.metrics, batch_size=4
    )
    run_episodes(bench, task, sink, lambda *_: None)
    found = {sample.key: sample for sample in sink.samples}
    return [piece.key for piece in episode.observes()], [found[ask.key] for ask in episode.asks()]


def theirs(lm: LM, held: Files, shown: list[dict[str, Any]], scratch: Path) -> tuple[Any, list[dict[str, Any]]]:
    """lm-evaluation-harness's own evaluator, model and template on the same rows: (means, documents in file order)."""
    import lm_eval
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    paths = {split: str(scratch / f"{split}.jsonl") for split in ("train", "validation", "test")}
    for split, path in paths.items():
        write_jsonl(Path(path), shown if split == "train" else held.asked)
    name = f"local_{held.part}"
    config = {
        "include": str(Path(lm_eval.__file__).parent / "tasks" / f"{TEMPLATES[held.part]}.yaml"),
        "task": name, "dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": paths},
        "fewshot_split": "train", "fewshot_config": {"sampler": "first_n"},
    }  # fmt: skip
    (scratch / f"{name}.yaml").write_text(json.dumps(config), encoding="utf-8")
    manager = TaskManager(include_defaults=False, include_path=str(scratch))
    loaded = manager.load([name])["tasks"][name]
    found = simple_evaluate(
        model=hf(lm), tasks=[loaded], num_fewshot=len(shown), task_manager=manager, bootstrap_iters=0
    )
    assert found is not None
    return found["results"][name], sorted(found["samples"][name], key=lambda document: document["doc_id"])


@pytest.mark.parametrize("name", TEMPLATES)
def test_scores_are_those_of_lm_eval(lm: LM, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    held = files(name, tmp_path / "published")
    keys, mine = ours(lm, held, tmp_path)
    shown = [held.train[int(key.partition("/")[2])] for key in keys]
    means, documents = theirs(lm, held, shown, tmp_path)
    assert len(mine) == len(documents) == len(held.asked)
    for sample, document in zip(mine, documents, strict=True):
        expected = [logprob for logprob, _ in document["filtered_resps"]]
        assert sample.logprobs == pytest.approx(expected, abs=1e-4)
    metrics = [metric for metric in ("acc", "acc_norm") if f"{metric},none" in means]
    assert metrics == [metric for metric in ("acc", "acc_norm") if metric in load_card(held.card).metrics]
    for metric in metrics:
        values = [sample.metrics[metric] for sample in mine]
        assert values == [document[metric] for document in documents]
        assert sum(values) / len(values) == pytest.approx(means[f"{metric},none"])
