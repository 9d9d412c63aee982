"""Tables of runs: which figures stand where. How they are printed is the affair of `core/render.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ttabench.core.render import Cell, Table, count, number, size
from ttabench.core.types import Json
from ttabench.cost import Cost
from ttabench.records.schema import Row, RunRecord, has_samples
from ttabench.report.figures import shown
from ttabench.report.pairing import answered
from ttabench.report.pooling import over_runs

if TYPE_CHECKING:
    from ttabench.run.plan import Plan

COST_COLUMNS = ("#adapt s", "#ask ms", "#state", "#peak memory")


def run_table(runs: Sequence[tuple[RunRecord, Path]]) -> Table:
    """The end of `eval`: every metric of every run beside its cost, and where the records lie."""
    first = runs[0][0]
    several = len(runs) > 1
    rows, data = [], []
    for record, _ in runs:
        for position, row in enumerate(_shown(record)):
            costs = _costs(record) if position == 0 else ("",) * len(COST_COLUMNS)
            name = (
                row.metric
                + (f" @{row.step}" if row.step is not None else "")
                + (f", {row.subtask}" if row.subtask else "")
            )
            figures = (name, shown(row.metric, row.value, row.stderr), str(row.n))
            rows.append((str(row.seed), *figures, *costs))
            data.append({**row.model_dump(), **record.cost})
    if several:
        for metric in (row.metric for row in _shown(first) if row.step is None and row.subtask is None):
            alike = [found for record, _ in runs if (found := record.value(metric)) is not None]
            placed = [(path, record) for record, path in runs]
            kept = answered(placed, metric) if all(has_samples(path) for _, path in runs) else {}
            value, stderr, n = over_runs(alike, list(kept.values()), draws=first.unit == "draw")
            rows.append(("all", metric, shown(metric, value, stderr), str(n), "", "", "", ""))
    where = ", ".join(str(path) for _, path in runs)
    again = f"\nCompare: ttabench compare {' '.join(str(path) for _, path in runs)}" if several else ""
    return Table(
        title=f"{_answering(first)} on {first.config['task']} ({first.source}), base {first.base}",
        columns=("#seed", "metric", "#value ± stderr", "#n", *COST_COLUMNS),
        rows=tuple(rows),
        data=tuple(data),
        caption=f"Stored in {where}{again}",
    )


def _answering(record: RunRecord) -> str:
    """The method, with whose state answered where that is not the text's own."""
    apart = f", state of: {record.state_of}" if record.state_of != "own" else ""
    return f"{record.config.get('method', '')}{apart}"


def _shown(record: RunRecord) -> list[Row]:
    """Figures over all queries, then the main metric by step and by sub-task where there are several."""
    whole = [row for row in record.rows if row.step is None and row.subtask is None]
    main = [row for row in record.rows if row.metric == record.main_metric]
    steps = [row for row in main if row.step is not None and row.subtask is None]
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
    for record, path in runs:
        config = record.config
        row = record.value(record.main_metric)
        value = "-" if row is None else f"{row.metric} {shown(row.metric, row.value, row.stderr)}"
        named = (_answering(record), str(config.get("task", "")))
        seed = config.get("seed", "")
        rows.append((
            record.id, *named, record.source, record.base, str(seed), str(record.n), value, record.created
        ))  # fmt: skip
        data.append({
            "run": record.id, "method": config.get("method"), "state_of": record.state_of, "task": named[1],
            "source": record.source, "model": record.base, "seed": seed, "n": record.n,
            "metric": row.metric if row else None, "value": row.value if row else None,
            "created": record.created, "path": str(path),
        })  # fmt: skip
    columns = ("run", "method", "task", "source", "model", "#seed", "#n", "#result", "created")
    return Table(title="runs", columns=columns, rows=tuple(rows), data=tuple(data))


def config_table(plans: Sequence[Plan]) -> Table:
    """The resolved configuration of a dry run; what differs between seeds stands with all its values."""
    flat = [_flat(plan.config.to_json()) for plan in plans]
    rows = [("run", ", ".join(plan.config.identity() for plan in plans))]
    for key in flat[0]:
        values = dict.fromkeys(str(each.get(key)) for each in flat)
        rows.append((key, ", ".join(values)))
    return Table(title="resolved configuration", columns=("setting", "value"), rows=tuple(rows))


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
