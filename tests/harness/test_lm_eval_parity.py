"""Prompts, demonstrations and options are, string by string, what lm-evaluation-harness itself asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from tests.choice_files import shared_rows
from tests.harness.test_lm_eval_scores import TEMPLATES, sub_task
from ttabench.readers import choices
from ttabench.readers.formats import RawRow
from ttabench.readers.sources import Table

SHOTS = 3


def theirs(name: str, rows: list[dict[str, Any]]) -> list[list[tuple[str, str]]]:
    """(context, continuation) of every option of every row, after the first three rows as demonstrations."""
    import datasets
    import lm_eval
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    held = datasets.Dataset.from_list(rows)
    config = load_yaml(Path(lm_eval.__file__).parent / "tasks" / f"{TEMPLATES[name]}.yaml")
    config |= {
        "custom_dataset": lambda **_: datasets.DatasetDict(train=held, validation=held, test=held),
        "fewshot_split": "train",
        "fewshot_config": {"sampler": "first_n"},
        "metric_list": [{"metric": "acc"}],
    }
    task = ConfigurableTask(config=config)
    asked = []
    for number, document in enumerate(task.eval_docs):
        context = task.fewshot_context(document, SHOTS)
        found = task.construct_requests(document, context, metadata=(name, number, 1))
        asked.append([request.args for request in found])
    return asked


def ours(name: str, rows: list[dict[str, Any]]) -> list[list[tuple[str, str]]]:
    table = Table(rows=[RawRow(f"row {i}", row) for i, row in enumerate(rows)], label="", where="rows")
    items = choices.parse(sub_task(name)[1], table)
    shown = "".join(f"{item.shown}\n\n" for item in items[:SHOTS])
    return [pairs(shown, item) for item in items]


def pairs(shown: str, item: choices.Item) -> list[tuple[str, str]]:
    want = item.choose(" ")
    prefixes = want.option_prefixes or ("",) * len(want.options)
    text = shown + item.prompts["lm_eval"]
    return [(text + prefix, option) for prefix, option in zip(prefixes, want.options, strict=True)]


@pytest.mark.parametrize(
    "name", ["boolq", "cb", "copa", "rte", "sst2", "hellaswag", "arc_easy", "arc_challenge", "piqa"]
)
def test_published_rows_too(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    raw, hub = shared_rows(name, 12)
    assert ours(name, raw) == theirs(name, hub)
