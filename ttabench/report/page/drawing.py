"""What charts of the page share: colours and marks of methods, the axis of quality, bars of one standard error.

The colour of a method is that of `plot_style`, and so is its mark as far as Vega has it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from ttabench.core.printable import printable
from ttabench.report.entries import Entry, higher_is_better
from ttabench.report.figures import scale, shown

SHAPES = {
    "o": "circle", "s": "square", "D": "diamond", "^": "triangle-up", "v": "triangle-down", "P": "cross",
    "X": "M-1,-.6L-.6,-1L0,-.4L.6,-1L1,-.6L.4,0L1,.6L.6,1L0,.4L-.6,1L-1,.6L-.4,0Z",
    "x": "M-1,-.8L-.8,-1L0,-.2L.8,-1L1,-.8L.2,0L1,.8L.8,1L0,.2L-.8,1L-1,.8L-.2,0Z",
    "*": "M0,-1.1L.26,-.36L1.05,-.34L.42,.14L.65,.9L0,.44L-.65,.9L-.42,.14L-1.05,-.34L-.26,-.36Z",
    ">": "triangle-right", "<": "triangle-left",
}  # fmt: skip
"""Marks of matplotlib as Vega has them."""
LEGEND = alt.Legend(title=None, orient="bottom", symbolLimit=0, labelLimit=240)
"""As many columns as the page has room for, see `page.js`."""
HEIGHT = 280
"""In pixels; the width is that of the page."""
Look = Mapping[str, Mapping[str, Any]]
"""Colour and marker by method, see `plot_style.styles`."""
Rows = Sequence[Mapping[str, Any]]


NARROWEST, LETTER = 96, 6
"""In pixels: a column of the legend, a letter there."""
FAR_APART = 50
"""From so many times the smallest figure on, the axis of perplexities is logarithmic."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart, and what is said of it."""

    title: str
    caption: str
    spec: dict[str, Any]
    """Vega-Lite."""


def row(entry: Entry, value: float, stderr: float | None, **more: Any) -> dict[str, Any] | None:
    """A figure of an entry as charts have it; None of one that is no finite number."""
    times, error = scale(entry.metric), stderr if stderr is not None and math.isfinite(stderr) else 0.0
    if not math.isfinite(value):
        return None
    return {
        "label": printable(entry.marked), "method": printable(entry.method), "value": value * times,
        "low": (value - error) * times, "high": (value + error) * times, "told": shown(entry.metric, value, stderr),
        "own": entry.state_of == "own" and not entry.aside, **more,
    }  # fmt: skip


def base(rows: Rows, methods: Sequence[str], look: Look) -> alt.Chart:
    """A chart of these rows with the colours of methods."""
    names = list(dict.fromkeys(methods))
    colours = alt.Scale(domain=[printable(name) for name in names], range=[look[name]["color"] for name in names])
    return alt.Chart({"values": list(rows)}).encode(color=alt.Color("method:N", scale=colours, legend=LEGEND))


def marks(methods: Sequence[str], look: Look) -> alt.Shape:
    """The marks of methods, in one legend with their colours."""
    names = list(dict.fromkeys(methods))
    shapes = [SHAPES[look[name]["marker"]] for name in names]
    return alt.Shape("method:N", scale=alt.Scale(domain=[printable(name) for name in names], range=shapes),
                     legend=LEGEND)  # fmt: skip


def quality(metric: str, rows: Sequence[dict[str, Any]] = ()) -> alt.Y:
    """The axis of a metric, from the lower ends of the bars; a logarithmic one of rows that are far apart.

    Args:
        metric: its name.
        rows: what is drawn. Where the axis is logarithmic, bars that would end at zero or below end within it instead.
    """
    title = f"{metric}, per cent" if scale(metric) == 100 else metric
    values = [cells["value"] for cells in rows]
    if not values or scale(metric) == 100 or min(values) <= 0 or max(values) < FAR_APART * min(values):
        return alt.Y("low:Q", title=title, scale=alt.Scale(zero=False, nice=True))
    for cells in rows:
        cells["low"] = max(cells["low"], min(values) / 2)
    return alt.Y("low:Q", title=f"{title} (logarithmic)", scale=alt.Scale(type="log", nice=True))


def better(metric: str) -> str:
    """Where on the axis of a metric the better figures are: "Higher" or "Lower"."""
    return "Higher" if higher_is_better(metric) else "Lower"


def told(field: str, title: str = "") -> alt.Tooltip:
    """A line of what is shown where one points at a mark."""
    return alt.Tooltip(field=field, type="nominal", title=title or field)


def finished(drawn: Any, methods: Sequence[str], about: str, title: str, caption: str) -> Chart:
    """A chart of these layers, as wide as its place, with a description for those who do not see it.

    Args:
        drawn: layers.
        methods: those of its legend, whose columns are as wide as the longest of them.
        about: what it is of.
        title: what it shows.
        caption: what is said of it.
    """
    column = {"column": max(NARROWEST, 34 + LETTER * max(map(len, methods)))}
    described = printable(f"{about}: {title}")
    whole = drawn.properties(width="container", height=HEIGHT, description=described, usermeta=column)
    return Chart(title=title, caption=caption, spec=whole.to_dict(validate=False))
