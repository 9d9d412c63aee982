"""One line of a comparison, made of its runs, and what a block knows of its lines: ends, candidates, the front.

Lines that are set aside say nothing of their method beside the others. They are named, and never lead:

limit    `--limit` let it ask fewer questions than the others were asked: it stands in no table
cut      its window left out a part of the context: of `icl` that is no ceiling
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ttabench.core.amounts import format_number, format_with_stderr
from ttabench.core.environment import accelerator_name
from ttabench.core.types import Json
from ttabench.records.schema import Row, RunRecord
from ttabench.report.groups import FULL_CONTEXT, NO_CONTEXT, GroupKey, SeedGroup
from ttabench.report.stored import Answers, QueryValues, is_untrained
from ttabench.stats import estimate as statistics
from ttabench.stats.clusters import Observation
from ttabench.stats.figures import MEAN
from ttabench.stats.metrics import metric_or_default

COST_NAMES = ("adapt_seconds", "ask_ms", "state_bytes", "peak_memory_bytes", "kept_share")
CHUNKS_READ = "pieces read before the query"
TEXT_LENGTH = "tokens of each text, at most"
"""Each with all that stands before it."""
ANSWER_DISTANCE = "tokens read since the answer, at most"


@dataclass(frozen=True, kw_only=True)
class MethodRow(SeedGroup):
    """One line of a comparison: all runs of one configuration, whatever their seed."""

    label: str
    group_key: GroupKey
    values: QueryValues
    """Terms that its queries add to the metric."""
    value: float
    stderr: float | None
    n: int
    costs: Mapping[str, float | None]
    """Means over the runs, by `COST_NAMES`."""
    steps: Mapping[int, tuple[float, float | None, int]] = field(default_factory=dict)
    """(mean, standard error, n) by the pieces observed before the query, where the runs asked at several points."""
    step: str = CHUNKS_READ
    """What its steps are."""
    machine: str = ""
    """Machine of its latencies; several are parted by "; "."""
    exclusion_reason: str = ""
    """Why it is set aside, in words that follow its label: "read 36 % of the context", of a limit the option as it was
    typed; empty where it is not."""

    @property
    def untrained(self) -> bool:
        """Whether a trainable method, or such a part of `A+B`, ran without a checkpoint."""
        return any(map(is_untrained, self.records))

    @property
    def marked_label(self) -> str:
        """Its label as tables have it."""
        return self.label + " (cut)" * bool(self.exclusion_reason)

    @property
    def oriented_value(self) -> float:
        """The value, so that more is better."""
        return self.value if metric_or_default(self.metric).higher_is_better else -self.value


def make_method_row(
    group_key: GroupKey, label: str, seed_group: SeedGroup, answers: Answers
) -> MethodRow:
    """The line of a group in its block, from what its queries add to the metric (nothing where that is not kept)."""
    records, task = seed_group.records, seed_group.record.task
    rows = [row for record in records if (row := record.value(seed_group.metric)) is not None]
    value, stderr, n = value_over_runs(rows, list(answers.values.values()))
    step = (
        TEXT_LENGTH
        if task.get("lengths")
        else ANSWER_DISTANCE
        if task.get("distances")
        else CHUNKS_READ
    )
    spent = {
        cost: [float(each) for record in records if (each := record.cost.get(cost)) is not None]
        for cost in COST_NAMES
    }
    return MethodRow(
        **vars(seed_group),
        label=label,
        group_key=group_key,
        values=answers.values,
        value=value,
        stderr=stderr,
        n=n,
        costs={cost: sum(own) / len(own) if own else None for cost, own in spent.items()},
        steps=_values_by_step(seed_group, answers, step),
        step=step,
        exclusion_reason=_exclusion_reason(records),
        machine="; ".join(
            sorted(
                {machine_name(record.hardware, record.model.get("device")) for record in records}
            )
        ),
    )


def value_over_runs(
    rows: Sequence[Row], values: Sequence[Observation]
) -> tuple[float, float | None, int]:
    """(value, standard error, n) of one metric over runs that differ in their seed. The error is over all that varies
    among what their queries add (`values`); without any it is that of the rows, see `estimate.pool_estimates`."""
    estimate = (
        statistics.estimate(values, metric_or_default(rows[0].metric).figure) if values else None
    )
    return (estimate.mean, estimate.stderr, estimate.n) if estimate else pool_rows(rows)


def pool_rows(rows: Sequence[Row]) -> tuple[float, float | None, int]:
    """(mean, standard error, n) over all queries of several runs, from their own; see `estimate.pool_estimates`."""
    figures = [(row.value, row.stderr, row.weight or row.n) for row in rows]
    return *statistics.pool_estimates(
        figures, metric_or_default(rows[0].metric).ratio or MEAN
    ), sum(row.n for row in rows)


def machine_name(hardware: Mapping[str, Json], device: Json) -> str:
    """Machine that a run computed on: `cpu, AMD EPYC, 1 thread`."""
    threads = hardware.get("threads")
    count = f"{threads} thread{'s' * (threads != 1)}" if threads else None
    return ", ".join(
        str(part)
        for part in (device, accelerator_name(hardware), hardware.get("cpu"), count)
        if part
    )


def _values_by_step(
    seed_group: SeedGroup, answers: Answers, step: str
) -> dict[int, tuple[float, float | None, int]]:
    rows: dict[int, list[Row]] = {}
    for row in (row for record in seed_group.records for row in record.rows):
        if row.metric == seed_group.metric and row.step is not None and row.subtask is None:
            rows.setdefault(row.step, []).append(row)
    own = (
        [(answers.steps[query[:3]], value) for query, value in answers.values.items()]
        if rows
        else []
    )
    values = {
        at: [value for mine, value in own if mine == at or (step == TEXT_LENGTH and mine < at)]
        for at in rows
    }
    return {at: value_over_runs(rows[at], values[at]) for at in sorted(rows)}


def select_same_limit(members: Sequence[SeedGroup]) -> list[SeedGroup]:
    """The groups that were asked alike: those of the largest `--limit` that two groups share, none being the largest.

    Where no two share one, the group of the largest is left alone.
    """
    limits = [_query_limit(seed_group) for seed_group in members]
    most = max([limit for limit in limits if limits.count(limit) > 1] or limits, default=math.inf)
    return [seed_group for seed_group, limit in zip(members, limits, strict=True) if limit == most]


def _query_limit(seed_group: SeedGroup) -> float:
    """Queries that `--limit` left; infinite where it left all."""
    limit = seed_group.record.config.get("limit")
    return (
        math.inf
        if limit is None or all(record.n < limit for record in seed_group.records)
        else float(limit)
    )


def format_limit(seed_group: SeedGroup) -> str:
    """The option as it was typed; "no --limit"."""
    limit = seed_group.record.config.get("limit")
    return "no --limit" if limit is None else f"--limit {limit}"


def _exclusion_reason(records: Sequence[RunRecord]) -> str:
    """Why the runs of a group are set aside by their own counts; empty where they are not."""
    lost, read = (
        sum(float(record.cost.get(key) or 0) for record in records)
        for key in ("truncated_tokens", "tokens_read")
    )
    if not lost:
        return ""
    share = 1 - lost / read if read else 0.0
    percent = f"{min(99.9, 100 * share):.1f} %" if share > 0.99 else f"{100 * share:.0f} %"
    return f"read {percent} of the context" if share > 0 else "read a part of the context only"


def baseline_row(method_rows: Sequence[MethodRow], method: str) -> MethodRow | None:
    """The floor (the entry of `none`) or the ceiling (of `icl`, which read the whole context), where there is one
    alone."""
    candidates = baseline_candidates(method_rows, method)
    return candidates[0] if len(candidates) == 1 else None


def baseline_candidates(method_rows: Sequence[MethodRow], method: str) -> list[MethodRow]:
    """Lines of `none` or `icl` that could be the end: ours, or others' where none is ours; of several none is."""
    matching = [
        method_row
        for method_row in method_rows
        if method_row.method == method
        and method_row.state_of == "own"
        and not method_row.exclusion_reason
    ]
    return [method_row for method_row in matching if not method_row.submission] or matching


