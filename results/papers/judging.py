"""Evaluation of the papers' claims on stored runs.

    suite_settings(record)                        {"method": "mac", "set": {...}, "trained_on": "own", ...}
    locations("mac", "table1", stored)   [Location(results={"mac": {0: StoredResult(...), ...}}, ...)]
    evaluate_claims("mac", "table1", stored)[0]     ClaimResult(verdict="reproduced", ...)

Table rows are patterns that select stored runs, as in the `exclude` of a suite. A claim is
evaluated per place, comparison group and training. Comparison groups, pooling of draws, exclusion
rules, differences, intervals and clustering are those of `ttabench compare`. Bytes are exact, so
their order decides. Times vary, so they must differ by `MIN_TIME_RATIO` in all draws. `claims.RULE`
and `results/claims.md` have the full rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeAlias

from grids import is_equivalent, memory_share, oriented

from papers.declared import (
    COUNTED,
    SCALES,
    Claim,
    Cost,
    Pattern,
    Place,
    Scale,
    paper,
    reported_at,
    scale_of_model,
)
from ttabench.core.declared import format_setting
from ttabench.core.types import Json
from ttabench.methods.checkpoints import trained_tasks, training_seed
from ttabench.profiling.record import Figure, figure
from ttabench.records.schema import RunRecord
from ttabench.report.compare import read_answers
from ttabench.report.differences import Difference, difference, mean_difference
from ttabench.report.groups import FULL_CONTEXT, NO_CONTEXT, comparison_groups
from ttabench.report.method_rows import (
    TEXT_LENGTH,
    MethodRow,
    format_limit,
    make_method_row,
    select_same_limit,
)
from ttabench.report.selection import LoadedRuns, list_runs_below, load_runs
from ttabench.report.stored import Answers, QueryId, fill_defaults, join_answers
from ttabench.stats.clusters import Observation
from ttabench.stats.estimate import SIGNIFICANCE_LEVEL
from ttabench.stats.metrics import metric_or_default
from ttabench.sweep.suite import matches_pattern

Verdict: TypeAlias = Literal[
    "reproduced",
    "other size",
    "weak rival",
    "no memory",
    "no control",
    "contradicted",
    "undecided",
    "mixed",
    "cannot tell",
    "no runs",
]
NO_VERDICT: tuple[Verdict, ...] = ("cannot tell", "no runs")
MAX_BASELINE_DISTANCE = 0.1
"""Distance from a baseline that counts as near, as a share of the no-context to full-context range."""
MAX_SIZE_RATIO = 5.0
"""Maximum ratio of our difference and the paper's."""
MIN_TIME_RATIO = 2.0
"""Minimum ratio of measured times. Repeated runs vary by this factor on a shared machine."""
WITHOUT_STATE = ("none", "lora", "icl", "rag")
"""Methods without a state of the context. They keep nothing or the text itself."""
TRIALS = ("scratch", "quick")
"""Names of folders that are skipped because they hold trial runs."""
UNSCORED = "has no stored scores per query"
"""Fault of a result without scores per query. Costs can still be compared."""
LESS = "answered fewer queries"
OWN = "own"


@dataclass(frozen=True, kw_only=True)
class StoredRuns(LoadedRuns):
    """Stored runs without duplicates."""

    @cached_property
    def suite_settings(self) -> dict[str, dict[str, Json]]:
        """Suite settings of every run by run id, see `suite_settings`."""
        return {record.id: suite_settings(record) for _, record in self.runs}


def load_stored_runs(folders: Sequence[Path]) -> StoredRuns:
    """Load the runs of these folders. For a folder without runs, search up to two levels below it."""
    found = load_runs(
        dict.fromkeys(run for folder in folders for run in list_runs_below(folder, exclude=TRIALS))
    )
    runs = {run[1].id: run for run in reversed(found.runs)}
    return StoredRuns(runs=tuple(runs.values())[::-1], damaged=found.damaged)


