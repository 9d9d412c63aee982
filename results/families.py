"""Tables of every method on every task family, of scores and of costs, and docs/families.svg; from
the records.

    python results/families.py     draws the figure docs/families.svg

A cell has the metric under the own state, then in brackets the metric under a swapped state. A tick
marks memory of the context: the own state is better than the swapped and the empty state, and both
95 % intervals exclude zero.
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
HAS_MEMORY = "✓"
REMARKS = {
    "-labels-diet": " (gold documents)",
    "_merge-diet": " (merged)",
    "-diet": "",
    "": " (fewer families)",
}
"""Remark on adapters by the end of their name. Those trained on all families end in -diet."""
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
"""Task families of docs/results.md, and their column headers."""
LEAST = -100.0
"""Lower limit of the recovered share in the figure (%), because harmful methods are unbounded."""
LOWEST, HIGHEST = 0.0, 1.0
"""Recovered shares at the ends of the colour scale."""


def read(suite: Path) -> tuple[DataFrame, set[tuple[str, str]]]:
    """Load the comparison of a suite by `ttabench compare`.

    Returns:
        A row per task, method and state, and the set of (task, method) with memory of the context.
    """
    comparison: dict[str, list[dict[str, Any]]] = json.loads(
        ttabench("compare", "--out", str(suite), "--json")
    )
    runs = DataFrame(comparison["runs"])
    ends = {words: state for state, words in STATE_SUFFIXES.items() if words}
    checkpoints = {run.id: str(run.config["checkpoint"]) for run in records(suite)}
    names = [checkpoints[ids.split()[0]] for ids in runs["runs"]]
    remarks = [
        next(words for end, words in REMARKS.items() if name.endswith(end)) if name else ""
        for name in names
    ]
    runs["line"] = runs["method"] + remarks
    lines = {(row["task"], row["label"]): row["line"] for _, row in runs.iterrows()}
    better: dict[tuple[str, str], set[str]] = {}
    for pair in comparison["differences"]:
        state = next(
            (state for words, state in ends.items() if pair["right"] == pair["left"] + words), None
        )
        if state and None not in (pair["ci_low"], pair["ci_high"]):
            is_better = pair["ci_high"] < 0 if pair["metric"] == "ppl" else pair["ci_low"] > 0
            cell = pair["task"], lines[pair["task"], pair["left"]]
            if is_better:
                better.setdefault(cell, set()).add(state)
    return runs, {cell for cell, states in better.items() if states >= set(ends.values())}


def tables(out: Path) -> tuple[str, str, str]:
    """Return the tables of scores, of costs, and of the training of the adapters."""
    runs, with_memory = read(out / SUITE)
    return (
        f"{quality(runs, with_memory)}\n",
        f"{costs(runs)}\n",
        f"{adapters(runs_of(out / SUITE))}\n",
    )


def quality(runs: DataFrame, with_memory: Collection[tuple[str, str]]) -> str:
    """Return the Markdown table of scores: one row per method, one column per family."""

    def cell(own: Series, other: Series | None) -> str:
        text = format_value(own["metric"], own["value"], own["stderr"])
        text += "" if other is None else f" ({format_value(other['metric'], other['value'], None)})"
        return f"{text} {HAS_MEMORY}" if (own["task"], own["line"]) in with_memory else text

    head = (
        "main metric ± standard error over queries and draws (with a swapped state); "
        f"{HAS_MEMORY}: memory of the context"
    )
    return f"**{head}**\n\n{markdown(_grid(runs, cell))}"


def summary(out: Path) -> str:
    """Return the table of docs/results.md: some methods on some families."""
    runs, with_memory = read(out / SUITE)
    chosen = runs[(runs["state_of"] == "own") & runs["line"].isin(SUMMARY_METHODS)]

    def cell(own: Series, _: Series | None) -> str:
        text = format_value(own["metric"], own["value"], own["stderr"])
        return f"{text} {HAS_MEMORY}" if (own["task"], own["line"]) in with_memory else text

    grid = _grid(chosen[chosen["task"].isin(SUMMARY_TASKS)], cell)
    rows = [(f"`{line}`", *grid.loc[line]) for line in SUMMARY_METHODS]
    return table(("method", *SUMMARY_TASKS.values()), rows, 1)


def costs(runs: DataFrame) -> str:
    """Return the Markdown table of the state's size and of times."""

    def cell(own: Series, _: Series | None) -> str:
        return f"{format_bytes(own['state_bytes'])}, {own['adapt_seconds']:.2g} s, {own['ask_ms']:.3g} ms"

    grid = _grid(runs, cell)
    weights = runs.groupby("line")["trained_parameters"].max()
    grid["trained weights"] = [f"{int(weights[line] or 0):,}" for line in grid.index]
    return f"**state size, time to read a context, time per query**\n\n{markdown(grid)}"


def _grid(runs: DataFrame, cell: Callable[[Series, Series | None], str]) -> DataFrame:
    """Format each pair of runs under the own and a swapped state. The swapped one may be missing."""
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
    """Draw the recovered share of every method and family, with a tick for memory of the context."""
    runs, with_memory = read(suite)
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
            on_progress = HAS_MEMORY if (task, line) in with_memory else ""
            colour = "white" if share > (LOWEST + HIGHEST) / 2 else "black"
            words = on_progress if isnan(share) else f"{max(100 * share, LEAST):.0f} {on_progress}"
            axes.text(column, row, words, ha="center", va="center", color=colour, fontsize=8)
    axes.set_xticks(range(len(grid.columns)), list(grid.columns), rotation=20)
    axes.set_yticks(range(len(grid.index)), list(grid.index))
    figure.colorbar(image, label="recovered: share of the improvement of icl over none")
    return figure


def main() -> None:
    """Write the figure. Equal records give equal bytes."""
    with mpl.rc_context({"svg.hashsalt": "ttabench", "svg.fonttype": "none"}):
        draw(HERE / SUITE).savefig(PLACE, metadata={"Date": None})


if __name__ == "__main__":
    main()
