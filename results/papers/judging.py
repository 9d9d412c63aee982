"""Every claim of a table as our runs stand to it: by place, block and training the paired difference of its lines.

    words(record)                           {"method": "mac", "task": "streamingqa", "set": {...}, "trained_on": "own"}
    spots("mac", "table1", stored)          [Spot(place="streamingqa", lines={"mac": {0: Held(...), ...}}, ...)]
    judged("mac", "table1", stored)[0]      Judged(claim=..., place=..., found=..., verdict="reproduced")

Lines of a table are stored runs, in the words of a suite held against its patterns. Blocks, pooling of draws, rules
that set runs aside, differences, intervals and units of error are those of `ttabench compare`. Of a cost bytes are
counted: the order of two lines decides. Times are measured in draws, and have to be twice apart in all of them.
`claims.RULE` says the rules in full, `results/claims.md` those of costs, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeAlias

from papers.declared import COUNTED, SCALES, Claim, Cost, Place, Scale, paper, scale_of_model
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
    "no memory",
    "no control",
    "contradicted",
    "undecided",
    "mixed",
    "cannot tell",
    "no runs",
]
SILENT: tuple[Verdict, ...] = ("cannot tell", "no runs")
NEAR = 0.1
"""So much of the way from no context to full context is near an end."""
FACTOR = 2.0
"""By how much measured times differ at least: those of one run vary by that much on a machine that others use."""
WITHOUT_STATE = ("none", "lora", "icl", "rag")
"""Methods that hold no context in a state: nothing of it, or its text itself."""
TRIALS = ("scratch", "quick")
"""Folders of folders of runs that are not looked into: what lies there was tried."""
UNSCORED = "kept no scores of its queries"
"""A fault; none where costs are compared."""
LESS = "was asked less"
OWN = "own"


@dataclass(frozen=True, kw_only=True)
class Stored(LoadedRuns):
    """Runs, each once."""

    @cached_property
    def words(self) -> dict[str, dict[str, Json]]:
        """Every run as a suite would say it, by its id, see `words`."""
        return {record.id: words(record) for _, record in self.runs}


def stored(folders: Sequence[Path]) -> Stored:
    """The runs in these folders; where one has none, those up to two levels below it."""
    found = load_runs(
        dict.fromkeys(run for folder in folders for run in list_runs_below(folder, exclude=TRIALS))
    )
    runs = {run[1].id: run for run in reversed(found.runs)}
    return Stored(runs=tuple(runs.values())[::-1], damaged=found.damaged)


def words(record: RunRecord) -> dict[str, Json]:
    """A record as a suite would say it; values that are lists are told as they are typed."""
    config = fill_defaults(record.config)
    plain = {key: value for key, value in config.items() if not isinstance(value, Mapping)}
    for name, key in (("set", "settings"), ("task_set", "task_options")):
        plain[name] = {
            option: format_setting(value) if isinstance(value, list | tuple) else value
            for option, value in config[key].items()
        }
    trained = "+".join(trained_tasks(record.method.get("training", {})))
    return {**plain, "trained_on": OWN if trained == config["task"] else trained}


def fits(pattern: Mapping[str, Json], words_of_run: Mapping[str, Json]) -> bool:
    """Whether a run is one of those that a pattern names; "own" is also the name of its task."""
    if pattern.get("trained_on") == words_of_run["task"]:
        pattern = {**pattern, "trained_on": OWN}
    return matches_pattern(pattern, words_of_run)


@dataclass(frozen=True, kw_only=True)
class Held:
    """A line of a table at a place, in a block, under one training of its adapter."""

    method_row: MethodRow
    answers: Answers
    step: int | None = None
    fault: str = ""
    """Why nothing can be said of it, as it follows its name; empty where something can."""
    other: Held | None = None
    """The same under another text's state; None where that was not run."""

    @cached_property
    def line(self) -> MethodRow:
        """The entry with what its queries add at the place: those of one step, or all; of lengths all up to that one.
        What names the step is no key."""
        if self.step is None:
            return self.method_row
        lengths, values = self.method_row.step == TEXT_LENGTH, dict[QueryId, Observation]()
        for query, value in self.answers.values.items():
            own = self.answers.steps.get(query[:3])
            if own == self.step or (lengths and own is not None and own < self.step):
                seed, episode, key, question = query
                name = key if lengths else key.removesuffix(f"@{self.step}")
                values[seed, episode, name, question] = value
        return replace(self.method_row, values=values)

    def cost(self, cost: Cost) -> Figure | None:
        """What it cost in its runs, a draw each; None where that is not known."""
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
        """(value, standard error, n) at the place; None where nothing was asked then."""
        whole = self.method_row.value, self.method_row.stderr, self.method_row.n
        return (
            whole
            if self.step is None or not self.method_row.steps
            else self.method_row.steps.get(self.step)
        )


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A place of a table in one block of runs."""

    place: Place
    scale: Scale
    block: str
    task: str
    lines: Mapping[str, Mapping[int | None, Held]]
    """By the seed of the training, None without one; those of `none` and `icl` are there whether named or not."""


def spots(name: str, which: str, stored_runs: Stored) -> list[Spot]:
    """Every place of a table, in every block in which one of its lines was run."""
    table, told = paper(name).tables[which], stored_runs.words
    places, patterns = table.places, paper(name).lines_of(table)
    lines = {end: {"method": end} for end in (NO_CONTEXT, FULL_CONTEXT)} | {
        line: patterns[line] for line in table.named
    }

    def are(pattern: Mapping[str, Json], record: RunRecord) -> bool:
        return fits(pattern, told[record.id])

    kept = [
        run
        for run in stored_runs.runs
        if any(are(place.pattern, run[1]) for place in places)
        and any(are(pattern, run[1]) for pattern in lines.values())
    ]
    answers, _ = read_answers(kept)
    there = []
    for of_block, groups in comparison_groups([run for run in kept if run[1].id in answers]):
        of_groups = []
        for group in groups:
            own = join_answers([answers[run] for run in group.ids])
            method_row = make_method_row(of_block, group.method, group, own)
            fault = method_row.exclusion_reason or ("" if own.values else UNSCORED)
            of_groups.append(Held(method_row=method_row, answers=own, fault=fault))
        scale = scale_of_model(str(groups[0].record.config.get("model")))
        for place in (place for place in places if scale in place.scales):
            held = _at(
                place, [one for one in of_groups if are(place.pattern, one.method_row.record)]
            )
            trainings = {
                line: _by_seed(fitting)
                for line, pattern in lines.items()
                if (fitting := [one for one in held if are(pattern, one.method_row.record)])
            }
            if trainings.keys() & {*table.named}:
                there.append(
                    Spot(
                        place=place,
                        scale=scale,
                        block=of_block.name,
                        task=of_block.task,
                        lines=trainings,
                    )
                )
    return sorted(there, key=lambda spot: places.index(spot.place))


def _at(place: Place, held: Sequence[Held]) -> list[Held]:
    """All that answered under their own state at the step of a place, each beside the same under another text's; what
    was asked less than the others has that as its fault."""
    alike, lines, others = (
        select_same_limit([one.method_row for one in held if one.method_row.state_of == "own"]),
        list[Held](),
        {},
    )
    for one in (replace(one, step=place.step) for one in held):
        if one.line.values or not one.answers.values:
            if one.method_row.state_of == "other":
                others[one.method_row.configuration_key] = one
            elif one.method_row.state_of == "own":
                less = "" if one.method_row in alike else f"{LESS} ({format_limit(one.method_row)})"
                lines.append(replace(one, fault=less or one.fault))
    return [replace(one, other=others.get(one.method_row.configuration_key)) for one in lines]


def _by_seed(held: Sequence[Held]) -> dict[int | None, Held]:
    """By the seed of the training; of several configurations of one seed the first, with that as its fault."""
    whole = [one for one in held if not one.fault.startswith(LESS)] or held
    seeds = {
        training_seed(one.method_row.record.method.get("training", {})): one
        for one in reversed(whole)
    }
    if len(seeds) < len(whole):
        fault = f"was run in {len(whole)} configurations, and which is meant is not declared"
        return {None: replace(whole[0], fault=fault)}
    return dict(sorted(seeds.items(), key=lambda item: item[0] or 0))


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim at one place, in one block of runs, under one training of its adapters."""

    paper: str
    table: str
    claim: Claim
    place: Place
    verdict: Verdict
    memory: bool
    """Whether it is about a method that holds the context in a state."""
    scale: Scale | None = None
    """None where there are no runs at any."""
    block: str = ""
    found: Difference | None = None
    control: Difference | None = None
    """Left under its own state less left under another text's."""
    costs: tuple[Figure, Figure] | None = None
    """Of left and right, of a claim about a cost."""
    reason: str = ""


