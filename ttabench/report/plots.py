"""Pictures of a comparison: quality against the bytes kept between queries, and against what was read before the query.

    ttabench compare --plot quality.svg          one point or line a method, with standard errors

A panel a block: the metric by bytes of state, over all steps; and one more where runs ask at several steps
(demonstrations, documents, lengths). A method that keeps nothing stands at 0, in a strip of its own beside the
logarithmic axis. One legend serves all panels and stands below them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttabench.core.errors import UserError
from ttabench.core.files import replacing, unwritable
from ttabench.core.sizes import short
from ttabench.report.compare import Block, Comparison
from ttabench.report.entries import Entry
from ttabench.report.figures import scale
from ttabench.report.plot_style import bytes_axis, plain_numbers, styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
ACROSS = 3
"""Most panels beside each other."""
WIDTH, HEIGHT = 4.6, 3.4
"""Of a panel, in inches."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One method's values by step."""

    label: str
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
        found.append(Curve(label=entry.label, steps=tuple(entry.steps), values=values, errors=errors))
    return found


def check_path(path: Path) -> None:
    """Whether a picture can be written under this name; asked before anything is measured for it.

    Raises:
        UserError: another suffix than .png or .svg, or no folder that can be written.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"--plot {path} is no picture.", f"Give a file that ends in {' or '.join(SUFFIXES)}.")
    if not path.parent.is_dir():
        raise UserError(f"--plot {path} cannot be written: there is no folder {path.parent}.", "Make it first.")
    if path.is_symlink():
        raise UserError(f"--plot {path} is a link to another file.", "Name that file, or remove the link.")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"--plot {path} cannot be written.", "Give a file in a folder of yours.")


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
    figure = drawn(panels, [entry.label for entry in found.entries])
    try:
        with replacing(path) as scratch:
            kind = path.suffix.lower().removeprefix(".")
            figure.savefig(scratch, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    except OSError as error:
        raise unwritable(path.parent, error) from None
    return path


def drawn(panels: Sequence[tuple[Block, bool]], labels: Sequence[str]) -> Figure:
    """The figure of these panels: a block, and whether it is drawn by step."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = min(ACROSS, len(panels))
    down = math.ceil(len(panels) / across)
    look, names = styles(labels), list(dict.fromkeys(labels))
    rows = math.ceil(len(names) / (2 * across))
    figure = Figure(figsize=(WIDTH * across, HEIGHT * down + 0.25 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid = list(figure.subplots(down, across, squeeze=False).flat)
    for axes, (block, by_step) in zip(grid, panels, strict=False):
        (_draw_steps if by_step else _draw_bytes)(axes, block, look)
        axes.set_title(block.place.brief, fontsize="medium")
        metric = block.place.metric
        axes.set_ylabel(f"{metric}, per cent" if scale(metric) == 100 else metric)
        axes.grid(alpha=0.3)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    _legend(figure, names, look, 2 * across)
    return figure


def _legend(figure: Figure, names: Sequence[str], look: Mapping[str, Mapping[str, Any]], columns: int) -> None:
    """One for all panels, below them."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], linestyle="", label=name, **look[name]) for name in names]
    longest = max(map(len, names))
    fitting = max(1, min(columns, len(names), columns * 30 // max(1, longest)))
    figure.legend(handles=handles, loc="outside lower center", ncols=fitting, fontsize="small")


def _kept(block: Block) -> list[Entry]:
    """Entries of which the bytes are known."""
    return [entry for entry in block.entries if entry.costs.get("state_bytes") is not None]


def _draw_bytes(axes: Axes, block: Block, look: Mapping[str, Mapping[str, Any]]) -> None:
    entries, times = _kept(block), scale(block.place.metric)
    at = bytes_axis(axes, [entry.costs["state_bytes"] or 0.0 for entry in entries])
    for x, entry in zip(at, entries, strict=True):
        axes.errorbar(x, entry.value * times, yerr=(entry.stderr or 0.0) * times, linestyle="", capsize=3,
                      **look[entry.label])  # fmt: skip
    plain_numbers(axes, len({entry.value for entry in entries}) == 1)
    axes.set_xlabel("bytes kept between queries")


def _draw_steps(axes: Axes, block: Block, look: Mapping[str, Mapping[str, Any]]) -> None:
    lines, lengths = curves(block.entries), any(entry.lengths for entry in block.entries)
    for line in lines:
        axes.errorbar(line.steps, line.values, yerr=line.errors, capsize=3, **look[line.label])
    steps = sorted({step for line in lines for step in line.steps})
    if lengths:  # each about twice the one before
        axes.set_xscale("log", base=2)
        axes.set_xticks(steps, [short(step) for step in steps])
        axes.set_xticks([], minor=True)
    else:
        axes.set_xticks(steps)
    plain_numbers(axes, lone=False)
    axes.set_xlabel("tokens of each text, at most" if lengths else "pieces read before the query")
