"""Method rows of a comparison: scores, costs, baselines, contenders and Pareto-optimal rows.

A row is excluded from ranking and baselines for one of two reasons, which are listed:

limit   its `--limit` allows fewer queries than the other rows have; tables omit the row
cut     its window truncated the context; tables show the row with the mark "(cut)"
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ttabench.core.amounts import format_number, format_with_stderr
from ttabench.core.environment import accelerator_name
from ttabench.core.types import Json
from ttabench.records.schema import Row, RunRecord
from ttabench.report.groups import BASELINES, GroupKey, SeedGroup
from ttabench.report.stored import Answers, QueryValues, is_untrained
from ttabench.stats import estimate as statistics
from ttabench.stats.clusters import Observation
from ttabench.stats.figures import MEAN
from ttabench.stats.metrics import metric_or_default

COST_NAMES = ("adapt_seconds", "ask_ms", "state_bytes", "peak_memory_bytes", "kept_share")
CONTENDER = "contender"
CHUNKS_READ = "chunks read before the query"
TEXT_LENGTH = "maximum tokens of each text"
"""The value at a length includes the shorter texts."""
ANSWER_DISTANCE = "maximum tokens read since the answer"


@dataclass(frozen=True, kw_only=True)
class MethodRow(SeedGroup):
    """Row of a comparison: all runs of one configuration, over all seeds."""

    label: str
    group_key: GroupKey
    values: QueryValues
    """Observations (terms of the metric and clusters) by query; empty if samples are not stored."""
    value: float
    stderr: float | None
    n: int
    costs: Mapping[str, float | None]
    """Means over the runs, by the names in `COST_NAMES`."""
    steps: Mapping[int, tuple[float, float | None, int]] = field(default_factory=dict)
    """(mean, standard error, n) by step; empty if there is a single step."""
    step: str = CHUNKS_READ
    """Meaning of the steps: `CHUNKS_READ`, `TEXT_LENGTH` or `ANSWER_DISTANCE`."""
    machine: str = ""
    """Machine on which latencies were measured; several are joined with "; "."""
    exclusion_reason: str = ""
    """`read 36 % of the context`, or the limit of the row: `--limit 8`. Empty if not excluded."""
    role: str = ""
    """`none` or `icl` for a baseline, `contender` for a ranked row, else empty. See `assign_roles`."""

    @property
    def is_eligible(self) -> bool:
        """True for a row under its own state that is not excluded."""
        return self.state_of == "own" and not self.exclusion_reason

    @property
    def baseline_method(self) -> str:
        """`none` or `icl` if the row has that method and its state is not quantised, else empty."""
        is_baseline = self.method in BASELINES and not self.record.config.get("bits")
        return self.method if is_baseline else ""

    @property
    def untrained(self) -> bool:
        """True if a trainable method, or a trainable member of `A+B`, ran without a checkpoint."""
        return any(map(is_untrained, self.records))

    @property
    def marked_label(self) -> str:
        """Label for tables, with the mark "(cut)" if excluded."""
        return f"{self.label} (cut)" if self.exclusion_reason else self.label

    @property
    def oriented_value(self) -> float:
        """Value, signed so that higher is better."""
        return self.value if metric_or_default(self.metric).higher_is_better else -self.value


def make_method_row(
    group_key: GroupKey, label: str, seed_group: SeedGroup, answers: Answers
) -> MethodRow:
    """Return the row of a seed group; `answers` are empty if samples are not stored."""
    records, task = seed_group.records, seed_group.record.task
    rows = [row for record in records if (row := record.value(seed_group.metric)) is not None]
    value, stderr, n = value_over_runs(rows, list(answers.values.values()))
    step = ANSWER_DISTANCE if task.get("distances") else CHUNKS_READ
    step = TEXT_LENGTH if task.get("lengths") else step
    costs: dict[str, float | None] = {}
    for cost in COST_NAMES:
        amounts = [float(one) for record in records if (one := record.cost.get(cost)) is not None]
        costs[cost] = sum(amounts) / len(amounts) if amounts else None
    machines = {machine_name(record.hardware, record.model.get("device")) for record in records}
    return MethodRow(
        **vars(seed_group),
        label=label,
        group_key=group_key,
        values=answers.values,
        value=value,
        stderr=stderr,
        n=n,
        costs=costs,
        steps=_values_by_step(seed_group, answers, step),
        step=step,
        exclusion_reason=_exclusion_reason(records),
        machine="; ".join(sorted(machines)),
    )


def value_over_runs(
    rows: Sequence[Row], values: Sequence[Observation]
) -> tuple[float, float | None, int]:
    """Return (value, standard error, n) of a metric over runs that differ only in their seed.

    The standard error is estimated from all sampling units in `values`. Without values, the
    estimates of the rows are pooled, see `pool_rows`.
    """
    estimate = (
        statistics.estimate(values, metric_or_default(rows[0].metric).figure) if values else None
    )
    return (estimate.mean, estimate.stderr, estimate.n) if estimate else pool_rows(rows)


def pool_rows(rows: Sequence[Row]) -> tuple[float, float | None, int]:
    """Return (mean, standard error, n) of several runs, see `estimate.pool_estimates`."""
    estimates = [(row.value, row.stderr, row.weight or row.n) for row in rows]
    return *statistics.pool_estimates(
        estimates, metric_or_default(rows[0].metric).ratio or MEAN
    ), sum(row.n for row in rows)


def machine_name(hardware: Mapping[str, Json], device: Json) -> str:
    """Return the machine of a run: `cpu, AMD EPYC, 1 thread`."""
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
    rows_by_step: dict[int, list[Row]] = {}
    for row in (row for record in seed_group.records for row in record.rows):
        if row.metric == seed_group.metric and row.step is not None and row.subtask is None:
            rows_by_step.setdefault(row.step, []).append(row)
    values_by_step: dict[int, list[Observation]] = {at: [] for at in sorted(rows_by_step)}
    for query, value in answers.values.items() if rows_by_step else ():
        answered_at = answers.steps[query[:3]]  # the first three fields are the QueryKey
        for at, values in values_by_step.items():
            if answered_at == at or (step == TEXT_LENGTH and answered_at < at):
                values.append(value)
    return {at: value_over_runs(rows_by_step[at], own) for at, own in values_by_step.items()}


def select_same_limit(members: Sequence[SeedGroup]) -> list[SeedGroup]:
    """Return the seed groups with the largest `--limit` that at least two of them share.

    A group without a limit has the largest limit. If no two groups share a limit, only the group
    with the largest one is returned.
    """
    limits = [_query_limit(seed_group) for seed_group in members]
    shared = [limit for limit in limits if limits.count(limit) > 1]
    largest = max(shared or limits, default=math.inf)
    return [member for member, limit in zip(members, limits, strict=True) if limit == largest]


def _query_limit(seed_group: SeedGroup) -> float:
    """Return the `--limit` of a seed group; infinite if it removed no query."""
    limit = seed_group.record.config.get("limit") or math.inf
    return math.inf if all(record.n < limit for record in seed_group.records) else float(limit)


def format_limit(seed_group: SeedGroup) -> str:
    """Format the limit as typed: `--limit 8`, or `no --limit`."""
    limit = seed_group.record.config.get("limit")
    return "no --limit" if limit is None else f"--limit {limit}"


def _exclusion_reason(records: Sequence[RunRecord]) -> str:
    """Return the share of the context that was read; empty if the context was not truncated."""
    truncated, read = (
        sum(float(record.cost.get(key) or 0) for record in records)
        for key in ("truncated_tokens", "tokens_read")
    )
    if not truncated:
        return ""
    share = 1 - truncated / read if read else 0.0
    percent = f"{min(99.9, 100 * share):.1f} %" if share > 0.99 else f"{100 * share:.0f} %"
    return f"read {percent} of the context" if share > 0 else "read only a part of the context"


def assign_roles(method_rows: Sequence[MethodRow]) -> list[MethodRow]:
    """Return the rows of a group with their roles.

    A row of `none` or `icl` is the baseline if it is the only one; local rows precede submissions.
    Other rows are contenders, those of `none` and `icl` only if there are no rows of other methods.
    """
    eligible, roles = [row for row in method_rows if row.is_eligible], dict[int, str]()
    for method in BASELINES:
        if len(candidates := baseline_candidates(method_rows, method)) == 1:
            roles[id(candidates[0])] = method
    others = [row for row in eligible if id(row) not in roles]
    ranked = [row for row in others if not row.baseline_method] or others
    roles |= {id(row): CONTENDER for row in ranked}
    return [replace(row, role=roles.get(id(row), "")) for row in method_rows]


def baseline_candidates(method_rows: Sequence[MethodRow], method: str) -> list[MethodRow]:
    """Return the rows of `none` or `icl` that could be the baseline.

    Rows of submissions are returned only if there are no local ones.
    """
    matching = [row for row in method_rows if row.baseline_method == method and row.is_eligible]
    return [row for row in matching if not row.submission] or matching


def baseline_row(method_rows: Sequence[MethodRow], method: str) -> MethodRow | None:
    """Return the baseline `none` or `icl`, if the group has one."""
    return next((row for row in method_rows if row.role == method), None)


def contenders(method_rows: Sequence[MethodRow]) -> list[MethodRow]:
    """Return the rows that are ranked."""
    return [row for row in method_rows if row.role == CONTENDER]


def best_rows(method_rows: Sequence[MethodRow]) -> list[MethodRow]:
    """Return the contenders with the best value; empty for fewer than two contenders."""
    ranked = contenders(method_rows)
    best = max((row.oriented_value for row in ranked), default=0.0)
    return [row for row in ranked if row.oriented_value == best and len(ranked) > 1]


def recovered(
    method_row: MethodRow, no_context: MethodRow, full_context: MethodRow
) -> float | None:
    """Return the share of the improvement of `icl` over `none` that a row recovers.

    None if `icl` is not above `none`, or if seeds or numbers of queries differ.
    """
    if len({(row.n, row.seeds) for row in (method_row, no_context, full_context)}) > 1:
        return None
    gap = full_context.oriented_value - no_context.oriented_value
    return (method_row.oriented_value - no_context.oriented_value) / gap if gap > 0 else None


def kept_bytes(method_row: MethodRow, full_context: MethodRow | None) -> float | None:
    """Return the kept share of a row in bytes; its state bytes without a share.

    The share is relative to the full-context KV cache, so it needs the row of `icl`. For quantised
    states it is relative to a cache of 16 bits, and state bytes are what is kept.
    """
    size, share = (method_row.costs.get(cost) for cost in ("state_bytes", "kept_share"))
    whole = full_context.costs.get("state_bytes") if full_context else None
    if share is None or whole is None or method_row.record.config.get("bits"):
        return size
    return share * whole


def pareto_optimal(method_rows: Sequence[MethodRow]) -> list[MethodRow]:
    """Return the rows that are Pareto-optimal in score and state bytes.

    Rows under a swapped or empty state, and rows without state bytes, are ignored.
    """
    points = [
        (row, row.oriented_value, size)
        for row in method_rows
        if row.state_of == "own" and (size := row.costs.get("state_bytes")) is not None
    ]
    return [
        row
        for row, value, size in points
        if not any(
            other >= value and bytes_ <= size and (other, bytes_) != (value, size)
            for _, other, bytes_ in points
        )
    ]


# --- formatting: an f1 of 0.719 is shown as 71.9 --------------------------------------------------


def format_value(metric: str, value: float, stderr: float | None) -> str:
    """Format a value of a metric with its standard error."""
    return format_with_stderr(
        value, stderr, metric_or_default(metric).scale, metric_or_default(metric).digits
    )


def format_row(row: Row) -> str:
    """Format the value of a row of a record with its standard error."""
    return format_value(row.metric, row.value, row.stderr)


def format_without_error(metric: str, value: float | None) -> str:
    """Format a value, or a difference, without an error."""
    return format_number(
        None if value is None else value * metric_or_default(metric).scale,
        metric_or_default(metric).digits,
    )


def format_interval(
    metric: str, value: float, low: float | None, high: float | None, unit: str = ""
) -> str:
    """Format a difference with its interval: `21.9 [-0.6, 41.8]`.

    Small values get more digits, so that they are not shown as 0.
    """
    scale, digits = (known := metric_or_default(metric)).scale, known.digits
    bounds = () if low is None or high is None else (low, high)
    values = [each * scale for each in (value, *bounds)]
    largest = max(map(abs, values))
    digits_needed = 1 - math.floor(math.log10(largest)) if 0 < largest < 0.5 * 10**-digits else 0
    amount, *ends = (format_number(each, max(digits, digits_needed)) for each in values)
    return f"{amount}{unit}" + (f" [{', '.join(ends)}]" if ends else "")


def format_p(p: float | None) -> str:
    """Format a p value."""
    return "-" if p is None else f"{p:.4f}" if p >= 0.001 else "<0.001"
