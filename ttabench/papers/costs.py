"""Whether runs reproduce a claim about what a method costs: bytes, which are counted, and times, which are measured.

    state_bytes                  counted: the order of the two lines decides
    adapt_seconds, ask_ms        measured, each by one process beside whatever else its machine computed: left has to
                                 take less than right (times the share that is claimed) by a factor of two in every
                                 draw to reproduce the claim, and more by that factor to contradict it
    tensor_bytes and others      what runs do not record: see `profiles`

Draws are paired; times of different machines, or under different numbers of threads, are not compared.
"""

from __future__ import annotations

from typing import NamedTuple

from ttabench.core.amounts import number, size
from ttabench.papers.declared import Claim, Cost
from ttabench.papers.standing import UNSCORED, Held

MEASURED: tuple[Cost, ...] = ("adapt_seconds", "ask_ms", "answer_seconds", "total_seconds", "sample_seconds")
FACTOR = 2.0
"""By how much measured times differ at least: those of one run vary by that much on a machine that others use."""
VERBS: dict[Cost, str] = {
    "state_bytes": "keeps", "adapt_seconds": "reads in", "ask_ms": "answers in", "tensor_bytes": "needs",
    "answer_seconds": "answers in", "total_seconds": "reads and answers once in",
    "sample_seconds": "answers, in batches that fit the memory, in",
}  # fmt: skip
NOUNS: dict[Cost, str] = {
    "state_bytes": "bytes kept", "adapt_seconds": "time to read", "ask_ms": "time to answer", "tensor_bytes": "memory",
    "answer_seconds": "time to answer", "total_seconds": "time to read and answer once",
    "sample_seconds": "time to answer in batches",
}  # fmt: skip


class Weighed(NamedTuple):
    """Costs of two lines, and the verdict on a claim that left costs less."""

    gain: float
    """Above zero reproduces it, below contradicts, zero leaves it undecided."""
    costs: tuple[float, float] | None = None
    """Means of left and right."""
    where: str = ""
    """Machines of measured times."""
    reason: str = ""
    """Why it is undecided."""


def weighed(cost: Cost, share: float, left: Held, right: Held) -> Weighed:
    """Weigh the costs of two lines.

    Args:
        cost: which one.
        share: how much of that of `right` is claimed at most.
        left: the line that is claimed to cost less.
        right: the other one.
    """
    ours, theirs = (held.entry.costs.get(cost) for held in (left, right))
    if ours is None or theirs is None:
        return Weighed(
            0.0, reason="runs record no memory of tensors" if cost == "tensor_bytes" else f"{cost} is not known"
        )
    if cost not in MEASURED:
        return Weighed(share * theirs - ours, (ours, theirs))
    faults = [held.fault for held in (left, right) if held.fault and not held.fault.startswith(UNSCORED)]
    if faults:
        return Weighed(0.0, reason=faults[0])
    if left.entry.machine != right.entry.machine:
        return Weighed(0.0, (ours, theirs), reason="measured on different machines")
    ratios = _ratios(cost, share, left, right)
    if len(ratios) < 2:
        return Weighed(0.0, (ours, theirs), reason="fewer than two draws in common")
    gain = gain_of(min(ratios), max(ratios))
    several = "; " in left.entry.machine
    return Weighed(gain, (ours, theirs), where="several machines" if several else left.entry.machine)


def gain_of(least: float, most: float) -> float:
    """The gain of a claim whose ratio, the claimed most over the measured time, lies between these two."""
    return 1.0 if least >= FACTOR else -1.0 if most <= 1 / FACTOR else 0.0


def _ratios(cost: Cost, share: float, left: Held, right: Held) -> list[float]:
    """The claimed most over the measured cost, by draw."""
    own, other = ({int(record.config.get("seed", 0)): float(record.cost[cost] or 0.0) for _, record in held.group.runs
                   if record.cost.get(cost) is not None} for held in (left, right))  # fmt: skip
    return [share * other[seed] / own[seed] for seed in sorted(own.keys() & other.keys()) if own[seed] > 0]


def claimed_cost(claim: Claim) -> str:
    """The claim in words: "mac reads in at most 10 % of the time of camels"."""
    left, right, cost = claim.left, claim.right, claim.cost
    if claim.growth and left == right:
        return f"{left}'s {NOUNS[cost]} does not grow with the context"
    if claim.growth:
        return f"{left}'s {NOUNS[cost]} grows less than {right}'s"
    noun = "time" if cost in MEASURED else "memory" if cost == "tensor_bytes" else ""
    if claim.share != 1:
        return f"{left} {VERBS[cost]} at most {100 * claim.share:g} %{f' of the {noun}' if noun else ''} of {right}"
    return f"{left} {VERBS[cost]} less{f' {noun}' if noun else ''} than {right}"


def amount(claim: Claim, value: float) -> str:
    """A cost for people: `64.0 KiB`, `0.093 s`, `1.3 ms`, `x 3.6`."""
    if claim.growth:
        return f"\N{MULTIPLICATION SIGN} {number(value, 2)}"
    if claim.cost not in MEASURED:
        return size(value)
    return f"{value:,.3g} {'ms' if claim.cost == 'ask_ms' else 's'}"
