"""Charts of a comparison, for the page and for pictures: quality against cost, and along a number.

    ttabench compare --plot quality.svg     a panel a block, with errors, beside each other in one file

First come curves over blocks that differ in a number alone (4, 16 and 64 documents; 0, 5 and 10 shots), then of each
block quality by bytes of state, and by what had been read where runs ask at several steps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

import altair as alt

from ttabench.core.amounts import number, short, size
from ttabench.core.errors import UserError, printable
from ttabench.report.blocks import short_source, told
from ttabench.report.compare import Block, Comparison
from ttabench.report.entries import PIECES, Entry, timed
from ttabench.report.figures import shown
from ttabench.report.phrases import PLURALS, enumerated
from ttabench.report.pictures import styles, write_chart
from ttabench.stats.metrics import known

LEGEND = alt.Legend(title=None, orient="bottom", symbolLimit=0, labelLimit=240)
"""As many columns as the page has room for, see `page.js`."""
HEIGHT = 280
"""In pixels; the width is that of the page."""
NARROWEST, LETTER = 96, 6
"""In pixels: a column of the legend, a letter there."""
PANEL, ACROSS, LETTERS = (400, 260), 3, 60
"""Of pictures: pixels of a panel, most panels beside each other, letters of a line of a panel's title."""
MOST_TICKS = 6
FAR_APART = 50
"""From so many times the smallest figure on, the axis of perplexities is logarithmic."""
Look = Mapping[str, tuple[str, str]]
"""Colour and shape by method, see `styles`."""


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


class Point(NamedTuple):
    """A figure of a line."""

    at: float
    entry: Entry
    value: float
    """A share, as entries have it."""
    stderr: float | None
    n: int


class Curves(NamedTuple):
    """Quality along a number."""

    about: str
    """The block, or what several have in common."""
    axis: str
    tokens: bool
    """Whether the numbers are tokens."""
    blocks: Sequence[Block]
    lines: Mapping[str, Sequence[Point]]
    """By label: a method, and what it was told, at two places or more, ascending."""

    @property
    def title(self) -> str:
        """What it shows."""
        return f"{self.blocks[0].place.metric} by {self.axis}"

    @property
    def places(self) -> list[float]:
        """Where there are points, ascending."""
        return sorted({point.at for line in self.lines.values() for point in line})


def by_step(block: Block) -> list[Curves]:
    """Quality by what had been read before the query, seeds pooled; none where nothing was asked at two steps."""
    entries = [entry for entry in block.entries if len(entry.steps) > 1]
    points = [Point(at, entry, *figure) for entry in entries for at, figure in entry.steps.items()]
    step = entries[0].step if entries else None
    return [Curves(block.place.name, step, step != PIECES, [block], _lines(points))] if step else []


def over_blocks(blocks: Sequence[Block]) -> list[Curves]:
    """Those of every option by whose number alone two blocks or more differ, with a line in two of them."""
    families: dict[tuple[str, ...], list[tuple[float, Block]]] = {}
    for block in blocks:
        place = block.place
        for key, value in place.options.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                rest = "".join(f", {name}={told(other)}" for name, other in place.options.items() if name != key)
                about = f"{place.task} ({short_source(place.source)}), base {place.model}{rest}"
                families.setdefault((place.source, place.metric, about, key), []).append((value, block))
    curves = []
    for (_, _, about, key), own in families.items():
        points = [Point(at, entry, entry.value, entry.stderr, entry.n) for at, block in own for entry in block.entries]
        if lines := _lines(points):
            curves.append(Curves(about, key, False, [block for _, block in own], lines))
    return curves


def _lines(points: Sequence[Point]) -> dict[str, list[Point]]:
    lines: dict[str, list[Point]] = {}
    for point in sorted(points, key=lambda point: point.at):
        lines.setdefault(point.entry.label, []).append(point)
    labels = dict.fromkeys(point.entry.label for point in points)
    return {label: lines[label] for label in labels if len({point.at for point in lines[label]}) > 1}


def by_bytes(block: Block, look: Look) -> Chart | None:
    """Quality against the bytes kept between queries; 0 has its place at the left. None of fewer than two entries."""
    costs = [(entry, cost) for entry in block.entries if (cost := entry.costs.get("state_bytes")) is not None]
    if len(costs) < 2:
        return None
    positive = [cost for _, cost in costs if cost > 0] or [1024.0]
    low, high = math.floor(math.log2(min(positive))), math.ceil(math.log2(max(positive)))
    step = max(2, math.ceil((high - low) / MOST_TICKS))
    names = {2**power: size(2**power).replace(".0 ", " ") for power in range(low, high + step, step)}
    names = {**({0: "0"} if any(cost == 0 for _, cost in costs) else {}), **names}
    ticks = list(names)
    x = alt.X("x:Q", title="bytes kept between queries",
              scale=alt.Scale(type="symlog", constant=min(positive) / 2, domain=[ticks[0], ticks[-1]]),
              axis=alt.Axis(values=ticks, labelExpr=f"{json.dumps(names)}[datum.value]"))  # fmt: skip
    return _scattered(block, costs, x, look, "bytes of state")


