"""Pictures of a comparison: quality against the bytes kept between queries, and along what was read or was set.

    ttabench compare --plot quality.svg --size 1600x1000     a colour a method, settings joined, with errors

A panel a block: the metric by bytes of state, over all steps; one more where runs ask at several steps, and one a
setting that lines of a method vary. First come curves over blocks that differ in a number alone. One legend with an
entry a method serves all panels; each mark has its name beside it where there is room.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ttabench.core.errors import UserError
from ttabench.core.sizes import short
from ttabench.report.blocks import called, short_source
from ttabench.report.compare import Block, Comparison
from ttabench.report.curves import Curves, Point, by_setting, by_step, numbered, over_blocks, units_of
from ttabench.report.entries import Entry
from ttabench.report.figures import scale
from ttabench.report.phrases import enumerated
from ttabench.report.pictures import bytes_ticks, check_path, styles, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = 3
"""Most panels beside each other."""
SIZE = 1600, 1000
"""Of a picture, in pixels; it is higher where more than nine panels need it."""
PIXELS = 100
"""An inch."""
LOWEST = 300
"""Of a panel, in pixels, unless the size is given."""
LETTERS = 20, 17, 14, 12
"""Points of letters, by the panels beside each other; the last for more than six panels."""
EDGE = 3
"""Per cent beyond 0 and 100 that a mark needs."""
PLACES = tuple(product((9, 18, 30), ((1, 0), (-1, 0), (0, 1), (0, -1))))
"""Where a name stands from its mark: so many points away in a direction; the first place that is free is taken."""
Panel: TypeAlias = Block | Curves
Look: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Colour and marker by method, see `styles`."""


DARKER = 0.6
"""Part of its mark's colour that a name has: letters in light yellow or blue cannot be read on white."""


class Mark(NamedTuple):
    """A mark of a panel, and what it is called."""

    x: float
    y: float
    name: str
    colour: str


def plot(comparison: Comparison, path: Path, size: tuple[int, int] | None = None) -> Path:
    """Draw the comparison to a .png, .svg or .pdf, by default of `SIZE` pixels, or higher for many panels."""
    check_path(path)
    panels = panels_of(comparison)
    if not panels:
        raise UserError("There is nothing to plot: no run has steps or bytes of state.", "Run `ttabench eval` first.")
    write(drawn(panels, comparison, size), path, dpi=PIXELS)
    return path


def panels_of(comparison: Comparison) -> list[Panel]:
    """All panels of a comparison: curves over blocks, then those of each block."""
    panels: list[Panel] = [*over_blocks(comparison.blocks)]
    for block in comparison.blocks:
        panels += [*([block] if _kept(block) else []), *by_step(block), *by_setting(block)]
    return panels


