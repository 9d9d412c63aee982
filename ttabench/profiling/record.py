"""What a profile says, `OUT/<id>/profile.json`: configuration, base model, methods, and of each at each length a row.

A row says how it ended, and its figures with their spread. The record is written anew behind every row. `profile_table`
and `draw` show it.
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
from ttabench.report.pictures import write
from ttabench.terminal.table import Cell, Table

T = TypeVar("T")
RERUN_HINT = "Profile again with --force."
RECORD_FILE = "profile.json"
Status = Literal["ok", "oom", "refused", "skipped", "failed"]
"""Of a row; failed ones are tried again by the same command."""


class Figure(BaseModel):
    """A median with the smallest and the largest of its n measurements, one at least; counts have n = 1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float
    low: float
    high: float
    n: int = Field(default=1, ge=1)


class Row(BaseModel):
    """One method at one length; what older versions said beside is left out."""

    model_config = ConfigDict(frozen=True)

    method: str
    prefill: int
    """Tokens of context asked for, by the base model's tokenizer."""
    status: Status = "ok"
    """Measured; out of memory; refused by model or method; left out for want of time; the process died."""
    detail: str = ""
    """Why it did not end well."""
    figures: dict[str, Figure] = {}
    """By name; the name says the unit: _seconds, _ms, _bytes ..."""
    notes: tuple[str, ...] = ()

    def value(self, name: str) -> float | None:
        """The value of a figure, None where it was not measured."""
        return self.figures[name].value if name in self.figures else None


def figure(values: Sequence[float]) -> Figure:
    """Median, extremes and number of measurements; of what was counted, one value."""
    return Figure(value=median(values), low=min(values), high=max(values), n=len(values))


def peak_figure(name: str, peaks: Iterable[int | None]) -> dict[str, Figure]:
    """The largest of these bytes under that name; nothing where the device tells none."""
    highest_peak = largest_peak(peaks)
    return {} if highest_peak is None else {name: figure([highest_peak])}


def sum_figures(parts: Sequence[Figure]) -> Figure:
    """The sum of phases measured apart: of their medians, their lows and their highs."""
    sums = {name: sum(getattr(part, name) for part in parts) for name in ("value", "low", "high")}
    return Figure(**sums, n=min(part.n for part in parts))


def make_oom_row(method: str, prefill: int, reason: str) -> Row:
    """The row of a length that memory does not suffice for."""
    return Row(method=method, prefill=prefill, status="oom", detail=" ".join(reason.split())[:200])


def measure_or_refuse(method: str, prefill: int, measure: Callable[[], T]) -> T | Row:
    """What is measured or made; too little memory and refusals of model or method are rows."""
    try:
        return measure()
    except UserError as error:
        return Row(method=method, prefill=prefill, status="refused", detail=str(error))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return make_oom_row(method, prefill, str(error))


class ProfileRecord(BaseModel):
    """A profile, or what is measured of it. JSON values only; what older versions said beside is left out."""

    model_config = ConfigDict(frozen=True)

    schema_version: Literal[2] = 2
    id: str
    created: str
    """UTC, ISO 8601."""
    seconds: float
    """Spent on it in all, stops left out."""
    config: dict[str, Json]
    model: dict[str, Json]
    methods: dict[str, dict[str, Json]]
    """Growth, trained parameters and notes by name, of those that could be built."""
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
        """The base model as tables name it."""
        return (
            f"{self.config['model']}{' (random weights)' if self.config['random_weights'] else ''}"
        )

    def growth(self, method: str) -> str:
        """How a method's state grows with what it reads; "" for one that could not be built."""
        return str(self.methods.get(method, {}).get("growth", ""))

    def notes(self) -> list[str]:
        """Notes without which the figures would mislead, each once."""
        notes = [note for method in self.methods.values() for note in method["notes"]]
        for name, method in self.methods.items():
            if method["parameters"] and not self.config["methods"][name]["digest"]:
                notes.append(f"{name} untrained: weights do not change the cost")
        notes += [
            f"{row.method} at {format_tokens(row.prefill)}: {note}"
            for row in self.rows
            for note in row.notes
        ]
        return list(dict.fromkeys(notes))


def load_profile(folder: Path) -> ProfileRecord:
    """The record in a folder."""
    file = folder / RECORD_FILE
    with reading_file(file, RERUN_HINT):
        return ProfileRecord.model_validate(
            {"schema_version": 1, **read_json_object(file, RERUN_HINT)}
        )


def save_profile(record: ProfileRecord, folder: Path) -> None:
    """Write a record, in place of what is there."""
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
        ("#state a sample", "sample_state_bytes"),
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
"""Columns of each mode: heading and figure."""
SPREAD_FIGURE = {
    "latency": "total_seconds",
    "throughput": "samples_per_second",
    "training": "adapt_seconds",
}
"""The figure whose spread stands in the table; all others are in the CSV."""
OPTIONAL_COLUMNS = (
    "#n",
    "#tensors",
    "#tokens/s",
    "#first ms",
    "#spread",
    "#at batch",
    "#trained parameters",
)
"""Columns that a narrow screen leaves out, in this order; CSV and JSON have all."""
PANELS = {
    "latency": (
        ("total_seconds", "read and write, s"),
        ("token_ms", "one more token, ms"),
        ("peak_memory_bytes", "peak memory"),
        ("state_bytes", "state"),
    ),
    "throughput": (("samples_per_second", "samples/s"), ("largest_batch", "largest batch")),
    "training": (
        ("train_ms_per_sample", "training, ms a sample"),
        ("adapt_peak_bytes", "peak of a document"),
    ),
}
LINEAR_AXIS_MAX_RATIO = 6
"""Up to which ratio of its ends an axis has even steps."""


def profile_table(record: ProfileRecord) -> Table:
    """A row a method and length."""
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
            "growth": record.growth(row.method),
            "status": row.status,
            "detail": row.detail,
            **{name: figure.value for name, figure in row.figures.items()},
        }
        for row in record.rows
    )
    return Table(
        title=f"{record.mode} of {record.base} on {record.model.get('device', '?')}, {record.model.get('dtype', '?')}",
        columns=("method", "#prefill", *(heading for heading, _ in columns), "#n", "#spread"),
        rows=tuple(rows),
        data=data,
        caption=_caption(record),
        names=("method",),
        spare=OPTIONAL_COLUMNS,
    )


def format_figure(name: str, figure: Figure | None) -> str:
    """A figure for people; its name says its unit."""
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
        total = f"total: reading, {load['prompt_tokens']} tokens of prompt and {load['generate']} written."
        lines.append(f"Medians; spread: (largest - smallest) / median of the total. {total}")
    reasons = [
        f"{row.method} at {format_tokens(row.prefill)}: {row.detail}"
        for row in record.rows
        if row.status != "ok"
    ]
    lines += [f"{line.rstrip('.')}." for line in (*record.notes(), *reasons)]
    return "\n".join(lines)


def draw(record: ProfileRecord, path: Path) -> None:
    """Draw a profile and write it."""
    panels = [
        panel for panel in PANELS[record.mode] if any(row.value(panel[0]) for row in record.rows)
    ]
    if not panels:
        raise UserError(
            "There is nothing to plot: no row was measured.", "See the table for the reasons."
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
    """Medians with their extremes by method; a cross at the top of the panel where memory did not suffice."""
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
