"""Figures docs/quality.svg (F1 on real text against bytes kept) and docs/ruler.svg (RULER score
against share removed).

    python results/figure.py

quality.svg uses suites `keep` and `keep-gemma` (results/english): F1 on XQuAD's 60 test paragraphs,
read in sets of four, under two models, with the standard errors of `compare`, from the stored
records. ruler.svg uses the suites `ruler` of nano and of SmolLM2-135M. Lines join the budgets of
one method.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from english_cells import KEPT, SHARES
from english_tables import Runs, runs_of
from matplotlib.artist import Artist
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from pandas import concat
from ruler_tables import MEAN, scores

from ttabench.report.compare import compare_runs

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
COLUMN = "4 documents"
PANELS = {
    "keep": "SmolLM2-135M with a LoRA for questions",
    "keep-gemma": "Gemma 3 270M, three examples",
}
"""Suites and panel titles."""
FAMILIES = {
    **{name: tuple(f"{name} {100 * share:.0f} %" for share in SHARES) for name in KEPT},
    "templora": ("templora",),
    "icl": ("icl",),
}
"""Rows of a suite's table by label."""
TICKS = (10, 20, 50, 100)


class Point(NamedTuple):
    """A method at one budget."""

    share: float
    """Share of full context's bytes (%)."""
    f1: float
    stderr: float


def point(runs: Runs, line: str) -> Point:
    """Return the point of a table row, F1 in per cent."""
    (method_row,), (full,) = (
        compare_runs(runs[name, COLUMN]).method_rows for name in (line, "icl")
    )
    assert method_row.stderr is not None, "several sets show an error"
    kept = method_row.costs["kept_share"] or (method_row.costs["state_bytes"] or 0.0) / (
        full.costs["state_bytes"] or 1.0
    )
    return Point(100 * kept, 100 * method_row.value, 100 * method_row.stderr)


def draw() -> Figure:
    """Draw one panel per model."""
    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    FigureCanvasSVG(figure)
    panels = list(figure.subplots(1, len(PANELS), sharey=True, squeeze=False)[0])
    for axes, (suite, title) in zip(panels, PANELS.items(), strict=True):
        runs = runs_of(HERE / "english" / suite)
        axes.axhline(
            point(runs, "none").f1, color="grey", linestyle=":", label="none (keeps nothing)"
        )
        for number, (label, lines) in enumerate(FAMILIES.items()):
            points = [point(runs, line) for line in lines if (line, COLUMN) in runs]
            if points:
                axes.errorbar(
                    [dot.share for dot in points],
                    [dot.f1 for dot in points],
                    yerr=[dot.stderr for dot in points],
                    marker="o",
                    capsize=3,
                    label=label,
                    color=f"C{number}",
                )
        axes.set_xscale("log")
        axes.minorticks_off()
        axes.set_xticks(TICKS, [str(on_progress) for on_progress in TICKS])
        axes.set_xlabel("bytes kept (% of full context)")
        axes.set_title(title)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("F1, per cent")
    panels[0].set_ylim(bottom=0)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside right center", fontsize="small"
    )
    return figure


def draw_ruler() -> Figure:
    """Draw one panel per model and length, one line per method over the share removed. Full context
    is at 0 %.
    """
    found = concat(
        [
            scores(folder)
            for folder in (HERE / "ruler", HERE / "english" / "ruler")
            if folder.is_dir()
        ]
    )
    colours = {
        name: f"C{number}"
        for number, name in enumerate(sorted(found[found["budget"]]["method"].unique()))
    }
    shown: dict[str, Artist] = {}
    panels = found[found["subtask"] == MEAN].groupby(["model", "length"])
    figure = Figure(figsize=(9.0, 3.6 * -(-len(panels) // 2)), layout="constrained")
    FigureCanvasSVG(figure)
    grid = figure.subplots(-(-len(panels) // 2), 2, sharex=True, sharey="row", squeeze=False).flat
    for axes, ((model, length), own) in zip(grid, panels, strict=False):
        axes.set_title(f"{model}, {length:,} tokens")
        for end, value in own[~own["budget"]].groupby("method")["value"]:
            axes.axhline(
                value.item(), color="grey", linestyle="--" if end == "icl" else ":", label=end
            )
        for method, line in own[own["budget"]].groupby("method"):
            axes.errorbar(
                100 - 100 * line["kept"],
                line["value"],
                yerr=line["stderr"],
                marker="o",
                capsize=3,
                label=method,
                color=colours[method],
            )
        shown |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.supxlabel("keys and values removed (%)", fontsize="medium")
    figure.supylabel("mean over sub-tasks (%)", fontsize="medium")
    figure.legend(shown.values(), shown.keys(), loc="outside right center", fontsize="small")
    return figure


def main() -> None:
    """Write the figures. Equal records give equal bytes."""
    with mpl.rc_context({"svg.hashsalt": "ttabench", "svg.fonttype": "none"}):
        for name, figure in (("quality", draw()), ("ruler", draw_ruler())):
            figure.savefig(DOCS / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
