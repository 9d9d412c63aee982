"""Every claim of a table as our runs stand to it: by place, block and training the paired difference of its lines.

    judged("mac", "table1", stored)[0]      Judged(claim=..., place=..., found=..., verdict="reproduced")

Differences, intervals and units of error are those of `ttabench compare`. Of a cost bytes are counted: the order of two
lines decides. Times are measured in draws, and have to be twice apart in all of them. `claims.RULE` and
`claims.COSTS` say the rules in full.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any, Literal, TypeAlias

from ttabench.papers.declared import COUNTED, SCALES, Claim, Place, Scale, paper
from ttabench.papers.matching import UNSCORED, Held, Spot, Stored, spots
from ttabench.profiling.record import Figure
from ttabench.report.blocks import CEILING, FLOOR
from ttabench.report.differences import Difference, difference, overall
from ttabench.report.entries import Entry
from ttabench.stats.clusters import Observed
from ttabench.stats.estimate import LEVEL
from ttabench.stats.metrics import known

Verdict: TypeAlias = Literal[
    "reproduced", "no memory", "no control", "contradicted", "undecided", "mixed", "cannot tell", "no runs"
]
SILENT: tuple[Verdict, ...] = ("cannot tell", "no runs")
NEAR = 0.1
"""So much of the way from no context to full context is near an end."""
FACTOR = 2.0
"""By how much measured times differ at least: those of one run vary by that much on a machine that others use."""
WITHOUT_STATE = ("none", "lora", "icl", "rag")
"""Methods that hold no context in a state: nothing of it, or its text itself."""


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


def verdict_of(found: Difference, control: Difference | None = None, *, memory: bool = False) -> Verdict:
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
    return found.p is not None and found.p < LEVEL


def over(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of several trainings, or settings: of those that can tell, where all say the same."""
    told = [verdict for verdict in verdicts if verdict not in SILENT]
    if told:
        return told[0] if len(set(told)) == 1 else "mixed"
    return "cannot tell" if "cannot tell" in verdicts else "no runs"


def judged(name: str, which: str, stored_runs: Stored, scales: Sequence[Scale] = SCALES) -> list[Judged]:
    """Every claim of a table at every place, in every block and training in which both lines were run."""
    table = paper(name).tables[which]
    there = [spot for spot in spots(name, which, stored_runs) if spot.scale in scales]
    lines = paper(name).lines_of(table)
    rows: list[Judged] = []
    for claim in table.claims:
        memory = not claim.cost and lines[claim.left]["method"] not in WITHOUT_STATE
        for place in table.placed(claim):
            at: dict[str, Any] = {"paper": name, "table": which, "claim": claim, "place": place, "memory": memory}
            own = list(_of_runs(claim, [spot for spot in there if spot.place is place], at))
            rows += own or [Judged(**at, verdict="no runs")]
    return rows


def _of_runs(claim: Claim, own: Sequence[Spot], at: Mapping[str, Any]) -> Iterator[Judged]:
    """In every block that has both lines, or of a mean in all of a scale together."""
    both = [spot for spot in own if {claim.left, claim.right} <= spot.lines.keys()]
    together = [[spot] for spot in both]
    if at["place"].mean:
        together = [alike for scale in SCALES if (alike := [spot for spot in both if spot.scale == scale])]
    for alike in together:
        first = alike[0]
        several = first.block.replace(f"{first.task} ", f"{len(alike)} tasks ", 1) if len(alike) > 1 else first.block
        for left, right in _trainings(claim, alike):
            pairs = [(spot.lines[claim.left][left], spot.lines[claim.right][right]) for spot in alike]
            words = {**at, "scale": first.scale, "block": several}
            yield _cost(claim, pairs[0], words) if claim.cost else _difference(claim, alike, pairs, words)


def _trainings(claim: Claim, alike: Sequence[Spot]) -> list[tuple[int | None, int | None]]:
    """Seeds of left and right that stand beside each other: one seed, or all beside the only training of the other."""
    left, right = (
        sorted(set.intersection(*(set(spot.lines[side]) for spot in alike)), key=lambda seed: seed or 0)
        for side in (claim.left, claim.right)
    )
    return [pair for pair in product(left, right) if pair[0] == pair[1] or min(len(left), len(right)) == 1]


