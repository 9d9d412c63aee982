"""Whether runs reproduce a claim: the paired difference of its two lines, and the rule.

    reproduced      our difference has the sign of the claim, and its 95 % interval excludes zero
    contradicted    it has the other sign, and its interval excludes zero
    undecided       the interval includes zero, or there are no runs to tell

Differences, intervals and units of error are those of `ttabench compare`, without correction for several tests. Where
all that varies differs alike there is no interval, and p of the sign test below 5 % stands for it. A claim "so far of
the way" compares with a mixture of floor and goal, query by query (of perplexities: of nats). How costs are judged
`costs` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ttabench.core.types import Json
from ttabench.papers.costs import weighed
from ttabench.papers.declared import SCALES, Claim, Place, Profiled, Scale, paper
from ttabench.papers.matching import Stored
from ttabench.papers.profiles import compared, lines_at
from ttabench.papers.standing import Held, Spot, spots
from ttabench.report.differences import Difference, difference, overall
from ttabench.report.pairing import Values
from ttabench.stats.aggregation import Unit
from ttabench.stats.clusters import Observed
from ttabench.stats.testing import LEVEL

Verdict: TypeAlias = Literal["reproduced", "contradicted", "undecided"]
VERDICTS: tuple[Verdict, ...] = ("reproduced", "contradicted", "undecided")
RULE = (
    "Reproduced: our paired difference has the sign of the claim and its 95 % interval excludes zero. Contradicted: "
    "the other sign, and the interval excludes zero. Undecided: the interval includes zero, or there are no runs to "
    "tell. Intervals are not corrected for the number of claims; where all that varies differs alike, the sign test's "
    "p below 5 % stands for the interval. Of adapters that differ in the seed of their training alone, the one of the "
    "lowest seed is judged, whatever the others do; suites named `-seeds` and `lessons` have all of them."
)
RULE_OF_COSTS = (
    "Bytes are counted: fewer reproduces a claim. Times were measured, of small models and on machines that other "
    "programs used, and differ by chance: half the time or less in every draw of our runs reproduces a claim, twice as "
    "much or more contradicts it, and what lies between decides nothing. Where a claim stands at a length of context "
    "(`16K tokens`), times and memory are those of `ttabench profile`, which measures each several times: there the "
    "slowest time of one side has to be at most half the fastest of the other. A time that does not double from the "
    "shorter to the longer context counts as the same. What was measured once, or on different machines, decides "
    "nothing."
)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim at one place, in one block of runs."""

    paper: str
    table: str
    claim: Claim
    place: Place
    verdict: Verdict
    scale: Scale | None = None
    """None where there are no runs at any."""
    block: str = ""
    suites: tuple[str, ...] = ()
    found: Difference | None = None
    costs: tuple[float, float] | None = None
    """Of left and right, of a claim about a cost."""
    machine: str = ""
    """Their machines, where they are times."""
    reason: str = ""
    """Why it is undecided, where no interval tells."""


def judged(name: str, which: str, stored_runs: Stored, scales: Sequence[Scale] = SCALES) -> list[Judged]:
    """Every claim of a table at every place, in every block in which both lines were run."""
    table = paper(name).tables[which]
    there = [spot for spot in spots(name, which, stored_runs) if spot.scale in scales]
    lines = paper(name).lines_of(table)
    rows: list[Judged] = []
    for claim in table.claims:
        for place in table.placed(claim):
            words = {"paper": name, "table": which, "claim": claim, "place": place}
            if place.profile is not None:
                rows += _profiled(claim, place.profile, lines, stored_runs, scales, words)
                continue
            own = [spot for spot in there if spot.place is place]
            rows += _at(claim, place, own, words)
    return rows


def _at(claim: Claim, place: Place, own: Sequence[Spot], words: Mapping[str, Any]) -> Iterator[Judged]:
    sides = list(dict.fromkeys(filter(None, (claim.left, claim.right, claim.floor))))
    both = [spot for spot in own if all(side in spot.lines for side in sides)]
    if place.mean:
        for scale in SCALES:
            if alike := [spot for spot in both if spot.scale == scale]:
                yield _mean(claim, place, alike, words)
    else:
        for spot in both:
            yield _one(claim, spot, words)
    if not both:
        lacking = [side for side in sides if not any(side in spot.lines for spot in own)]
        reason = f"no runs of {' and '.join(lacking)}" if lacking else "not run on the same questions"
        yield Judged(**words, verdict="undecided", reason=reason)


