"""Every method on every family of tasks: a table of figures and one of costs, and docs/families.svg; from the records.

    python results/families.py     draws the picture of README

A cell holds the metric under the own state, then in brackets the metric under a swapped state. A tick marks a memory of
the context: the own state is better than the swapped and the empty state, and both 95 % intervals exclude zero.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import matplotlib as mpl
from grids import adapters, markdown, records, runs_of, table
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from pandas import DataFrame, Series
from suites import ttabench

from ttabench.core.amounts import format_bytes
from ttabench.report.groups import STATE_SUFFIXES
from ttabench.report.method_rows import format_value

HERE = Path(__file__).resolve().parent
PLACE = HERE.parent / "docs" / "families.svg"
SUITE = "nine"
HOLDS = "✓"
TOLD = {
    "-labels-diet": " (gold documents)",
    "_merge-diet": " (merged)",
    "-diet": "",
    "": " (fewer families)",
}
"""What is said of adapters whose names end so; those that learned all families end in -diet."""
SUMMARY_METHODS = (
    "none",
    "icl",
    "kvzip",
    "compressive",
    "still",
    "ccm",
    "generative_adapter",
    "mac",
    "streamadapter",
    "lora",
)
SUMMARY_TASKS = {
    "streamingqa": "facts, F1 (%)",
    "metaicl": "demonstrations, accuracy (%)",
    "msc": "sessions, F1 (%)",
    "pg19": "books, perplexity",
}
"""Families of docs/results.md, and their column headers."""
LEAST = -100.0
"""Per cent of that way; a method that does harm may be any distance below."""
LOWEST, HIGHEST = 0.0, 1.0
"""Shares of the way from none to full context between which the picture has colours."""


def read(suite: Path) -> tuple[DataFrame, set[tuple[str, str]]]:
    """What `ttabench compare` says of the runs of a suite.

    Returns:
        a row a task, method and whose state answered, and the (task, method) whose own state holds the text.
    """
    said: dict[str, list[dict[str, Any]]] = json.loads(
        ttabench("compare", "--out", str(suite), "--json")
    )
    runs = DataFrame(said["runs"])
    ends = {words: state for state, words in STATE_SUFFIXES.items() if words}
    checkpoints = {run.id: str(run.config["checkpoint"]) for run in records(suite)}
    names = [checkpoints[ids.split()[0]] for ids in runs["runs"]]
    told = [
        next(words for end, words in TOLD.items() if name.endswith(end)) if name else ""
        for name in names
    ]
    runs["line"] = runs["method"] + told
    lines = {(row["task"], row["label"]): row["line"] for _, row in runs.iterrows()}
    better: dict[tuple[str, str], set[str]] = {}
    for pair in said["differences"]:
        state = next(
            (state for words, state in ends.items() if pair["right"] == pair["left"] + words), None
        )
        if state and None not in (pair["ci_low"], pair["ci_high"]):
            apart = pair["ci_high"] < 0 if pair["metric"] == "ppl" else pair["ci_low"] > 0
            cell = pair["task"], lines[pair["task"], pair["left"]]
            better.setdefault(cell, set()).update({state} if apart else set())
    return runs, {cell for cell, states in better.items() if states >= set(ends.values())}


def tables(out: Path) -> tuple[str, str, str]:
    """Figures, costs, and what the adapters were trained with, of the suite in this folder."""
    runs, holding = read(out / SUITE)
    return f"{quality(runs, holding)}\n", f"{costs(runs)}\n", f"{adapters(runs_of(out / SUITE))}\n"


def quality(runs: DataFrame, holding: Collection[tuple[str, str]]) -> str:
    """A line a method, a column a family: figures, in Markdown."""

    def cell(own: Series, other: Series | None) -> str:
        text = format_value(own["metric"], own["value"], own["stderr"])
        text += "" if other is None else f" ({format_value(other['metric'], other['value'], None)})"
        return f"{text} {HOLDS}" if (own["task"], own["line"]) in holding else text

    head = f"main metric ± standard error over queries and draws (with a swapped state); {HOLDS}: memory of the context"
    return f"**{head}**\n\n{markdown(_grid(runs, cell))}"


def summary(out: Path) -> str:
    """Return the table of docs/results.md: some methods on some families."""
    runs, holding = read(out / SUITE)
    chosen = runs[(runs["state_of"] == "own") & runs["line"].isin(SUMMARY_METHODS)]

    def cell(own: Series, _: Series | None) -> str:
        text = format_value(own["metric"], own["value"], own["stderr"])
        return f"{text} {HOLDS}" if (own["task"], own["line"]) in holding else text

    grid = _grid(chosen[chosen["task"].isin(SUMMARY_TASKS)], cell)
    rows = [(f"`{line}`", *grid.loc[line]) for line in SUMMARY_METHODS]
    return table(("method", *SUMMARY_TASKS.values()), rows, 1)


def costs(runs: DataFrame) -> str:
    """The same of what was kept, and how long it took."""

    def cell(own: Series, _: Series | None) -> str:
        return f"{format_bytes(own['state_bytes'])}, {own['adapt_seconds']:.2g} s, {own['ask_ms']:.3g} ms"

    grid = _grid(runs, cell)
    weights = runs.groupby("line")["trained_parameters"].max()
    grid["trained weights"] = [f"{int(weights[line] or 0):,}" for line in grid.index]
    return f"**bytes of state, seconds to read a context, milliseconds of a query**\n\n{markdown(grid)}"


def _grid(runs: DataFrame, cell: Callable[[Series, Series | None], str]) -> DataFrame:
    """What `cell` says of the runs under the own state and under another text's, if there is one."""
    own, other = (
        {(row["line"], row["task"]): row for _, row in runs[runs["state_of"] == state].iterrows()}
        for state in ("own", "other")
    )
    names = {
        task: f"{task} ({metric})"
        for task, metric in zip(runs["task"], runs["metric"], strict=True)
    }
    lines = list(dict.fromkeys(line for line, _ in own))
    cells = {
        name: [
            cell(own[line, task], other.get((line, task))) if (line, task) in own else ""
            for line in lines
        ]
        for task, name in names.items()
    }
    return DataFrame(cells, index=lines)