def _difference(
    claim: Claim, alike: Sequence[Spot], pairs: Sequence[tuple[Held, Held]], words: Mapping[str, Any]
) -> Judged:
    """By the difference of the lines of one block, or its mean over several."""
    names = (claim.left, claim.right)
    faults = [f"{name} {held.fault}" for pair in pairs for name, held in zip(names, pair, strict=True) if held.fault]
    if words["place"].mean:
        there = {spot.task for spot in alike}
        lacking = [task for task in words["place"].pattern["task"] if task not in there]
        faults = [f"not run on {', '.join(lacking)}"] * bool(lacking) + faults
    found = None if faults else _mean([difference(left.line, _part(right.line, claim.share)) for left, right in pairs])
    if found is None:
        return Judged(**words, verdict="cannot tell", reason=faults[0] if faults else "no question was asked of both")
    control = None
    if words["memory"]:
        control = _mean([difference(left.line, left.other.line) if left.other else None for left, _ in pairs])
    verdict = verdict_of(found, control, memory=words["memory"])
    reason = claim.miniature * (words["scale"] == SCALES[0]) or _blind(alike, pairs, verdict)
    return Judged(**words, verdict="cannot tell" if reason else verdict, found=found, control=control, reason=reason)


def _part(line: Entry, share: float) -> Entry:
    """The line with this share of what every query adds to its mean."""
    if share == 1:
        return line
    parts = {query: value._replace(terms=(share * value.terms[0], *value.terms[1:]))
             for query, value in line.values.items() if isinstance(value, Observed)}  # fmt: skip
    return replace(line, values=parts)


def _mean(differences: Sequence[Difference | None]) -> Difference | None:
    """One, or the mean over the tasks of a place; None where one is missing."""
    known = [one for one in differences if one is not None]
    return None if len(known) < len(differences) else known[0] if len(known) == 1 else overall(known)


def _blind(alike: Sequence[Spot], pairs: Sequence[tuple[Held, Held]], verdict: Verdict) -> str:
    """Why these lines say nothing of the claim where they stand between no context (0) and full context (1); of
    perplexities logarithms count. Empty where they do, or one of the ends was not run."""
    worths = list[list[float]]()
    for spot, pair in zip(alike, pairs, strict=True):
        ends = [next(iter(spot.lines.get(end, {}).values()), None) for end in (FLOOR, CEILING)]
        figures = [held.figure for held in (*pair, *ends) if held is not None and not held.entry.aside]
        values = [figure[0] for figure in figures if figure is not None]
        if len(values) < 4:
            return ""
        higher = known(pair[0].entry.metric).higher_is_better
        worths.append(values if higher else [-math.log(value) for value in values])
    left, right, none, full = (fmean(values) for values in zip(*worths, strict=True))
    if full <= none:
        return "full context is no better than none"
    places = [(worth - none) / (full - none) for worth in (left, right)]
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
    machines = sorted({held.entry.machine for held in pair})
    faults = [f"{name} {held.fault}" for name, held in zip((claim.left, claim.right), pair, strict=True)
              if held.fault not in ("", UNSCORED)]  # fmt: skip
    faults = [] if claim.cost in COUNTED else faults + ["measured on different machines"] * (len(machines) > 1)
    if left is None or right is None:
        return Judged(**words, verdict="cannot tell", reason=f"{claim.cost} is not known")
    words = {**words, "costs": (left, right)}
    if faults:
        return Judged(**words, verdict="cannot tell", reason=faults[0])
    if claim.cost in COUNTED:
        return Judged(**words, verdict=_of_sign(right.value - left.value))
    words["block"] = f"{words['block']}, {machines[0]}"
    if once := [line for line, own in zip((claim.left, claim.right), (left, right), strict=True) if own.n < 2]:
        return Judged(**words, verdict="cannot tell", reason=f"{' and '.join(once)} measured once")
    sign = (right.low >= FACTOR * left.high) - (left.low >= FACTOR * right.high)
    return Judged(**words, verdict=_of_sign(sign))
