"""Comparison of runs: scores, costs and tested differences.

1. Runs are sorted into comparison groups, and runs that differ only in their seed are pooled
   (`groups`).
2. Rows with a smaller `--limit` are excluded (`method_rows`).
3. Pairs of rows get their difference over the queries that both answered, and its mean over several
   groups (`differences`).
4. Only some pairs are tested. Holm's p counts all pairs of a family that could be tested.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    comparable_pairs,
    difference,
    find_difference,
    mean_differences,
    pair_family,
    rank_rows,
)
from ttabench.report.groups import (
    FULL_CONTEXT,
    NO_CONTEXT,
    GroupKey,
    SeedGroup,
    comparison_groups,
    make_labels,
    natural_sort_key,
)
from ttabench.report.method_rows import (
    MethodRow,
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
"""Relative and absolute difference of figures up to which two copies of a run are equal."""


@dataclass(frozen=True, kw_only=True)
class ComparisonGroup:
    """Runs that can be compared: one context, one set of queries and one base model."""

    group_key: GroupKey
    method_rows: tuple[MethodRow, ...]
    """Baselines first; the rows of a method are adjacent."""
    limited: tuple[MethodRow, ...] = ()
    """Excluded rows, which have fewer queries."""
    differences: tuple[Difference, ...] = ()
    """Differences of the tested pairs."""

    def find_row(self, label: str) -> MethodRow | None:
        """Return the row with this label; None if the group has none."""
        return next(
            (method_row for method_row in self.method_rows if method_row.label == label), None
        )


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Comparison groups, the ranking of their rows, and tests over several groups."""

    groups: tuple[ComparisonGroup, ...]
    ranking: Ranking | None = None
    overall: tuple[Difference, ...] = ()
    """Mean differences over the ranked groups if there are several; of states over all groups."""
    runs_without_metric: tuple[str, ...] = ()
    """Ids of the runs that lack the metric."""
    damaged: tuple[str, ...] = ()
    """A message for each run that is left out because its record or its samples are damaged."""

    @property
    def method_rows(self) -> tuple[MethodRow, ...]:
        """Rows of all groups."""
        return tuple(method_row for group in self.groups for method_row in group.method_rows)

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Differences of all groups."""
        return tuple(difference for group in self.groups for difference in group.differences)

    @property
    def excluded(self) -> tuple[MethodRow, ...]:
        """Excluded rows: first those with fewer queries, then those with a truncated context."""
        limited = [method_row for group in self.groups for method_row in group.limited]
        return (
            *limited,
            *(method_row for method_row in self.method_rows if method_row.exclusion_reason),
        )


def compare_runs(
    runs: Sequence[StoredRun],
    metric: str = "",
    *,
    all_pairs: bool = False,
    damaged: Sequence[str] = (),
) -> Comparison:
    """Compare runs. A run that is in two folders counts once.

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
    run_by_id = {run[1].id: run for run in reversed(runs)}
    repeated = [text for run in runs if (text := _conflict_message(run, run_by_id[run[1].id]))]
    runs = list(run_by_id.values())[::-1]
    kept = [run for run in runs if run[1].value(metric or run[1].main_metric) is not None]
    if not kept:
        record = runs[0][1]
        known = sorted({row.metric for row in record.rows})
        raise UnknownName(f"metric of run {record.id}", metric or record.main_metric, known)
    lacking_metric = tuple(
        record.id for _, record in runs if record.value(metric or record.main_metric) is None
    )
    answers, damaged_samples = read_answers(kept, metric)
    kept = [run for run in kept if run[1].id in answers]
    refuse_all_damaged(len(kept), damaged_samples)
    placed = comparison_groups(kept, metric)
    labels = make_labels([seed_groups for _, seed_groups in placed])
    methods = list(
        dict.fromkeys(
            [
                NO_CONTEXT,
                FULL_CONTEXT,
                *(seed_group.method for _, seed_groups in placed for seed_group in seed_groups),
            ]
        )
    )
    groups = []
    for (group_key, seed_groups), own in zip(placed, labels, strict=True):
        labelled_groups = sorted(
            zip(seed_groups, own, strict=True),
            key=lambda at: (methods.index(at[0].method), natural_sort_key(at[1])),
        )
        groups.append(_make_group(group_key, labelled_groups, answers))
    ranking = rank_rows([group.method_rows for group in groups])
    groups = _add_differences(groups, ranking, all_pairs=all_pairs)
    places = ranking.groups if ranking else range(len(groups))
    counting = [groups[place].differences for place in places] if len(places) > 1 else []
    overall = mean_differences(
        counting, [group.differences for group in groups], ranking.order if ranking else ()
    )
    return Comparison(
        groups=tuple(groups),
        ranking=ranking,
        overall=tuple(overall),
        damaged=(*damaged, *repeated, *damaged_samples),
        runs_without_metric=lacking_metric,
    )


