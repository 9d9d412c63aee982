"""Pictures of a comparison: quality against the bytes kept between queries, and against what was read before the query.

    ttabench compare --plot quality.svg          a colour a method, its settings joined by a line, with standard errors

A panel a block: the metric by bytes of state, over all steps; and one more where runs ask at several steps
(demonstrations, documents, lengths). A method that keeps nothing stands at 0, in a strip of its own beside the
logarithmic axis. One legend with an entry a method serves all panels and stands below them, with what bars and hollow
marks are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttabench.core.errors import UserError
from ttabench.core.sizes import short
from ttabench.report.blocks import short_source
from ttabench.report.compare import Block, Comparison
from ttabench.report.entries import Entry
from ttabench.report.figures import scale
from ttabench.report.phrases import PLURALS
from ttabench.report.pictures import check_path, write
from ttabench.report.plot_style import bytes_axis, plain_numbers, shares_axis, styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = 3
"""Most panels beside each other."""
WIDTH, HEIGHT = 4.6, 3.4
"""Of a panel, in inches."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One method's values by step."""

    label: str
    entry: Entry
    steps: tuple[int, ...]
    values: tuple[float, ...]
    errors: tuple[float, ...]
    """Standard errors; 0 where none is known."""


def curves(entries: Sequence[Entry]) -> list[Curve]:
    """Values by step of every entry whose runs asked at two steps or more, seeds pooled."""
    found = []
    for entry in entries:
        if len(entry.steps) < 2:
            continue
        times = scale(entry.metric)
        values = tuple(value * times for value, _, _ in entry.steps.values())
        errors = tuple((stderr or 0.0) * times for _, stderr, _ in entry.steps.values())
        found.append(Curve(label=entry.label, entry=entry, steps=tuple(entry.steps), values=values, errors=errors))
    return found


def plot(found: Comparison, path: Path) -> Path:
    """Draw the comparison and write it.

    Args:
        found: its blocks get a panel or two each.
        path: ends in .png or .svg.

    Raises:
        UserError: another suffix, nothing to draw, a folder that cannot be written.
    """
    check_path(path)
    by_bytes = [(block, False) for block in found.blocks if _kept(block)]
    by_step = [(block, True) for block in found.blocks if curves(block.entries)]
    panels = sorted([*by_bytes, *by_step], key=lambda panel: found.blocks.index(panel[0]))
    if not panels:
        raise UserError("There is nothing to plot: no run has steps or bytes of state.", "Run `ttabench eval` first.")
    write(drawn(panels, found), path)
    return path


def drawn(panels: Sequence[tuple[Block, bool]], found: Comparison) -> Figure:
    """The figure of these panels: a block, and whether it is drawn by step."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = min(ACROSS, len(panels))
    down = math.ceil(len(panels) / across)
    look = styles(entry.method for entry in found.entries)
    rows = math.ceil(len(look) / (2 * across))
    figure = Figure(figsize=(WIDTH * across, HEIGHT * down + 0.25 * (rows + 3)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(heading(found.blocks), fontsize="medium")
    grid = list(figure.subplots(down, across, squeeze=False).flat)
    for axes, (block, by_step) in zip(grid, panels, strict=False):
        (_draw_steps if by_step else _draw_bytes)(axes, block, look)
        axes.set_title(panel_title(block, found.blocks), fontsize="medium")
        metric = block.place.metric
        axes.set_ylabel(f"{metric}, per cent" if scale(metric) == 100 else metric)
        if scale(metric) == 100:
            shares_axis(axes)
        axes.grid(alpha=0.3)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    _legend(figure, look, 2 * across, explanation(found))
    return figure


def heading(blocks: Sequence[Block]) -> str:
    """What all panels have in common: the base, and the task where there is one."""
    bases = list(dict.fromkeys(block.place.model for block in blocks))
    tasks = list(dict.fromkeys(f"{block.place.task} ({short_source(block.place.source)})" for block in blocks))
    told = [*(tasks if len(tasks) == 1 else []), *([f"base {bases[0]}"] if len(bases) == 1 else [])]
    return ", ".join(told)


def panel_title(block: Block, blocks: Sequence[Block]) -> str:
    """Its block, as far as the heading does not say it, and how many queries it is of."""
    alike = [other for other in blocks if other.place.brief == block.place.brief]
    counts = sorted({entry.n for entry in block.entries})
    count = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    return f"{block.place.brief if len(alike) == 1 else block.place.name}, n = {count}"


def explanation(found: Comparison) -> str:
    """What the bars are, what lines join, and what is hollow."""
    units = list(dict.fromkeys(PLURALS[block.groups[0].record.unit] for block in found.blocks))
    told = [f"Bars: one standard error over {' and '.join(units)}."]
    methods = [(entry.block, entry.method) for entry in found.entries]
    if len(set(methods)) < len(methods):
        told.append("Lines join settings of one method.")
    if any(_is_hollow(entry) for entry in found.entries):
        told.append("Hollow: another text's state or none, or set aside.")
    return " ".join(told)


def _legend(figure: Figure, look: Mapping[str, Mapping[str, Any]], columns: int, told: str) -> None:
    """One for all panels, below them."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], linestyle="", label=method, **style) for method, style in look.items()]
    longest = max(map(len, look))
    fitting = max(1, min(columns, len(look), columns * 30 // max(1, longest)))
    figure.legend(handles=handles, loc="outside lower center", ncols=fitting, fontsize="small", title=told,
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


def _draw_steps(axes: Axes, block: Block, look: Mapping[str, Mapping[str, Any]]) -> None:
    lines = curves(block.entries)
    step = lines[0].entry.step
    methods = [line.entry.method for line in lines]
    for line in lines:
        axes.errorbar(line.steps, line.values, yerr=line.errors, capsize=3, **_marked(line.entry, look))
        if methods.count(line.entry.method) > 1:
            setting = line.label.removeprefix(line.entry.method).lstrip(", ")
            axes.annotate(setting, (line.steps[-1], line.values[-1]), fontsize="xx-small", textcoords="offset points",
                          xytext=(4, 2))  # fmt: skip
    steps = sorted({step for line in lines for step in line.steps})
    if step.tokens:
        axes.set_xscale("log", base=2)
        axes.set_xticks(steps, [short(step) for step in steps])
        axes.set_xticks([], minor=True)
    else:
        axes.set_xticks(steps)
    plain_numbers(axes, lone=False)
    axes.set_xlabel(step.axis)
