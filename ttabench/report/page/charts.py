"""Charts of the page: quality against cost, and along a number. What questions look at."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any

import altair as alt

from ttabench.core.amounts import number, size
from ttabench.core.printable import printable
from ttabench.core.sizes import short
from ttabench.records.sample_files import has_samples, read_samples
from ttabench.records.samples import Looked
from ttabench.report.compare import Block
from ttabench.report.curves import Curves, drawn_from, numbered, units_of
from ttabench.report.entries import Entry, front, higher_is_better, timed
from ttabench.report.figures import scale, shown
from ttabench.report.pictures import bytes_ticks

SHAPES = {
    "o": "circle", "s": "square", "D": "diamond", "^": "triangle-up", "v": "triangle-down", "P": "cross",
    "X": "M-1,-.6L-.6,-1L0,-.4L.6,-1L1,-.6L.4,0L1,.6L.6,1L0,.4L-.6,1L-1,.6L-.4,0Z",
    "x": "M-1,-.8L-.8,-1L0,-.2L.8,-1L1,-.8L.2,0L1,.8L.8,1L0,.2L-.8,1L-1,.8L-.2,0Z",
    "*": "M0,-1.1L.26,-.36L1.05,-.34L.42,.14L.65,.9L0,.44L-.65,.9L-.42,.14L-1.05,-.34L-.26,-.36Z",
    ">": "triangle-right", "<": "triangle-left",
}  # fmt: skip
LEGEND = alt.Legend(title=None, orient="bottom", symbolLimit=0, labelLimit=240)
"""As many columns as the page has room for, see `page.js`."""
HEIGHT = 280
"""In pixels; the width is that of the page."""
NARROWEST, LETTER = 96, 6
"""In pixels: a column of the legend, a letter there."""
FAR_APART = 50
"""From so many times the smallest figure on, the axis of perplexities is logarithmic."""
NAMED = 8
"""Points of a chart that have their label beside them; of more it is shown where one points at them."""
DASHES = {"own": [1, 0], "not": [4, 3], "level": [1, 3]}
"""Of a method as it is; of another text's state or none, or set aside; of floor and ceiling from end to end."""
Look = Mapping[str, Mapping[str, Any]]
"""Colour and marker by method, see `styles`."""
Rows = Sequence[dict[str, Any]]
COLUMNS = tuple(column.name for column in fields(Looked))
MOST = 64
"""Up to which place pieces are counted as found."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart, and what is said of it."""

    title: str
    caption: str
    spec: dict[str, Any]
    """Vega-Lite."""


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
        {**cells, "label": printable(line.label),
         "dash": "level" if line.level else "own" if cells["own"] else "not"}
        for line in curves.lines for point in line.points
        for cells in row(point.entry, point.value, point.stderr, step=point.at, n=f"{point.n:,}")
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
    if any(line.level for line in curves.lines):
        sentences.append(f"Dotted: lines without {curves.axis}.")
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
        for cells in row(entry, entry.value, entry.stderr, cost=cost, state=size(entry.costs.get("state_bytes")),
                         ms=number(entry.costs.get("ask_ms"), 1), front=entry in members)
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
    if len(rows) <= NAMED:
        layers += _labels(drawn, rows, y)
    bars = drawn_from(block.place.model, sorted({entry.n for entry, _ in costs}), units_of([block]))
    return finished(layers, methods, block.place.name, f"{metric} against {against}", f"{caption} {bars}{caution}")


def _points(drawn: alt.Chart, rows: Rows, methods: Sequence[str], look: Look, tooltip: Any) -> Iterator[alt.Chart]:
    """Marks, filled of a method as it is, else hollow."""
    for own in sorted({cells["own"] for cells in rows}, reverse=True):
        kept = drawn.transform_filter("datum.own" if own else "!datum.own")
        points = kept.mark_point(filled=own, size=80 if own else 60, opacity=1)
        yield points.encode(y=alt.Y("value:Q"), shape=marks(methods, look), tooltip=tooltip)


