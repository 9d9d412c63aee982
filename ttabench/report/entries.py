"""One line of a comparison, made of its runs, and what a block knows of its lines: ends, candidates, the front.

Lines that are set aside say nothing of their method beside the others. They are named, and never lead:

limit    `--limit` let it ask fewer questions than the others were asked: it stands in no table
cut      its window left out a part of the context: of `icl` that is no ceiling
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ttabench.core.amounts import number, plus_minus
from ttabench.core.environment import name_of
from ttabench.core.types import Json
from ttabench.records.schema import Row, RunRecord
from ttabench.report.blocks import CEILING, FLOOR, Group, Place
from ttabench.report.stored import Answers, Values, is_untrained
from ttabench.stats import estimate as statistics
from ttabench.stats.clusters import Observed
from ttabench.stats.figures import MEAN
from ttabench.stats.metrics import known

COSTS = ("adapt_seconds", "ask_ms", "state_bytes", "peak_memory_bytes", "kept_share")
PIECES = "pieces read before the query"
LENGTHS = "tokens of each text, at most"
"""Each with all that stands before it."""
DISTANCES = "tokens read since the answer, at most"


@dataclass(frozen=True, kw_only=True)
class Entry(Group):
    """One line of a comparison: all runs of one configuration, whatever their seed."""

    label: str
    place: Place
    values: Values
    """Terms that its queries add to the metric."""
    value: float
    stderr: float | None
    n: int
    costs: Mapping[str, float | None]
    """Means over the runs, by `COSTS`."""
    steps: Mapping[int, tuple[float, float | None, int]] = field(default_factory=dict)
    """(mean, standard error, n) by the pieces observed before the query, where the runs asked at several points."""
    step: str = PIECES
    """What its steps are."""
    machine: str = ""
    """Machine of its latencies; several are parted by "; "."""
    aside: str = ""
    """Why it is set aside, in words that follow its label: "read 36 % of the context", of a limit the option as it was
    typed; empty where it is not."""

    @property
    def untrained(self) -> bool:
        """Whether a trainable method, or such a part of `A+B`, ran without a checkpoint."""
        return any(map(is_untrained, self.records))

    @property
    def marked(self) -> str:
        """Its label as tables have it."""
        return self.label + " (cut)" * bool(self.aside)

    @property
    def worth(self) -> float:
        """The value, so that more is better."""
        return self.value if known(self.metric).higher_is_better else -self.value


def entry_of(place: Place, label: str, group: Group, answers: Answers) -> Entry:
    """The line of a group in its block, from what its queries add to the metric (nothing where that is not kept)."""
    records, task = group.records, group.record.task
    rows = [row for record in records if (row := record.value(group.metric)) is not None]
    value, stderr, n = over_runs(rows, list(answers.values.values()))
    step = LENGTHS if task.get("lengths") else DISTANCES if task.get("distances") else PIECES
    spent = {cost: [float(each) for record in records if (each := record.cost.get(cost)) is not None] for cost in COSTS}
    return Entry(
        **vars(group), label=label, place=place, values=answers.values, value=value, stderr=stderr, n=n,
        costs={cost: sum(own) / len(own) if own else None for cost, own in spent.items()},
        steps=_by_step(group, answers, step), step=step, aside=_fault_of(records),
        machine="; ".join(sorted({computed_on(record.hardware, record.model.get("device")) for record in records})),
    )  # fmt: skip


def over_runs(rows: Sequence[Row], values: Sequence[Observed]) -> tuple[float, float | None, int]:
    """(value, standard error, n) of one metric over runs that differ in their seed. The error is over all that varies
    among what their queries add (`values`); without any it is that of the rows, see `estimate.pooled`."""
    estimate = statistics.estimate(values, known(rows[0].metric).figure) if values else None
    return (estimate.mean, estimate.stderr, estimate.n) if estimate else pooled(rows)


def pooled(rows: Sequence[Row]) -> tuple[float, float | None, int]:
    """(mean, standard error, n) over all queries of several runs, from their own; see `estimate.pooled`."""
    figures = [(row.value, row.stderr, row.weight or row.n) for row in rows]
    return *statistics.pooled(figures, known(rows[0].metric).ratio or MEAN), sum(row.n for row in rows)


def computed_on(hardware: Mapping[str, Json], device: Json) -> str:
    """Machine that a run computed on: `cpu, AMD EPYC, 1 thread`."""
    threads = hardware.get("threads")
    count = f"{threads} thread{'s' * (threads != 1)}" if threads else None
    return ", ".join(str(part) for part in (device, name_of(hardware), hardware.get("cpu"), count) if part)


def _by_step(group: Group, answers: Answers, step: str) -> dict[int, tuple[float, float | None, int]]:
    rows: dict[int, list[Row]] = {}
    for row in (row for record in group.records for row in record.rows):
        if row.metric == group.metric and row.step is not None and row.subtask is None:
            rows.setdefault(row.step, []).append(row)
    own = [(answers.steps[query[:3]], value) for query, value in answers.values.items()] if rows else []
    values = {at: [value for mine, value in own if mine == at or (step == LENGTHS and mine < at)] for at in rows}
    return {at: over_runs(rows[at], values[at]) for at in sorted(rows)}


def within_limit(block: Sequence[Group]) -> list[Group]:
    """The groups that were asked alike: those of the largest `--limit` that two groups share, none being the largest.

    Where no two share one, the group of the largest is left alone.
    """
    limits = [_limit(group) for group in block]
    most = max([limit for limit in limits if limits.count(limit) > 1] or limits, default=math.inf)
    return [group for group, limit in zip(block, limits, strict=True) if limit == most]


def _limit(group: Group) -> float:
    """Queries that `--limit` left; infinite where it left all."""
    limit = group.record.config.get("limit")
    return math.inf if limit is None or all(record.n < limit for record in group.records) else float(limit)


def limit_of(group: Group) -> str:
    """The option as it was typed; "no --limit"."""
    limit = group.record.config.get("limit")
    return "no --limit" if limit is None else f"--limit {limit}"


def _fault_of(records: Sequence[RunRecord]) -> str:
    """Why the runs of a group are set aside by their own counts; empty where they are not."""
    lost, read = (
        sum(float(record.cost.get(key) or 0) for record in records) for key in ("truncated_tokens", "tokens_read")
    )
    if not lost:
        return ""
    share = 1 - lost / read if read else 0.0
    percent = f"{min(99.9, 100 * share):.1f} %" if share > 0.99 else f"{100 * share:.0f} %"
    return f"read {percent} of the context" if share > 0 else "read a part of the context only"


def end_of(entries: Sequence[Entry], method: str) -> Entry | None:
    """The floor (the entry of `none`) or the ceiling (of `icl`, which read the whole context), where there is one
    alone."""
    lines = ends_of(entries, method)
    return lines[0] if len(lines) == 1 else None


def ends_of(entries: Sequence[Entry], method: str) -> list[Entry]:
    """Lines of `none` or `icl` that could be the end: ours, or others' where none is ours; of several none is."""
    matching = [entry for entry in entries if entry.method == method and entry.state_of == "own" and not entry.aside]
    return [entry for entry in matching if not entry.theirs] or matching


