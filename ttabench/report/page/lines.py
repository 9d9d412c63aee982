"""Charts of curves, see `report.curves`: a line a method and setting, with its bars."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import altair as alt

from ttabench.core.printable import printable
from ttabench.core.sizes import short
from ttabench.report.curves import Curves, drawn_from
from ttabench.report.page.drawing import Chart, Look, base, better, finished, marks, quality, row, told

DASHES = {"own": [1, 0], "not": [4, 3], "level": [1, 3]}
"""Of a method as it is; of another text's state or none, or set aside; of floor and ceiling from end to end."""


def lines_of(curves: Curves, look: Look, *, named: bool = False) -> Chart:
    """The chart of these curves.

    Args:
        curves: its lines.
        look: colours and marks of methods.
        named: whether its title says what it is about.
    """
    rows, places = list(_rows(curves)), curves.places
    wide = places[0] > 0 and places[-1] >= 8 * places[0]
    names = json.dumps({_number(place): short(int(place)) if curves.tokens else _number(place) for place in places})
    x = alt.X("step:Q", title=curves.axis,
              scale=alt.Scale(type="log", base=2, nice=False) if wide else alt.Scale(zero=False, nice=False),
              axis=alt.Axis(values=places, labelExpr=f"{names}[datum.value]", labelOverlap=True))  # fmt: skip
    dash = alt.StrokeDash("dash:N", scale=alt.Scale(domain=list(DASHES), range=list(DASHES.values())), legend=None)
    methods = [line.method for line in curves.lines]
    drawn, y, shape = base(rows, methods, look).encode(x=x, detail="label:N"), alt.Y("value:Q"), marks(methods, look)
    tooltip = [told("label"), told("step", curves.axis), told("told", curves.metric), told("n")]
    layers = [
        drawn.mark_rule().encode(y=quality(curves.metric), y2="high:Q"),
        drawn.mark_line(strokeWidth=1.5).encode(y=y, strokeDash=dash),
    ]
    for own in sorted({cells["own"] for cells in rows}):
        points = drawn.transform_filter("datum.own" if own else "!datum.own")
        layers.append(points.mark_point(filled=own, size=60, opacity=1).encode(y=y, shape=shape, tooltip=tooltip))
    title = f"{curves.about}: {curves.title}" if named else curves.title
    return finished(alt.layer(*layers), methods, curves.about, title, _caption(curves, rows))


def _rows(curves: Curves) -> Iterator[dict[str, Any]]:
    for line in curves.lines:
        for point in line.points:
            cells = row(point.entry, point.value, point.stderr, step=point.at, n=f"{point.n:,}")
            if cells is not None:
                dash = "level" if line.level else "own" if cells["own"] else "not"
                yield {**cells, "label": printable(line.label), "dash": dash}


def _caption(curves: Curves, rows: list[dict[str, Any]]) -> str:
    sentences = [f"{better(curves.metric)} is better. A line a method and setting."]
    if any(row["dash"] == "not" for row in rows):
        sentences.append("Broken and hollow: another text's state or none, or set aside.")
    if any(line.level for line in curves.lines):
        sentences.append(f"Dotted: lines without {curves.axis}.")
    return " ".join([*sentences, drawn_from(curves.model, curves.counts, curves.units)])


def _number(step: float) -> str:
    """As a browser writes it."""
    return str(int(step)) if step == int(step) else str(step)