def _conflict_message(run: StoredRun, kept: StoredRun) -> str:
    """Return a message if two copies of a run have different figures; else an empty string."""
    same = all(
        math.isclose(one.value, other.value, rel_tol=FIGURE_TOLERANCE, abs_tol=FIGURE_TOLERANCE)
        for one, other in zip(run[1].rows, kept[1].rows, strict=False)
    )
    if same:
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
    made = [
        (
            make_method_row(
                group_key, label, seed_group, join_answers([answers[run] for run in seed_group.ids])
            ),
            seed_group in same_limit,
        )
        for seed_group, label in labelled
    ]
    limited = (
        replace(method_row, exclusion_reason=format_limit(method_row))
        for method_row, alike in made
        if not alike
    )
    return ComparisonGroup(
        group_key=group_key,
        method_rows=tuple(method_row for method_row, alike in made if alike),
        limited=tuple(limited),
    )


def _add_differences(
    groups: Sequence[ComparisonGroup], ranking: Ranking | None, *, all_pairs: bool
) -> list[ComparisonGroup]:
    """Add differences to the groups, with Holm's p by family over all groups.

    The results decide which pairs are tested, so all pairs that could be tested count.
    """
    counts, differences = Counter[Family](), list[list[Difference]]()
    for group in groups:
        counts.update(
            pair_family(group.method_rows, pair) for pair in comparable_pairs(group.method_rows)
        )
        differences.append(
            [
                replace(tested, family=pair_family(group.method_rows, pair))
                for pair in choose_pairs(group.method_rows, ranking, all_pairs=all_pairs)
                if (tested := difference(*(group.method_rows[place] for place in pair))) is not None
            ]
        )
    holms = iter(adjust_p_values([one for own in differences for one in own], counts))
    return [
        replace(group, differences=tuple(next(holms) for _ in own))
        for group, own in zip(groups, differences, strict=True)
    ]


def recovered_in_group(group: ComparisonGroup, method_row: MethodRow) -> float | None:
    """Return the share of the improvement of `icl` over `none` that a row recovers in one group.

    None for the baselines, and if that improvement is not significant by its unadjusted p.
    """
    no_context = baseline_row(group.method_rows, NO_CONTEXT)
    full_context = baseline_row(group.method_rows, FULL_CONTEXT)
    if (
        no_context is None
        or full_context is None
        or method_row is no_context
        or method_row is full_context
    ):
        return None
    baseline_gap = find_difference(group.differences, full_context.label, no_context.label)
    if baseline_gap is None or baseline_gap.p is None or baseline_gap.p >= SIGNIFICANCE_LEVEL:
        return None
    return recovered(method_row, no_context, full_context)


def recovered_over_groups(
    groups: Sequence[ComparisonGroup], label: str
) -> tuple[float | None, int]:
    """Return (share, number of groups): the mean gain of a row over the mean improvement of `icl`.

    All groups count in which the row and both baselines have the same number of queries and the
    same seeds, also those in which the row is below `none`.
    """
    gains, gaps = [], []
    for group in groups:
        no_context = baseline_row(group.method_rows, NO_CONTEXT)
        full_context = baseline_row(group.method_rows, FULL_CONTEXT)
        method_row = group.find_row(label)
        if (
            no_context
            and full_context
            and method_row
            and recovered(method_row, no_context, full_context) is not None
        ):
            gains.append(method_row.oriented_value - no_context.oriented_value)
            gaps.append(full_context.oriented_value - no_context.oriented_value)
    return (fmean(gains) / fmean(gaps) if gaps and fmean(gaps) > 0 else None), len(gaps)


if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"compared": "compare_runs"})