def running(entries: Sequence[Entry]) -> list[Entry]:
    """Lines that a benchmark is to tell apart: under their own state, not set aside, neither floor nor ceiling; lines
    of `none` or `icl` that are no end only where there are no others."""
    ends = [end_of(entries, method) for method in (FLOOR, CEILING)]
    own = [entry for entry in entries
           if not entry.aside and entry.state_of == "own" and all(entry is not end for end in ends)]  # fmt: skip
    return [entry for entry in own if entry.method not in (FLOOR, CEILING)] or own


def best_of(entries: Sequence[Entry]) -> list[Entry]:
    """The best of at least two that are running; all that are equally good."""
    own = running(entries)
    return [entry for entry in own if entry.worth == max(other.worth for other in own)] if len(own) > 1 else []


def share_of_gap(entry: Entry, floor: Entry, ceiling: Entry) -> float | None:
    """How much of the way from the floor to the ceiling it goes; None where they were not asked as much."""
    if len({(line.n, line.seeds) for line in (entry, floor, ceiling)}) > 1:
        return None
    gap = ceiling.worth - floor.worth
    return (entry.worth - floor.worth) / gap if gap > 0 else None


def front(entries: Sequence[Entry]) -> list[Entry]:
    """The Pareto front of quality and bytes of state. Lines under their own state alone: controls are none, and beat
    none; nor does a line without a cost."""
    points = [(entry, (entry.worth, -size)) for entry in entries
              if entry.state_of == "own" and (size := entry.costs.get("state_bytes")) is not None]  # fmt: skip
    return [
        entry for entry, own in points
        if not any(other != own and all(a >= b for a, b in zip(other, own, strict=True)) for _, other in points)
    ]  # fmt: skip


# --- figures as people read them: 0.719 of f1 is 71.9 ----------------------------------------------------------------


def shown(metric: str, value: float, stderr: float | None) -> str:
    """A figure of a metric with its standard error."""
    return plus_minus(value, stderr, known(metric).scale, known(metric).digits)


def plain(metric: str, value: float | None) -> str:
    """A figure, or a difference of two, without an error."""
    return number(None if value is None else value * known(metric).scale, known(metric).digits)


def with_interval(metric: str, value: float, low: float | None, high: float | None, unit: str = "") -> str:
    """A difference with its interval: `21.9 [-0.6, 41.8]`; with more digits where all would be shown as zero."""
    scale, digits = known(metric).scale, known(metric).digits
    values = [each * scale for each in (value, *(() if low is None or high is None else (low, high)))]
    largest = max(map(abs, values))
    needed = 1 - math.floor(math.log10(largest)) if 0 < largest < 0.5 * 10**-digits else 0
    amount, *ends = (number(each, max(digits, needed)) for each in values)
    return f"{amount}{unit} [{', '.join(ends)}]" if ends else f"{amount}{unit}"


def probability(p: float | None) -> str:
    """A p value."""
    return "-" if p is None else f"{p:.4f}" if p >= 0.001 else "<0.001"
