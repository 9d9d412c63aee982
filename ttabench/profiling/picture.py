"""A picture of a profile: latency and memory against the length of the prefill, on logarithmic axes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from ttabench.core.amounts import size
from ttabench.core.errors import UserError
from ttabench.core.sizes import short
from ttabench.profiling.record import ProfileRecord
from ttabench.profiling.rows import Row
from ttabench.report.pictures import check_path, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = {
    "latency": (
        ("total_seconds", "read and write, s"), ("token_ms", "one more token, ms"),
        ("peak_memory_bytes", "peak memory"), ("state_bytes", "state"),
    ),
    "throughput": (("samples_per_second", "samples/s"), ("largest_batch", "largest batch")),
    "training": (("train_ms_per_sample", "training, ms a sample"), ("document_peak_bytes", "peak of a document")),
}  # fmt: skip
MOST_TICKS = 7
CLOSE = {2: 4, 10: 6}
"""Up to which ratio of its ends an axis has even steps, by the base of its powers."""


def plot(record: ProfileRecord, path: Path) -> Path:
    """Draw a profile and write it."""
    check_path(path)
    panels = [panel for panel in PANELS[record.mode] if any(row.value(panel[0]) for row in record.rows)]
    if not panels:
        raise UserError("There is nothing to plot: no row was measured.", "See the table for the reasons.")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    down, across = -(-len(panels) // 2), min(2, len(panels))
    figure = Figure(figsize=(5.5 * across, 3.8 * down), layout="constrained")
    FigureCanvasAgg(figure)
    places = list(figure.subplots(down, across, squeeze=False).flat)
    for axes, (name, label) in zip(places, panels, strict=False):
        _draw(axes, record, name)
        axes.set_ylabel(label)
    places[0].legend(fontsize="small")
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    figure.suptitle(f"{record.base}, {record.machine.get('device') or record.model.get('device')}")
    write(figure, path)
    return path


def _draw(axes: Axes, record: ProfileRecord, name: str) -> None:
    lengths = record.config["lengths"]
    for number, method in enumerate(record.config["methods"]):
        rows = [row for row in record.rows if row.method == method]
        points = [(row.prefill, row.figures[name]) for row in rows if row.value(name)]
        places, values = [place for place, _ in points], [figure.value for _, figure in points]
        errors = [
            [figure.value - figure.low for _, figure in points],
            [figure.high - figure.value for _, figure in points],
        ]
        axes.errorbar(
            places, values, yerr=errors, marker="o", markersize=4, capsize=2, label=method, color=f"C{number}"
        )
        _mark(axes, rows, f"C{number}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _ticks(axes, name)
    axes.set_xticks(lengths, [short(length) for length in lengths])
    axes.set_xlabel("tokens of context")
    axes.grid(alpha=0.3)


def _ticks(axes: Axes, name: str) -> None:
    """Round figures that read as they are, however little the values differ."""
    text_of = size if name.endswith("_bytes") else "{:,.6g}".format
    axes.set_yticks(ticks(*axes.get_ylim(), 2 if name.endswith("_bytes") else 10))
    axes.set_yticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda value, _: text_of(value))


def ticks(low: float, high: float, base: int) -> list[float]:
    """Round figures from `low` (above 0) to `high`: even steps where they are close, else powers of the base (2 for
    bytes, 10 for all else) and their parts."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    unit = 1024.0 ** int(math.log(low, 1024)) if base == 2 else 1.0
    steps = [1, 2, 4, 8, 10] if base == 2 else [1, 2, 5, 10]
    marks = [unit * mark for mark in MaxNLocator(MOST_TICKS, steps=steps).tick_values(low / unit, high / unit)]
    if high / low >= CLOSE[base]:
        parts = (1, 2, 5) if base == 10 and high / low < 1000 else (1,)
        marks = list(LogLocator(base, parts, numticks=MOST_TICKS).tick_values(low, high))
    return [float(value) for value in marks if low <= value <= high]


def _mark(axes: Axes, rows: list[Row], color: str) -> None:
    """A cross at the top of the panel where memory did not suffice."""
    for row in rows:
        if row.status == "oom":
            axes.plot(
                [row.prefill], [0.97], marker="x", color=color, transform=axes.get_xaxis_transform(), clip_on=False
            )
