"""Table and picture of a profile: what each method costs at each length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ttabench.core.amounts import count, number, short, size
from ttabench.core.errors import UserError
from ttabench.profiling.record import Figure, ProfileRecord
from ttabench.report.pictures import write
from ttabench.terminal.table import Cell, Table

FIGURES: dict[str, tuple[tuple[str, str], ...]] = {
    "latency": (
        ("#adapt s", "adapt_seconds"), ("#first ms", "first_ms"), ("#token ms", "token_ms"),
        ("#total s", "total_seconds"), ("#tokens/s", "tokens_per_second"), ("#peak memory", "peak_memory_bytes"),
        ("#tensors", "peak_tensor_bytes"), ("#state", "state_bytes"),
    ),
    "throughput": (
        ("#largest batch", "largest_batch"), ("#samples/s", "samples_per_second"), ("#at batch", "fastest_batch"),
        ("#with reading", "whole_samples_per_second"), ("#tokens/s", "tokens_per_second"),
        ("#peak memory", "peak_memory_bytes"), ("#state a sample", "sample_state_bytes"),
    ),
    "training": (
        ("#train ms/sample", "train_ms_per_sample"), ("#train peak", "train_peak_bytes"),
        ("#trained parameters", "trained_parameters"), ("#document s", "adapt_seconds"),
        ("#document peak", "adapt_peak_bytes"), ("#state", "state_bytes"),
    ),
}  # fmt: skip
"""Columns of each mode: heading and figure."""
SPREAD = {"latency": "total_seconds", "throughput": "samples_per_second", "training": "adapt_seconds"}
"""The figure whose spread stands in the table; all others are in the CSV."""
SPARE = ("#n", "#tensors", "#tokens/s", "#first ms", "#spread", "#at batch", "#trained parameters")
"""Columns that a narrow screen leaves out, in this order; CSV and JSON have all."""
PANELS = {
    "latency": (
        ("total_seconds", "read and write, s"), ("token_ms", "one more token, ms"),
        ("peak_memory_bytes", "peak memory"), ("state_bytes", "state"),
    ),
    "throughput": (("samples_per_second", "samples/s"), ("largest_batch", "largest batch")),
    "training": (("train_ms_per_sample", "training, ms a sample"), ("adapt_peak_bytes", "peak of a document")),
}  # fmt: skip
CLOSE = 6
"""Up to which ratio of its ends an axis has even steps."""


def profile_table(record: ProfileRecord) -> Table:
    """A row a method and length."""
    columns = FIGURES[record.mode]
    spread = SPREAD[record.mode]
    rows: list[tuple[str, ...]] = []
    for row in record.rows:
        cells = tuple(shown(name, row.figures.get(name)) for _, name in columns)
        if row.status != "ok":
            cells = (f"{row.status.replace('oom', 'OOM')} at {short(row.prefill)}", *("" for _ in columns[1:]))
        rows.append((row.method, short(row.prefill), *cells, *_spread(row.figures.get(spread))))
    data: tuple[dict[str, Cell], ...] = tuple(
        {"method": row.method, "prefill": row.prefill, "growth": record.growth(row.method), "status": row.status,
         "detail": row.detail, **{name: figure.value for name, figure in row.figures.items()}}
        for row in record.rows
    )  # fmt: skip
    heads = ("method", "#prefill", *(heading for heading, _ in columns), "#n", "#spread")
    title = f"{record.mode} of {record.base} on {record.model.get('device', '?')}, {record.model.get('dtype', '?')}"
    return Table(
        title=title, columns=heads, rows=tuple(rows), data=data, caption=_caption(record), names=("method",),
        spare=SPARE,
    )  # fmt: skip


def shown(name: str, figure: Figure | None) -> str:
    """A figure for people; its name says its unit."""
    if figure is None:
        return "-"
    value = figure.value
    if name.endswith("_bytes"):
        return size(value)
    if name.endswith("_parameters"):
        return count(value)
    if name.endswith("_batch"):
        return f"{value:,.0f}"
    return number(value, 1 if value >= 100 else 3)


def _spread(figure: Figure | None) -> tuple[str, str]:
    if figure is None:
        return "", ""
    width = (figure.high - figure.low) / figure.value if figure.value else 0.0
    return str(figure.n), "-" if figure.n < 2 else f"{100 * width:.0f} %"


def _caption(record: ProfileRecord) -> str:
    lines = []
    if record.mode == "latency":
        load = record.config["load"]
        total = f"total: reading, {load['prompt_tokens']} tokens of prompt and {load['generate']} written."
        lines.append(f"Medians; spread: (largest - smallest) / median of the total. {total}")
    reasons = [f"{row.method} at {short(row.prefill)}: {row.detail}" for row in record.rows if row.status != "ok"]
    lines += [f"{line.rstrip('.')}." for line in (*record.notes(), *reasons)]
    return "\n".join(lines)


def draw(record: ProfileRecord, path: Path) -> None:
    """Draw a profile and write it."""
    panels = [panel for panel in PANELS[record.mode] if any(row.value(panel[0]) for row in record.rows)]
    if not panels:
        raise UserError("There is nothing to plot: no row was measured.", "See the table for the reasons.")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(panels), 3.8), layout="constrained")
    (places,) = figure.subplots(1, len(panels), squeeze=False)
    for axes, (name, label) in zip(places, panels, strict=True):
        _panel(axes, record, name)
        axes.set_ylabel(label)
    places[0].legend(fontsize="small")
    figure.suptitle(f"{record.base}, {record.model.get('device')}")
    write(figure, path)


def _panel(axes: Any, record: ProfileRecord, name: str) -> None:
    """Medians with their extremes by method; a cross at the top of the panel where memory did not suffice."""
    for place, method in enumerate(record.config["methods"]):
        rows = [row for row in record.rows if row.method == method]
        points = [(row.prefill, row.figures[name]) for row in rows if row.value(name)]
        errors = [
            [figure.value - figure.low for _, figure in points],
            [figure.high - figure.value for _, figure in points],
        ]
        axes.errorbar(
            [length for length, _ in points], [figure.value for _, figure in points], yerr=errors, marker="o",
            markersize=4, capsize=2, label=method, color=f"C{place}",
        )  # fmt: skip
        for row in (row for row in rows if row.status == "oom"):
            top = axes.get_xaxis_transform()
            axes.plot([row.prefill], [0.97], "x", color=f"C{place}", transform=top, clip_on=False)
    lengths = record.config["lengths"]
    values = [value for row in record.rows if (value := row.value(name))]
    if max(values) >= CLOSE * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter("")
    text_of = size if name.endswith("_bytes") else "{:,.6g}".format
    axes.yaxis.set_major_formatter(lambda value, _: text_of(value))
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [short(length) for length in lengths])
    axes.set_xlabel("tokens of context")
    axes.grid(alpha=0.3)
