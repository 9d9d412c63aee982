"""Every claim of a table as our runs stand to it: by place, block and training the paired difference of its lines.

    judged("mac", "table1", stored)[0]      Judged(claim=..., place=..., training=0, found=..., verdict="reproduced")

Differences, intervals and units of error are those of `ttabench compare`. A claim "so far of the way" compares with a
mixture of floor and goal, query by query (of perplexities: of nats). `claims.RULE` says the rule in full.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from ttabench.core.types import Json
from ttabench.papers.declared import (
    COUNTED,
    SCALES,
    SILENT,
    Claim,
    Place,
    Scale,
    Verdict,
    of_sign,
    paper,
    scale_of_model,
)
from ttabench.papers.matching import UNSCORED, Held, Spot, Stored, spots
from ttabench.papers.profiles import lines_at, machine, pairs, weighed, where
from ttabench.profiling.record import Figure
from ttabench.report.blocks import CEILING, FLOOR
from ttabench.report.differences import Difference, difference, overall
from ttabench.report.pairing import Values
from ttabench.stats.clusters import Observed
from ttabench.stats.estimate import LEVEL
from ttabench.stats.figures import Unit
from ttabench.stats.metrics import known

NEAR = 0.1
"""So much of the way from no context to full context is near an end."""
WITHOUT_STATE = ("none", "lora", "icl", "rag")
"""Methods that hold no context in a state: nothing of it, or its text itself."""
Words = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim at one place, in one block of runs, under one training of its adapters."""

    paper: str
    table: str
    claim: Claim
    place: Place
    method: str
    verdict: Verdict
    scale: Scale | None = None
    """None where there are no runs at any."""
    block: str = ""
    suites: tuple[str, ...] = ()
    training: int | None = None
    """The seed of the training of left, or of right where left has none."""
    found: Difference | None = None
    control: Difference | None = None
    """Left under its own state less left under another text's."""
    costs: tuple[Figure, Figure] | None = None
    """Of left and right, of a claim about a cost."""
    machine: str = ""
    """Their machine, where they are times."""
    reason: str = ""

    @property
    def memory(self) -> bool:
        """Whether it is about a method that holds the context in a state."""
        return not self.claim.cost and self.method not in WITHOUT_STATE


def verdict_of(found: Difference, control: Difference | None = None, *, memory: bool = False) -> Verdict:
    """What runs say of the claim that left is better than right (`found`), and under its own state than under another
    text's (`control`), where it holds the context in a state (`memory`)."""
    verdict = of_sign(found.gain * _apart(found))
    if verdict == "reproduced" and memory and not (control and control.gain * _apart(control) > 0):
        return "no memory" if control else "no control"
    return verdict


def _apart(found: Difference) -> bool:
    """Whether the interval excludes zero."""
    if found.ci_low is not None and found.ci_high is not None:
        return found.ci_low > 0 or found.ci_high < 0
    return found.p is not None and found.p < LEVEL


