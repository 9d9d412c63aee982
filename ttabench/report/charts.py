"""Charts of a comparison for the page.

Each comparison group has charts of its metric by kept bytes, by milliseconds per query, and by
step (chunks read, text length or distance) if its runs have several steps. Every method has its
name at one of its points.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import altair as alt

from ttabench.core.amounts import format_bytes, format_number, format_tokens
from ttabench.core.errors import escape_control_characters
from ttabench.report.compare import ComparisonGroup
from ttabench.report.group_selection import UNIT_NAMES, has_single_unit
from ttabench.report.groups import FULL_CONTEXT, NO_CONTEXT
from ttabench.report.method_rows import (
    CHUNKS_READ,
    MethodRow,
    baseline_row,
    format_value,
    kept_bytes,
)
from ttabench.stats.metrics import metric_or_default

LEGEND = alt.Legend(title=None, orient="bottom", symbolLimit=0, labelLimit=240)
"""`page.js` sets the number of columns."""
HEIGHT_PIXELS = 280
"""The width is that of the page."""
WIDTH_PIXELS, FONT_PIXELS = 640, 11
"""Assumed width, to place names, and their font size."""
MAX_TICKS = 6
Styles = Mapping[str, tuple[str, str]]
"""Colour and shape by method, see `pictures.styles`."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Chart with its title and caption."""

    about: str
    """Name of the comparison group."""
    title: str
    caption: str
    layers: Any
    """`altair.LayerChart`."""

    @property
    def spec(self) -> dict[str, Any]:
        """Vega-Lite specification, as wide as its container and described for screen readers."""
        described = escape_control_characters(f"{self.about}: {self.title}")
        whole = self.layers.properties(
            width="container", height=HEIGHT_PIXELS, description=described
        )
        typed: dict[str, Any] = whole.to_dict(validate=False)
        return typed


class Point(NamedTuple):
    """Score of a method row at one position of the x axis."""

    at: float
    method_row: MethodRow
    value: float
    """Not scaled: 0.719 for 71.9 %."""
    stderr: float | None
    n: int


def by_bytes(group: ComparisonGroup, method_styles: Styles) -> Chart | None:
    """Draw the metric by kept bytes, with 0 at the left; None for fewer than two method rows."""
    whole = baseline_row(group.method_rows, FULL_CONTEXT)
    points = [
        Point(at, row, row.value, row.stderr, row.n)
        for row in group.method_rows
        if (at := kept_bytes(row, whole)) is not None
    ]
    if len(points) < 2:
        return None
    positive = [point.at for point in points if point.at > 0] or [1024.0]
    low, high = math.floor(math.log2(min(positive))), math.ceil(math.log2(max(positive)))
    step = max(2, math.ceil((high - low) / MAX_TICKS))
    powers = [2**power for power in range(low, high + step, step)]
    names = {0: "0"} if any(point.at == 0 for point in points) else {}
    names |= {size: format_bytes(size).replace(".0 ", " ") for size in powers}
    ticks = list(names)
    x = alt.X(
        "x:Q",
        title="bytes of the state, or of what a query reads if that is more",
        scale=alt.Scale(type="symlog", constant=min(positive) / 2, domain=[ticks[0], ticks[-1]]),
        axis=alt.Axis(values=ticks, labelExpr=f"{json.dumps(names)}[datum.value]"),
    )
    return _cost_chart(group, points, x, method_styles, "kept bytes")


def by_kept_share(group: ComparisonGroup, method_styles: Styles) -> Chart | None:
    """Draw the metric by the kept share of the full-context KV cache, as tables show it.

    Baselines are at 0 and 1. None for fewer than two method rows with a budget.
    """
    baselines = {NO_CONTEXT: 0.0, FULL_CONTEXT: 1.0}
    points = [
        Point(at, row, row.value, row.stderr, row.n)
        for row in group.method_rows
        if (at := baselines.get(row.baseline_method, row.costs.get("kept_share"))) is not None
    ]
    if sum(not point.method_row.baseline_method for point in points) < 2:
        return None
    x = alt.X("x:Q", title="kept share of the full-context cache", axis=alt.Axis(format="%"))
    return _cost_chart(group, points, x, method_styles, "kept share")