def by_time(block: Block, look: Look) -> Chart | None:
    """Quality against milliseconds of a query. None of fewer than two entries."""
    costs = [(entry, cost) for entry in block.entries if (cost := entry.costs.get("ask_ms") or 0.0) > 0]
    if len(costs) < 2:
        return None
    x = alt.X("x:Q", title="milliseconds of a query", scale=alt.Scale(type="log", nice=False, padding=12),
              axis=alt.Axis(tickCount=5, format=",.3~r", labelBound=True))  # fmt: skip
    caution = "" if timed(block.entries) else " Not all were measured on one calm machine: compare them with care."
    return _scattered(block, costs, x, look, "milliseconds of a query", caution)


def _scattered(
    block: Block, costs: Sequence[tuple[Entry, float]], x: alt.X, look: Look, against: str, caution: str = ""
) -> Chart:
    """A point an entry; those of one method, as it is, are joined."""
    metric, points = block.place.metric, [Point(at, line, line.value, line.stderr, line.n) for line, at in costs]
    caption = f"{_better(metric)} and further to the left is better."
    drawn = _layers(
        points, x, look, metric, "label told state ms", lines=len({one.method for one, _ in costs}) < len(costs)
    )
    return _chart(drawn, points, [block], block.place.name, f"{metric} against {against}", caption, caution)


def along(curves: Curves, look: Look, *, named: bool = False) -> Chart:
    """The chart of curves, a line a method and setting; `named`: its title says what it is about."""
    points, places, metric = (
        [one for line in curves.lines.values() for one in line],
        curves.places,
        curves.blocks[0].place.metric,
    )
    names = json.dumps({f"{at:.15g}": short(int(at)) if curves.tokens else f"{at:.15g}" for at in places})
    wide = places[0] > 0 and places[-1] >= 8 * places[0]
    x = alt.X("x:Q", title=curves.axis,
              scale=alt.Scale(type="log", base=2, nice=False) if wide else alt.Scale(zero=False, nice=False),
              axis=alt.Axis(values=places, labelExpr=f"{names}[datum.value]", labelOverlap=True))  # fmt: skip
    caption = f"{_better(metric)} is better. A line a method and setting."
    if any(one.entry.state_of != "own" or one.entry.aside for one in points):
        caption += " Broken and hollow: another text's state or none, or set aside."
    title = f"{curves.about}: {curves.title}" if named else curves.title
    drawn = _layers(points, x, look, metric, "label x told n", lines=True, each=True)
    return _chart(drawn, points, curves.blocks, curves.about, title, caption)


def _layers(
    points: Sequence[Point], x: alt.X, look: Look, metric: str, told_of: str, *, lines: bool, each: bool = False
) -> list[alt.Chart]:
    """Bars of errors, lines (of every label where `each`, else of methods as they are), and marks, hollow where it is
    not the method as it is."""
    rows, times = list[dict[str, Any]](), known(metric).scale
    for at, entry, value, stderr, n in (one for one in points if math.isfinite(one.value)):
        error = stderr if stderr is not None and math.isfinite(stderr) else 0.0
        rows.append({
            "label": printable(entry.marked), "method": printable(entry.method), "x": at, "value": value * times,
            "low": (value - error) * times, "high": (value + error) * times, "told": shown(metric, value, stderr),
            "own": entry.state_of == "own" and not entry.aside, "state": size(entry.costs.get("state_bytes")),
            "ms": number(entry.costs.get("ask_ms"), 1), "n": f"{n:,}",
        })  # fmt: skip
    names = list(dict.fromkeys(one.entry.method for one in points))
    colours, shapes = (
        alt.Scale(domain=list(map(printable, names)), range=[look[name][at] for name in names]) for at in (0, 1)
    )
    colour = alt.Color("method:N", legend=LEGEND, scale=colours)
    shape = alt.Shape("method:N", legend=LEGEND, scale=shapes)
    y, axis = alt.Y("value:Q"), _quality(metric, rows)
    base = alt.Chart({"values": rows}).encode(color=colour, x=x, **({"detail": "label:N"} if each else {}))
    layers = [base.mark_rule().encode(y=axis, y2="high:Q")]
    if lines:
        dash = alt.StrokeDash("own:N", scale=alt.Scale(domain=[True, False], range=[[1, 0], [4, 3]]), legend=None)
        joined = base if each else base.transform_filter("datum.own")
        layers.append(joined.mark_line(strokeWidth=1.5 if each else 1).encode(y=y, strokeDash=dash))
    tooltip = [alt.Tooltip(field=field, type="nominal", title=field) for field in told_of.split()]
    for own in sorted({row["own"] for row in rows}, reverse=True):
        marks = base.transform_filter("datum.own" if own else "!datum.own")
        marks = marks.mark_point(filled=own, size=80 if own else 60, opacity=1)
        layers.append(marks.encode(y=y, shape=shape, tooltip=tooltip))
    return layers