def verdict_of(
    found: Difference, control: Difference | None = None, *, memory: bool = False
) -> Verdict:
    """What runs say of the claim that left is better than right (`found`), and under its own state than under another
    text's (`control`), where it holds the context in a state (`memory`)."""
    verdict = _of_sign(found.gain * _apart(found))
    if verdict == "reproduced" and memory and not (control and control.gain * _apart(control) > 0):
        return "no memory" if control else "no control"
    return verdict


def _of_sign(sign: float) -> Verdict:
    return "reproduced" if sign > 0 else "contradicted" if sign < 0 else "undecided"


def _apart(found: Difference) -> bool:
    """Whether the interval excludes zero."""
    if found.ci_low is not None and found.ci_high is not None:
        return found.ci_low > 0 or found.ci_high < 0
    return found.p is not None and found.p < SIGNIFICANCE_LEVEL


def over(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of several trainings, or settings: of those that can tell, where all say the same."""
    told = [verdict for verdict in verdicts if verdict not in SILENT]
    if told:
        return told[0] if len(set(told)) == 1 else "mixed"
    return "cannot tell" if "cannot tell" in verdicts else "no runs"


def judged(
    name: str, which: str, stored_runs: Stored, scales: Sequence[Scale] = SCALES
) -> list[Judged]:
    """Every claim of a table at every place, in every block and training in which both lines were run."""
    table = paper(name).tables[which]
    there = [spot for spot in spots(name, which, stored_runs) if spot.scale in scales]
    lines = paper(name).lines_of(table)
    rows: list[Judged] = []
    for claim in table.claims:
        memory = not claim.cost and lines[claim.left]["method"] not in WITHOUT_STATE
        for place in table.placed(claim):
            at: dict[str, Any] = {
                "paper": name,
                "table": which,
                "claim": claim,
                "place": place,
                "memory": memory,
            }
            own = list(_of_runs(claim, [spot for spot in there if spot.place is place], at))
            rows += own or [Judged(**at, verdict="no runs")]
    return rows


def _of_runs(claim: Claim, own: Sequence[Spot], at: Mapping[str, Any]) -> Iterator[Judged]:
    """In every block that has both lines, or of a mean in all of a scale together."""
    both = [spot for spot in own if {claim.left, claim.right} <= spot.lines.keys()]
    together = [[spot] for spot in both]
    if at["place"].mean:
        together = [
            alike for scale in SCALES if (alike := [spot for spot in both if spot.scale == scale])
        ]
    for alike in together:
        first = alike[0]
        several = (
            first.block.replace(f"{first.task} ", f"{len(alike)} tasks ", 1)
            if len(alike) > 1
            else first.block
        )
        for left, right in _trainings(claim, alike):
            pairs = [
                (spot.lines[claim.left][left], spot.lines[claim.right][right]) for spot in alike
            ]
            words = {**at, "scale": first.scale, "block": several}
            yield (
                _cost(claim, pairs[0], words)
                if claim.cost
                else _difference(claim, alike, pairs, words)
            )


def _trainings(claim: Claim, alike: Sequence[Spot]) -> list[tuple[int | None, int | None]]:
    """Seeds of left and right that stand beside each other: one seed, or all beside the only training of the other."""
    left, right = (
        sorted(
            set.intersection(*(set(spot.lines[side]) for spot in alike)), key=lambda seed: seed or 0
        )
        for side in (claim.left, claim.right)
    )
    return [
        pair
        for pair in product(left, right)
        if pair[0] == pair[1] or min(len(left), len(right)) == 1
    ]


def _difference(
    claim: Claim,
    alike: Sequence[Spot],
    pairs: Sequence[tuple[Held, Held]],
    words: Mapping[str, Any],
) -> Judged:
    """By the difference of the lines of one block, or its mean over several."""
    names = (claim.left, claim.right)
    faults = [
        f"{name} {held.fault}"
        for pair in pairs
        for name, held in zip(names, pair, strict=True)
        if held.fault
    ]
    if words["place"].mean:
        there = {spot.task for spot in alike}
        lacking = [task for task in words["place"].pattern["task"] if task not in there]
        faults = [f"not run on {', '.join(lacking)}"] * bool(lacking) + faults
    found = (
        None
        if faults
        else _mean([difference(left.line, _part(right.line, claim.share)) for left, right in pairs])
    )
    if found is None:
        return Judged(
            **words,
            verdict="cannot tell",
            reason=faults[0] if faults else "no question was asked of both",
        )
    control = None
    if words["memory"]:
        control = _mean(
            [difference(left.line, left.other.line) if left.other else None for left, _ in pairs]
        )
    verdict = verdict_of(found, control, memory=words["memory"])
    reason = claim.miniature * (words["scale"] == SCALES[0]) or _blind(alike, pairs, verdict)
    return Judged(
        **words,
        verdict="cannot tell" if reason else verdict,
        found=found,
        control=control,
        reason=reason,
    )


def _part(line: MethodRow, share: float) -> MethodRow:
    """The line with this share of what every query adds to its mean."""
    if share == 1:
        return line
    parts = {
        query: value._replace(terms=(share * value.terms[0], *value.terms[1:]))
        for query, value in line.values.items()
    }
    return replace(line, values=parts)


def _mean(differences: Sequence[Difference | None]) -> Difference | None:
    """One, or the mean over the tasks of a place; None where one is missing."""
    known = [one for one in differences if one is not None]
    return (
        None
        if len(known) < len(differences)
        else known[0]
        if len(known) == 1
        else mean_difference(known)
    )


def _blind(alike: Sequence[Spot], pairs: Sequence[tuple[Held, Held]], verdict: Verdict) -> str:
    """Why these lines say nothing of the claim where they stand between no context (0) and full context (1); of
    perplexities logarithms count. Empty where they do, or one of the ends was not run."""
    oriented_values = list[list[float]]()
    for spot, pair in zip(alike, pairs, strict=True):
        ends = [
            next(iter(spot.lines.get(end, {}).values()), None) for end in (NO_CONTEXT, FULL_CONTEXT)
        ]
        figures = [
            held.figure
            for held in (*pair, *ends)
            if held is not None and not held.method_row.exclusion_reason
        ]
        values = [figure[0] for figure in figures if figure is not None]
        if len(values) < 4:
            return ""
        higher = metric_or_default(pair[0].method_row.metric).higher_is_better
        oriented_values.append(values if higher else [-math.log(value) for value in values])
    left, right, none, full = (fmean(values) for values in zip(*oriented_values, strict=True))
    if full <= none:
        return "full context is no better than none"
    places = [(oriented_value - none) / (full - none) for oriented_value in (left, right)]
    return near_an_end(places, decided=verdict != "undecided")


def near_an_end(places: Sequence[float], *, decided: bool) -> str:
    """The end that both lines are near. What is not told from no context itself is undecided, and what is worse than
    full context itself is told."""
    if all(abs(place) < NEAR for place in places) and (decided or 0 not in places):
        return "both near no context"
    near_full = all(abs(1 - place) < NEAR for place in places) and (not decided or 1 not in places)
    return "both near full context" * near_full


def _cost(claim: Claim, pair: tuple[Held, Held], words: Mapping[str, Any]) -> Judged:
    """By what runs recorded; that is known without scores, too, and bytes whatever was asked."""
    left, right = (held.cost(claim.cost) for held in pair)
    machines = sorted({held.method_row.machine for held in pair})
    faults = [
        f"{name} {held.fault}"
        for name, held in zip((claim.left, claim.right), pair, strict=True)
        if held.fault not in ("", UNSCORED)
    ]
    faults = (
        []
        if claim.cost in COUNTED
        else faults + ["measured on different machines"] * (len(machines) > 1)
    )
    if left is None or right is None:
        return Judged(**words, verdict="cannot tell", reason=f"{claim.cost} is not known")
    words = {**words, "costs": (left, right)}
    if faults:
        return Judged(**words, verdict="cannot tell", reason=faults[0])
    if claim.cost in COUNTED:
        return Judged(**words, verdict=_of_sign(right.value - left.value))
    words["block"] = f"{words['block']}, {machines[0]}"
    if once := [
        line
        for line, own in zip((claim.left, claim.right), (left, right), strict=True)
        if own.n < 2
    ]:
        return Judged(**words, verdict="cannot tell", reason=f"{' and '.join(once)} measured once")
    sign = (right.low >= FACTOR * left.high) - (left.low >= FACTOR * right.high)
    return Judged(**words, verdict=_of_sign(sign))