def by_time(group: ComparisonGroup, method_styles: Styles) -> Chart | None:
    """Draw the metric by milliseconds per query; None for fewer than two method rows."""
    points = [
        Point(at, row, row.value, row.stderr, row.n)
        for row in group.method_rows
        if (at := row.costs.get("ask_ms"))
    ]
    if len(points) < 2:
        return None
    x = alt.X(
        "x:Q",
        title="milliseconds per query",
        scale=alt.Scale(type="log", nice=False, padding=12),
        axis=alt.Axis(tickCount=5, format=",.3~r", labelBound=True),
    )
    return _cost_chart(group, points, x, method_styles, "milliseconds per query")


def _cost_chart(
    group: ComparisonGroup, points: Sequence[Point], x: alt.X, method_styles: Styles, cost: str
) -> Chart:
    """Draw a point per method row; lines join the rows of a method under its own state."""
    metric = group.group_key.metric
    has_lines = len({point.method_row.method for point in points}) < len(points)
    layers = _layers(points, x, method_styles, metric, "label score state ms", lines=has_lines)
    caption = f"{_better(metric)} and further left is better."
    return _chart(group, points, layers, f"{metric} against {cost}", caption)


def by_step(group: ComparisonGroup, method_styles: Styles) -> Chart | None:
    """Draw the metric by step, a line per method row; None if no row has two steps."""
    method_rows = [row for row in group.method_rows if len(row.steps) > 1]
    if not method_rows:
        return None
    points = [
        Point(at, row, *figure) for row in method_rows for at, figure in sorted(row.steps.items())
    ]
    axis, places = method_rows[0].step, sorted({point.at for point in points})
    names = {
        f"{at:.15g}": f"{at:.15g}" if axis == CHUNKS_READ else format_tokens(int(at))
        for at in places
    }
    is_wide = places[0] > 0 and places[-1] >= 8 * places[0]
    scale = {"type": "log", "base": 2} if is_wide else {"zero": False}
    x = alt.X(
        "x:Q",
        title=axis,
        scale=alt.Scale(**scale, nice=False),
        axis=alt.Axis(
            values=places, labelExpr=f"{json.dumps(names)}[datum.value]", labelOverlap=True
        ),
    )
    metric = group.group_key.metric
    caption = f"{_better(metric)} is better. One line per method row."
    layers = _layers(points, x, method_styles, metric, "label x score n", lines=True, by_label=True)
    return _chart(group, points, layers, f"{metric} by {axis}", caption)


def _layers(
    points: Sequence[Point],
    x: alt.X,
    method_styles: Styles,
    metric: str,
    tooltip_fields: str,
    *,
    lines: bool,
    by_label: bool = False,
) -> list[alt.Chart]:
    """Return layers of error bars, lines, marks and names.

    Lines join the points of a label with `by_label`, else those of a method under its own state.
    Marks of swapped or empty states and of excluded rows are hollow.
    """
    clean = escape_control_characters
    rows, times = list[dict[str, Any]](), metric_or_default(metric).scale
    for at, method_row, value, stderr, n in (one for one in points if math.isfinite(one.value)):
        error = stderr if stderr is not None and math.isfinite(stderr) else 0.0
        rows.append(
            {
                "label": clean(method_row.marked_label),
                "method": clean(method_row.method),
                "x": at,
                "value": value * times,
                "low": (value - error) * times,
                "high": (value + error) * times,
                "score": format_value(metric, value, stderr),
                "own": method_row.is_eligible,
                "state": format_bytes(method_row.costs.get("state_bytes")),
                "ms": format_number(method_row.costs.get("ask_ms"), 1),
                "n": f"{n:,}",
            }
        )
    looks = {point.method_row.method: method_styles[point.method_row.method] for point in points}
    colours, shapes = (
        alt.Scale(domain=list(map(clean, looks)), range=list(values))
        for values in zip(*looks.values(), strict=True)
    )
    shape = alt.Shape("method:N", legend=LEGEND, scale=shapes)
    title = f"{metric}, per cent" if times == 100 else metric
    axis = alt.Y("low:Q", title=title, scale=alt.Scale(zero=False, nice=True))
    base = alt.Chart({"values": rows}).encode(
        color=alt.Color("method:N", legend=LEGEND, scale=colours),
        x=x,
        **({"detail": "label:N"} if by_label else {}),
    )
    layers, y = [base.mark_rule().encode(y=axis, y2="high:Q")], alt.Y("value:Q")
    if lines:
        dash = alt.StrokeDash(
            "own:N", scale=alt.Scale(domain=[True, False], range=[[1, 0], [4, 3]]), legend=None
        )
        line_base = base if by_label else base.transform_filter("datum.own")
        layers.append(
            line_base.mark_line(strokeWidth=1.5 if by_label else 1).encode(y=y, strokeDash=dash)
        )
    tooltip = [
        alt.Tooltip(field=field, type="nominal", title=field) for field in tooltip_fields.split()
    ]
    for own in sorted({row["own"] for row in rows}, reverse=True):
        marks = base.transform_filter("datum.own" if own else "!datum.own")
        marks = marks.mark_point(filled=own, size=80 if own else 60, opacity=1)
        layers.append(marks.encode(y=y, shape=shape, tooltip=tooltip))
    axis_spec: Any = x.to_dict()
    _place_names(rows, axis_spec.get("scale", {}))
    names = base.transform_filter("isValid(datum.name)").mark_text(
        fontSize=FONT_PIXELS,
        align=alt.expr("datum.left ? 'right' : 'left'"),
        dx=alt.expr("datum.left ? -8 : 8"),
        dy=alt.expr("datum.dy"),
    )
    return [*layers, names.encode(y=y, text="name:N")]


