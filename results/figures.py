"""Figures of the documentation, from the committed records. Equal records give equal bytes.

quality.svg has F1 and answer NLL on XQuAD's 60 test paragraphs in sets of four against bytes kept
(suites of `english.PARAGRAPHS`), ruler.svg RULER's scores against the share removed, and families.svg the
recovered share of every method on every task family, and bytes.svg the curves of suite `matched-bytes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import english
import families
import matched_bytes
import matplotlib as mpl
import ruler
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from pandas import DataFrame, concat

from ttabench.report.compare import compare_runs

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
BUDGETED = (
    "window",
    "snapkv",
    "h2o",
    "random_slots",
    "kvzip",
    "attention_matching",
    "kvzap",
    "rag",
)
SHARES = ("10 %", "20 %", "50 %")
TICKS = (2, 5, 10, 20, 50, 100)
"""Bytes kept, in percent."""
LOWEST = -100.0
"""Lower limit of the recovered share in families.svg (%), because harmful methods are unbounded."""


def panels(width: float, height: float, rows: int, columns: int, **shared: Any) -> Any:
    """Create a figure and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def quality() -> Figure:
    """Draw F1 and answer NLL against bytes kept, one column per model.

    Lines join the budgets of a method, and a grey line the Pareto-optimal rows.
    """
    series = {
        **{name: [f"{name} {share}" for share in SHARES] for name in BUDGETED},
        "icl": ["icl"],
        "icl, 8, 4 and 2 bits": [f"icl, {bits} bits" for bits in (2, 4, 8)],
        "kvzip, 4 bits": [f"kvzip {share}, 4 bits" for share in SHARES],
        "kvzap, 4 bits": [f"kvzap {share}, 4 bits" for share in SHARES],
    }
    figure, grid = panels(9.0, 7.0, 2, len(english.MODELS), sharex=True, sharey="row")
    for column, (suite, title) in enumerate(english.MODELS.items()):
        runs = english.paragraph_runs(suite)
        shares = {line: english.kept_share(runs, line) for line in runs}
        kept = {line: 100 * share for line, share in shares.items() if share is not None}
        for axes, metric, scale in zip(
            grid[:, column], ("f1", "answer_nll"), (100, 1), strict=True
        ):
            rows = {line: compare_runs(own, metric).method_rows[0] for line, own in runs.items()}
            axes.axhline(
                scale * rows["none"].value,
                color="grey",
                linestyle=":",
                label="none (keeps nothing)",
            )
            best = english.pareto_rows(runs, metric)
            axes.plot(
                [kept[line] for line in best],
                [scale * rows[line].value for line in best],
                color="lightgrey",
                linewidth=6,
                zorder=0,
                label="Pareto-optimal",
            )
            for number, (label, lines) in enumerate(series.items()):
                if own := [line for line in lines if line in kept]:
                    axes.errorbar(
                        [kept[line] for line in own],
                        [scale * rows[line].value for line in own],
                        yerr=[scale * (rows[line].stderr or 0.0) for line in own],
                        label=label,
                        marker="os^D"[number // 10],
                        color=f"C{number % 10}",
                        capsize=3,
                    )
            axes.set_xscale("log")
            axes.minorticks_off()
            axes.set_xticks(TICKS, map(str, TICKS))
            axes.grid(alpha=0.3)
        grid[0][column].set_title(title)
        grid[1][column].set_xlabel("bytes kept (% of full context in 16 bits)")
    grid[0][0].set_ylabel("F1, per cent")
    grid[0][0].set_ylim(bottom=0)
    grid[1][0].set_ylabel("answer NLL, nats/token")
    legend = grid[0][0].get_legend_handles_labels()
    figure.legend(*legend, loc="outside right center", fontsize="small")
    return figure


def ruler_scores() -> Figure:
    """Draw RULER's mean scores over the share removed, one panel per model and length."""
    found: DataFrame = concat([ruler.scores(HERE / "ruler"), ruler.scores(english.HERE / "ruler")])
    methods = sorted(found[found["budget"]]["method"].unique())
    colours = {name: f"C{number}" for number, name in enumerate(methods)}
    shown_rows = (found["subtask"] == ruler.MEAN) & (found["bits"] == "")
    groups = found[shown_rows].groupby(["model", "length"])
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


def equal_bytes() -> Figure:
    """Draw quality against bytes kept for methods with equal bytes, one panel per task."""
    cells = matched_bytes.read()
    figure, (row,) = panels(9.0, 3.4, 1, len(matched_bytes.TASKS))
    for axes, (task, label) in zip(row, matched_bytes.TASKS.items(), strict=True):
        full = cells[matched_bytes.FULL_CONTEXT][task]
        for name, style in (("none", ":"), ("icl", "--")):
            (value,) = cells[matched_bytes.Line(None, name)][task].own
            axes.axhline(value, color="grey", linestyle=style, label=name)
        for method in sorted({line.method for line in cells if line.slots}):
            own = [cells[line][task] for line in cells if line.method == method]
            axes.errorbar(
                [100 * scores.state_bytes / full.state_bytes for scores in own],
                [fmean(scores.own) for scores in own],
                yerr=[stdev(scores.own) / len(scores.own) ** 0.5 for scores in own],
                label=method,
                marker="o",
                capsize=3,
            )
        axes.set_title(label, fontsize="medium")
        axes.set_xscale("log")
        axes.minorticks_off()
        axes.set_xticks((1, *TICKS), map(str, (1, *TICKS)))
        axes.set_xlim(0.9, 60)
        axes.grid(alpha=0.3)
    figure.supxlabel("bytes kept (% of full context)", fontsize="medium")
    legend = row[0].get_legend_handles_labels()
    figure.legend(*legend, loc="outside right center", fontsize="small")
    return figure


def write() -> Iterator[Path]:
    """Write every figure, and yield its path."""
    with mpl.rc_context({"svg.hashsalt": "ttabench", "svg.fonttype": "none"}):
        drawings = {
            "quality": quality,
            "ruler": ruler_scores,
            "families": recovered,
            "bytes": equal_bytes,
        }
        for name, draw in drawings.items():
            draw().savefig(DOCS / f"{name}.svg", metadata={"Date": None})
            yield DOCS / f"{name}.svg"
