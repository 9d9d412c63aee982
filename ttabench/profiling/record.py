"""The record of a profile, `OUT/<id>/profile.json`: configuration, base model, methods, and rows.

Each method has one row per length, with its status and its figures with their spread. The record is
rewritten after every row. `profile_table` and `draw` display it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from ttabench.core.amounts import format_bytes, format_count, format_number, format_tokens
from ttabench.core.environment import is_out_of_memory
from ttabench.core.errors import UserError
from ttabench.core.files import read_json_object, reading_file, write_atomically
from ttabench.core.meter import largest_peak
from ttabench.core.types import Json
from ttabench.records.run_fields import base_model_name
from ttabench.report.pictures import write
from ttabench.terminal.table import Cell, Table

T = TypeVar("T")
RERUN_HINT = "Profile again with --force."
RECORD_FILE = "profile.json"
Status = Literal["ok", "oom", "refused", "skipped", "failed"]
"""Status of a row; failed rows are repeated by the same command."""


class Figure(BaseModel):
    """Median, minimum and maximum of at least one measurement; counts have n = 1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float
    low: float
    high: float
    n: int = Field(default=1, ge=1)


class Row(BaseModel):
    """One method at one length; unknown fields of older versions are ignored."""

    model_config = ConfigDict(frozen=True)

    method: str
    prefill: int
    """Requested tokens of context, for the base model's tokenizer."""
    status: Status = "ok"
    """Measured; out of memory; refused by model or method; skipped for lack of time; process
    died."""
    detail: str = ""
    """Reason of a status other than "ok"."""
    figures: dict[str, Figure] = {}
    """Figures by name; the name ends in the unit: _seconds, _ms, _bytes ..."""
    notes: tuple[str, ...] = ()

    def value(self, name: str) -> float | None:
        """Return the value of a figure; `None` if it was not measured."""
        return self.figures[name].value if name in self.figures else None


def figure(values: Sequence[float]) -> Figure:
    """Summarise measurements: median, minimum, maximum and number; a count is one value."""
    return Figure(value=median(values), low=min(values), high=max(values), n=len(values))


def peak_figure(name: str, peaks: Iterable[int | None]) -> dict[str, Figure]:
    """Return the largest peak, in bytes, under that name; {} if the device reports none."""
    highest_peak = largest_peak(peaks)
    return {} if highest_peak is None else {name: figure([highest_peak])}


def sum_figures(parts: Sequence[Figure]) -> Figure:
    """Sum the figures of separately measured phases: medians, minima and maxima."""
    sums = {name: sum(getattr(part, name) for part in parts) for name in ("value", "low", "high")}
    return Figure(**sums, n=min(part.n for part in parts))


def make_oom_row(method: str, prefill: int, reason: str) -> Row:
    """Make the row of a length that does not fit into memory."""
    return Row(method=method, prefill=prefill, status="oom", detail=" ".join(reason.split())[:200])


def measure_or_refuse(method: str, prefill: int, measure: Callable[[], T]) -> T | Row:
    """Return the result of `measure`, or a row if it is refused or runs out of memory."""
    try:
        return measure()
    except UserError as error:
        return Row(method=method, prefill=prefill, status="refused", detail=str(error))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return make_oom_row(method, prefill, str(error))


class ProfileRecord(BaseModel):
    """A complete or partial profile. JSON values only; unknown fields of older versions are
    ignored."""

    model_config = ConfigDict(frozen=True)

    schema_version: Literal[2] = 2
    id: str
    created: str
    """UTC, ISO 8601."""
    seconds: float
    """Total measuring time, without interruptions."""
    config: dict[str, Json]
    model: dict[str, Json]
    methods: dict[str, dict[str, Json]]
    """Growth, trained parameters and notes by name, for methods that could be built."""
    rows: tuple[Row, ...]
    versions: dict[str, str]
    hardware: dict[str, Json]
    code: dict[str, Json]

    @property
    def mode(self) -> str:
        """latency, throughput or training."""
        return str(self.config["mode"])

    @property
    def base(self) -> str:
        """Name of the base model in tables."""
        name = base_model_name(self.config["model"], self.config.get("base_checkpoint", ""))
        return f"{name} (random weights)" if self.config["random_weights"] else name

    def notes(self) -> list[str]:
        """List the notes that are needed to interpret the figures, without duplicates."""
        notes = [note for method in self.methods.values() for note in method["notes"]]
        for name, method in self.methods.items():
            if method["parameters"] and not self.config["methods"][name]["digest"]:
                notes.append(f"{name} is untrained, which does not change its cost")
        notes += [
            f"{row.method} at {format_tokens(row.prefill)}: {note}"
            for row in self.rows
            for note in row.notes
        ]
        return list(dict.fromkeys(notes))