def contenders(method_rows: Sequence[MethodRow]) -> list[MethodRow]:
    """Lines that a benchmark is to tell apart: under their own state, not set aside, neither floor nor ceiling; lines
    of `none` or `icl` that are no end only where there are no others."""
    ends = [baseline_row(method_rows, method) for method in (NO_CONTEXT, FULL_CONTEXT)]
    own = [
        method_row
        for method_row in method_rows
        if not method_row.exclusion_reason
        and method_row.state_of == "own"
        and all(method_row is not end for end in ends)
    ]
    return [
        method_row for method_row in own if method_row.method not in (NO_CONTEXT, FULL_CONTEXT)
    ] or own


def best_rows(method_rows: Sequence[MethodRow]) -> list[MethodRow]:
    """The best of at least two that are running; all that are equally good."""
    own = contenders(method_rows)
    return (
        [
            method_row
            for method_row in own
            if method_row.oriented_value == max(other.oriented_value for other in own)
        ]
        if len(own) > 1
        else []
    )


def recovered(
    method_row: MethodRow, no_context: MethodRow, full_context: MethodRow
) -> float | None:
    """How much of the way from the floor to the ceiling it goes; None where they were not asked as much."""
    if len({(line.n, line.seeds) for line in (method_row, no_context, full_context)}) > 1:
        return None
    gap = full_context.oriented_value - no_context.oriented_value
    return (method_row.oriented_value - no_context.oriented_value) / gap if gap > 0 else None


