"""Tables and pictures of a profile: what each method costs at each length, and when less than full context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ttabench.core.amounts import count, number, short, size
from ttabench.core.errors import UserError
from ttabench.profiling.on_paper import break_even, break_even_words
from ttabench.profiling.record import ProfileRecord
from ttabench.profiling.rows import Figure
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
        ("#trained parameters", "trained_parameters"), ("#document ms", "document_ms"),
        ("#document peak", "document_peak_bytes"), ("#state", "state_bytes"),
    ),
}  # fmt: skip
"""Columns of each mode: heading and figure."""
SPREAD = {"latency": "total_seconds", "throughput": "samples_per_second", "training": "document_ms"}
"""The figure whose spread stands in the table; all others are in the CSV."""
SPARE = ("#n", "#tensors", "#tokens/s", "#first ms", "#spread", "#at batch", "#trained parameters")
"""Columns that a narrow screen leaves out, in this order; CSV and JSON have all."""
FULL_CONTEXT = "icl"
"""The method whose seconds others are set against."""
STATUS = {"oom": "OOM", "refused": "refused", "skipped": "skipped", "failed": "failed"}
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


def profile_tables(record: ProfileRecord) -> list[Table]:
    """The main table; for latencies also that of queries until a method beats full context."""
    cheaper = break_even_table(record) if record.mode == "latency" else None
    return [main_table(record), *([cheaper] if cheaper else [])]


def main_table(record: ProfileRecord) -> Table:
    """A row a method and length."""
    columns = FIGURES[record.mode]
    spread = SPREAD[record.mode]
    rows: list[tuple[str, ...]] = []
    for row in record.rows:
        cells = tuple(shown(name, row.figures.get(name)) for _, name in columns)
        if row.status != "ok":
            cells = (f"{STATUS[row.status]} at {short(row.prefill)}", *("" for _ in columns[1:]))
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
        spare=SPARE, fold=True,
    )  # fmt: skip


def break_even_table(record: ProfileRecord) -> Table | None:
    """Measured seconds of every method that reads against those of full context; None without both."""
    seconds = {  # of reading, and of a query
        (row.method, row.prefill): (adapt, total - adapt)
        for row in record.rows
        if row.status == "ok" and (adapt := row.value("adapt_seconds")) and (total := row.value("total_seconds"))
    }
    rows, data, lengths = list[tuple[str, ...]](), list[dict[str, Cell]](), record.config["lengths"]
    for method in record.config["methods"]:
        if method in (FULL_CONTEXT, "none"):
            continue
        cells = dict.fromkeys(lengths, "-")
        for length in lengths:
            if (own := seconds.get((method, length))) and (full := seconds.get((FULL_CONTEXT, length))):
                queries, cheaper = break_even(*own, *full)
                cells[length] = break_even_words(queries, cheaper)
                data.append({"method": method, "prefill": length, "queries": queries, "cheaper": cheaper})
        rows.append((method, *cells.values()))
    if not data:
        return None
    return Table(
        title="queries from or until which a method takes no more seconds than full context",
        columns=("method", *(f"#{short(length)}" for length in lengths)),
        rows=tuple(rows), data=tuple(data), names=("method",),
        caption="Reading once, and for each query its prompt and what is written; full context keeps its cache.",
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
