"""A line of a comparison from its runs: the figure with its error, what it cost, and whether it is set aside."""

from __future__ import annotations

from collections.abc import Mapping

from ttabench.core.accelerators import name_of
from ttabench.core.types import Json
from ttabench.records.schema import Row, RunRecord
from ttabench.report.answers import Answers
from ttabench.report.blocks import Group, Place
from ttabench.report.entries import COSTS, DISTANCES, LENGTHS, PIECES, Entry, Step
from ttabench.report.labels import configured
from ttabench.report.pooling import mean, over_runs
from ttabench.report.setting_aside import fault_of


def entry_of(place: Place, label: str, group: Group, answers: Answers) -> Entry:
    """The line of a group.

    Args:
        place: of its block.
        label: what it is called there.
        group: its runs.
        answers: what its queries add to the metric; nothing where answers are not kept.
    """
    records = [record for _, record in group.runs]
    rows = [row for record in records if (row := record.value(group.metric)) is not None]
    value, stderr, n = over_runs(rows, list(answers.values.values()), draws=group.record.unit == "draw")
    aside, reason = fault_of(records)
    return Entry(
        label=label,
        method=rows[0].method,
        task=rows[0].task,
        source=rows[0].source,
        model=rows[0].model,
        block=place.name,
        seeds=tuple(sorted({row.seed for row in rows})),
        metric=group.metric,
        value=value,
        stderr=stderr,
        n=n,
        costs={cost: mean([record.cost.get(cost) for record in records]) for cost in COSTS},
        runs=tuple(record.id for record in records),
        steps=_by_step(group, answers),
        state_of=records[0].state_of,
        theirs=group.theirs,
        configured=configured(group),
        step=_step(records[0]),
        trained=int(records[0].method.get("parameters") or 0),
        machine="; ".join(sorted({computed_on(record.hardware, record.model.get("device")) for record in records})),
        load=max((load for record in records if (load := _others(record)) is not None), default=None),
        aside=aside,
        reason=reason,
    )


def computed_on(hardware: Mapping[str, Json], device: Json) -> str:
    """Machine that a run computed on: `cpu, AMD EPYC, 1 thread`.

    Args:
        hardware: of a record.
        device: of its model.
    """
    threads = hardware.get("threads")
    count = f"{threads} thread{'s' * (threads != 1)}" if threads else None
    parts = (device, name_of(hardware), hardware.get("cpu"), count)
    return ", ".join(str(part) for part in parts if part)


def _others(record: RunRecord) -> float | None:
    """Processors that other programs took: the load average less the run's own threads; None where it is not known."""
    loads = [record.cost.get(f"load_average_{end}") for end in ("start", "end")]
    known, threads = [float(load) for load in loads if load is not None], record.hardware.get("threads")
    return max(0.0, max(known) - float(threads)) if known and isinstance(threads, int) else None


def _step(record: RunRecord) -> Step:
    """Names of the steps of its task."""
    return LENGTHS if record.task.get("lengths") else DISTANCES if record.task.get("distances") else PIECES


def _by_step(group: Group, answers: Answers) -> dict[int, tuple[float, float | None, int]]:
    rows: dict[int, list[Row]] = {}
    for row in (row for _, record in group.runs for row in record.rows):
        if row.metric == group.metric and row.step is not None and row.subtask is None:
            rows.setdefault(row.step, []).append(row)
    if not rows:
        return {}
    lengths = _step(group.record) == LENGTHS
    own = [(answers.steps[query[:3]], value) for query, value in answers.values.items()]
    draws, by_step = group.record.unit == "draw", {}
    for step in sorted(rows):
        values = [value for mine, value in own if mine == step or (lengths and mine < step)]
        by_step[step] = over_runs(rows[step], values, draws=draws)
    return by_step