def _place_names(rows: Sequence[dict[str, Any]], scale: Mapping[str, Any]) -> None:
    """Add the name of each method to its last point, moved down where names would overlap.

    Adds `name`, `left` (True if the name is left of the point) and `dy` in pixels to these rows.
    """
    transforms: Mapping[str, Callable[[float], float]] = {
        "log": math.log,
        "symlog": lambda at: math.log1p(at / scale["constant"]),
    }
    transform = transforms.get(scale.get("type", ""), float)
    places = [transform(row["x"]) for row in rows]
    if not rows:
        return
    low, high = min(row["low"] for row in rows), max(row["high"] for row in rows)
    width, height = max(places) - min(places) or 1.0, high - low or 1.0
    last: dict[str, tuple[bool, float, float, int]] = {}
    for number, row in enumerate(rows):
        mark = (row["own"], row["x"], row["value"], number)
        last[row["method"]] = max(last.get(row["method"], mark), mark)
    boxes = list[tuple[float, float, float]]()
    for row, place in sorted(
        ((rows[mark[-1]], places[mark[-1]]) for mark in last.values()),
        key=lambda one: -one[0]["value"],
    ):
        x = WIDTH_PIXELS * (place - min(places)) / width
        y = HEIGHT_PIXELS * (high - row["value"]) / height
        length = FONT_PIXELS * 0.6 * len(row["method"])
        is_left = x + length > WIDTH_PIXELS
        # lines come from the left, so a name there is above its line
        start, top = (x - length, y - FONT_PIXELS / 2) if is_left else (x, y)
        for left, right, other in boxes:  # from top to bottom
            if left < start + length and start < right and abs(other - top) < FONT_PIXELS:
                top = other + FONT_PIXELS
        boxes = sorted([*boxes, (start, start + length, top)], key=lambda box: box[2])
        row |= {"name": row["method"], "left": is_left, "dy": round(top - y, 1)}


def _better(metric: str) -> str:
    return "Higher" if metric_or_default(metric).higher_is_better else "Lower"


def _chart(
    group: ComparisonGroup,
    points: Sequence[Point],
    layers: Sequence[alt.Chart],
    title: str,
    caption: str,
) -> Chart:
    counts = [point.n for point in points]
    n = " to ".join(dict.fromkeys(f"{count:,}" for count in (min(counts), max(counts))))
    unit = UNIT_NAMES["query" if has_single_unit(group) else group.method_rows[0].record.unit]
    bars = f"Base {group.group_key.model}, n = {n}; bars: one standard error over {unit}."
    return Chart(
        about=group.group_key.name,
        title=title,
        caption=f"{caption} {bars}",
        layers=alt.layer(*layers),
    )


def make_charts(group: ComparisonGroup, method_styles: Styles) -> list[Chart]:
    """Return all charts of a comparison group."""
    return [
        chart
        for draw in (by_kept_share, by_bytes, by_time, by_step)
        if (chart := draw(group, method_styles)) is not None
    ]