def _labels(drawn: alt.Chart, rows: Rows, y: alt.Y) -> Iterator[alt.Chart]:
    """Labels beside points, towards the middle of the chart; none of two that would stand on each other."""
    places = [(math.log1p(cells["cost"]), cells["value"], cells) for cells in rows]
    ends = min(x for x, _, _ in places), max(x for x, _, _ in places)
    high = max(cells["high"] for cells in rows) - min(cells["low"] for cells in rows) or 1.0
    kept: list[tuple[float, float, dict[str, Any]]] = []
    for x, value, cells in sorted(places, key=lambda place: not place[2]["own"]):
        far = (abs(value - other) >= high / 16 or abs(x - at) >= ((ends[1] - ends[0]) or 1.0) / 2
               for at, other, _ in kept)  # fmt: skip
        if all(far):
            kept.append((x, value, cells))
    for left in (True, False):
        named = [cells["label"] for x, _, cells in kept if (x <= sum(ends) / 2) == left]
        if named:
            beside = drawn.transform_filter(alt.FieldOneOfPredicate(field="label", oneOf=named))
            marked = beside.mark_text(dy=-7, align="left" if left else "right", dx=9 if left else -9)
            yield marked.encode(y=y, text="label:N")


def row(entry: Entry, value: float, stderr: float | None, **more: Any) -> Iterator[dict[str, Any]]:
    """A figure of an entry as charts have it; none of one that is no finite number."""
    times, error = scale(entry.metric), stderr if stderr is not None and math.isfinite(stderr) else 0.0
    if math.isfinite(value):
        yield {
            "label": printable(entry.marked), "method": printable(entry.method), "value": value * times,
            "low": (value - error) * times, "high": (value + error) * times, "told": shown(entry.metric, value, stderr),
            "own": entry.state_of == "own" and not entry.aside, **more,
        }  # fmt: skip


def base(rows: Sequence[Mapping[str, Any]], methods: Sequence[str], look: Look) -> alt.Chart:
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
    return "Higher" if higher_is_better(metric) else "Lower"


def told(**fields: str) -> list[alt.Tooltip]:
    """What is shown where one points at a mark: fields with their titles."""
    return [alt.Tooltip(field=field, type="nominal", title=title or field) for field, title in fields.items()]


def finished(layers: Sequence[Any], methods: Sequence[str], about: str, title: str, caption: str) -> Chart:
    """A chart of these layers, as wide as its place, with a description for those who do not see it; the columns of its
    legend are as wide as the longest method."""
    column = {"column": max(NARROWEST, 34 + LETTER * max(map(len, methods)))}
    described = printable(f"{about}: {title}")
    whole = alt.layer(*layers).properties(width="container", height=HEIGHT, description=described, usermeta=column)
    return Chart(title=title, caption=caption, spec=whole.to_dict(validate=False))


@dataclass(frozen=True, kw_only=True)
class Looking:
    """A line of a block, and its questions."""

    entry: Entry
    seen: tuple[Looked, ...]


def looks_of(block: Block) -> list[Looking]:
    """The lines of a block whose samples tell it, under their own state."""
    looks = []
    for entry in block.entries:
        seen: list[Looked] = []
        for folder, record in entry.group.runs if entry.state_of == "own" and not entry.aside else ():
            columns = read_samples(folder, COLUMNS, record) if has_samples(folder) else {}
            if all(name in columns for name in COLUMNS):
                rows = zip(*(columns[name] for name in COLUMNS), strict=True)
                looked = (Looked(**dict(zip(COLUMNS, row, strict=True))) for row in rows)
                seen += [query for query in looked if query.kept_pieces > 0]
        if seen:
            looks.append(Looking(entry=entry, seen=tuple(seen)))
    return looks


def found_within(look: Looking, first: int) -> float:
    """Share of questions whose piece is among the first so many."""
    return fmean(0 < seen.gold_rank <= first for seen in look.seen)