def _one(claim: Claim, spot: Spot, words: Mapping[str, Any]) -> Judged:
    where = {**words, "scale": spot.scale, "block": spot.block, "suites": _suites(claim, [spot])}
    left, right = spot.lines[claim.left], spot.lines[claim.right]
    if claim.cost:
        own = weighed(claim.cost, claim.share, left, right)
        return Judged(**where, verdict=_by_sign(own.gain), costs=own.costs, machine=own.where, reason=own.reason)
    apart, reason = _difference(claim, spot)
    return Judged(**where, verdict=verdict_of(apart), found=apart, reason=reason)


def _profiled(
    claim: Claim, at: Profiled, lines: Mapping[str, Mapping[str, Json]], stored_runs: Stored, scales: Sequence[Scale],
    words: Mapping[str, Any],
) -> list[Judged]:  # fmt: skip
    """A claim at a length of profiles: in each that has both lines."""
    rows = []
    for pair in compared(claim, at, lines, stored_runs.profiles):
        own = pair.weighed
        if pair.scale in scales:
            rows.append(Judged(**words, scale=pair.scale, block=pair.block, suites=pair.folders, costs=own.costs,
                               verdict=_by_sign(own.gain), machine=own.where, reason=own.reason))  # fmt: skip
    if rows:
        return rows
    lacking = [line for line in dict.fromkeys((claim.left, claim.right))
               if not lines_at(line, lines[line], claim, at, stored_runs.profiles)]  # fmt: skip
    reason = f"not measured for {' and '.join(lacking)}" if lacking else "measured on different machines or loads"
    return [Judged(**words, verdict="undecided", reason=reason)]


def _mean(claim: Claim, place: Place, alike: Sequence[Spot], words: Mapping[str, Any]) -> Judged:
    """The mean over all tasks of a place."""
    where = {**words, "scale": alike[0].scale, "suites": _suites(claim, alike)}
    tasks = place.pattern["task"]
    if missing := [task for task in tasks if task not in {spot.task for spot in alike}]:
        return Judged(**where, verdict="undecided", reason=f"not run on {', '.join(missing)}")
    told_of = [_difference(claim, spot) for spot in alike]
    if fault := next((reason for _, reason in told_of if reason), ""):
        return Judged(**where, verdict="undecided", reason=fault)
    apart = overall([difference_of_spot for difference_of_spot, _ in told_of if difference_of_spot is not None])
    first = alike[0].block.replace(f"{alike[0].task} ", f"{len(alike)} tasks ", 1)
    return Judged(**where, block=first, verdict=verdict_of(apart), found=apart)


def _suites(claim: Claim, own: Sequence[Spot]) -> tuple[str, ...]:
    """Folders that hold runs of both lines; else all that hold one."""
    lists = [[spot.suites[side] for spot in own] for side in (claim.left, claim.right)]
    left, right = ({name for entry_of_side in side for name in entry_of_side} for side in lists)
    return tuple(sorted((left & right) or (left | right)))


def _difference(claim: Claim, spot: Spot) -> tuple[Difference | None, str]:
    """(the difference, why there is none)."""
    step = spot.place.step
    left, right = spot.lines[claim.left], spot.lines[claim.right]
    sides: list[tuple[Held, Values]] = [(left, left.at(step)), (right, right.at(claim.right_step or step))]
    if claim.floor:
        sides.append((spot.lines[claim.floor], spot.lines[claim.floor].at(step)))
    if fault := next((held.fault for held, _ in sides if held.fault), ""):
        return None, fault
    goal = sides[1][1]
    if claim.share != 1.0:
        goal = mixed(sides[2][1] if claim.floor else None, goal, claim.share)
    apart = difference((left.entry, sides[0][1]), (right.entry, goal))
    return apart, "" if apart else "no question was asked of both"


def mixed(floor: Values | None, goal: Values, share: float) -> Values:
    """So far of the way from floor (zero for None) to goal, query by query.

    Args:
        floor: what its queries add to a mean, or a ratio of sums.
        goal: the same.
        share: 0 is the floor, 1 the goal.
    """
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


def verdict_of(measured: Difference | None) -> Verdict:
    """Verdict of a difference on the claim that left is better; see above."""
    if measured is None:
        return "undecided"
    if measured.ci_low is not None and measured.ci_high is not None:
        apart = measured.ci_low > 0 or measured.ci_high < 0
    else:
        apart = measured.p is not None and measured.p < LEVEL
    return _by_sign(measured.gain) if apart else "undecided"


def _by_sign(gain: float) -> Verdict:
    return "reproduced" if gain > 0 else "contradicted" if gain < 0 else "undecided"
