"""The rule: what a difference says of a claim, beside that of a control and beside no context and full context.

    found > 0 beyond its interval, own > another text's beyond its interval      reproduced
    the same, but not the second; the same, but no run of another text's         no memory, no control
    below zero beyond its interval; within it                                    contradicted, undecided

`claims.RULE` says it in full. Of costs, bytes are counted: the order of the two lines decides. Times are measured in
repeats, or draws: the longest of left is at most half of the shortest of right (times the share that is claimed) to
reproduce the claim, and the shortest of left at least twice the longest of right to contradict it; so is their growth,
time behind the longer context over that behind the shorter one. What was measured once says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from ttabench.core.amounts import number, size
from ttabench.papers.declared import Claim, Cost
from ttabench.profiling.rows import Figure
from ttabench.report.differences import Difference
from ttabench.report.pairing import Values
from ttabench.stats.aggregation import Unit
from ttabench.stats.clusters import Observed
from ttabench.stats.testing import LEVEL

Verdict: TypeAlias = Literal[
    "reproduced", "no memory", "no control", "contradicted", "undecided", "mixed", "cannot tell", "no runs"
]
SILENT: tuple[Verdict, ...] = ("cannot tell", "no runs")
"""Which say nothing of a claim."""
NEAR = 0.1
"""So much of the way from no context to full context is near an end."""
COUNTED: tuple[Cost, ...] = ("state_bytes", "tensor_bytes")
FACTOR = 2.0
"""By how much measured times differ at least: those of one run vary by that much on a machine that others use."""
WORDS: dict[Cost, tuple[str, str]] = {
    "state_bytes": ("keeps less", "bytes kept"), "tensor_bytes": ("needs less memory", "memory"),
    "adapt_seconds": ("reads in less time", "time to read"),
    "answer_seconds": ("answers in less time", "time to answer"),
    "total_seconds": ("reads and answers once in less time", "time to read and answer once"),
    "sample_seconds": ("answers, in batches that fit the memory, in less time", "time to answer in batches"),
}  # fmt: skip
"""A claim that left costs less, and the noun."""


def of_sign(sign: float) -> Verdict:
    """The verdict of what is above zero where it has the sign of the claim."""
    return "reproduced" if sign > 0 else "contradicted" if sign < 0 else "undecided"


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


def weighed(claim: Claim, left: Figure, right: Figure) -> tuple[Verdict, str]:
    """(what these say of the claim that left costs less, why they cannot tell)."""
    if claim.cost in COUNTED:
        return of_sign(claim.share * right.value - left.value), ""
    if once := [line for line, own in {claim.left: left, claim.right: right}.items() if own.n < 2]:
        return "cannot tell", f"{' and '.join(once)} measured once"
    if claim.growth and claim.left == claim.right:
        return of_sign((left.high < FACTOR) - (left.low >= FACTOR)), ""
    least, most = claim.share * right.low / left.high, claim.share * right.high / left.low
    return of_sign((least >= FACTOR) - (most <= 1 / FACTOR)), ""


def claimed_cost(claim: Claim) -> str:
    """The claim in words: "mac reads in at most 10 % of the time of camels"."""
    less, noun = WORDS[claim.cost]
    if claim.growth and claim.left == claim.right:
        return f"{claim.left}'s {noun} does not grow with the context"
    if claim.growth:
        return f"{claim.left}'s {noun} grows less than {claim.right}'s"
    if claim.share == 1:
        return f"{claim.left} {less} than {claim.right}"
    verb, _, unit = less.partition(" less ")
    return f"{claim.left} {verb} at most {100 * claim.share:g} % of the {unit} of {claim.right}"


def amount(claim: Claim, value: float) -> str:
    """A cost for people: `64.0 KiB`, `0.093 s`, `x 3.6`."""
    if claim.growth:
        return f"\N{MULTIPLICATION SIGN} {number(value, 2)}"
    return size(value) if claim.cost in COUNTED else f"{value:,.3g} s"
