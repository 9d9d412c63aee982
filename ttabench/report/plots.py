"""Pictures of a comparison: quality against the bytes kept between queries, and along what was read or was set.

    ttabench compare --plot quality.svg          a colour a method, its settings joined by a line, with standard errors

A panel a block: the metric by bytes of state, over all steps; one more where runs ask at several steps (demonstrations,
documents, lengths, distances), and one a setting that lines of a method vary. First come curves over blocks that differ
in a number alone. A method that keeps nothing stands at 0, in a strip of its own beside the logarithmic axis. One
legend with an entry a method serves all panels and stands below them, with what bars and hollow marks are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ttabench.core.errors import UserError
from ttabench.core.sizes import short
from ttabench.report.blocks import called, short_source
from ttabench.report.compare import Block, Comparison
from ttabench.report.curves import Curves, by_setting, by_step, enumerated, numbered, over_blocks, units_of
from ttabench.report.entries import Entry
from ttabench.report.figures import scale
from ttabench.report.pictures import check_path, write
from ttabench.report.plot_style import bytes_axis, plain_numbers, shares_axis, styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = 3
"""Most panels beside each other."""
WIDTH, HEIGHT = 4.6, 3.4
"""Of a panel, in inches."""
WIDE = 8
"""How many times the first place of an axis its last one is from which on it is logarithmic."""
Panel: TypeAlias = Block | Curves
"""A block, drawn by bytes of state, or curves."""


def plot(comparison: Comparison, path: Path) -> Path:
    """Draw the comparison and write it.

    Args:
        comparison: its blocks get a panel or two each.
        path: ends in .png or .svg.

    Raises:
        UserError: another suffix, nothing to draw, a folder that cannot be written.
    """
    check_path(path)
    panels = panels_of(comparison)
    if not panels:
        raise UserError("There is nothing to plot: no run has steps or bytes of state.", "Run `ttabench eval` first.")
    write(drawn(panels, comparison), path)
    return path


def panels_of(comparison: Comparison) -> list[Panel]:
    """All panels of a comparison: curves over blocks, then those of each block."""
    panels: list[Panel] = [*over_blocks(comparison.blocks)]
    for block in comparison.blocks:
        steps = by_step(block)
        panels += [block] if _kept(block) else []
        panels += [*([steps] if steps else []), *by_setting(block)]
    return panels


def drawn(panels: Sequence[Panel], comparison: Comparison) -> Figure:
    """The figure of these panels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = min(ACROSS, len(panels))
    down = math.ceil(len(panels) / across)
    look = styles(entry.method for entry in comparison.entries)
    rows = math.ceil(len(look) / (2 * across))
    figure = Figure(figsize=(WIDTH * across, HEIGHT * down + 0.25 * (rows + 3)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(heading(comparison.blocks), fontsize="medium")
    grid = list(figure.subplots(down, across, squeeze=False).flat)
    for axes, panel in zip(grid, panels, strict=False):
        if isinstance(panel, Curves):
            _draw_curves(axes, panel, look)
            title, metric = _title_of(panel, comparison.blocks), panel.metric
        else:
            _draw_bytes(axes, panel, look)
            title, metric = panel_title(panel, comparison.blocks), panel.place.metric
        axes.set_title(title, fontsize="medium")
        axes.set_ylabel(f"{metric}, per cent" if scale(metric) == 100 else metric)
        if scale(metric) == 100:
            shares_axis(axes)
        axes.grid(alpha=0.3)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    _legend(figure, look, 2 * across, explanation(comparison))
    return figure


def heading(blocks: Sequence[Block]) -> str:
    """Heading of all panels: the base, and the task where there is one."""
    bases = list(dict.fromkeys(block.place.model for block in blocks))
    tasks = list(dict.fromkeys(f"{block.place.task} ({short_source(block.place.source)})" for block in blocks))
    parts = [*(tasks if len(tasks) == 1 else []), *([f"base {bases[0]}"] if len(bases) == 1 else [])]
    return ", ".join(parts)


def panel_title(block: Block, blocks: Sequence[Block]) -> str:
    """Its block, as far as the heading does not say it, and how many queries it is of."""
    count = numbered(sorted({entry.n for entry in block.entries}))
    return f"{called(block.place, [other.place for other in blocks])}, n = {count}"


def explanation(comparison: Comparison) -> str:
    """Explanation of bars, lines and hollow marks."""
    sentences = [f"Bars: one standard error over {enumerated(list(units_of(comparison.blocks)))}."]
    methods = [(entry.block, entry.method) for entry in comparison.entries]
    if len(set(methods)) < len(methods):
        sentences.append("Lines join settings of one method.")
    if any(line.level for block in comparison.blocks for curves in by_setting(block) for line in curves.lines):
        sentences.append("Dotted: lines that have no such setting.")
    if any(_is_hollow(entry) for entry in comparison.entries):
        sentences.append("Hollow: another text's state or none, or set aside.")
    return " ".join(sentences)


def _legend(figure: Figure, look: Mapping[str, Mapping[str, Any]], columns: int, title: str) -> None:
    """One for all panels, below them."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], linestyle="", label=method, **style) for method, style in look.items()]
    longest = max(map(len, look))
    fitting = max(1, min(columns, len(look), columns * 30 // max(1, longest)))
    figure.legend(handles=handles, loc="outside lower center", ncols=fitting, fontsize="small", title=title,
                  title_fontsize="small")  # fmt: skip


def _kept(block: Block) -> list[Entry]:
    """Entries of which the bytes are known."""
    return [entry for entry in block.entries if entry.costs.get("state_bytes") is not None]


def _is_hollow(entry: Entry) -> bool:
    return entry.state_of != "own" or bool(entry.aside)


def _marked(entry: Entry, look: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The look of its method; hollow where it is not the method as it is."""
    return {**look[entry.method], **({"markerfacecolor": "white"} if _is_hollow(entry) else {})}


def _draw_bytes(axes: Axes, block: Block, look: Mapping[str, Mapping[str, Any]]) -> None:
    entries, times = _kept(block), scale(block.place.metric)
    at = bytes_axis(axes, [entry.costs["state_bytes"] or 0.0 for entry in entries])
    joined: dict[str, list[tuple[float, float]]] = {}
    for x, entry in zip(at, entries, strict=True):
        axes.errorbar(x, entry.value * times, yerr=(entry.stderr or 0.0) * times, linestyle="", capsize=3,
                      **_marked(entry, look))  # fmt: skip
        if not _is_hollow(entry):
            joined.setdefault(entry.method, []).append((x, entry.value * times))
    for method, points in joined.items():
        if len(points) > 1:
            xs, ys = zip(*sorted(points), strict=True)
            axes.plot(xs, ys, color=look[method]["color"], linewidth=1)
    plain_numbers(axes, len({entry.value for entry in entries}) == 1)
    axes.set_xlabel("bytes kept between queries")


def _draw_curves(axes: Axes, curves: Curves, look: Mapping[str, Mapping[str, Any]]) -> None:
    methods, times = [line.method for line in curves.lines], scale(curves.metric)
    for line in curves.lines:
        xs, ys = [point.at for point in line.points], [point.value * times for point in line.points]
        if line.level:
            axes.plot(xs, ys, color=look[line.method]["color"], linestyle=":", linewidth=1.5)
            continue
        errors = [(point.stderr or 0.0) * times for point in line.points]
        own = not any(_is_hollow(point.entry) for point in line.points)
        axes.errorbar(xs, ys, yerr=errors, capsize=3, linestyle="-" if own else "--",
                      **_marked(line.points[0].entry, look))  # fmt: skip
        if methods.count(line.method) > 1 and own:
            setting = line.label.removeprefix(line.method).lstrip(", ")
            axes.annotate(setting, (xs[-1], ys[-1]), fontsize="xx-small", textcoords="offset points", xytext=(4, 2))
    places = curves.places
    if curves.tokens or (places[0] > 0 and places[-1] >= WIDE * places[0]):
        axes.set_xscale("log", base=2)
    axes.set_xticks(places, [short(int(place)) if curves.tokens else f"{place:g}" for place in places])
    axes.set_xticks([], minor=True)
    plain_numbers(axes, lone=False)
    axes.set_xlabel(curves.axis)


def _title_of(curves: Curves, blocks: Sequence[Block]) -> str:
    """Title of curves, as far as the heading does not say it, and how many queries stand behind a point."""
    several = len({(block.place.source, block.place.model) for block in blocks}) > 1
    return f"{curves.about if several else curves.brief}, n = {numbered(curves.counts)}"
