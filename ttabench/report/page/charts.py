"""Charts of a block as Vega-Lite: quality against bytes of state, against milliseconds of a query, and by step.

The colour of a method is that of `plot_style`, and so is its mark as far as Vega has it. Bars are one standard error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from ttabench.core.printable import printable
from ttabench.core.render import number, size
from ttabench.core.sizes import short
from ttabench.report.compare import Block
from ttabench.report.entries import Entry
from ttabench.report.figures import scale, shown
from ttabench.report.pareto import front, timed
from ttabench.report.plot_style import MOST_TICKS, TICK
from ttabench.report.plots import curves

SHAPES = {
    "o": "circle", "s": "square", "D": "diamond", "^": "triangle-up", "v": "triangle-down", "P": "cross",
    "X": "M-1,-.6L-.6,-1L0,-.4L.6,-1L1,-.6L.4,0L1,.6L.6,1L0,.4L-.6,1L-1,.6L-.4,0Z",
    "x": "M-1,-.8L-.8,-1L0,-.2L.8,-1L1,-.8L.2,0L1,.8L.8,1L0,.2L-.8,1L-1,.8L-.2,0Z",
    "*": "M0,-1.1L.26,-.36L1.05,-.34L.42,.14L.65,.9L0,.44L-.65,.9L-.42,.14L-1.05,-.34L-.26,-.36Z",
    ">": "triangle-right", "<": "triangle-left",
}  # fmt: skip
"""Marks of matplotlib as Vega has them."""
NAMED = 8
"""Points of a chart that have their label beside them; of more it is shown where one points at them."""
HEIGHT = 280
"""In pixels; the width is that of the page."""
LEGEND = alt.Legend(title=None, orient="bottom", columns=4, symbolLimit=0, labelLimit=240)
Look = Mapping[str, Mapping[str, Any]]
"""Colour and marker by method, see `plot_style.styles`."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart, and what is said of it."""

    title: str
    caption: str
    spec: dict[str, Any]
    """Vega-Lite."""


def charts_of(block: Block, look: Look) -> list[Chart]:
    """Those that its entries have figures for: costs beside each other are of two entries at least."""
    drawn = [by_bytes(block, look), by_time(block, look), by_step(block, look)]
    return [chart for chart in drawn if chart is not None]


def by_bytes(block: Block, look: Look) -> Chart | None:
    """Quality against the bytes kept between queries; 0 has its place at the left."""
    entries = [entry for entry in block.entries if entry.costs.get("state_bytes") is not None]
    if len(entries) < 2:
        return None
    sizes = [entry.costs["state_bytes"] or 0.0 for entry in entries]
    ticks, least = _powers(sizes)
    names = json.dumps({str(tick): size(tick).replace(".0 ", " ") if tick else "0" for tick in ticks})
    x = alt.X("cost:Q", title="bytes kept between queries",
              scale=alt.Scale(type="symlog", constant=least / 2, domain=[0 if 0 in ticks else ticks[0], ticks[-1]]),
              axis=alt.Axis(values=ticks, labelExpr=f"{names}[datum.value]"))  # fmt: skip
    caption = "Up and to the left is better."
    return _scattered(block, entries, sizes, x, look, caption, "bytes of state")


def by_time(block: Block, look: Look) -> Chart | None:
    """Quality against milliseconds of a query."""
    entries = [entry for entry in block.entries if (entry.costs.get("ask_ms") or 0.0) > 0]
    if len(entries) < 2:
        return None
    times = [entry.costs["ask_ms"] or 0.0 for entry in entries]
    x = alt.X("cost:Q", title="milliseconds of a query", scale=alt.Scale(type="log", nice=False, padding=12),
              axis=alt.Axis(tickCount=5, format=".3~g"))  # fmt: skip
    caption = "Up and to the left is better."
    if not timed(block.entries):
        caption += " Not all were measured on one calm machine: compare milliseconds with care."
    return _scattered(block, entries, times, x, look, caption, "milliseconds of a query")


def by_step(block: Block, look: Look) -> Chart | None:
    """Quality by what had been read before the query, a line an entry."""
    lines = curves(block.entries)
    if not lines:
        return None
    lengths = any(line.entry.lengths for line in lines)
    steps = sorted({step for line in lines for step in line.steps})
    rows = [
        {"label": printable(line.label), "method": printable(line.entry.method), "step": step, "value": value,
         "low": value - error, "high": value + error,
         "told": shown(line.entry.metric, *line.entry.steps[step][:2])}
        for line in lines
        for step, value, error in zip(line.steps, line.values, line.errors, strict=True)
    ]  # fmt: skip
    title = "tokens of each text, at most" if lengths else "pieces read before the query"
    names = json.dumps({str(step): short(step) for step in steps})
    x = alt.X("step:Q", title=title,
              scale=alt.Scale(type="log", base=2, nice=False) if lengths and steps[0] > 0 else alt.Scale(zero=False),
              axis=alt.Axis(values=steps, labelExpr=f"{names}[datum.value]", labelOverlap=True))  # fmt: skip
    methods = [line.entry.method for line in lines]
    base, y = _base(rows, methods, look).encode(x=x, detail="label:N"), _y(block)
    layers = alt.layer(
        base.mark_rule().encode(y=y, y2="high:Q"),
        base.mark_line().encode(y=alt.Y("value:Q")),
        base.mark_point(filled=True, size=60, opacity=1).encode(
            y=alt.Y("value:Q"),
            shape=_marks(methods, look),
            tooltip=[_told("label"), _told("step", title), _told("told", block.place.metric)],
        ),
    )
    return _chart(
        block, layers, "by what was read before the query", "A line a method and setting; bars are one standard error."
    )


