"""A picture of which pieces of context questions look at: a row a question, a column a piece, the darker the more.

    ttabench ask "Who wrote it?" --attention looked.png

Of more than fits a picture those pieces are drawn at which some question looks most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttabench.core.printable import printable
from ttabench.report.pictures import NEEDED, check_path, refuse_missing, write_chart

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_QUESTIONS, MOST_PIECES = 200, 400
"""That are drawn."""
ACROSS, DOWN = 1200.0, 1600.0
"""Pixels that a map of many pieces and questions is wide and high."""
WIDEST, HIGHEST = 60, 30
"""Pixels of a cell."""
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


def check(path: Path) -> None:
    """Whether the picture can be written under this name."""
    check_path(path, "--attention")
    refuse_missing("`--attention FILE`", NEEDED)


def spec_of(heat_map: HeatMap) -> dict[str, Any]:
    """The map as a chart of Vega-Lite."""
    import altair as alt

    asked_QK = heat_map.shares_QK[:MOST_QUESTIONS]
    kept = sorted((-asked_QK.max(0)).argsort(kind="stable")[:MOST_PIECES].tolist())
    rows, columns = asked_QK.shape[0], len(kept)
    cells = [
        {"question": f"{row + 1}: {short(heat_map.questions[row])}", "share": float(asked_QK[row, at]),
         "piece": f"{at + 1}: {short(heat_map.pieces[at])}"}
        for row in range(rows) for at in kept
    ]  # fmt: skip
    lines = heat_map.title.splitlines()
    if columns < len(heat_map.pieces):
        lines.append(f"{columns:,} of {len(heat_map.pieces):,} pieces: those with the largest shares")
    if rows < len(heat_map.questions):
        lines.append(f"the first {rows:,} of {len(heat_map.questions):,} questions")
    axis = alt.Axis(title=None, labelLimit=400, labelOverlap=True)
    map_of_cells = alt.Chart({"values": cells}).encode(
        x=alt.X("piece:N", sort=None, axis=axis), y=alt.Y("question:N", sort=None, axis=axis)
    )
    shades = alt.Color("share:Q", title=None, scale=alt.Scale(scheme="blues"), legend=alt.Legend(format=".1%"))
    layers = [map_of_cells.mark_rect().encode(color=shades)]
    if columns <= NUMBERED:
        most = float(asked_QK.max())
        ink = alt.condition(f"datum.share > {most / 2}", alt.value("white"), alt.value("black"))
        layers.append(map_of_cells.mark_text().encode(text=alt.Text("share:Q", format=".0%"), color=ink))
    size = {"width": min(WIDEST * columns, ACROSS), "height": min(HIGHEST * rows, DOWN)}
    typed: dict[str, Any] = alt.layer(*layers).properties(title=lines, **size).to_dict(validate=False)
    return typed


def draw(heat_map: HeatMap, path: Path) -> None:
    """Write the picture."""
    check(path)
    write_chart(spec_of(heat_map), path)


def short(text: str) -> str:
    """One line, cut where it is long."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= LETTERS else f"{line[: LETTERS - 1]}…"