def suite_settings(record: RunRecord) -> dict[str, Json]:
    """Convert a record to the settings of a suite. Lists become text, as on the command line."""
    config = fill_defaults(record.config)
    plain = {key: value for key, value in config.items() if not isinstance(value, Mapping)}
    for name, key in (("set", "settings"), ("task_set", "task_options")):
        plain[name] = {
            option: format_setting(value) if isinstance(value, list | tuple) else value
            for option, value in config[key].items()
        }
    trained = "+".join(trained_tasks(record.method.get("training", {})))
    return {**plain, "trained_on": OWN if trained == config["task"] else trained}


def matches_run(pattern: Mapping[str, Json], settings_of_run: Mapping[str, Json]) -> bool:
    """Return True if a run matches a pattern. A `trained_on` equal to the run's task means "own"."""
    if pattern.get("trained_on") == settings_of_run["task"]:
        pattern = {**pattern, "trained_on": OWN}
    return matches_pattern(pattern, settings_of_run)


@dataclass(frozen=True, kw_only=True)
class StoredResult:
    """Result of one table row at one place, in one comparison group, under one training."""

    method_row: MethodRow
    answers: Answers
    step: int | None = None
    fault: str = ""
    """Reason why the result cannot be used, as text that follows its name. Empty if it can be used."""
    swapped: StoredResult | None = None
    """Result under a swapped state. None if that was not run."""

    @cached_property
    def row_at_place(self) -> MethodRow:
        """Method row with the values at the place: of `step`, of all steps if None, or of all
        lengths up to `step`. The step is removed from query keys.
        """
        if self.step is None:
            return self.method_row
        lengths, values = self.method_row.step == TEXT_LENGTH, dict[QueryId, Observation]()
        for query, value in self.answers.values.items():
            step = self.answers.steps.get(query[:3])
            if step == self.step or (lengths and step is not None and step < self.step):
                seed, episode, key, question = query
                name = key if lengths else key.removesuffix(f"@{self.step}")
                values[seed, episode, name, question] = value
        return replace(self.method_row, values=values)

    def cost(self, cost: Cost) -> Figure | None:
        """Return the cost over draws, or None if it was not recorded."""
        spent = self.method_row.costs.get(cost)
        if cost in COUNTED or spent is None:
            return None if spent is None else figure([spent])
        draws = [
            float(drawn)
            for record in self.method_row.records
            if (drawn := record.cost.get(cost)) is not None
        ]
        return figure(draws).model_copy(update={"value": spent})

    @property
    def figure(self) -> tuple[float, float | None, int] | None:
        """(value, standard error, n) at the place. None if no query was answered there."""
        whole = self.method_row.value, self.method_row.stderr, self.method_row.n
        if self.step is None or not self.method_row.steps:
            return whole
        return self.method_row.steps.get(self.step)


Pair: TypeAlias = tuple[StoredResult, StoredResult]
"""Results of the left and the right row of a claim."""


@dataclass(frozen=True, kw_only=True)
class Location:
    """A place of a table in one comparison group."""

    place: Place
    scale: Scale
    group_name: str
    task: str
    results: Mapping[str, Mapping[int | None, StoredResult]]
    """Results by row name and training seed. The seed is None without training. `none` and `icl`
    are included.
    """