def _quality(metric: str, rows: Sequence[dict[str, Any]]) -> alt.Y:
    """The axis of a metric, from the lower ends of the bars; a logarithmic one of rows that are far apart, of which
    bars that would end at zero or below end within it instead."""
    title = f"{metric}, per cent" if known(metric).scale == 100 else metric
    values = [row["value"] for row in rows] or [1.0]
    if known(metric).scale == 100 or min(values) <= 0 or max(values) < FAR_APART * min(values):
        return alt.Y("low:Q", title=title, scale=alt.Scale(zero=False, nice=True))
    for row in rows:
        row["low"] = max(row["low"], min(values) / 2)
    return alt.Y("low:Q", title=f"{title} (logarithmic)", scale=alt.Scale(type="log", nice=True))


def _better(metric: str) -> str:
    """Where on the axis of a metric the better figures are."""
    return "Higher" if known(metric).higher_is_better else "Lower"


def _chart(
    layers: Sequence[alt.Chart], points: Sequence[Point], blocks: Sequence[Block], about: str, title: str, caption: str,
    caution: str = "",
) -> Chart:  # fmt: skip
    counts = sorted({point.n for point in points})
    n = " to ".join(dict.fromkeys(f"{count:,}" for count in (counts[0], counts[-1])))
    bars = f"Base {blocks[0].place.model}, n = {n}; bars: one standard error over {units_of(blocks)}."
    column = max(NARROWEST, 34 + LETTER * max(len(point.entry.method) for point in points))
    return Chart(
        about=about, title=title, caption=f"{caption} {bars}{caution}", layers=alt.layer(*layers), column=column
    )


def units_of(blocks: Sequence[Block]) -> str:
    """Units that standard errors of these blocks are over, each once."""
    return enumerated(list(dict.fromkeys(PLURALS[block.entries[0].record.unit] for block in blocks)))


def charts_of(block: Block, look: Look, *, times: bool = True) -> Iterator[Chart]:
    """All charts of a block."""
    yield from filter(None, [by_bytes(block, look), by_time(block, look) if times else None])
    yield from (along(curves, look) for curves in by_step(block))


def plot(comparison: Comparison, path: Path) -> None:
    """Draw the comparison to a .png, .svg or .pdf."""
    panels = panels_of(comparison)
    if not panels:
        raise UserError("There is nothing to plot: no two lines have steps or bytes of state.", "Name more runs.")
    write_chart(spec_of(panels, comparison), path)


def panels_of(comparison: Comparison) -> list[Chart]:
    """All panels of a comparison: curves over blocks, then those of each block."""
    look = styles(entry.method for entry in comparison.entries)
    panels = [along(curves, look) for curves in over_blocks(comparison.blocks)]
    return panels + [chart for block in comparison.blocks for chart in charts_of(block, look, times=False)]


def spec_of(panels: Sequence[Chart], comparison: Comparison) -> dict[str, Any]:
    """The panels with their titles, in one chart of Vega-Lite, with one legend."""
    charts = [
        panel.layers.properties(width=PANEL[0], height=PANEL[1], title=wrap(f"{panel.about}: {panel.title}", LETTERS))
        for panel in panels
    ]
    across = min(ACROSS, math.ceil(math.sqrt(len(panels))))
    explained = wrap(explanation(comparison), LETTERS * across)
    title = alt.TitleParams(heading(comparison.blocks), subtitle=explained)
    picture = alt.concat(*charts, columns=across, title=title).configure_legend(orient="bottom", columns=3 * across)
    typed: dict[str, Any] = picture.to_dict(validate=False)
    return typed


def heading(blocks: Sequence[Block]) -> str:
    """Heading of all panels: the base, and the task where there is one."""
    bases = {f"base {block.place.model}" for block in blocks}
    tasks = {f"{block.place.task} ({short_source(block.place.source)})" for block in blocks}
    return ", ".join([*(tasks if len(tasks) == 1 else ()), *(bases if len(bases) == 1 else ())])


def explanation(comparison: Comparison) -> str:
    """Explanation of bars, lines and hollow marks."""
    return (f"Bars: one standard error over {units_of(comparison.blocks)}. Lines join settings of one method. "
            "Hollow: another text's state or none, or set aside.")  # fmt: skip
