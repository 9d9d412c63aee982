"""Claims about costs: rows of stored profiles that stand for the lines of a table, and what costs say of a claim.

Rows of different machines, models or loads are not compared; those of two profiles are where one alone does not have
both lines. Bytes are counted: the order of two lines decides. Times are measured in repeats, or draws: the longest of
left is at most half of the shortest of right (times the share that is claimed) to reproduce the claim, and the shortest
of left at least twice the longest of right to contradict it; so is their growth, time behind the longer context over
that behind the shorter one. What was measured once says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

from ttabench.core.amounts import number, short, size
from ttabench.core.types import Json
from ttabench.papers.declared import COUNTED, Claim, Cost, Profiled, Verdict, of_sign
from ttabench.profiling.record import Figure, ProfileRecord, added
from ttabench.report.configuration import with_defaults
from ttabench.report.entries import computed_on
from ttabench.sweep.grid import matches

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
FIGURES: dict[Cost, tuple[str, ...]] = {
    "adapt_seconds": ("adapt_seconds",), "answer_seconds": ("first_seconds", "decode_seconds"),
    "total_seconds": ("total_seconds",), "tensor_bytes": ("peak_tensor_bytes",),
    "sample_seconds": ("samples_per_second",),
}  # fmt: skip
"""Which figures of a row make up a cost."""
IN_BATCHES: Cost = "sample_seconds"
"""That of `ttabench profile --throughput`, which has rates; those of others stand in plain profiles."""
NOT_OF_COST = ("trained_on", "task_set")
"""What a line says of runs that makes no difference to what a method costs."""


class Line(NamedTuple):
    """A line of a table in a profile."""

    folder: str
    record: ProfileRecord
    figure: Figure
    """Of the cost behind the context of the place, or of its growth from the shorter one."""


def pairs(
    claim: Claim, at: Profiled, lines: Mapping[str, Mapping[str, Json]], profiles: Sequence[tuple[str, ProfileRecord]]
) -> list[tuple[Line, Line]]:
    """Both lines of a claim about a cost, by their patterns, from every profile that has them; else from two, of which
    each has one. Profiles come with the names of their folders."""
    left, right = (lines_at(lines[name], claim, at, profiles) for name in (claim.left, claim.right))
    crossed = list(product(left, right))
    same = [(one, other) for one, other in crossed if one.record.id == other.record.id]
    return same or [(one, other) for one, other in crossed if setting(one.record) == setting(other.record)][:1]


def lines_at(
    pattern: Mapping[str, Json], claim: Claim, at: Profiled, profiles: Sequence[tuple[str, ProfileRecord]]
) -> list[Line]:
    """The rows that stand for a line behind so many tokens, of all profiles."""
    wanted = {key: value for key, value in pattern.items() if key not in NOT_OF_COST}
    lines, mode = [], "throughput" if claim.cost == IN_BATCHES else "latency"
    for folder, record in (each for each in profiles if each[1].mode == mode):
        for method, config in record.config["methods"].items():
            settings = with_defaults({"method": method, "settings": config["settings"]})["settings"]
            if matches(wanted, {"method": method, "set": settings, "preset": config["preset"]}):
                own = figure_at(record, method, at.prefill, claim.cost)
                if claim.growth and own is not None:
                    shorter = figure_at(record, method, at.since, claim.cost)
                    own = None if shorter is None else Figure(
                        value=own.value / shorter.value, low=own.low / shorter.high, high=own.high / shorter.low,
                        n=min(own.n, shorter.n),
                    )  # fmt: skip
                lines += [Line(folder, record, own)] if own is not None else []
    return lines


def figure_at(record: ProfileRecord, method: str, prefill: int | None, cost: Cost) -> Figure | None:
    """What it cost behind so many tokens; None where that was not measured."""
    for row in record.rows:
        if (row.method, row.prefill, row.status) == (method, prefill, "ok"):
            parts = [row.figures[name] for name in FIGURES[cost] if name in row.figures]
            if len(parts) < len(FIGURES[cost]):
                return None
            if cost != IN_BATCHES:
                return added(parts)
            rate = parts[0]
            return Figure(value=1 / rate.value, low=1 / rate.high, high=1 / rate.low, n=rate.n)
    return None


def setting(record: ProfileRecord) -> tuple[Json, ...]:
    """What has to be the same of two profiles whose rows are compared."""
    limit = record.config["memory_limit"]
    return (record.config["load"], limit, record.model["fingerprint"], record.model["dtype"], machine(record))


def machine(record: ProfileRecord) -> str:
    """What a profile was measured on: `cpu, AMD EPYC, 2 threads`."""
    measured = {"threads": record.hardware["threads"], "device": record.model["device"], **record.machine}
    return computed_on({**record.hardware, "threads": measured["threads"]}, measured["device"])


def where(record: ProfileRecord, at: Profiled) -> str:
    """`nano, 1k to 16k tokens read, 32 of prompt and 128 written`."""
    load, limit = record.config["load"], record.config["memory_limit"]
    read = f"{short(at.since)} to {short(at.prefill)}" if at.since else short(at.prefill)
    within = f", in batches within {size(float(limit)) if limit else 'all memory'}" * (record.mode == "throughput")
    return (
        f"{record.base}, {read} tokens read, {load['prompt_tokens']} of prompt and {load['generate']} written{within}"
    )


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