def locations(name: str, table_name: str, stored_runs: StoredRuns) -> list[Location]:
    """Return every place of a table in every comparison group with a run of a claimed row."""
    table = paper(name).tables[table_name]
    places, patterns = table.places, {**paper(name).lines, **table.lines}
    claimed = {
        row_name: patterns[row_name]
        for claim in table.claims
        for row_name in (claim.left, claim.right)
    }
    patterns_of_rows: dict[str, Pattern] = {
        end: {"method": end} for end in (NO_CONTEXT, FULL_CONTEXT)
    } | claimed

    def matches(pattern: Mapping[str, Json], record: RunRecord) -> bool:
        return matches_run(pattern, stored_runs.suite_settings[record.id])

    kept = [
        run
        for run in stored_runs.runs
        if any(matches(place.pattern, run[1]) for place in places)
        and any(matches(pattern, run[1]) for pattern in patterns_of_rows.values())
    ]
    answers, _ = read_answers(kept)
    found = []
    for comparison_group, groups in comparison_groups(
        [run for run in kept if run[1].id in answers]
    ):
        results_of_groups = []
        for group in groups:
            joined = join_answers([answers[run] for run in group.ids])
            method_row = make_method_row(comparison_group, group.method, group, joined)
            fault = method_row.exclusion_reason or ("" if joined.values else UNSCORED)
            results_of_groups.append(
                StoredResult(method_row=method_row, answers=joined, fault=fault)
            )
        scale = scale_of_model(str(groups[0].record.config.get("model")))
        for place in (place for place in places if scale in place.scales):
            results = _at(
                place,
                [one for one in results_of_groups if matches(place.pattern, one.method_row.record)],
            )
            trainings = {
                row_name: _by_seed(fitting)
                for row_name, pattern in patterns_of_rows.items()
                if (fitting := [one for one in results if matches(pattern, one.method_row.record)])
            }
            if trainings.keys() & claimed.keys():
                found.append(
                    Location(
                        place=place,
                        scale=scale,
                        group_name=comparison_group.name,
                        task=comparison_group.task,
                        results=trainings,
                    )
                )
    return sorted(found, key=lambda location: places.index(location.place))


def _at(place: Place, results: Sequence[StoredResult]) -> list[StoredResult]:
    """Return the results under the own state at a place, each with its result under a swapped
    state.

    Results with fewer queries than the others get a fault.
    """
    same_limit = select_same_limit(
        [one.method_row for one in results if one.method_row.state_of == "own"]
    )
    own_results: list[StoredResult] = []
    swapped_results: dict[Any, StoredResult] = {}
    for one in (replace(one, step=place.step) for one in results):
        if one.row_at_place.values or not one.answers.values:
            if one.method_row.state_of == "other":
                swapped_results[one.method_row.configuration_key] = one
            elif one.method_row.state_of == "own":
                fault = one.fault
                if one.method_row not in same_limit:
                    fault = f"{LESS} ({format_limit(one.method_row)})"
                own_results.append(replace(one, fault=fault))
    return [
        replace(one, swapped=swapped_results.get(one.method_row.configuration_key))
        for one in own_results
    ]


def _by_seed(results: Sequence[StoredResult]) -> dict[int | None, StoredResult]:
    """Index results by training seed. If one seed has several configurations, return one result
    with a fault.
    """
    whole = [one for one in results if not one.fault.startswith(LESS)] or results
    seeds = {
        training_seed(one.method_row.record.method.get("training", {})): one
        for one in reversed(whole)
    }
    if len(seeds) < len(whole):
        fault = f"has {len(whole)} configurations, and the declaration selects none of them"
        return {None: replace(whole[0], fault=fault)}
    return dict(sorted(seeds.items(), key=lambda item: item[0] or 0))


@dataclass(frozen=True, kw_only=True)
class ClaimResult:
    """Verdict on a claim at one place, in one comparison group, under one training."""

    paper: str
    table: str
    claim: Claim
    place: Place
    memory: bool
    """True if the left method keeps the context in a state."""
    verdict: Verdict = "no runs"
    scale: Scale | None = None
    """None without runs at any scale."""
    group_name: str = ""
    found: Difference | None = None
    control: Difference | None = None
    """Difference between the own and a swapped state of the left method."""
    memory_share: float | None = None
    """`control` as a share of full context minus no context. Perplexities use logarithms."""
    costs: tuple[Figure, Figure] | None = None
    """Costs of left and right, for a claim about a cost."""
    reason: str = ""


