"""Tables of runs: the end of `eval`, its dry run, and `list runs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING

from ttabench.core.amounts import count, number, size
from ttabench.cost import Cost
from ttabench.records.samples import has_samples
from ttabench.records.schema import Row, RunRecord
from ttabench.report import configuration
from ttabench.report.blocks import STATES
from ttabench.report.entries import over_runs
from ttabench.report.figures import shown
from ttabench.report.pairing import answered
from ttabench.run.budget import asked_of, told_kept
from ttabench.terminal.table import Cell, Table

if TYPE_CHECKING:
    from ttabench.run.plan import Plan

COST_COLUMNS = ("#adapt s", "#ask ms", "#state", "#peak memory", "#kept")
"""Of the end of `eval`; the last only of methods with a budget."""


def run_table(runs: Sequence[tuple[RunRecord, Path]], elsewhere: Sequence[str] = ()) -> Table:
    """The end of `eval`: the main metric of every run beside its cost, the others below, and where the records lie.

    `elsewhere`: other devices that some of them were made on.
    """
    first, several = runs[0][0], len(runs) > 1
    rows, data = [], []
    columns = COST_COLUMNS if any("kept_share" in record.cost for record, _ in runs) else COST_COLUMNS[:-1]
    for record, _ in runs:
        for position, row in enumerate(main_rows(record)):
            data.append({**row.model_dump(), **record.cost})
            if row.metric == record.main_metric and not told_already(row, record):
                cost, kept = record.cost, told_kept(record.cost.get("kept_share"), asked_of(record.config))
                sizes = (size(cost.get(name)) for name in ("state_bytes", "peak_memory_bytes"))
                costs = (number(cost.get("adapt_seconds"), 2), number(cost.get("ask_ms"), 1), *sizes, kept)
                costs = costs if position == 0 else ("",) * len(costs)
                figures = (shown(row.metric, row.value, row.stderr), str(row.n))
                rows.append((str(row.seed), named(row), *figures, *costs[: len(columns)]))
    others = [row.metric for row in main_rows(first) if row.metric != first.main_metric]
    if several:
        rows.append(("all", first.main_metric, *_over(runs, first.main_metric), *("",) * len(columns)))
    beside = ", ".join(f"{metric} {_over(runs, metric)[0]}" for metric in others)
    paths = [str(path) for _, path in runs]
    remarks = [f"Main metric: {first.main_metric}." + (f" Others: {beside}." if beside else "")]
    if elsewhere:
        remarks.append(f"Seconds, milliseconds and memory are those of {' and '.join(dict.fromkeys(elsewhere))}.")
    remarks += [f"Stored in {', '.join(paths)}", *[f"Compare: ttabench compare {' '.join(paths)}"] * several]
    return Table(
        title=f"{answering(first)} on {first.config['task']} ({first.source}), base {first.base}",
        columns=("#seed", "metric", "#value ± stderr", "#n", *columns), rows=tuple(rows), data=tuple(data),
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


def runs_table(runs: Sequence[tuple[RunRecord, Path]]) -> Table:
    """`list runs`: one line a run."""
    rows: list[tuple[str, ...]] = []
    data: list[Mapping[str, Cell]] = []
    for record, path in runs:
        config, row, settings = record.config, record.value(record.main_metric), configuration.told(record)
        value = "-" if row is None else f"{row.metric} {shown(row.metric, row.value, row.stderr)}"
        task, seed = str(config.get("task", "")), config.get("seed", "")
        made = record.created[:16].replace("T", " ")
        rows.append((record.id, answering(record), settings, task, record.source, record.base, str(seed),
                     str(record.n), value, made))  # fmt: skip
        data.append({
            "run": record.id, "method": config.get("method"), "state_of": record.state_of, "settings": settings,
            "task": task, "source": record.source, "model": record.base, "seed": seed, "n": record.n,
            "metric": row.metric if row else None, "value": row.value if row else None,
            "created": record.created, "path": str(path),
        })  # fmt: skip
    columns = ("run", "method", "settings", "task", "source", "model", "#seed", "#n", "#result", "created")
    caption = "One in full: ttabench show RUN"
    table = Table(
        title="runs", columns=columns, rows=tuple(rows), data=tuple(data), fold=True, caption=caption,
        names=("run", "method", "task", "source", "model", "created"),
        spare=("created", "#n", "source", "model"),
    )  # fmt: skip
    return table if any(row[2] for row in rows) else table.without("settings")


def config_table(plans: Sequence[Plan]) -> Table:
    """The resolved configuration of a dry run; what differs between seeds stands with all its values."""
    configs = [plan.config.to_json() for plan in plans]
    flat = [
        {f"{key}.{inner}" if inner else key: item for key, value in config.items()
         for inner, item in (value.items() if isinstance(value, dict) else [("", value)])}
        for config in configs
    ]  # fmt: skip
    rows = [("run", ", ".join(plan.config.identity() for plan in plans))]
    rows += [(key, ", ".join(dict.fromkeys(str(own.get(key)) for own in flat))) for key in flat[0]]
    return Table(title="resolved configuration", columns=("setting", "value"), rows=tuple(rows), names=("setting",))


def cost_table(cost: Cost) -> Table:
    """The analytic cost of a dry run."""
    row = (count(cost.parameters), count(cost.adapt_flops), count(cost.ask_flops), size(cost.state_bytes))
    data = {name: getattr(cost, name) for name in ("parameters", "adapt_flops", "ask_flops", "state_bytes")}
    columns = ("#base parameters", "#adapt operations", "#operations a query", "#state")
    caption = "Computed from shapes, with 4 characters a token; what is measured stands in the record of a run."
    return Table(title="analytic cost", columns=columns, rows=(row,), data=(data,), caption=caption)
