"""The entry points of the package, once it is installed."""

from __future__ import annotations

from pathlib import Path

import ttabench

FOLDER = Path(__file__).parents[1]


def test_method_task_and_metric_make_a_run(tmp_path: Path) -> None:
    task, source = FOLDER / "my_name.yaml", FOLDER / "my_name.jsonl"
    made = ttabench.evaluate("my_name", task, source=source, out=tmp_path)
    assert {"f1", "my_name"} <= {*made.table["metric"]}
