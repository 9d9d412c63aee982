"""Tables of runs: which figures stand where. How they are printed is the affair of `terminal/render.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING

from ttabench.core.amounts import count, number, size
from ttabench.core.types import Json
from ttabench.cost import Cost
from ttabench.records.sample_files import has_samples
from ttabench.records.schema import Row, RunRecord
from ttabench.report import configuration
from ttabench.report.figures import shown
from ttabench.report.labels import STATES
from ttabench.report.pairing import answered
from ttabench.report.pooling import over_runs
from ttabench.terminal.table import Cell, Table

if TYPE_CHECKING:
    from ttabench.run.plan import Plan

COST_COLUMNS = ("#adapt s", "#ask ms", "#state", "#peak memory")


def run_table(runs: Sequence[tuple[RunRecord, Path]], elsewhere: Sequence[str] = ()) -> Table:
    """The end of `eval`: the main metric of every run beside its cost, the others below, and where the records lie.

    Args:
        runs: with their folders.
        elsewhere: other devices that some of them were made on.
    """
    first = runs[0][0]
    several = len(runs) > 1
    rows, data = [], []
    for record, _ in runs:
        for position, row in enumerate(main_rows(record)):
            data.append({**row.model_dump(), **record.cost})
            if row.metric == record.main_metric and not told_already(row, record):
                costs = _costs(record) if position == 0 else ("",) * len(COST_COLUMNS)
                rows.append((str(row.seed), named(row), shown(row.metric, row.value, row.stderr), str(row.n), *costs))
    others = [row.metric for row in main_rows(first) if row.metric != first.main_metric]
    whole = {metric: _over(runs, metric) for metric in (first.main_metric, *others)}
    if several:
        rows.append(("all", first.main_metric, *whole[first.main_metric], "", "", "", ""))
    where = ", ".join(str(path) for _, path in runs)
    beside = ", ".join(f"{metric} {whole[metric][0]}" for metric in others)
    remarks = [f"Main metric: {first.main_metric}." + (f" Others: {beside}." if beside else ""), f"Stored in {where}"]
    if elsewhere:
        remarks.insert(1, f"Seconds, milliseconds and memory are those of {' and '.join(dict.fromkeys(elsewhere))}.")
    if several:
        remarks.append(f"Compare: ttabench compare {' '.join(str(path) for _, path in runs)}")
    return Table(
        title=f"{answering(first)} on {first.config['task']} ({first.source}), base {first.base}",
        columns=("#seed", "metric", "#value ± stderr", "#n", *COST_COLUMNS), rows=tuple(rows), data=tuple(data),
        caption="\n".join(remarks), names=("metric",), spare=("#peak memory", "#ask ms"),
    )  # fmt: skip


def _over(runs: Sequence[tuple[RunRecord, Path]], metric: str) -> tuple[str, str]:
    """(figure, n) of one metric over runs that differ in their seed."""
    alike = [row for record, _ in runs if (row := record.value(metric)) is not None]
    if len(runs) == 1:
        return shown(metric, alike[0].value, alike[0].stderr), str(alike[0].n)
    placed = [(path, record) for record, path in runs]
    kept = answered(placed, metric) if all(has_samples(path) for _, path in runs) else {}
    value, stderr, n = over_runs(alike, list(kept.values()), draws=runs[0][0].unit == "draw")
    return shown(metric, value, stderr), str(n)


def answering(record: RunRecord) -> str:
    """The method, with whose state answered where that is not the text's own."""
    return f"{record.config.get('method', '')}{STATES[record.state_of]}"


def named(row: Row) -> str:
    """A metric, with the step or sub-task it is of."""
    step = f" @{row.step}" if row.step is not None else ""
    return row.metric + step + (f", {row.subtask}" if row.subtask else "")


def told_already(row: Row, record: RunRecord) -> bool:
    """Whether it is the mean over sub-tasks, and that is the figure over all queries."""
    whole = record.value(row.metric)
    return row.subtask == "mean" and row.step is None and whole is not None and isclose(row.value, whole.value)