def draw(suite: Path, left_out: Sequence[str] = ("none", "icl")) -> Figure:
    """The share of the way from none to full context, with a tick where the state holds the text."""
    runs, holding = read(suite)
    own = runs[(runs["state_of"] == "own") & ~runs["line"].isin(left_out)]
    grid = own.pivot_table(
        index="line", columns="task", values="share_of_gap", sort=False, dropna=False
    )
    figure = Figure(figsize=(9.0, 0.32 * len(grid) + 1.2), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    image = axes.imshow(
        grid.to_numpy(float), cmap="Blues", vmin=LOWEST, vmax=HIGHEST, aspect="auto"
    )
    for row, line in enumerate(grid.index):
        for column, task in enumerate(grid.columns):
            share = grid.iloc[row, column]
            on_progress = HOLDS if (task, line) in holding else ""
            colour = "white" if share > (LOWEST + HIGHEST) / 2 else "black"
            words = on_progress if isnan(share) else f"{max(100 * share, LEAST):.0f} {on_progress}"
            axes.text(column, row, words, ha="center", va="center", color=colour, fontsize=8)
    axes.set_xticks(range(len(grid.columns)), list(grid.columns), rotation=20)
    axes.set_yticks(range(len(grid.index)), list(grid.index))
    figure.colorbar(image, label="recovered: share of the improvement of icl over none")
    return figure


def main() -> None:
    """Write the picture, the same bytes from the same records."""
    with mpl.rc_context({"svg.hashsalt": "ttabench", "svg.fonttype": "none"}):
        draw(HERE / SUITE).savefig(PLACE, metadata={"Date": None})


if __name__ == "__main__":
    main()
