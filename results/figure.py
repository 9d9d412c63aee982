"""Draws docs/quality.svg, of the documentation's first page: quality on real text against the bytes that methods keep.

    python results/figure.py

Suite `squad-qa` (results/english): F1 on XQuAD under smollm2-135m-qa, of three draws of documents, with the standard
error that `compare` has, from the stored records. Budgets of one method are joined by a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from english_tables import runs_of
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from ttabench.report.compare import compared

HERE = Path(__file__).resolve().parent
SUITE = HERE / "english" / "squad-qa"
PLACE = HERE.parent / "docs" / "quality.svg"
COLUMNS = ("4 documents", "8 documents")
FAMILIES = {
    "icl": ("icl",),
    "window": ("window 10 %", "window 20 %", "window 50 %"),
    "snapkv": ("snapkv 10 %", "snapkv 20 %", "snapkv 50 %"),
    "h2o": ("h2o 10 %", "h2o 20 %", "h2o 50 %"),
    "kvpress Compactor": ("kvpress CompactorPress 20 %",),
    "kvpress ExpectedAttention": ("kvpress ExpectedAttentionPress 20 %",),
    "templora": ("templora",),
    "templora, another text's state": ("templora, another text's state",),
}
"""Lines of the suite's table, by label."""
FLOOR = "none"
HOLLOW = "templora, another text's state"
MIB = 2**20


class Point(NamedTuple):
    """A method at one budget."""

    mib: float
    f1: float
    stderr: float


def point(line: str, column: str) -> Point:
    """What the records of a line say; F1 in per cent."""
    (entry,) = compared(runs_of(SUITE)[line, column]).entries
    assert entry.stderr is not None, "several draws show an error"
    return Point((entry.costs["state_bytes"] or 0.0) / MIB, 100 * entry.value, 100 * entry.stderr)


def draw(columns: Sequence[str] = COLUMNS) -> Figure:
    """One panel a number of documents."""
    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    FigureCanvasSVG(figure)
    panels = list(figure.subplots(1, len(columns), sharey=True, squeeze=False)[0])
    for axes, column in zip(panels, columns, strict=True):
        floor = point(FLOOR, column)
        axes.axhline(floor.f1, color="grey", linestyle=":", label="none (keeps nothing)")
        for number, (label, lines) in enumerate(FAMILIES.items()):
            points = [point(line, column) for line in lines]
            face = "white" if label == HOLLOW else None
            axes.errorbar([dot.mib for dot in points], [dot.f1 for dot in points],
                          yerr=[dot.stderr for dot in points], marker="o", capsize=3, label=label,
                          color=f"C{number - (label == HOLLOW)}", markerfacecolor=face)  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlabel("MiB kept between queries")
        axes.set_title(column)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("F1, per cent")
    panels[0].set_ylim(bottom=0)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize="small")
    return figure


def main() -> None:
    """Write the figure, the same bytes from the same records."""
    with mpl.rc_context({"svg.hashsalt": "ttabench", "svg.fonttype": "none"}):
        draw().savefig(PLACE, metadata={"Date": None})


if __name__ == "__main__":
    main()