def main_rows(record: RunRecord) -> list[Row]:
    """Figures over all queries, the main one first, then the main one by step and by sub-task, if there are several."""
    whole = [row for row in record.rows if row.step is None and row.subtask is None]
    main = [row for row in record.rows if row.metric == record.main_metric]
    steps = [row for row in main if row.step is not None and row.subtask is None]
    whole.sort(key=lambda row: row.metric != record.main_metric)
    return whole + steps + [row for row in main if row.step is None and row.subtask is not None]


def _costs(record: RunRecord) -> tuple[str, ...]:
    cost = record.cost
    return (
        number(cost.get("adapt_seconds"), 2),
        number(cost.get("ask_ms"), 1),
        size(cost.get("state_bytes")),
        size(cost.get("peak_memory_bytes")),
    )


def runs_table(runs: Sequence[tuple[RunRecord, Path]]) -> Table:
    """`list runs`: one line a run."""
    rows: list[tuple[str, ...]] = []
    data: list[Mapping[str, Cell]] = []
    for (record, path), settings in zip(runs, configuration.apart([record for record, _ in runs]), strict=True):
        config = record.config
        row = record.value(record.main_metric)
        value = "-" if row is None else f"{row.metric} {shown(row.metric, row.value, row.stderr)}"
        named = (answering(record), str(config.get("task", "")))
        seed = config.get("seed", "")
        made = record.created[:16].replace("T", " ")
        rows.append((
            record.id, named[0], settings, named[1], record.source, record.base, str(seed), str(record.n), value, made
        ))  # fmt: skip
        data.append({
            "run": record.id, "method": config.get("method"), "state_of": record.state_of, "settings": settings,
            "task": named[1], "source": record.source, "model": record.base, "seed": seed, "n": record.n,
            "metric": row.metric if row else None, "value": row.value if row else None,
            "created": record.created, "path": str(path),
        })  # fmt: skip
    columns = ("run", "method", "settings", "task", "source", "model", "#seed", "#n", "#result", "created")
    caption = "One in full: ttabench show RUN"
    short = tuple((row[0], " ".join(filter(None, [*row[1:4], f"seed {row[6]}"])), row[8]) for row in rows)
    table = Table(
        title="runs", columns=columns, rows=tuple(rows), data=tuple(data), fold=True, caption=caption,
        names=("run", "method", "task", "source", "model", "created"),
        spare=("created", "#n", "source", "model"),
        narrower=Table(title="runs", columns=("run", "what", "#result"), rows=short, names=("run",), caption=caption),
    )  # fmt: skip
    return table if any(row[2] for row in rows) else table.without("settings")


def config_table(plans: Sequence[Plan]) -> Table:
    """The resolved configuration of a dry run; what differs between seeds stands with all its values."""
    flat = [_flat(plan.config.to_json()) for plan in plans]
    rows = [("run", ", ".join(plan.config.identity() for plan in plans))]
    for key in flat[0]:
        values = dict.fromkeys(str(own_values.get(key)) for own_values in flat)
        rows.append((key, ", ".join(values)))
    return Table(title="resolved configuration", columns=("setting", "value"), rows=tuple(rows), names=("setting",))


def _flat(config: Mapping[str, Json]) -> dict[str, Json]:
    flat: dict[str, Json] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat.update({f"{key}.{inner}": item for inner, item in value.items()})
        else:
            flat[key] = value
    return flat


def cost_table(cost: Cost) -> Table:
    """The analytic cost of a dry run."""
    row = (count(cost.parameters), count(cost.adapt_flops), count(cost.ask_flops), size(cost.state_bytes))
    data = {
        "parameters": cost.parameters, "adapt_flops": cost.adapt_flops,
        "ask_flops": cost.ask_flops, "state_bytes": cost.state_bytes,
    }  # fmt: skip
    columns = ("#base parameters", "#adapt operations", "#operations a query", "#state")
    caption = "Computed from shapes, with 4 characters a token; what is measured stands in the record of a run."
    return Table(title="analytic cost", columns=columns, rows=(row,), data=(data,), caption=caption)