def pareto_optimal(method_rows: Sequence[MethodRow]) -> list[MethodRow]:
    """The Pareto front of quality and bytes of state. Lines under their own state alone: controls are none, and beat
    none; nor does a line without a cost."""
    points = [
        (method_row, (method_row.oriented_value, -size))
        for method_row in method_rows
        if method_row.state_of == "own"
        and (size := method_row.costs.get("state_bytes")) is not None
    ]
    return [
        method_row
        for method_row, own in points
        if not any(
            other != own and all(a >= b for a, b in zip(other, own, strict=True))
            for _, other in points
        )
    ]


# --- figures as people read them: 0.719 of f1 is 71.9 ----------------------------------------------------------------


def format_value(metric: str, value: float, stderr: float | None) -> str:
    """A figure of a metric with its standard error."""
    return format_with_stderr(
        value, stderr, metric_or_default(metric).scale, metric_or_default(metric).digits
    )


def format_without_error(metric: str, value: float | None) -> str:
    """A figure, or a difference of two, without an error."""
    return format_number(
        None if value is None else value * metric_or_default(metric).scale,
        metric_or_default(metric).digits,
    )


def format_interval(
    metric: str, value: float, low: float | None, high: float | None, unit: str = ""
) -> str:
    """A difference with its interval: `21.9 [-0.6, 41.8]`; with more digits where all would be shown as zero."""
    scale, digits = metric_or_default(metric).scale, metric_or_default(metric).digits
    values = [
        each * scale for each in (value, *(() if low is None or high is None else (low, high)))
    ]
    largest = max(map(abs, values))
    needed = 1 - math.floor(math.log10(largest)) if 0 < largest < 0.5 * 10**-digits else 0
    amount, *ends = (format_number(each, max(digits, needed)) for each in values)
    return f"{amount}{unit} [{', '.join(ends)}]" if ends else f"{amount}{unit}"


def format_p(p: float | None) -> str:
    """A p value."""
    return "-" if p is None else f"{p:.4f}" if p >= 0.001 else "<0.001"
