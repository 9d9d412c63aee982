"""Tables of a profile: what each method costs at each length, and from when it is cheaper than full context."""

from __future__ import annotations

from ttabench.core.amounts import count, number, short, size
from ttabench.profiling.on_paper import break_even, break_even_words
from ttabench.profiling.record import ProfileRecord
from ttabench.profiling.rows import Figure
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
