"""A picture of which pieces of context questions look at: a row a question, a column a piece, the darker the more.

    ttabench ask "Who wrote it?" --attention looked.png

Where not all names can be read beside each other, the pieces with the largest shares have theirs. Of more than fits a
picture those pieces are drawn at which some question looks most.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ttabench.core.printable import printable
from ttabench.report.pictures import check_path, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_QUESTIONS, MOST_PIECES = 200, 400
"""That are drawn."""
ACROSS, DOWN = 14.0, 20.0
"""Inches that a map of many pieces and questions is wide and high."""
WIDEST, HIGHEST = 0.5, 0.3
APART = 0.13
"""Inches that a name needs."""
LETTERS = 56
"""Of a name, at most."""
NUMBERED = 16
"""Up to so many pieces cells hold their per cent."""


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """What is drawn. Shape letters: Q questions · K pieces."""

    title: str
    questions: Sequence[str]
    pieces: Sequence[str]
    """Names of the columns."""
    shares_QK: NDArray[np.float32]


def draw(heat_map: HeatMap, path: Path) -> None:
    """Write the picture."""
    check_path(path, "--attention")
    figure = drawn(heat_map)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a script that matplotlib's font lacks is drawn as boxes
        write(figure, path, around=True)


def drawn(heat_map: HeatMap) -> Figure:
    """The figure: its map fills it, and names stand around."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    asked_QK = heat_map.shares_QK[:MOST_QUESTIONS]
    kept = sorted(np.argsort(-asked_QK.max(0), kind="stable")[:MOST_PIECES].tolist())
    shares_QK = asked_QK[:, kept]
    rows, columns = shares_QK.shape
    wide, high = columns * min(WIDEST, ACROSS / columns), rows * min(HIGHEST, DOWN / rows)
    figure = Figure(figsize=(wide, high))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    most = float(shares_QK.max()) or 1.0
    image = axes.imshow(shares_QK, cmap="Blues", vmin=0, vmax=most, aspect="auto", interpolation="nearest")
    named, asked = readable(shares_QK.max(0), wide / columns), readable(-np.arange(rows, dtype=np.float32), high / rows)
    axes.set_xticks(named, [short(heat_map.pieces[kept[at]]) for at in named], rotation=90, parse_math=False,
                    fontsize="x-small")  # fmt: skip
    axes.set_yticks(asked, [short(heat_map.questions[at]) for at in asked], parse_math=False, fontsize="x-small")
    for (row, column), share in np.ndenumerate(shares_QK) if columns <= NUMBERED else ():
        colour = "white" if share > most / 2 else "black"
        axes.text(column, row, f"{share:.0%}", ha="center", va="center", fontsize="xx-small", color=colour)
    lines = [heat_map.title]
    if columns < len(heat_map.pieces):
        lines.append(f"{columns:,} of {len(heat_map.pieces):,} pieces: those with the largest shares")
    if rows < len(heat_map.questions):
        lines.append(f"the first {rows:,} of {len(heat_map.questions):,} questions")
    axes.set_title("\n".join(lines), loc="left", fontsize="small", parse_math=False)
    tall = max(high, 1.2)
    bar = figure.add_axes((1 + 0.1 / wide, 1 - tall / high, 0.12 / wide, tall / high))
    figure.colorbar(image, cax=bar, format=lambda value, _: f"{value:.0%}" if most > 0.1 else f"{value:.1%}")
    bar.tick_params(labelsize="x-small")
    return figure


def readable(weights: NDArray[np.float32], inches: float) -> list[int]:
    """Places whose names can stand beside each other, so many inches apart a place: first those of greatest weight."""
    places: list[int] = []
    for place in np.argsort(-weights, kind="stable").tolist():
        if all(abs(place - other) * inches >= APART for other in places):
            places.append(place)
    return sorted(places)


def short(text: str) -> str:
    """One line, cut where it is long."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= LETTERS else f"{line[: LETTERS - 1]}…"
