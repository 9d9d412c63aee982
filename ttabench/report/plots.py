"""Pictures of a comparison: quality against what was read before the query, and against the bytes kept between queries.

    ttabench compare --plot quality.svg          one line or point a method, with standard errors

Left: the metric by step (demonstrations, documents), where runs ask at several steps; right: by bytes of state, over
all steps. A method that keeps nothing stands at 1 byte, since the axis is logarithmic.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttabench.core.errors import UserError
from ttabench.core.files import replacing, unwritable
from ttabench.report.compare import Entry
from ttabench.report.tables import scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg")


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


def plot(entries: Sequence[Entry], path: Path) -> Path:
    """Draw the comparison and write it.

    Args:
        entries: of one task and metric.
        path: ends in .png or .svg.

    Raises:
        UserError: another suffix, several tasks or metrics, nothing to draw, a folder that cannot be written.
    """
    check_path(path)
    tasks = sorted({f"{entry.task} ({entry.source}), {entry.metric}" for entry in entries})
    if len(tasks) > 1:
        raise UserError(f"One picture shows one task and metric, not {'; '.join(tasks)}.", "Name fewer runs.")
    kept = [entry for entry in entries if entry.costs.get("state_bytes") is not None]
    lines = curves(entries)
    if not kept and not lines:
        raise UserError("There is nothing to plot: no run has steps or bytes of state.", "Run `ttabench eval` first.")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = bool(lines) + bool(kept)
    figure = Figure(figsize=(5.5 * panels, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    if lines:
        _draw_steps(axes[0], lines, entries[0].lengths)
    if kept:
        _draw_bytes(axes[-1], kept)
    for each in axes:
        each.set_ylabel(entries[0].metric)
        each.grid(alpha=0.3)
        each.legend(fontsize="small")
    figure.suptitle(tasks[0])
    try:
        with replacing(path) as scratch:
            kind = path.suffix.lower().removeprefix(".")
            figure.savefig(scratch, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    except OSError as error:
        raise unwritable(path.parent, error) from None
    return path


def _draw_steps(axes: Axes, lines: Sequence[Curve], lengths: bool) -> None:
    for line in lines:
        axes.errorbar(line.steps, line.values, yerr=line.errors, marker="o", capsize=3, label=line.label)
    axes.set_xlabel("tokens of each text, at most" if lengths else "pieces read before the query")
    if lengths:  # each about twice the one before
        axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({step for line in lines for step in line.steps}))


def _draw_bytes(axes: Axes, entries: Sequence[Entry]) -> None:
    for entry in entries:
        times = scale(entry.metric)
        place: dict[str, Any] = {"x": max(1.0, entry.costs["state_bytes"] or 0.0), "y": entry.value * times}
        axes.errorbar(**place, yerr=(entry.stderr or 0.0) * times, marker="o", linestyle="", capsize=3,
                      label=entry.label)  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel("bytes kept between queries")
