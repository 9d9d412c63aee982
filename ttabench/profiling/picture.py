"""A picture of a profile: latency and memory against the length of the prefill."""

from __future__ import annotations

from collections.abc import Sequence
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
CLOSE = 6
"""Up to which ratio of its ends an axis has even steps."""


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
    _scale(axes, name, [value for row in record.rows if (value := row.value(name))])
    axes.set_xticks(lengths, [short(length) for length in lengths])
    axes.set_xlabel("tokens of context")
    axes.grid(alpha=0.3)


def _scale(axes: Axes, name: str, values: Sequence[float]) -> None:
    """Even steps where values are close, else powers and their parts; figures read as they are."""
    from matplotlib.ticker import LogLocator

    base, text_of = (2, size) if name.endswith("_bytes") else (10, "{:,.6g}".format)
    if max(values) >= CLOSE * min(values):
        axes.set_yscale("log", base=base)
        axes.yaxis.set_major_locator(LogLocator(base, (1.0, 2.0, 5.0) if base == 10 else (1.0,), numticks=9))
        axes.set_yticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda value, _: text_of(value))


def _mark(axes: Axes, rows: list[Row], color: str) -> None:
    """A cross at the top of the panel where memory did not suffice."""
    for row in rows:
        if row.status == "oom":
            axes.plot(
                [row.prefill], [0.97], marker="x", color=color, transform=axes.get_xaxis_transform(), clip_on=False
            )