def over(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of several trainings, or settings: of those that can tell, where all say the same."""
    told = [verdict for verdict in verdicts if verdict not in SILENT]
    if told:
        return told[0] if len(set(told)) == 1 else "mixed"
    return "cannot tell" if "cannot tell" in verdicts else "no runs"


def near_an_end(claim: Claim, places: Sequence[float], *, decided: bool) -> str:
    """Why two lines on the way from no context (0) to full context (1) say nothing of a claim; empty where they do.

    What is not `decided`, for the interval holds zero, and is not told from an end itself, is undecided.
    """
    if all(abs(place) < NEAR for place in places) and (decided or 0 not in places):
        return "both near no context"
    whole = claim.share == 1 and claim.right_step is None
    at_ceiling = all(abs(1 - place) < NEAR for place in places) and (not decided or 1 not in places)
    return "both near full context" if whole and at_ceiling else ""


def mixed(floor: Values | None, goal: Values, share: float) -> Values:
    """So far of the way from floor (zero for None) to goal, query by query of a mean or a ratio."""
    by_query: dict[Any, Observed | Unit] = {}
    for query, value in goal.items():
        if floor is not None and query not in floor:
            continue
        under = floor[query] if floor is not None else None
        if isinstance(value, Unit):
            assert isinstance(under, Unit), "a share of the way of a ratio has a floor"
            by_query[query] = value._replace(nll=(1 - share) * under.nll + share * value.nll)
        else:
            assert isinstance(value, Observed), "a share of the way is of means and ratios"
            zero = under.terms[0] if isinstance(under, Observed) else 0.0
            by_query[query] = value._replace(terms=((1 - share) * zero + share * value.terms[0], *value.terms[1:]))
    return by_query  # type: ignore[return-value]  # all of one kind


def judged(name: str, which: str, stored_runs: Stored, scales: Sequence[Scale] = SCALES) -> list[Judged]:
    """Every claim of a table at every place, in every block and training in which both lines were run."""
    table = paper(name).tables[which]
    there = [spot for spot in spots(name, which, stored_runs) if spot.scale in scales]
    lines = paper(name).lines_of(table)
    rows: list[Judged] = []
    for claim in table.claims:
        for place in table.placed(claim):
            at = {"paper": name, "table": which, "claim": claim, "place": place, "method": lines[claim.left]["method"]}
            if place.profile is None:
                rows += _at(claim, [spot for spot in there if spot.place is place], at)
            else:
                rows += [row for row in _profiled(claim, lines, stored_runs, at) if row.scale in (None, *scales)]
    return rows


def _at(claim: Claim, own: Sequence[Spot], words: Words) -> Iterator[Judged]:
    place, sides = words["place"], list(dict.fromkeys(filter(None, (claim.left, claim.right, claim.floor))))
    both = [spot for spot in own if all(side in spot.lines for side in sides)]
    together = [[spot for spot in both if spot.scale == scale] for scale in SCALES]
    for alike in filter(None, together if place.mean else [[spot] for spot in both]):
        for seeds in _trainings(claim, alike):
            yield _one(claim, alike, seeds, words)
    if not both:
        lacking = [side for side in sides if not any(side in spot.lines for spot in own)]
        reason = f"no runs of {' and '.join(lacking)}" if lacking else "not run on the same questions"
        yield Judged(**words, verdict="no runs", reason=reason)


def _trainings(claim: Claim, alike: Sequence[Spot]) -> list[tuple[int | None, int | None]]:
    """Seeds of left and right that stand beside each other: of one adapter; else of one seed, or all beside the only
    training of the other."""
    seeds = [sorted(set.intersection(*(set(spot.lines[side]) for spot in alike)), key=lambda seed: seed or 0)
             for side in (claim.left, claim.right)]  # fmt: skip
    left, right = ({seed: held.entry.record.config["inputs"].get("checkpoint")
                    for seed, held in alike[0].lines[side].items()} for side in (claim.left, claim.right))  # fmt: skip
    crossed = list(product(*seeds))
    one_adapter = [(own, other) for own, other in crossed if left[own] and left[own] == right[other]]
    return one_adapter or [(own, other) for own, other in crossed if own == other or min(map(len, seeds)) == 1]


class _Sides(NamedTuple):
    """Lines of a claim in one block; of no context and of full context, where they were run."""

    left: Held
    right: Held
    floor: Held | None
    none: Held | None
    full: Held | None


def _one(claim: Claim, alike: Sequence[Spot], seeds: tuple[int | None, int | None], words: Words) -> Judged:
    first, place = alike[0], alike[0].place
    blocks = [
        _Sides(spot.lines[claim.left][seeds[0]], spot.lines[claim.right][seeds[1]],
               *(next(iter(spot.lines.get(line, {}).values()), None) for line in (claim.floor, FLOOR, CEILING)))
        for spot in alike
    ]  # fmt: skip
    several = first.block.replace(f"{first.task} ", f"{len(alike)} tasks ", 1) if place.mean else first.block
    suites = dict.fromkeys(name for sides in blocks for held in sides[:2] for name in held.suites)
    at = {**words, "scale": first.scale, "block": several, "training": seeds[1] if seeds[0] is None else seeds[0],
          "suites": tuple(suites)}  # fmt: skip
    reason = _fault(claim, alike, blocks)
    if claim.cost:
        return _cost(claim, blocks[0], reason, at)
    if reason:
        return Judged(**at, verdict="cannot tell", reason=reason)
    found = _mean([_difference(claim, sides) for sides in blocks])
    if found is None:
        return Judged(**at, verdict="cannot tell", reason="no question was asked of both")
    memory = words["method"] not in WITHOUT_STATE
    control = _mean([sides.left.control for sides in blocks]) if memory else None
    verdict = verdict_of(found, control, memory=memory)
    reason = claim.miniature * (first.scale == SCALES[0]) or _blind(claim, blocks, decided=verdict != "undecided")
    return Judged(**at, verdict="cannot tell" if reason else verdict, found=found, control=control, reason=reason)


def _fault(claim: Claim, alike: Sequence[Spot], blocks: Sequence[_Sides]) -> str:
    """Why nothing can be said of these lines; empty where something can. Costs are known without scores, too."""
    tasks = alike[0].place.pattern["task"] if alike[0].place.mean else []
    if missing := [task for task in tasks if task not in {spot.task for spot in alike}]:
        return f"not run on {', '.join(missing)}"
    names, no_fault = (claim.left, claim.right, claim.floor), ("", UNSCORED if claim.cost else "")
    faults = (f"{name} {held.fault}" for sides in blocks for name, held in zip(names, sides[:3], strict=True)
              if held is not None and held.fault not in no_fault)  # fmt: skip
    return next(faults, "")


def _mean(differences: Sequence[Difference | None]) -> Difference | None:
    """One, or the mean over the tasks of a place; None where one is missing."""
    known = [one for one in differences if one is not None]
    return None if len(known) < len(differences) else known[0] if len(known) == 1 else overall(known)


def _difference(claim: Claim, sides: _Sides) -> Difference | None:
    goal = sides.right.values if claim.right_step is None else sides.right.at(claim.right_step)
    if claim.share != 1.0:
        goal = mixed(sides.floor.values if sides.floor else None, goal, claim.share)
    return difference(replace(sides.left.entry, values=sides.left.values), replace(sides.right.entry, values=goal))


def _blind(claim: Claim, blocks: Sequence[_Sides], *, decided: bool) -> str:
    """Why these lines say nothing of the claim where they stand between no context and full context; of perplexities
    logarithms count."""
    worths = list[list[float]]()
    for sides in blocks:
        for held in (lines := (sides.left, sides.right, sides.none, sides.full)):
            if held is None or held.entry.aside or held.figure is None:
                return ""
        higher, figures = known(sides.left.entry.metric).higher_is_better, [held.figure for held in lines if held]
        worths.append([figure[0] if higher else -math.log(figure[0]) for figure in figures if figure])
    left, right, none, full = (fmean(values) for values in zip(*worths, strict=True))
    if full <= none:
        return "full context is no better than none" * (blocks[0].left.entry.method != CEILING)
    return near_an_end(claim, [(worth - none) / (full - none) for worth in (left, right)], decided=decided)


def _cost(claim: Claim, sides: _Sides, fault: str, words: Words) -> Judged:
    """A claim about a cost, of what runs recorded; bytes are known whatever was asked."""
    left, right = sides.left.cost(claim.cost), sides.right.cost(claim.cost)
    if left is None or right is None:
        return Judged(**words, verdict="cannot tell", reason=f"{claim.cost} is not known")
    if claim.cost in COUNTED:
        fault, machines = "", set[str]()
    else:
        machines = {sides.left.entry.machine, sides.right.entry.machine}
        fault = fault or "measured on different machines" * (len(machines) > 1)
    verdict, reason = weighed(claim, left, right)
    return Judged(**words, verdict="cannot tell" if fault else verdict, costs=(left, right), reason=fault or reason,
                  machine="; ".join(sorted(machines)))  # fmt: skip


def _profiled(
    claim: Claim, lines: Mapping[str, Mapping[str, Json]], stored_runs: Stored, words: Words
) -> Iterator[Judged]:
    """A claim at a length of profiles: in each that has both lines."""
    at = words["place"].profile
    both = pairs(claim, at, lines, stored_runs.profiles)
    for left, right in both:
        verdict, reason = weighed(claim, left.figure, right.figure)
        yield Judged(**words, verdict=verdict, reason=reason, costs=(left.figure, right.figure),
                     block=where(left.record, at), scale=scale_of_model(str(left.record.config["model"])),
                     suites=tuple(dict.fromkeys((left.folder, right.folder))),
                     machine="" if claim.cost in COUNTED else machine(left.record))  # fmt: skip
    if not both:
        lacking = [line for line in dict.fromkeys((claim.left, claim.right))
                   if not lines_at(lines[line], claim, at, stored_runs.profiles)]  # fmt: skip
        reason = f"not measured for {' and '.join(lacking)}" if lacking else "measured on different machines or loads"
        yield Judged(**words, verdict="no runs", reason=reason)