def load_profile(folder: Path) -> ProfileRecord:
    """Load the record of a folder."""
    file = folder / RECORD_FILE
    with reading_file(file, RERUN_HINT):
        return ProfileRecord.model_validate(
            {"schema_version": 1, **read_json_object(file, RERUN_HINT)}
        )


def save_profile(record: ProfileRecord, folder: Path) -> None:
    """Write a record, replacing an existing one."""
    write_atomically(
        folder / RECORD_FILE, json.dumps(record.model_dump(mode="json"), indent=1) + "\n"
    )


MODE_COLUMNS: dict[str, tuple[tuple[str, str], ...]] = {
    "latency": (
        ("#adapt s", "adapt_seconds"),
        ("#first ms", "first_ms"),
        ("#token ms", "token_ms"),
        ("#total s", "total_seconds"),
        ("#tokens/s", "tokens_per_second"),
        ("#peak memory", "peak_memory_bytes"),
        ("#tensors", "peak_tensor_bytes"),
        ("#state", "state_bytes"),
    ),
    "throughput": (
        ("#largest batch", "largest_batch"),
        ("#samples/s", "samples_per_second"),
        ("#at batch", "fastest_batch"),
        ("#with reading", "whole_samples_per_second"),
        ("#tokens/s", "tokens_per_second"),
        ("#peak memory", "peak_memory_bytes"),
        ("#state per sample", "sample_state_bytes"),
    ),
    "training": (
        ("#train ms/sample", "train_ms_per_sample"),
        ("#train peak", "train_peak_bytes"),
        ("#trained parameters", "trained_parameters"),
        ("#document s", "adapt_seconds"),
        ("#document peak", "adapt_peak_bytes"),
        ("#state", "state_bytes"),
    ),
}
"""(heading, figure) of each column, by mode."""
SPREAD_FIGURE = {
    "latency": "total_seconds",
    "throughput": "samples_per_second",
    "training": "adapt_seconds",
}
"""The figure with its spread in the table; the CSV has all."""
OPTIONAL_COLUMNS = (
    "#n",
    "#tensors",
    "#tokens/s",
    "#first ms",
    "#spread",
    "#at batch",
    "#trained parameters",
)
"""Columns that a narrow terminal leaves out, in this order; CSV and JSON have all."""
PANELS = {
    "latency": (
        ("total_seconds", "reading and answering, s"),
        ("token_ms", "time per token, ms"),
        ("peak_memory_bytes", "peak memory"),
        ("state_bytes", "state"),
    ),
    "throughput": (("samples_per_second", "samples/s"), ("largest_batch", "largest batch")),
    "training": (
        ("train_ms_per_sample", "training, ms per sample"),
        ("adapt_peak_bytes", "peak memory of a document"),
    ),
}
LINEAR_AXIS_MAX_RATIO = 6
"""Largest ratio of maximum to minimum for a linear axis."""


def profile_table(record: ProfileRecord) -> Table:
    """Build the table of a profile, one row per method and length."""
    columns, spread = MODE_COLUMNS[record.mode], SPREAD_FIGURE[record.mode]
    rows: list[tuple[str, ...]] = []
    for row in record.rows:
        cells = tuple(format_figure(name, row.figures.get(name)) for _, name in columns)
        if row.status != "ok":
            cells = (
                f"{row.status.replace('oom', 'OOM')} at {format_tokens(row.prefill)}",
                *("" for _ in columns[1:]),
            )
        rows.append(
            (row.method, format_tokens(row.prefill), *cells, *_spread(row.figures.get(spread)))
        )
    data: tuple[dict[str, Cell], ...] = tuple(
        {
            "method": row.method,
            "prefill": row.prefill,
            "growth": record.methods.get(row.method, {}).get("growth", ""),
            "status": row.status,
            "detail": row.detail,
            **{name: figure.value for name, figure in row.figures.items()},
        }
        for row in record.rows
    )
    return Table(
        title=f"{record.mode} of {record.base} on {record.model.get('device', '?')}, "
        f"{record.model.get('dtype', '?')}",
        columns=("method", "#prefill", *(heading for heading, _ in columns), "#n", "#spread"),
        rows=tuple(rows),
        data=data,
        caption=_caption(record),
        names=("method",),
        spare=OPTIONAL_COLUMNS,
    )


