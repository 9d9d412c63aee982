"""Figures of the documentation, from the committed records. Equal records give equal bytes.

quality.svg has F1 on XQuAD's 60 test paragraphs in sets of four against bytes kept (suites `keep`
and `keep-gemma`), ruler.svg RULER's scores against the share removed, and families.svg the
recovered share of every method on every task family.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any

import english
import families
import matplotlib as mpl
import ruler
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from pandas import DataFrame, concat

from ttabench.report.compare import compare_runs

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
PANELS = {
    "keep": "SmolLM2-135M with a LoRA for questions",
    "keep-gemma": "Gemma 3 270M, three examples",
}
"""Suites of quality.svg and panel titles."""
BUDGETED = ("window", "snapkv", "h2o", "random_slots", "kvzip", "attention_matching", "rag")
SHARES = ("10 %", "20 %", "50 %")
LOWEST = -100.0
"""Lower limit of the recovered share in families.svg (%), because harmful methods are unbounded."""


def panels(width: float, height: float, rows: int, columns: int, **shared: Any) -> Any:
    """Create a figure and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def quality() -> Figure:
    """Draw F1 against bytes kept, one panel per model. Lines join the budgets of a method."""

    def point(runs: english.Runs, line: str) -> tuple[float, float, float]:
        (row,), (full,) = (compare_runs(runs[name]).method_rows for name in (line, "icl"))
        kept = row.costs["kept_share"] or (row.costs["state_bytes"] or 0.0) / (
            full.costs["state_bytes"] or 1.0
        )
        return 100 * kept, 100 * row.value, 100 * (row.stderr or 0.0)

    names = {name: [f"{name} {share}" for share in SHARES] for name in BUDGETED}
    figure, grid = panels(9.0, 4.2, 1, len(PANELS), sharey=True)
    for axes, (suite, title) in zip(grid[0], PANELS.items(), strict=True):
        runs = english.column_of(suite, english.SETS[0])
        floor = point(runs, "none")[1]
        axes.axhline(floor, color="grey", linestyle=":", label="none (keeps nothing)")
        lines = {**names, "templora": ["templora"], "icl": ["icl"]}
        for number, (label, own) in enumerate(lines.items()):
            if points := [point(runs, line) for line in own if line in runs]:
                shares, values, errors = map(list, zip(*points, strict=True))
                bars = {"marker": "o", "capsize": 3, "color": f"C{number}"}
                axes.errorbar(shares, values, yerr=errors, label=label, **bars)
        axes.set_xscale("log")
        axes.minorticks_off()
        axes.set_xticks((10, 20, 50, 100), ["10", "20", "50", "100"])
        axes.set_xlabel("bytes kept (% of full context)")
        axes.set_title(title)
        axes.grid(alpha=0.3)
    grid[0][0].set_ylabel("F1, per cent")
    grid[0][0].set_ylim(bottom=0)
    legend = grid[0][0].get_legend_handles_labels()
    figure.legend(*legend, loc="outside right center", fontsize="small")
    return figure


def ruler_scores() -> Figure:
    """Draw RULER's mean scores over the share removed, one panel per model and length."""
    found: DataFrame = concat([ruler.scores(HERE / "ruler"), ruler.scores(english.HERE / "ruler")])
    methods = sorted(found[found["budget"]]["method"].unique())
    colours = {name: f"C{number}" for number, name in enumerate(methods)}
    groups = found[found["subtask"] == ruler.MEAN].groupby(["model", "length"])
    rows, shown = -(-len(groups) // 2), dict[Any, Any]()
    figure, grid = panels(9.0, 3.6 * rows, rows, 2, sharex=True, sharey="row")
    for axes, ((model, length), own) in zip(grid.flat, groups, strict=False):
        axes.set_title(f"{model}, {length:,} tokens")
        for end, value in own[~own["budget"]].groupby("method")["value"]:
            style = "--" if end == "icl" else ":"
            axes.axhline(value.item(), color="grey", linestyle=style, label=end)
        for method, line in own[own["budget"]].groupby("method"):
            removed, bars = 100 - 100 * line["kept"], {"marker": "o", "capsize": 3}
            colour = colours[method]
            axes.errorbar(
                removed, line["value"], yerr=line["stderr"], label=method, color=colour, **bars
            )
        shown |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.supxlabel("keys and values removed (%)", fontsize="medium")
    figure.supylabel("mean over sub-tasks (%)", fontsize="medium")
    figure.legend(shown.values(), shown.keys(), loc="outside right center", fontsize="small")
    return figure


def recovered() -> Figure:
    """Draw the recovered share of every method and family, with a tick for memory of the context."""
    cells = {key: cell for key, cell in families.read().items() if key[0] not in ("none", "icl")}
    lines, tasks = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    shares = [
        [
            float("nan")
            if key not in cells or (share := cells[key].own["share_of_gap"]) is None
            else share
            for key in ((line, task) for task in tasks)
        ]
        for line in lines
    ]
    figure, ((axes,),) = panels(9.0, 0.32 * len(lines) + 1.2, 1, 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    for row, line in enumerate(lines):
        for column, task in enumerate(tasks):
            share, cell = shares[row][column], cells.get((line, task))
            tick = families.HAS_MEMORY if cell and cell.has_memory else ""
            words = tick if isnan(share) else f"{max(100 * share, LOWEST):.0f} {tick}"
            colour = "white" if share > 0.5 else "black"
            axes.text(column, row, words, ha="center", va="center", color=colour, fontsize=8)
    axes.set_xticks(range(len(tasks)), tasks, rotation=20)
    axes.set_yticks(range(len(lines)), lines)
    figure.colorbar(image, label="recovered: share of the improvement of icl over none")
    return figure


def write() -> Iterator[Path]:
    """Write every figure, and yield its path."""
    with mpl.rc_context({"svg.hashsalt": "ttabench", "svg.fonttype": "none"}):
        for name, draw in (("quality", quality), ("ruler", ruler_scores), ("families", recovered)):
            draw().savefig(DOCS / f"{name}.svg", metadata={"Date": None})
            yield DOCS / f"{name}.svg"