def verdict_of(
    found: Difference,
    control: Difference | None = None,
    *,
    memory: bool = False,
    is_rival_better: bool | None = True,
    reported: Sequence[float] = (),
    margin: float = 0.0,
) -> Verdict:
    """Return the verdict on the claim that left is better than right.

    Args:
        found: difference between left and right.
        control: difference between the own and a swapped state of left.
        memory: True if left keeps the context in a state. Its own state must then be better than the swapped one.
        is_rival_better: True if right is significantly better than no context, None if no run shows it.
        reported: the paper's differences, in displayed units.
        margin: in displayed units; the claim is that left and right differ by less. 0: left is better.
    """
    scale = metric_or_default(found.metric).scale
    verdict = _of_sign(_significant_gain(found))
    if margin:
        verdict = _of_equivalence(found, margin / scale)
    if verdict != "reproduced":
        return verdict
    if memory and (control is None or _significant_gain(control) <= 0):
        return "no memory" if control else "no control"
    if not is_rival_better:
        return "weak rival"
    if margin or not reported:
        return verdict
    sizes = [abs(value) for value in reported if value * found.value > 0] or [0.0]
    ours = abs(scale * found.value)
    is_alike = min(sizes) / MAX_SIZE_RATIO <= ours <= MAX_SIZE_RATIO * max(sizes)
    return verdict if is_alike else "other size"


def _of_equivalence(found: Difference, margin: float) -> Verdict:
    if is_equivalent(found, margin):
        return "reproduced"
    if found.ci_low is None or found.ci_high is None:
        return "undecided"
    return "contradicted" if found.ci_low > margin or found.ci_high < -margin else "undecided"


def _of_sign(sign: float) -> Verdict:
    return "reproduced" if sign > 0 else "contradicted" if sign < 0 else "undecided"


def _significant_gain(found: Difference) -> float:
    """Return the gain, or 0 if the interval includes zero. Without an interval, use the p-value."""
    if found.ci_low is not None and found.ci_high is not None:
        return found.gain if found.ci_low > 0 or found.ci_high < 0 else 0.0
    return found.gain if found.p is not None and found.p < SIGNIFICANCE_LEVEL else 0.0


def combine_verdicts(verdicts: Sequence[Verdict]) -> Verdict:
    """Combine the verdicts of several trainings or settings. Those without a decision are ignored."""
    decided = {verdict for verdict in verdicts if verdict not in NO_VERDICT}
    if decided:
        return decided.pop() if len(decided) == 1 else "mixed"
    return "cannot tell" if "cannot tell" in verdicts else "no runs"


def evaluate_claims(name: str, table_name: str, stored_runs: StoredRuns) -> list[ClaimResult]:
    """Evaluate every claim of a table at every place, in every comparison group and training with
    both rows.
    """
    table, found = paper(name).tables[table_name], locations(name, table_name, stored_runs)
    patterns = {**paper(name).lines, **table.lines}
    rows: list[ClaimResult] = []
    for claim in table.claims:
        memory = not claim.cost and patterns[claim.left]["method"] not in WITHOUT_STATE
        for place in table.places:
            if not claim.places or place.name in claim.places:
                base = ClaimResult(
                    paper=name, table=table_name, claim=claim, place=place, memory=memory
                )
                both = [
                    location
                    for location in found
                    if location.place is place
                    and {claim.left, claim.right} <= location.results.keys()
                ]
                rows += list(_evaluate(base, both)) or [base]
    return rows


def _evaluate(base: ClaimResult, both: Sequence[Location]) -> Iterator[ClaimResult]:
    """Evaluate a claim per comparison group, or for a mean over all groups of a scale."""
    groups = [[location] for location in both]
    if base.place.mean:
        by_scale = ([one for one in both if one.scale == scale] for scale in SCALES)
        groups = [group for group in by_scale if group]
    claim = base.claim
    for group in groups:
        first = group[0]
        group_name = first.group_name
        if len(group) > 1:
            group_name = group_name.replace(f"{first.task} ", f"{len(group)} tasks ", 1)
        row = replace(base, scale=first.scale, group_name=group_name)
        for left, right in _trainings(claim, group):
            pairs = [
                (one.results[claim.left][left], one.results[claim.right][right]) for one in group
            ]
            yield _compare_costs(row, *pairs[0]) if claim.cost else _compare(row, group, pairs)