def format_figure(name: str, figure: Figure | None) -> str:
    """Format a figure for display; the unit follows from its name."""
    if figure is None:
        return "-"
    value = figure.value
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_parameters"):
        return format_count(value)
    if name.endswith("_batch"):
        return f"{value:,.0f}"
    return format_number(value, 1 if value >= 100 else 3)


def _spread(figure: Figure | None) -> tuple[str, str]:
    if figure is None:
        return "", ""
    width = (figure.high - figure.low) / figure.value if figure.value else 0.0
    return str(figure.n), "-" if figure.n < 2 else f"{100 * width:.0f} %"


def _caption(record: ProfileRecord) -> str:
    lines = []
    if record.mode == "latency":
        load = record.config["load"]
        total = (
            f"total: reading, {load['prompt_tokens']} prompt and {load['generate']} answer tokens."
        )
        lines.append(f"Medians. spread: (maximum - minimum) / median of the total. {total}")
    reasons = [
        f"{row.method} at {format_tokens(row.prefill)}: {row.detail}"
        for row in record.rows
        if row.status != "ok"
    ]
    lines += [f"{line.rstrip('.')}." for line in (*record.notes(), *reasons)]
    return "\n".join(lines)


def draw(record: ProfileRecord, path: Path) -> None:
    """Draw a profile and write the picture.

    Raises:
        UserError: no row was measured.
    """
    panels = [
        panel for panel in PANELS[record.mode] if any(row.value(panel[0]) for row in record.rows)
    ]
    if not panels:
        raise UserError(
            "No row was measured, so the plot is empty.", "Fix the reasons in the table."
        )
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(4.5 * len(panels), 3.8), layout="constrained")
    (panel_axes,) = picture.subplots(1, len(panels), squeeze=False)
    for axes, (name, label) in zip(panel_axes, panels, strict=True):
        _panel(axes, record, name)
        axes.set_ylabel(label)
    panel_axes[0].legend(fontsize="small")
    picture.suptitle(f"{record.base}, {record.model.get('device')}")
    write(picture, path)


def _panel(axes: Any, record: ProfileRecord, name: str) -> None:
    """Median with minimum and maximum by method; a cross at the top marks out of memory."""
    for place, method in enumerate(record.config["methods"]):
        rows = [row for row in record.rows if row.method == method]
        points = [(row.prefill, row.figures[name]) for row in rows if row.value(name)]
        below = [figure.value - figure.low for _, figure in points]
        above = [figure.high - figure.value for _, figure in points]
        axes.errorbar(
            [length for length, _ in points],
            [figure.value for _, figure in points],
            yerr=[below, above],
            marker="o",
            markersize=4,
            capsize=2,
            label=method,
            color=f"C{place}",
        )
        if oom_lengths := [row.prefill for row in rows if row.status == "oom"]:
            top = axes.get_xaxis_transform()
            axes.plot(
                oom_lengths,
                [0.97] * len(oom_lengths),
                "x",
                color=f"C{place}",
                transform=top,
                clip_on=False,
            )
    lengths = record.config["lengths"]
    values = [value for row in record.rows if (value := row.value(name))]
    if max(values) >= LINEAR_AXIS_MAX_RATIO * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter("")
    text_of = format_bytes if name.endswith("_bytes") else "{:,.6g}".format
    axes.yaxis.set_major_formatter(lambda value, _: text_of(value))
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [format_tokens(length) for length in lengths])
    axes.set_xlabel("tokens of context")
    axes.grid(alpha=0.3)
