"""Tables of runs and comparisons: which figures stand where. How they are printed is the affair of `core/render.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ttabench.core.render import Cell, Table, count, number, plus_minus, size
from ttabench.core.types import Json
from ttabench.cost import Cost
from ttabench.records.schema import Row, RunRecord, has_samples
from ttabench.report import configuration
from ttabench.report.compare import Comparison, Difference, Entry, over_runs
from ttabench.report.frames import crossed
from ttabench.report.pairing import answered
from ttabench.stats.metrics import METRICS

if TYPE_CHECKING:
    from ttabench.run.plan import Plan

COST_COLUMNS = ("#adapt s", "#ask ms", "#state", "#peak memory")


def scale(metric: str) -> float:
    """What a stored metric is multiplied by to be read: 100 for fractions."""
    return METRICS[metric].scale if metric in METRICS else 1.0


def shown(metric: str, value: float, stderr: float | None) -> str:
    """A figure of a metric with its standard error, for people."""
    return plus_minus(value, stderr, scale(metric), _digits(metric))


def _digits(metric: str) -> int:
    return METRICS[metric].digits if metric in METRICS else 1


def run_table(runs: Sequence[tuple[RunRecord, Path]]) -> Table:
    """The end of `eval`: the main metric of every run beside its cost, the others below, and where the records lie."""
    first = runs[0][0]
    several = len(runs) > 1
    rows, data = [], []
    for record, _ in runs:
        for position, row in enumerate(main_rows(record)):
            data.append({**row.model_dump(), **record.cost})
            if row.metric == record.main_metric:
                costs = _costs(record) if position == 0 else ("",) * len(COST_COLUMNS)
                rows.append((str(row.seed), named(row), shown(row.metric, row.value, row.stderr), str(row.n), *costs))
    others = [row.metric for row in main_rows(first) if row.metric != first.main_metric]
    whole = {metric: _over(runs, metric) for metric in (first.main_metric, *others)}
    if several:
        rows.append(("all", first.main_metric, *whole[first.main_metric], "", "", "", ""))
    where = ", ".join(str(path) for _, path in runs)
    beside = ", ".join(f"{metric} {whole[metric][0]}" for metric in others)
    told = [f"Main metric: {first.main_metric}." + (f" Others: {beside}." if beside else ""), f"Stored in {where}"]
    if several:
        told.append(f"Compare: ttabench compare {' '.join(str(path) for _, path in runs)}")
    return Table(
        title=f"{answering(first)} on {first.config['task']} ({first.source}), base {first.base}",
        columns=("#seed", "metric", "#value ± stderr", "#n", *COST_COLUMNS), rows=tuple(rows), data=tuple(data),
        caption="\n".join(told), names=("metric",), spare=("#peak memory", "#ask ms"),
    )  # fmt: skip


def _over(runs: Sequence[tuple[RunRecord, Path]], metric: str) -> tuple[str, str]:
    """(figure, n) of one metric over runs that differ in their seed."""
    alike = [found for record, _ in runs if (found := record.value(metric)) is not None]
    if len(runs) == 1:
        return shown(metric, alike[0].value, alike[0].stderr), str(alike[0].n)
    folders = [path for _, path in runs]
    kept = answered(folders, metric) if all(map(has_samples, folders)) else {}
    value, stderr, n = over_runs(alike, list(kept.values()), draws=runs[0][0].unit == "draw")
    return shown(metric, value, stderr), str(n)


def answering(record: RunRecord) -> str:
    """The method, with whose state answered where that is not the text's own."""
    apart = f", state of: {record.state_of}" if record.state_of != "own" else ""
    return f"{record.config.get('method', '')}{apart}"


def named(row: Row) -> str:
    """A metric, with the step or sub-task it is of."""
    step = f" @{row.step}" if row.step is not None else ""
    return row.metric + step + (f", {row.subtask}" if row.subtask else "")


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
    return Table(
        title="runs", columns=columns, rows=tuple(rows), data=tuple(data), fold=True,
        caption="settings: what sets runs of one method and task apart.\nOne in full: ttabench show RUN",
        names=("run", "method", "task", "source", "model", "created"),
        spare=("created", "#n", "source", "model"),
    )  # fmt: skip


def comparison_tables(found: Comparison) -> list[Table]:
    """`compare`: quality beside cost, quality by step where there are several, then the paired differences."""
    tables = [_entries_table(found.entries, found.unpaired)]
    if any(entry.steps for entry in found.entries):
        tables.append(_steps_table([entry for entry in found.entries if entry.steps]))
    if found.differences:
        swapped = any(entry.state_of == "other" for entry in found.entries)
        tables.append(_differences_table(found.differences, swapped))
    return tables


