"""Tables of RULER's suites: scores by method, sub-task and share of keys and values kept."""

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
    lines = [
        {
            "model": run.model["name"],
            "length": run.config["task_options"]["length"],
            "method": row.method,
            "kept": ENDS.get(row.method, run.config["keep"]),
            "bits": f", {run.config['bits']} bits" if run.config.get("bits") else "",
            "subtask": row.subtask,
            "value": 100 * row.value,
            "stderr": math.nan if row.stderr is None else 100 * row.stderr,
            "budget": row.method not in ENDS,
        }
        for _, run in grids.runs_of(folder)
        for row in run.rows
        if row.metric == run.main_metric and row.subtask
    ]
    order = ["model", "length", "budget", "method", "kept", "bits"]
    ascending = [name != "kept" for name in order]
    return DataFrame(lines).sort_values(order, ascending=ascending, kind="stable")


def tables(folder: Path) -> str:
    """Return one table per model and length: one row per method and share kept, one column per
    sub-task.
    """
    parts = [f"{LEGEND}\n"]
    for (model, length), own in scores(folder).groupby(["model", "length"]):
        shares = (100 * own["kept"]).map(" {:.0f} %".format).where(own["budget"], "")
        has_error = (own["subtask"] == MEAN) & own["stderr"].notna()
        errors = own["stderr"].map(" ± {:.1f}".format).where(has_error, "")
        shown = own["value"].map("{:.1f}".format) + errors
        cells = zip(own["method"] + shares + own["bits"], own["subtask"], shown, strict=True)
        grid = grids.crossed(cells, "".join)[[*own["subtask"].unique()]]
        parts.append(f"**{model}, {length:,} tokens**\n\n{grids.markdown(grid)}")
    return "\n".join(parts)