def _trainings(claim: Claim, group: Sequence[Location]) -> Iterator[tuple[int | None, int | None]]:
    """Yield the pairs of left and right training seeds to compare.

    Equal seeds are paired. If one side has a single training, it is paired with all of the other
    side.
    """
    left, right = (
        set.intersection(*(set(location.results[side]) for location in group))
        for side in (claim.left, claim.right)
    )
    ordered = [sorted(side, key=lambda seed: seed or 0) for side in (left, right)]
    for one, other in product(*ordered):
        if one == other or min(len(left), len(right)) == 1:
            yield one, other


def _compare(row: ClaimResult, group: Sequence[Location], pairs: Sequence[Pair]) -> ClaimResult:
    """Evaluate a claim by the paired difference, averaged over several comparison groups for a
    mean.
    """
    claim, tasks = row.claim, {location.task for location in group}
    missing = (
        [task for task in row.place.runs["task"] if task not in tasks] if row.place.mean else []
    )
    faults = [f"not run on {', '.join(missing)}"] if missing else []
    faults += [fault for pair in pairs for fault in _faults(claim, pair)]
    found = _mean(
        [
            difference(left.row_at_place, _scaled(right.row_at_place, claim.share))
            for left, right in pairs
        ]
        if not faults
        else [None]
    )
    if found is None:
        reason = faults[0] if faults else "no query in common"
        return replace(row, verdict="cannot tell", reason=reason)
    control = None
    if row.memory:
        control = _mean(
            [
                difference(left.row_at_place, left.swapped.row_at_place) if left.swapped else None
                for left, _ in pairs
            ]
        )
    verdict = verdict_of(
        found,
        control,
        memory=row.memory,
        is_rival_better=_is_rival_better(group, pairs),
        reported=[value for _, value in reported_differences(row)],
        margin=claim.margin,
    )
    reason = claim.miniature if row.scale == SCALES[0] else ""
    if not claim.margin:
        reason = reason or _near_baseline_reason(group, pairs, verdict)
    verdict = "cannot tell" if reason else verdict
    return replace(
        row,
        verdict=verdict,
        found=found,
        control=control,
        memory_share=_memory_share(group, pairs) if control else None,
        reason=reason,
    )


def _is_rival_better(group: Sequence[Location], pairs: Sequence[Pair]) -> bool | None:
    """Return True if right is no context itself, or significantly better than no context.

    None if no context was not run, or cannot be used.
    """
    if all(right.method_row.method == NO_CONTEXT for _, right in pairs):
        return True
    gain = _mean(
        [
            difference(right.row_at_place, none.row_at_place) if none and not none.fault else None
            for (_, right), none in zip(pairs, map(_no_context, group), strict=True)
        ]
    )
    return None if gain is None else _significant_gain(gain) > 0


def _no_context(location: Location) -> StoredResult | None:
    return next(iter(location.results.get(NO_CONTEXT, {}).values()), None)


def reported_differences(row: ClaimResult) -> list[tuple[str, float]]:
    """Return the paper's difference at a place (left minus right) by base model. Empty for costs."""
    if row.claim.cost or not row.place.task:
        return []
    left, right = (
        reported_at(row.paper, row.table, row.place, line)
        for line in (row.claim.left, row.claim.right)
    )
    return [
        (model, left[model] - row.claim.share * right[model]) for model in left if model in right
    ]


def _faults(claim: Claim, pair: Pair) -> list[str]:
    names = zip((claim.left, claim.right), pair, strict=True)
    return [f"{name} {result.fault}" for name, result in names if result.fault]


def _scaled(row: MethodRow, share: float) -> MethodRow:
    """Scale the values of a method row by a share."""
    if share == 1:
        return row
    parts = {
        query: value._replace(terms=(share * value.terms[0], *value.terms[1:]))
        for query, value in row.values.items()
    }
    return replace(row, values=parts)


def _mean(differences: Sequence[Difference | None]) -> Difference | None:
    """Return the mean over the tasks of a place, or None if a task is missing."""
    known = [one for one in differences if one is not None]
    if len(known) < len(differences):
        return None
    return known[0] if len(known) == 1 else mean_difference(known)


