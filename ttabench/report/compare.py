"""Comparison of runs: scores, costs and tested differences.

1. Runs are sorted into comparison groups, and runs that differ only in their seed are pooled
   (`groups`).
2. Rows with a smaller `--limit` are excluded (`method_rows`).
3. For some pairs of rows, the difference over the queries that both answered is tested, and its
   mean over several groups (`differences`).
4. Holm's p is adjusted for all pairs of a family that could have been tested, not only the tested
   ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, islice
from statistics import fmean
from typing import TYPE_CHECKING

from ttabench.core.deprecation import renamed
from ttabench.core.errors import UnknownName, UserError
from ttabench.report.differences import (
    Difference,
    Family,
    Ranking,
    adjust_p_values,
    choose_pairs,
    difference,
    find_difference,
    mean_differences,
    pair_family,
    rank_rows,
    share_query,
)
from ttabench.report.groups import (
    BASELINES,
    GroupKey,
    SeedGroup,
    comparison_groups,
    make_labels,
    natural_sort_key,
)
from ttabench.report.method_rows import (
    MethodRow,
    assign_roles,
    baseline_row,
    format_limit,
    make_method_row,
    recovered,
    select_same_limit,
)
from ttabench.report.selection import refuse_all_damaged
from ttabench.report.stored import Answers, StoredRun, join_answers, load_answers
from ttabench.stats.estimate import SIGNIFICANCE_LEVEL

FIGURE_TOLERANCE = 1e-6
"""Relative and absolute tolerance when the scores of two copies of a run are compared."""


@dataclass(frozen=True, kw_only=True)
class ComparisonGroup:
    """Runs that can be compared: one context, one set of queries and one base model."""

    group_key: GroupKey
    method_rows: tuple[MethodRow, ...]
    """Baselines first; the rows of a method are adjacent."""
    limited: tuple[MethodRow, ...] = ()
    """Rows excluded because their `--limit` allows fewer queries."""
    differences: tuple[Difference, ...] = ()
    """Differences of the tested pairs."""

    @property
    def baselines(self) -> tuple[MethodRow | None, MethodRow | None]:
        """The no-context and the full-context baseline, if the group has them."""
        none, icl = (baseline_row(self.method_rows, method) for method in BASELINES)
        return none, icl

    def find_row(self, label: str) -> MethodRow | None:
        """Return the row with this label; None if the group has none."""
        return next((row for row in self.method_rows if row.label == label), None)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Comparison groups, the ranking of their rows, and tests over several groups."""

    groups: tuple[ComparisonGroup, ...]
    ranking: Ranking | None = None
    overall: tuple[Difference, ...] = ()
    """Mean differences of rows over the ranked groups, if there are several such groups.

    Differences between states of a method have their mean over all groups.
    """
    runs_without_metric: tuple[str, ...] = ()
    """Ids of the runs that lack the metric."""
    damaged: tuple[str, ...] = ()
    """A message for each run that is left out because its record or its samples are damaged."""

    @property
    def method_rows(self) -> tuple[MethodRow, ...]:
        """Rows of all groups."""
        return tuple(row for group in self.groups for row in group.method_rows)

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Differences of all groups."""
        return tuple(difference for group in self.groups for difference in group.differences)

    @property
    def excluded(self) -> tuple[MethodRow, ...]:
        """Excluded rows: first those with fewer queries, then those with a truncated context."""
        limited = chain.from_iterable(group.limited for group in self.groups)
        return (*limited, *(row for row in self.method_rows if row.exclusion_reason))


def compare_runs(
    runs: Sequence[StoredRun],
    metric: str = "",
    *,
    all_pairs: bool = False,
    damaged: Sequence[str] = (),
) -> Comparison:
    """Compare runs. Of a run that is in several folders, the first copy is used.

    Args:
        runs: the stored runs.
        metric: the metric to compare; the main metric of each task for "".
        all_pairs: test every pair of a group, not only those of `differences.choose_pairs`.
        damaged: a message for each run that could not be loaded.

    Raises:
        UserError: there are no runs, all are damaged, or no run has the metric.
    """
    if not runs:
        raise UserError(
            "There are no runs to compare.", "Run `ttabench eval` first, or add paths or ids."
        )
    first_copies = {run[1].id: run for run in reversed(runs)}
    conflicts = [text for run in runs if (text := _conflict_message(run, first_copies[run[1].id]))]
    runs = list(first_copies.values())[::-1]
    kept = [run for run in runs if run[1].value(metric or run[1].main_metric) is not None]
    if not kept:
        record = runs[0][1]
        known_metrics = sorted({row.metric for row in record.rows})
        raise UnknownName(f"metric of run {record.id}", metric or record.main_metric, known_metrics)
    lacking_metric = tuple(
        record.id for _, record in runs if record.value(metric or record.main_metric) is None
    )
    answers, damaged_samples = read_answers(kept, metric)
    kept = [run for run in kept if run[1].id in answers]
    refuse_all_damaged(len(kept), damaged_samples)
    grouped = comparison_groups(kept, metric)
    labels = make_labels([members for _, members in grouped])
    methods = list(
        dict.fromkeys([*BASELINES, *(own.method for _, members in grouped for own in members)])
    )
    groups = []
    for (group_key, members), own_labels in zip(grouped, labels, strict=True):
        labelled = sorted(
            zip(members, own_labels, strict=True),
            key=lambda item: (methods.index(item[0].method), natural_sort_key(item[1])),
        )
        groups.append(_make_group(group_key, labelled, answers))
    ranking = rank_rows([group.method_rows for group in groups])
    groups = _add_differences(groups, ranking, all_pairs=all_pairs)
    overall = mean_differences(
        [group.differences for group in groups],
        ranking.groups if ranking else range(len(groups)),
        ranking.order if ranking else (),
    )
    return Comparison(
        groups=tuple(groups),
        ranking=ranking,
        overall=tuple(overall),
        damaged=(*damaged, *conflicts, *damaged_samples),
        runs_without_metric=lacking_metric,
    )


def _conflict_message(run: StoredRun, kept: StoredRun) -> str:
    """Return a message if two copies of a run have different scores; else an empty string."""
    is_equal = all(
        math.isclose(one.value, other.value, rel_tol=FIGURE_TOLERANCE, abs_tol=FIGURE_TOLERANCE)
        for one, other in zip(run[1].rows, kept[1].rows, strict=False)
    )
    if is_equal:
        return ""
    return f"{run[0]} and {kept[0]} have one run id and different scores. Compare only one of them."


def read_answers(
    runs: Sequence[StoredRun], metric: str = ""
) -> tuple[dict[str, Answers | None], list[str]]:
    """Return the answers of each run by id, and a message for each run with damaged samples.

    Answers are None if a run has no samples. The metric is the main metric of each run for "".
    """
    answers: dict[str, Answers | None] = {}
    damaged = []
    for folder, record in runs:
        try:
            answers[record.id] = load_answers((folder, record), metric or record.main_metric)
        except UserError as error:
            damaged.append(str(error))
        except (IndexError, TypeError):
            damaged.append(f"The samples of run {record.id} in {folder} are damaged. Run it again.")
    return answers, damaged


def _make_group(
    group_key: GroupKey,
    labelled: Sequence[tuple[SeedGroup, str]],
    answers: Mapping[str, Answers | None],
) -> ComparisonGroup:
    same_limit = select_same_limit([seed_group for seed_group, _ in labelled])
    kept, limited = list[MethodRow](), list[MethodRow]()
    for seed_group, label in labelled:
        joined = join_answers([answers[run] for run in seed_group.ids])
        row = make_method_row(group_key, label, seed_group, joined)
        if seed_group in same_limit:
            kept.append(row)
        else:
            limited.append(replace(row, exclusion_reason=format_limit(row)))
    return ComparisonGroup(
        group_key=group_key, method_rows=tuple(assign_roles(kept)), limited=tuple(limited)
    )


def _add_differences(
    groups: Sequence[ComparisonGroup], ranking: Ranking | None, *, all_pairs: bool
) -> list[ComparisonGroup]:
    """Add differences to the groups, with Holm's p by family over all groups.

    The results determine which pairs are tested. So the p values are adjusted for all pairs that
    could have been tested.
    """
    counts, differences = Counter[Family](), list[list[Difference]]()
    for group in groups:
        pairs = combinations(group.method_rows, 2)
        counts.update(pair_family(*pair) for pair in pairs if share_query(*pair))
        chosen = choose_pairs(group.method_rows, ranking, all_pairs=all_pairs)
        differences.append([one for pair in chosen if (one := difference(*pair)) is not None])
    adjusted = iter(adjust_p_values([*chain.from_iterable(differences)], counts))
    return [
        replace(group, differences=tuple(islice(adjusted, len(own))))
        for group, own in zip(groups, differences, strict=True)
    ]


def recovered_in_group(group: ComparisonGroup, method_row: MethodRow) -> float | None:
    """Return the share of the improvement of `icl` over `none` that a row recovers in one group.

    None for the baselines themselves, if one of them is missing, if the unadjusted p of that
    improvement is not significant, or if `recovered` returns None.
    """
    no_context, full_context = group.baselines
    if no_context is None or full_context is None or method_row.role in BASELINES:
        return None
    gap = find_difference(group.differences, full_context.label, no_context.label)
    if gap is None or gap.p is None or gap.p >= SIGNIFICANCE_LEVEL:
        return None
    return recovered(method_row, no_context, full_context)


def recovered_over_groups(
    groups: Sequence[ComparisonGroup], label: str
) -> tuple[float | None, int]:
    """Return (share, number of groups): the mean gain of a row over the mean improvement of `icl`.

    The means are over the groups in which the row and both baselines have the same seeds and number
    of queries. Groups in which the row is below `none` are included.
    """
    gains, gaps = list[float](), list[float]()
    for group in groups:
        row, (none, icl) = group.find_row(label), group.baselines
        if row and none and icl and recovered(row, none, icl) is not None:
            gains.append(row.oriented_value - none.oriented_value)
            gaps.append(icl.oriented_value - none.oriented_value)
    return fmean(gains) / fmean(gaps) if gaps else None, len(gaps)


if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"compared": "compare_runs"})