def drawn(panels: Sequence[Panel], comparison: Comparison, size: tuple[int, int] | None = None) -> Figure:
    """The figure of these panels."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    across = min(ACROSS, math.ceil(math.sqrt(len(panels))))
    down = math.ceil(len(panels) / across)
    wide, high = size or (SIZE[0], max(SIZE[1], LOWEST * down))
    letters = LETTERS[across - (len(panels) <= 6)] * min(1.0, wide / SIZE[0])
    with rc_context({"font.size": letters}):
        figure = Figure(figsize=(wide / PIXELS, high / PIXELS), dpi=PIXELS, layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(_lines(heading(comparison.blocks), wide, letters), fontsize="large")
        grid = list(figure.subplots(down, across, squeeze=False).flat)
        for axes in grid[len(panels) :]:
            axes.remove()
        look = styles(entry.method for entry in comparison.entries)
        handles = [Line2D([], [], linestyle="", markersize=9, label=name, **own) for name, own in look.items()]
        columns = max(1, int(wide / letters / (2 + 0.9 * max(map(len, look)))))
        title = _lines(explanation(comparison), wide, letters)
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=min(columns, len(look)), title=title,
                               fontsize="small", title_fontsize="small", frameon=False)  # fmt: skip
        legend.get_title().set_multialignment("center")
        marks = [_draw(axes, panel, comparison.blocks, look, wide / across)
                 for axes, panel in zip(grid, panels, strict=False)]  # fmt: skip
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # names go where there is room now
        for axes, own in zip(grid, marks, strict=False):
            _write_names(axes, own)
    return figure


def _draw(axes: Axes, panel: Panel, blocks: Sequence[Block], look: Look, wide: float) -> list[Mark]:
    """Draw a panel and return its marks, with the names that they are to have."""
    if isinstance(panel, Curves):
        several = len({(block.place.source, block.place.model) for block in blocks}) > 1
        name, counts, metric = (panel.about if several else panel.brief), panel.counts, panel.metric
        marks = _draw_curves(axes, panel, look)
    else:
        name, metric = called(panel.place, [block.place for block in blocks]), panel.place.metric
        counts, marks = sorted({entry.n for entry in panel.entries}), _draw_bytes(axes, panel, look)
    title = _lines(f"{name}, n = {numbered(counts)}", wide, float(axes.title.get_fontsize()))
    axes.set_title(title, fontsize="medium")
    axes.set_ylabel(f"{metric}, per cent" if scale(metric) == 100 else metric)
    if scale(metric) == 100:
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, -EDGE), min(high, 100 + EDGE))
    axes.ticklabel_format(axis="y", style="plain", useOffset=False)
    axes.grid(alpha=0.3)
    return marks


def _lines(text: str, wide: float, letters: float) -> str:
    """A text in lines that are no wider than so many pixels."""
    return fill(text, max(20, int(wide / letters / 0.85)))


def heading(blocks: Sequence[Block]) -> str:
    """Heading of all panels: the base, and the task where there is one."""
    bases = list(dict.fromkeys(block.place.model for block in blocks))
    tasks = list(dict.fromkeys(f"{block.place.task} ({short_source(block.place.source)})" for block in blocks))
    parts = [*(tasks if len(tasks) == 1 else []), *([f"base {bases[0]}"] if len(bases) == 1 else [])]
    return ", ".join(parts)


def explanation(comparison: Comparison) -> str:
    """Explanation of bars, lines and hollow marks."""
    sentences = [f"Bars: one standard error over {enumerated(units_of(comparison.blocks))}."]
    methods = [(entry.place.name, entry.method) for entry in comparison.entries]
    if len(set(methods)) < len(methods):
        sentences.append("Lines join settings of one method.")
    if any(line.level for block in comparison.blocks for curves in by_setting(block) for line in curves.lines):
        sentences.append("Dotted: lines that have no such setting.")
    if any(_is_hollow(entry) for entry in comparison.entries):
        sentences.append("Hollow: another text's state or none, or set aside.")
    return " ".join(sentences)


def _kept(block: Block) -> list[Entry]:
    """Entries of which the bytes are known."""
    return [entry for entry in block.entries if entry.costs.get("state_bytes") is not None]


def _is_hollow(entry: Entry) -> bool:
    return entry.state_of != "own" or bool(entry.aside)


def _at(point: Point) -> tuple[float, float]:
    return point.at, point.value * scale(point.entry.metric)


def _draw_mark(axes: Axes, point: Point, look: Look) -> None:
    """A mark with its bar, hollow where it is not the method as it is."""
    own = {**look[point.entry.method], **({"markerfacecolor": "white"} if _is_hollow(point.entry) else {})}
    error = (point.stderr or 0.0) * scale(point.entry.metric)
    x, y = _at(point)
    axes.errorbar([x], [y], yerr=[error], linestyle="", markersize=8, elinewidth=1.5, capsize=4, **own)


def _draw_bytes(axes: Axes, block: Block, look: Look) -> list[Mark]:
    points = [Point(entry.costs["state_bytes"] or 0.0, entry, entry.value, entry.stderr, entry.n)
              for entry in _kept(block)]  # fmt: skip
    ticks, least = bytes_ticks([point.at for point in points])
    joined: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        _draw_mark(axes, point, look)
        if not _is_hollow(point.entry):
            joined.setdefault(point.entry.method, []).append(_at(point))
    for method, own in joined.items():
        if len(own) > 1:
            axes.plot(*zip(*sorted(own), strict=True), color=look[method]["color"], linewidth=1.5)
    axes.set_xscale("symlog", base=2, linthresh=least / 2)
    axes.set_xticks(list(ticks), list(ticks.values()), rotation=30, ha="right", fontsize="small")
    axes.set_xticks([], minor=True)
    axes.set_xlim(-least / 8 if 0 in ticks else min(ticks) / 1.2, max(ticks) * 1.2)
    axes.set_xlabel("bytes kept between queries")
    return _named([(point.entry.label, point.entry.method, point) for point in points], look)


def _draw_curves(axes: Axes, curves: Curves, look: Look) -> list[Mark]:
    for line in curves.lines:
        for point in line.points if not line.level else ():
            _draw_mark(axes, point, look)
        style = ":" if line.level else "--" if any(_is_hollow(point.entry) for point in line.points) else "-"
        axes.plot(*zip(*map(_at, line.points), strict=True), color=look[line.method]["color"], linestyle=style,
                  linewidth=2, zorder=2.5 if line.level else 1.9)  # fmt: skip
    places = curves.places
    if curves.tokens or (places[0] > 0 and places[-1] >= 8 * places[0]):
        axes.set_xscale("log", base=2)
    axes.set_xticks(places, [short(int(place)) if curves.tokens else f"{place:g}" for place in places])
    axes.set_xticks([], minor=True)
    axes.margins(x=0.22)
    axes.set_xlabel(curves.axis)
    return _named([(line.label, line.method, line.points[-1]) for line in curves.lines], look)


def _named(last: Sequence[tuple[str, str, Point]], look: Look) -> list[Mark]:
    """Marks by the setting that tells them from others of their method; one that is alone, or plain, by its method."""
    methods = [method for _, method, _ in last]
    return [
        Mark(*_at(point), (methods.count(method) > 1 and label.removeprefix(method).lstrip(", ")) or method,
             look[method]["color"])
        for label, method, point in last
    ]  # fmt: skip


def _write_names(axes: Axes, marks: Sequence[Mark]) -> None:
    """Write the names of marks beside them, where none lies on another or on a mark; what finds no room has none."""
    from matplotlib.colors import to_rgb
    from matplotlib.patheffects import withStroke
    from matplotlib.transforms import Bbox

    pixel, whole = axes.figure.dpi / 72, axes.get_window_extent()
    points = axes.transData.transform([(mark.x, mark.y) for mark in marks])
    taken = [Bbox.from_extents(x - 6, y - 6, x + 6, y + 6) for x, y in points]
    for mark, (x, y) in zip(marks, points, strict=True):
        colour = [DARKER * part for part in to_rgb(mark.colour)]
        text = axes.annotate(mark.name, (mark.x, mark.y), (0, 0), textcoords="offset points", fontsize="x-small",
                             color=colour, parse_math=False, zorder=5,
                             path_effects=[withStroke(linewidth=3, foreground="white")])  # fmt: skip
        wide, high = text.get_window_extent().size
        for far, (right, up) in PLACES:
            left, low = (right * far * pixel + (right - 1) * wide / 2, up * far * pixel + (up - 1) * high / 2)
            box = Bbox.from_bounds(x + left, y + low, wide, high)
            if all(whole.contains(*corner) for corner in (box.min, box.max)) and not box.count_overlaps(taken):
                text.set_position((left / pixel, low / pixel))
                taken.append(box)
                break
        else:
            text.remove()
