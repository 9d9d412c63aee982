"""Tables of RULER's suites: scores by method, sub-task and share of keys and values kept, from
records only.

written(Path("results/ruler"))      **nano, 1,024 tokens**  | method | niah_single_1 | ... | qa_1 |
mean | scores(Path("results/ruler"))       model, length, method, kept, subtask, value, stderr: one
row per score
"""

from __future__ import annotations

import math
from pathlib import Path

import grids
from pandas import DataFrame

ENDS = {"none": 0.0, "icl": 1.0}
"""Baselines, and the share of the context that they keep."""
MEAN = "mean"
LEGEND = """Right strings found in the answers (%), by the share of the context's keys and values
that is kept. Mean over sub-tasks ± standard error over contexts."""


def scores(folder: Path) -> DataFrame:
    """Return the main metric of every run by sub-task, and its mean (%), in the order of the
    tables.
    """
    runs = grids.records(folder)
    lines = [
        {
            "model": run.model["name"],
            "length": run.config["task_options"]["length"],
            "method": row.method,
            "kept": ENDS.get(row.method, run.config["keep"]),
            "subtask": row.subtask,
            "value": 100 * row.value,
            "stderr": math.nan if row.stderr is None else 100 * row.stderr,
            "budget": row.method not in ENDS,
        }
        for run in runs
        for row in run.rows
        if row.metric == run.main_metric and row.subtask
    ]
    order = ["model", "length", "budget", "method", "kept"]
    return DataFrame(lines).sort_values(
        order, ascending=[True, True, True, True, False], kind="stable"
    )


def written(folder: Path) -> str:
    """Return one table per model and length: one row per method and share kept, one column per
    sub-task.
    """
    tables = (
        f"**{model}, {length:,} tokens**\n\n{_table(own)}"
        for (model, length), own in scores(folder).groupby(["model", "length"])
    )
    return "\n".join([f"{LEGEND}\n", *tables])


def _table(own: DataFrame) -> str:
    names = own["method"].where(
        ~own["budget"], own["method"] + (100 * own["kept"]).map(" {:.0f} %".format)
    )
    errors = (
        own["stderr"]
        .map(" ± {:.1f}".format)
        .where((own["subtask"] == MEAN) & own["stderr"].notna(), "")
    )
    cells = zip(names, own["subtask"], own["value"].map("{:.1f}".format) + errors, strict=True)
    return grids.markdown(grids.crossed(cells, "".join)[[*own["subtask"].unique()]])