def _entries_table(entries: Sequence[Entry], unpaired: Sequence[tuple[str, str]]) -> Table:
    rows, data = [], []
    for entry in entries:
        seeds = ",".join(str(seed) for seed in entry.seeds)
        costs = entry.costs
        rows.append((
            entry.label, entry.task, entry.source, entry.model, seeds, str(entry.n), entry.metric,
            shown(entry.metric, entry.value, entry.stderr), number(costs["adapt_seconds"], 2),
            number(costs["ask_ms"], 1), size(costs["state_bytes"]), size(costs["peak_memory_bytes"]),
        ))  # fmt: skip
        data.append({
            "label": entry.label, "method": entry.method, "state_of": entry.state_of, "task": entry.task,
            "source": entry.source,
            "model": entry.model, "seeds": seeds, "n": entry.n, "metric": entry.metric, "value": entry.value,
            "stderr": entry.stderr, **costs, "runs": " ".join(entry.runs),
        })  # fmt: skip
    columns = ("method", "task", "source", "model", "seeds", "#n", "metric", "#value ± stderr", *COST_COLUMNS)
    named = "; ".join(f"{left} − {right}" for left, right in unpaired)
    caption = f"No difference, for no stretch of text was scored by both with one base and tokenizer: {named}."
    return Table(title="runs", columns=columns, rows=tuple(rows), data=tuple(data), caption=caption if unpaired else "")


def _steps_table(entries: Sequence[Entry]) -> Table:
    """A column for each number of pieces observed before the query, or for each length."""
    found = [(place, entry, step, at) for place, entry in enumerate(entries) for step, at in entry.steps.items()]
    grid = crossed(((place, step, shown(entry.metric, *at[:2])) for place, entry, step, at in found), "".join)
    rows = [(entry.label, entry.task, entry.metric, *grid.loc[place]) for place, entry in enumerate(entries)]
    data = [
        {"label": entry.label, "task": entry.task, "metric": entry.metric, "step": step, "value": value,
         "stderr": stderr, "n": n}
        for _, entry, step, (value, stderr, n) in found
    ]  # fmt: skip
    columns = ("method", "task", "metric", *(f"#{step}" for step in grid.columns))
    counted = {
        "Up to so many tokens of each text." if entry.lengths else "By pieces observed before the query."
        for entry in entries
    }
    caption = " ".join(sorted(counted))
    return Table(title="steps", columns=columns, rows=tuple(rows), data=tuple(data), caption=caption)


def _differences_table(differences: Sequence[Difference], swapped: bool) -> Table:
    rows: list[tuple[str, ...]] = []
    data: list[Mapping[str, Cell]] = []
    for apart in differences:
        times, digits = scale(apart.metric), _digits(apart.metric)
        bounds = [number(bound * times, digits) for bound in (apart.ci_low, apart.ci_high) if bound is not None]
        interval = f"[{', '.join(bounds)}]" if bounds else "-"
        p = "-" if apart.p is None else f"{apart.p:.4f}" if apart.p >= 0.001 else "< 0.001"
        value = number(apart.value * times, digits)
        counts = (str(apart.n), str(apart.units))
        rows.append((f"{apart.left} − {apart.right}", apart.task, apart.metric, value, interval, p, *counts))
        data.append({
            "left": apart.left, "right": apart.right, "task": apart.task, "metric": apart.metric,
            "value": apart.value, "ci_low": apart.ci_low, "ci_high": apart.ci_high, "p": apart.p, "n": apart.n,
            "units": apart.units,
        })  # fmt: skip
    columns = ("difference", "task", "metric", "#value", "#95 % interval", "#p", "#n shared", "#units")
    caption = (
        "Paired over the queries both answered. Units are what varies among them: documents, draws of a sub-task's "
        "demonstrations, books; intervals and p are Student's over units (over queries where there is one unit)."
    )
    if swapped:
        caption += " Own state − another's is memory of the context; another's − none is what any such context gives."
    return Table(title="differences", columns=columns, rows=tuple(rows), data=tuple(data), caption=caption)


def config_table(plans: Sequence[Plan]) -> Table:
    """The resolved configuration of a dry run; what differs between seeds stands with all its values."""
    flat = [_flat(plan.config.to_json()) for plan in plans]
    rows = [("run", ", ".join(plan.config.identity() for plan in plans))]
    for key in flat[0]:
        values = dict.fromkeys(str(each.get(key)) for each in flat)
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
