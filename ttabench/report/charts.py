"""Charts of a comparison, for the page and for pictures: quality against cost, and along a number."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from ttabench.core.amounts import number, size
from ttabench.core.printable import printable
from ttabench.core.sizes import short
from ttabench.report.compare import Block
from ttabench.report.curves import Curves, drawn_from, units_of
from ttabench.report.entries import Entry, front, timed
from ttabench.report.figures import scale, shown
from ttabench.report.pictures import bytes_ticks
from ttabench.stats.metrics import known

LEGEND = alt.Legend(title=None, orient="bottom", symbolLimit=0, labelLimit=240)
"""As many columns as the page has room for, see `page.js`."""
HEIGHT = 280
"""In pixels; the width is that of the page."""
NARROWEST, LETTER = 96, 6
"""In pixels: a column of the legend, a letter there."""
FAR_APART = 50
"""From so many times the smallest figure on, the axis of perplexities is logarithmic."""
DASHES = {"own": [1, 0], "not": [4, 3]}
"""Of a method as it is; of another text's state or none, or set aside."""
Look = Mapping[str, tuple[str, str]]
"""Colour and shape by method, see `styles`."""
Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart, and what is said of it."""

    about: str
    """The block, or what several have in common."""
    title: str
    caption: str
    layers: Any
    """An `altair.LayerChart`."""
    column: int
    """Width of a column of its legend, that of the longest method, in pixels."""

    @property
    def spec(self) -> dict[str, Any]:
        """Vega-Lite, as wide as its place, with a description for those who do not see it."""
        described = printable(f"{self.about}: {self.title}")
        whole = self.layers.properties(width="container", height=HEIGHT, description=described,
                                       usermeta={"column": self.column})  # fmt: skip
        typed: dict[str, Any] = whole.to_dict(validate=False)
        return typed


def by_bytes(block: Block, look: Look) -> Chart | None:
    """Quality against the bytes kept between queries; 0 has its place at the left. None of fewer than two entries."""
    costs = [(entry, cost) for entry in block.entries if (cost := entry.costs.get("state_bytes")) is not None]
    if len(costs) < 2:
        return None
    names, least = bytes_ticks([cost for _, cost in costs])
    ticks = list(names)
    x = alt.X("cost:Q", title="bytes kept between queries",
              scale=alt.Scale(type="symlog", constant=least / 2, domain=[ticks[0], ticks[-1]]),
              axis=alt.Axis(values=ticks, labelExpr=f"{json.dumps(names)}[datum.value]"))  # fmt: skip
    return _scattered(block, costs, x, look, "bytes of state")


def by_time(block: Block, look: Look) -> Chart | None:
    """Quality against milliseconds of a query. None of fewer than two entries."""
    costs = [(entry, cost) for entry in block.entries if (cost := entry.costs.get("ask_ms") or 0.0) > 0]
    if len(costs) < 2:
        return None
    x = alt.X("cost:Q", title="milliseconds of a query", scale=alt.Scale(type="log", nice=False, padding=12),
              axis=alt.Axis(tickCount=5, format=",.3~r", labelBound=True))  # fmt: skip
    caution = "" if timed(block.entries) else " Not all were measured on one calm machine: compare them with care."
    return _scattered(block, costs, x, look, "milliseconds of a query", caution)


def lines_of(curves: Curves, look: Look, *, named: bool = False) -> Chart:
    """The chart of curves, a line a method and setting; `named`: its title says what it is about."""
    rows = [
        {**cells, "label": printable(line.label), "dash": "own" if cells["own"] else "not"}
        for line in curves.lines for point in line.points
        for cells in row(point.entry, curves.metric, point.value, point.stderr, step=point.at, n=f"{point.n:,}")
    ]  # fmt: skip
    places = curves.places
    names = json.dumps({f"{at:.15g}": short(int(at)) if curves.tokens else f"{at:.15g}" for at in places})
    wide = places[0] > 0 and places[-1] >= 8 * places[0]
    x = alt.X("step:Q", title=curves.axis,
              scale=alt.Scale(type="log", base=2, nice=False) if wide else alt.Scale(zero=False, nice=False),
              axis=alt.Axis(values=places, labelExpr=f"{names}[datum.value]", labelOverlap=True))  # fmt: skip
    dash = alt.StrokeDash("dash:N", scale=alt.Scale(domain=list(DASHES), range=list(DASHES.values())), legend=None)
    methods = [line.method for line in curves.lines]
    drawn, y = base(rows, methods, look).encode(x=x, detail="label:N"), alt.Y("value:Q")
    layers = [
        drawn.mark_rule().encode(y=quality(curves.metric), y2="high:Q"),
        drawn.mark_line(strokeWidth=1.5).encode(y=y, strokeDash=dash),
        *_points(drawn, rows, methods, look, told(label="", step=curves.axis, told=curves.metric, n="")),
    ]
    sentences = [f"{_better(curves.metric)} is better. A line a method and setting."]
    if any(cells["dash"] == "not" for cells in rows):
        sentences.append("Broken and hollow: another text's state or none, or set aside.")
    caption = " ".join([*sentences, drawn_from(curves.model, curves.counts, curves.units)])
    title = f"{curves.metric} by {curves.axis}"
    return finished(layers, methods, curves.about, f"{curves.about}: {title}" if named else title, caption)


def _scattered(
    block: Block, costs: Sequence[tuple[Entry, float]], x: alt.X, look: Look, against: str, caution: str = ""
) -> Chart:
    """A point an entry, hollow where it is not the method as it is; those on the front have a ring."""
    members, metric = front(block.entries), block.place.metric
    rows = [
        cells for entry, cost in costs
        for cells in row(entry, metric, entry.value, entry.stderr, cost=cost, front=entry in members,
                         state=size(entry.costs.get("state_bytes")), ms=number(entry.costs.get("ask_ms"), 1))
    ]  # fmt: skip
    methods = [entry.method for entry, _ in costs]
    axis = quality(metric, rows)
    drawn, y = base(rows, methods, look).encode(x=x), alt.Y("value:Q")
    tooltip = told(label="", told=metric, state="", ms="ask ms")
    layers = [drawn.mark_rule().encode(y=axis, y2="high:Q")]
    own, caption = [cells for cells in rows if cells["own"]], f"{_better(metric)} and further to the left is better."
    if len({cells["method"] for cells in own}) < len(own):
        layers.append(drawn.transform_filter("datum.own").mark_line(strokeWidth=1).encode(y=y))
    layers += _points(drawn, rows, methods, look, tooltip)
    if any(cells["front"] for cells in rows):
        rings = drawn.transform_filter("datum.front").mark_point(shape="circle", size=260, filled=False)
        layers.append(rings.encode(y=y, tooltip=tooltip))
        axes = "value, state and ask ms" if timed(block.entries) else "value and state"
        caption += (f" A ring: on the Pareto front: of lines under their own state, no other is at least as good in "
                    f"{axes}, and better in one.")  # fmt: skip
    bars = drawn_from(block.place.model, sorted({entry.n for entry, _ in costs}), units_of([block]))
    return finished(layers, methods, block.place.name, f"{metric} against {against}", f"{caption} {bars}{caution}")


def _points(drawn: alt.Chart, rows: Rows, methods: Sequence[str], look: Look, tooltip: Any) -> Iterator[alt.Chart]:
    """Marks, filled of a method as it is, else hollow."""
    for own in sorted({cells["own"] for cells in rows}, reverse=True):
        kept = drawn.transform_filter("datum.own" if own else "!datum.own")
        points = kept.mark_point(filled=own, size=80 if own else 60, opacity=1)
        yield points.encode(y=alt.Y("value:Q"), shape=marks(methods, look), tooltip=tooltip)


def row(entry: Entry, metric: str, value: float, stderr: float | None, **more: Any) -> Iterator[dict[str, Any]]:
    """A figure of an entry as charts have it; none of one that is no finite number."""
    times, error = scale(metric), stderr if stderr is not None and math.isfinite(stderr) else 0.0
    if math.isfinite(value):
        yield {
            "label": printable(entry.marked), "method": printable(entry.method), "value": value * times,
            "low": (value - error) * times, "high": (value + error) * times, "told": shown(metric, value, stderr),
            "own": entry.state_of == "own" and not entry.aside, **more,
        }  # fmt: skip


def base(rows: Sequence[Mapping[str, Any]], methods: Sequence[str], look: Look) -> alt.Chart:
    """A chart of these rows with the colours of methods."""
    names = list(dict.fromkeys(methods))
    colours = alt.Scale(domain=[printable(name) for name in names], range=[look[name][0] for name in names])
    return alt.Chart({"values": list(rows)}).encode(color=alt.Color("method:N", scale=colours, legend=LEGEND))


def marks(methods: Sequence[str], look: Look) -> alt.Shape:
    """The marks of methods, in one legend with their colours."""
    names = list(dict.fromkeys(methods))
    shapes = [look[name][1] for name in names]
    return alt.Shape("method:N", scale=alt.Scale(domain=[printable(name) for name in names], range=shapes),
                     legend=LEGEND)  # fmt: skip


def quality(metric: str, rows: Rows = ()) -> alt.Y:
    """The axis of a metric, from the lower ends of the bars; a logarithmic one of rows that are far apart, of which
    bars that would end at zero or below end within it instead."""
    title = f"{metric}, per cent" if scale(metric) == 100 else metric
    values = [cells["value"] for cells in rows]
    if not values or scale(metric) == 100 or min(values) <= 0 or max(values) < FAR_APART * min(values):
        return alt.Y("low:Q", title=title, scale=alt.Scale(zero=False, nice=True))
    for cells in rows:
        cells["low"] = max(cells["low"], min(values) / 2)
    return alt.Y("low:Q", title=f"{title} (logarithmic)", scale=alt.Scale(type="log", nice=True))


def _better(metric: str) -> str:
    """Where on the axis of a metric the better figures are."""
    return "Higher" if known(metric).higher_is_better else "Lower"


def told(**fields: str) -> list[alt.Tooltip]:
    """What is shown where one points at a mark: fields with their titles."""
    return [alt.Tooltip(field=field, type="nominal", title=title or field) for field, title in fields.items()]


def finished(layers: Sequence[Any], methods: Sequence[str], about: str, title: str, caption: str) -> Chart:
    """A chart of these layers."""
    column = max(NARROWEST, 34 + LETTER * max(map(len, methods)))
    return Chart(about=about, title=title, caption=caption, layers=alt.layer(*layers), column=column)
