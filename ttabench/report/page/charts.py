"""Quality against cost, a chart a block: bytes of state, and milliseconds of a query."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt

from ttabench.core.amounts import number, size
from ttabench.report.compare import Block
from ttabench.report.curves import drawn_from, units_of
from ttabench.report.entries import Entry
from ttabench.report.page.drawing import Chart, Look, base, better, finished, marks, quality, row, told
from ttabench.report.pareto import front, timed
from ttabench.report.plot_style import MOST_TICKS, TICK

NAMED = 8
"""Points of a chart that have their label beside them; of more it is shown where one points at them."""
ROOM_UP, ROOM_ACROSS = 16, 2
"""Shares of the chart within which two labels would stand on each other."""


def by_bytes(block: Block, look: Look) -> Chart | None:
    """Quality against the bytes kept between queries; 0 has its place at the left. None of fewer than two entries."""
    entries = [entry for entry in block.entries if entry.costs.get("state_bytes") is not None]
    if len(entries) < 2:
        return None
    sizes = [entry.costs["state_bytes"] or 0.0 for entry in entries]
    ticks, least = _powers(sizes)
    names = json.dumps({str(tick): size(tick).replace(".0 ", " ") if tick else "0" for tick in ticks})
    x = alt.X("cost:Q", title="bytes kept between queries",
              scale=alt.Scale(type="symlog", constant=least / 2, domain=[ticks[0], ticks[-1]]),
              axis=alt.Axis(values=ticks, labelExpr=f"{names}[datum.value]"))  # fmt: skip
    return _scattered(block, list(zip(entries, sizes, strict=True)), x, look, "bytes of state")


def by_time(block: Block, look: Look) -> Chart | None:
    """Quality against milliseconds of a query. None of fewer than two entries."""
    measured = [(entry, cost) for entry in block.entries if (cost := entry.costs.get("ask_ms") or 0.0) > 0]
    if len(measured) < 2:
        return None
    x = alt.X("cost:Q", title="milliseconds of a query", scale=alt.Scale(type="log", nice=False, padding=12),
              axis=alt.Axis(tickCount=5, format=",.3~r", labelBound=True))  # fmt: skip
    calm = timed(block.entries)
    caution = "" if calm else "Not all were measured on one calm machine: compare milliseconds with care."
    return _scattered(block, measured, x, look, "milliseconds of a query", caution)


def _scattered(
    block: Block, costs: Sequence[tuple[Entry, float]], x: alt.X, look: Look, against: str, caution: str = ""
) -> Chart:
    """A point an entry, hollow where it is not the method as it is; those on the front have a ring."""
    members, metric = front(block.entries), block.place.metric
    rows = [
        cells for entry, cost in costs
        if (cells := row(
            entry, entry.value, entry.stderr, cost=cost, state=size(entry.costs.get("state_bytes")),
            ms=number(entry.costs.get("ask_ms"), 1), front=any(entry is member for member in members),
        )) is not None
    ]  # fmt: skip
    methods, axis = [entry.method for entry, _ in costs], quality(metric, rows)
    drawn, shape, y = base(rows, methods, look).encode(x=x), marks(methods, look), alt.Y("value:Q")
    tooltip = [told("label"), told("told", metric), told("state"), told("ms", "ask ms")]
    layers = [drawn.mark_rule().encode(y=axis, y2="high:Q")]
    own, caption = [cells for cells in rows if cells["own"]], [f"{better(metric)} and further to the left is better."]
    if len({cells["method"] for cells in own}) < len(own):
        layers.append(drawn.transform_filter("datum.own").mark_line(strokeWidth=1).encode(y=y))
    if own:
        points = drawn.transform_filter("datum.own").mark_point(filled=True, size=80, opacity=1)
        layers.append(points.encode(y=y, shape=shape, tooltip=tooltip))
    if len(own) < len(rows):
        points = drawn.transform_filter("!datum.own").mark_point(filled=False, size=60)
        layers.append(points.encode(y=y, shape=shape, tooltip=tooltip))
    if any(cells["front"] for cells in rows):
        rings = drawn.transform_filter("datum.front").mark_point(shape="circle", size=260, filled=False)
        layers.append(rings.encode(y=y, tooltip=tooltip))
        axes = "value, state and ask ms" if timed(block.entries) else "value and state"
        caption.append(
            f"A ring: on the Pareto front: of lines under their own state, no other is at least as good in {axes}, "
            "and better in one."
        )
    if len(rows) <= NAMED:
        layers += _labels(drawn, rows, y)
    entries = [entry for entry, _ in costs]
    bars = drawn_from(block.place.model, sorted({entry.n for entry in entries}), list(units_of([block])))
    description = " ".join(filter(None, [*caption, bars, caution]))
    return finished(alt.layer(*layers), methods, block.place.name, f"{metric} against {against}", description)


def _labels(drawn: alt.Chart, rows: Sequence[Mapping[str, Any]], y: alt.Y) -> Iterator[alt.Chart]:
    """Labels beside points, towards the middle of the chart; none of two that would stand on each other."""
    logs = {id(row): math.log1p(row["cost"]) for row in rows}
    across = max(logs.values()) - min(logs.values()) or 1.0
    high = max(row["high"] for row in rows) - min(entry["low"] for entry in rows) or 1.0
    kept: list[Mapping[str, Any]] = []
    for entry in sorted(rows, key=lambda entry: not entry["own"]):
        near = (
            other for other in kept
            if abs(other["value"] - entry["value"]) < high / ROOM_UP
            and abs(logs[id(other)] - logs[id(entry)]) < across / ROOM_ACROSS
        )  # fmt: skip
        if next(near, None) is None:
            kept.append(entry)
    middle = (max(logs.values()) + min(logs.values())) / 2
    for left in (True, False):
        named = [entry["label"] for entry in kept if (logs[id(entry)] <= middle) == left]
        if named:
            beside = drawn.transform_filter(alt.FieldOneOfPredicate(field="label", oneOf=named))
            marked = beside.mark_text(dy=-7, align="left" if left else "right", dx=9 if left else -9)
            yield marked.encode(y=y, text="label:N")


def _powers(sizes: Sequence[float]) -> tuple[list[int], float]:
    """(0 where it is among them and powers of two around the others, the least that is no 0), for an axis of bytes."""
    positive = [value for value in sizes if value > 0] or [1024.0]
    low, high = math.floor(math.log2(min(positive))), math.ceil(math.log2(max(positive)))
    step = max(TICK, math.ceil((high - low) / MOST_TICKS))
    ticks = [2**power for power in range(low, high + step, step)]
    return ([0] if 0.0 in sizes else []) + ticks, min(positive)
