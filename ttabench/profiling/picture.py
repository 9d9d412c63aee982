"""A picture of a profile: latency and memory against the length of the prefill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ttabench.core.amounts import short, size
from ttabench.core.errors import UserError
from ttabench.profiling.record import ProfileRecord
from ttabench.report.pictures import write

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


def draw(record: ProfileRecord, path: Path) -> None:
    """Draw a profile and write it."""
    panels = [panel for panel in PANELS[record.mode] if any(row.value(panel[0]) for row in record.rows)]
    if not panels:
        raise UserError("There is nothing to plot: no row was measured.", "See the table for the reasons.")
    from matplotlib.figure import Figure

    down, across = -(-len(panels) // 2), min(2, len(panels))
    figure = Figure(figsize=(5.5 * across, 3.8 * down), layout="constrained")
    places = list(figure.subplots(down, across, squeeze=False).flat)
    for axes, (name, label) in zip(places, panels, strict=False):
        _panel(axes, record, name)
        axes.set_ylabel(label)
    places[0].legend(fontsize="small")
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    figure.suptitle(f"{record.base}, {record.machine.get('device') or record.model.get('device')}")
    write(figure, path)


def _panel(axes: Any, record: ProfileRecord, name: str) -> None:
    """Medians with their extremes by method; a cross at the top of the panel where memory did not suffice."""
    from matplotlib.ticker import LogLocator

    for number, method in enumerate(record.config["methods"]):
        rows = [row for row in record.rows if row.method == method]
        points = [(row.prefill, row.figures[name]) for row in rows if row.value(name)]
        errors = [
            [figure.value - figure.low for _, figure in points],
            [figure.high - figure.value for _, figure in points],
        ]
        axes.errorbar(
            [length for length, _ in points], [figure.value for _, figure in points], yerr=errors, marker="o",
            markersize=4, capsize=2, label=method, color=f"C{number}",
        )  # fmt: skip
        for row in (row for row in rows if row.status == "oom"):
            top = axes.get_xaxis_transform()
            axes.plot([row.prefill], [0.97], "x", color=f"C{number}", transform=top, clip_on=False)
    lengths, bytes_ = record.config["lengths"], name.endswith("_bytes")
    values = [value for row in record.rows if (value := row.value(name))]
    if max(values) >= CLOSE * min(values):
        axes.set_yscale("log", base=2 if bytes_ else 10)
        axes.yaxis.set_major_locator(LogLocator(*((2, (1.0,)) if bytes_ else (10, (1.0, 2.0, 5.0))), numticks=9))
        axes.set_yticks([], minor=True)
    text_of = size if bytes_ else "{:,.6g}".format
    axes.yaxis.set_major_formatter(lambda value, _: text_of(value))
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [short(length) for length in lengths])
    axes.set_xlabel("tokens of context")
    axes.grid(alpha=0.3)