def share_by_age(look: Looking) -> dict[int, tuple[float, int]]:
    """(mean share on the piece, n) by how many were read after it, from 2 on put together up to the next power of two;
    nothing where shares are 0 and one other: retrieval looks alike at all that it reads."""
    if len({round(seen.gold_share, 6) for seen in look.seen} - {0.0}) < 2:
        return {}
    by_age: dict[int, list[float]] = {}
    for seen in (seen for seen in look.seen if seen.gold_rank):
        least = 1 << (seen.gold_age.bit_length() - 1) if seen.gold_age else 0
        by_age.setdefault(least, []).append(seen.gold_share)
    return {age: (fmean(shares), len(shares)) for age, shares in sorted(by_age.items())}


def found_and_attended(block: Block, colours: Look) -> list[Chart]:
    """Both charts; none of runs that do not tell which pieces their questions look at, or kept one piece."""
    looks = looks_of(block)
    most = max((seen.kept_pieces for look in looks for seen in look.seen), default=0)
    if most < 2:
        return []
    firsts = [2**power for power in range(MOST.bit_length()) if 2**power <= min(MOST, most)]
    rows = [_row(look, first, found_within(look, first), len(look.seen)) for look in looks for first in firsts]
    caption = (
        "Higher is better: how often the piece of context that holds the answer is among the k pieces that match the "
        "question best (of mac: that it attends to most)."
    )
    axes = ("k", "per cent of questions")
    charts = [_chart(block, looks, rows, colours, axes, "how often the right piece is found", caption)]
    graded = [look for look in looks if share_by_age(look)]
    rows = [_row(look, age, *share) for look in graded for age, share in share_by_age(look).items()]
    if len({row["at"] for row in rows}) > 1:
        caption = (
            "The mean share of attention that a question gives to the piece that holds its answer, by how many pieces "
            "were read after it (2 stands for 2 and 3, 4 for 4 to 7, and so on). Equal attention to all would be one "
            "share in as many as are kept."
        )
        axes = ("pieces read after it", "share of attention, per cent")
        charts.append(_chart(block, graded, rows, colours, axes, "attention on the right piece", caption))
    return charts


def _row(look: Looking, at: int, share: float, n: int) -> dict[str, Any]:
    names = {"label": printable(look.entry.marked), "method": printable(look.entry.method)}
    return {**names, "at": at, "value": 100 * share, "n": f"{n:,}"}


def _chart(
    block: Block, looks: Sequence[Looking], rows: Sequence[Mapping[str, Any]], colours: Look, axes: tuple[str, str],
    title: str, caption: str,
) -> Chart:  # fmt: skip
    across, up = axes
    methods, at = list(dict.fromkeys(row["method"] for row in rows)), sorted({row["at"] for row in rows})
    names = json.dumps({str(place): f"{place:,}" for place in at})
    wide = alt.Scale(type="symlog", constant=1, nice=False) if at[0] == 0 else alt.Scale(type="log", base=2, nice=False)
    axis = alt.Axis(values=at, labelExpr=f"{names}[datum.value]", labelOverlap=True)
    drawn = base(rows, methods, colours).encode(
        x=alt.X("at:Q", title=across, scale=wide, axis=axis), detail="label:N",
        y=alt.Y("value:Q", title=up, scale=alt.Scale(domain=[0, 100])),
    )  # fmt: skip
    tooltip = [*told(label="", at=across), alt.Tooltip("value:Q", title=up, format=".1f"), *told(n="")]
    points = drawn.mark_point(filled=True, size=60, opacity=1).encode(shape=marks(methods, colours), tooltip=tooltip)
    counts = numbered(sorted({len(look.seen) for look in looks}))
    caption = f"{caption} Base {block.place.model}, n = {counts} questions, all draws together; no bars."
    return finished([drawn.mark_line(strokeWidth=1.5), points], methods, block.place.name, title, caption)