def _scattered(
    block: Block, entries: Sequence[Entry], costs: Sequence[float], x: alt.X, look: Look, caption: str, against: str
) -> Chart:
    """A point an entry, hollow where it is not the method as it is; those on the front have a ring."""
    members, times = front(block.entries), scale(block.place.metric)
    rows = []
    for entry, cost in zip(entries, costs, strict=True):
        value, error = entry.value * times, (entry.stderr or 0.0) * times
        rows.append({
            "label": printable(entry.marked), "method": printable(entry.method), "cost": cost, "value": value,
            "low": value - error, "high": value + error, "told": shown(entry.metric, entry.value, entry.stderr),
            "state": size(entry.costs.get("state_bytes")), "ms": number(entry.costs.get("ask_ms"), 1),
            "own": entry.state_of == "own" and not entry.aside,
            "front": any(entry is member for member in members) and len(entries) > 1,
        })  # fmt: skip
    methods = [entry.method for entry in entries]
    base, marks = _base(rows, methods, look).encode(x=x), _marks(methods, look)
    y = alt.Y("value:Q")
    told = [_told("label"), _told("told", block.place.metric), _told("state"), _told("ms", "ask ms")]
    layers = [base.mark_rule().encode(y=_y(block), y2="high:Q")]
    own = [row for row in rows if row["own"]]
    if len({row["method"] for row in own}) < len(own):
        layers.append(base.transform_filter("datum.own").mark_line(strokeWidth=1).encode(y=y))
    if own:
        points = base.transform_filter("datum.own").mark_point(filled=True, size=80, opacity=1)
        layers.append(points.encode(y=y, shape=marks, tooltip=told))
    if len(own) < len(rows):
        points = base.transform_filter("!datum.own").mark_point(filled=False, size=60)
        layers.append(points.encode(y=y, shape=marks, tooltip=told))
    if any(row["front"] for row in rows):
        rings = base.transform_filter("datum.front").mark_point(shape="circle", size=260, filled=False)
        layers.append(rings.encode(y=y, tooltip=told))
        axes = "state and ask ms" if timed(block.entries) else "state"
        caption += f" A ring: on the front, where no other line is as good in value and {axes}, and better in one."
    if len(entries) <= NAMED:
        layers.append(base.mark_text(align="left", dx=9, dy=-6).encode(y=y, text="label:N"))
    return _chart(block, alt.layer(*layers), f"against {against}", caption)


def _base(rows: Sequence[Mapping[str, Any]], methods: Sequence[str], look: Look) -> alt.Chart:
    """A chart of these rows with the colours of methods."""
    names = list(dict.fromkeys(methods))
    colours = alt.Scale(domain=[printable(name) for name in names], range=[look[name]["color"] for name in names])
    return alt.Chart({"values": list(rows)}).encode(color=alt.Color("method:N", scale=colours, legend=LEGEND))


def _marks(methods: Sequence[str], look: Look) -> alt.Shape:
    """The marks of methods, in one legend with their colours."""
    names = list(dict.fromkeys(methods))
    shapes = [SHAPES[look[name]["marker"]] for name in names]
    return alt.Shape("method:N", scale=alt.Scale(domain=[printable(name) for name in names], range=shapes),
                     legend=LEGEND)  # fmt: skip


def _y(block: Block) -> alt.Y:
    """The axis of quality, from the ends of the bars."""
    metric = block.place.metric
    title = f"{metric}, per cent" if scale(metric) == 100 else metric
    return alt.Y("low:Q", title=title, scale=alt.Scale(zero=False, nice=True))


def _told(field: str, title: str = "") -> alt.Tooltip:
    return alt.Tooltip(field=field, type="nominal", title=title or field)


def _chart(block: Block, drawn: Any, against: str, caption: str) -> Chart:
    title = f"{block.place.metric} {against}"
    whole = drawn.properties(width="container", height=HEIGHT, description=printable(f"{block.place.brief}: {title}"))
    return Chart(title=title, caption=caption, spec=whole.to_dict(validate=False))


def _powers(sizes: Sequence[float]) -> tuple[list[int], float]:
    """(0 where it is among them and powers of two around the others, the least that is no 0), for an axis of bytes."""
    positive = [value for value in sizes if value > 0] or [1024.0]
    low, high = math.floor(math.log2(min(positive))), math.ceil(math.log2(max(positive)))
    step = max(TICK, math.ceil((high - low) / MOST_TICKS))
    ticks = [2**power for power in range(low, high + step, step)]
    return ([0] if 0.0 in sizes else []) + ticks, min(positive)