def _near_baseline_reason(
    group: Sequence[Location], pairs: Sequence[Pair], verdict: Verdict
) -> str:
    """Return the reason why both results are near the same baseline, or "".

    Positions are 0 at the no-context and 1 at the full-context baseline. Returns "" if a baseline
    was not run.
    """
    values = _oriented_means(group, pairs)
    if values is None:
        return ""
    left, right, none, full = values
    if full <= none:
        return "full context is not better than no context"
    shares = [(position - none) / (full - none) for position in (left, right)]
    return near_baseline(shares, decided=verdict != "undecided")


def _memory_share(group: Sequence[Location], pairs: Sequence[Pair]) -> float | None:
    """Return own minus swapped state of left, as a share of full context minus no context."""
    sides = [(left, left.swapped) for left, _ in pairs if left.swapped is not None]
    values = _oriented_means(group, sides)
    return None if values is None else memory_share(*values)


def _oriented_means(
    group: Sequence[Location], sides: Sequence[Sequence[StoredResult]]
) -> list[float] | None:
    """Return the means over tasks of the given results, of no context, and of full context.

    Higher is better; perplexities use logarithms. None if a baseline was not run.
    """
    tasks: list[list[float]] = []
    for location, results in zip(group, sides, strict=True):
        ends = [[*location.results.get(end, {}).values()][:1] for end in (NO_CONTEXT, FULL_CONTEXT)]
        values = [
            result.figure[0]
            for result in [*results, *ends[0], *ends[1]]
            if result.figure is not None and not result.method_row.exclusion_reason
        ]
        if len(values) < len(results) + 2:
            return None
        metric = results[0].method_row.metric
        tasks.append([oriented(metric, value) for value in values])
    return [fmean(values) for values in zip(*tasks, strict=True)]


def near_baseline(positions: Sequence[float], *, decided: bool) -> str:
    """Return the baseline that both results are near, or "".

    Next to the no-context baseline itself, an undecided result counts. Next to the full-context
    baseline itself, a decided one counts.
    """
    if all(abs(position) < MAX_BASELINE_DISTANCE for position in positions) and (
        decided or 0 not in positions
    ):
        return "both near no context"
    if all(abs(1 - position) < MAX_BASELINE_DISTANCE for position in positions) and (
        not decided or 1 not in positions
    ):
        return "both near full context"
    return ""


def _compare_costs(row: ClaimResult, left: StoredResult, right: StoredResult) -> ClaimResult:
    """Evaluate a claim about a recorded cost. Missing scores do not matter. For bytes, no other
    fault does either.
    """
    claim, unknown = row.claim, replace(row, verdict="cannot tell")
    costs = left.cost(claim.cost), right.cost(claim.cost)
    if costs[0] is None or costs[1] is None:
        return replace(unknown, reason=f"{claim.cost} was not recorded")
    left_cost, right_cost = measured = (costs[0], costs[1])
    if claim.cost in COUNTED:
        return replace(row, costs=measured, verdict=_of_sign(right_cost.value - left_cost.value))
    faults = [fault for fault in _faults(claim, (left, right)) if not fault.endswith(UNSCORED)]
    if left.method_row.machine != right.method_row.machine:
        faults.append("measured on different machines")
    if faults:
        return replace(unknown, costs=measured, reason=faults[0])
    group_name = f"{row.group_name}, {left.method_row.machine}"
    names = zip((claim.left, claim.right), measured, strict=True)
    if once := [name for name, cost in names if cost.n < 2]:
        reason = f"{' and '.join(once)} measured once"
        return replace(unknown, costs=measured, group_name=group_name, reason=reason)
    left_wins = right_cost.low >= MIN_TIME_RATIO * left_cost.high
    right_wins = left_cost.low >= MIN_TIME_RATIO * right_cost.high
    sign = left_wins - right_wins
    return replace(row, costs=measured, group_name=group_name, verdict=_of_sign(sign))
