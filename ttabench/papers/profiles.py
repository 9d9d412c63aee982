"""Whether rows of stored profiles reproduce a claim about what a method costs once so many tokens were read.

    tensor_bytes                 counted: the order decides
    adapt_seconds, answer_seconds, total_seconds
                                 measured in repeats one after the other: left has to take less than right (times the
                                 share that is claimed) by a factor of two, its slowest repeat beside the fastest of
                                 right, to reproduce the claim, and more by that factor to contradict it
    sample_seconds               the same of `ttabench profile --throughput`: seconds over samples, at the batch that
                                 answers fastest of those that fit the memory
    their growth                 time behind the longer context over that behind the shorter one, judged alike; of a
                                 line beside itself: constant where it is below two

A time that was measured once decides nothing. Rows of different machines, models or loads are not compared; those of
two profiles are where one alone does not have both lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ttabench.core.amounts import size
from ttabench.core.sizes import short
from ttabench.core.types import Json
from ttabench.papers.costs import FACTOR, MEASURED, Weighed, gain_of
from ttabench.papers.declared import Claim, Cost, Profiled, Scale, scale_of_model
from ttabench.profiling.record import ProfileRecord
from ttabench.profiling.rows import Figure, added
from ttabench.report.configuration import with_defaults
from ttabench.report.entry_of import computed_on
from ttabench.sweep.grid import matches

FIGURES: dict[Cost, tuple[str, ...]] = {
    "adapt_seconds": ("adapt_seconds",), "answer_seconds": ("first_seconds", "decode_seconds"),
    "total_seconds": ("total_seconds",), "tensor_bytes": ("peak_tensor_bytes",),
    "sample_seconds": ("samples_per_second",),
}  # fmt: skip
"""Which figures of a row make up a cost."""
IN_BATCHES: tuple[Cost, ...] = ("sample_seconds",)
"""Costs of `ttabench profile --throughput`, which has rates; those of others stand in plain profiles."""
NOT_OF_COST = ("trained_on", "task_set")
"""What a line says of runs that makes no difference to what a method costs."""


class Line(NamedTuple):
    """A line of a table in a profile."""

    name: str
    folder: str
    """The name of the folder that holds the profile."""
    record: ProfileRecord
    figure: Figure
    """Behind the context of the place."""
    shorter: Figure | None = None
    """Behind the shorter one, where growth is claimed."""

    @property
    def repeats(self) -> int:
        """How often it was measured at least."""
        return min(figure.n for figure in (self.figure, self.shorter) if figure is not None)

    @property
    def bounds(self) -> Figure:
        """Smallest, median and largest: of the cost, or of its growth."""
        own, shorter = self.figure, self.shorter
        if shorter is None:
            return own
        return Figure(value=own.value / shorter.value, low=own.low / shorter.high, high=own.high / shorter.low)


class Compared(NamedTuple):
    """Two lines, and what their rows say of a claim."""

    scale: Scale
    block: str
    folders: tuple[str, ...]
    weighed: Weighed


def compared(
    claim: Claim, at: Profiled, lines: Mapping[str, Mapping[str, Json]], profiles: Sequence[tuple[str, ProfileRecord]]
) -> list[Compared]:
    """What every profile that has both lines says of a claim; else one that has the left beside one that has the right.

    Args:
        claim: about a cost.
        at: behind how many tokens.
        lines: their patterns, by name.
        profiles: with the names of their folders.
    """
    left, right = (lines_at(name, lines[name], claim, at, profiles) for name in (claim.left, claim.right))
    pairs = [(one, other) for one in left for other in right if one.record.id == other.record.id]
    if not pairs:
        pairs = [(one, other) for one in left for other in right if setting(one.record) == setting(other.record)][:1]
    return [_compared(claim, at, one, other) for one, other in pairs]


def lines_at(
    name: str, pattern: Mapping[str, Json], claim: Claim, at: Profiled, profiles: Sequence[tuple[str, ProfileRecord]]
) -> list[Line]:
    """The rows that stand for a line behind so many tokens, of all profiles."""
    wanted = {key: value for key, value in pattern.items() if key not in NOT_OF_COST}
    lines, mode = [], "throughput" if claim.cost in IN_BATCHES else "latency"
    for folder, record in (each for each in profiles if each[1].mode == mode):
        for method, config in record.config["methods"].items():
            settings = with_defaults({"method": method, "settings": config["settings"]})["settings"]
            options = {"method": method, "set": settings, "preset": config["preset"]}
            if not matches(wanted, options):
                continue
            own = figure_at(record, method, at.prefill, claim.cost)
            shorter = figure_at(record, method, at.since, claim.cost) if claim.growth and at.since else None
            if own is not None and (shorter is not None or not claim.growth):
                lines.append(Line(name, folder, record, own, shorter))
    return lines


def figure_at(record: ProfileRecord, method: str, prefill: int, cost: Cost) -> Figure | None:
    """What it cost behind so many tokens; None where that was not measured."""
    for row in record.rows:
        if (row.method, row.prefill, row.status) == (method, prefill, "ok"):
            parts = [row.figures[name] for name in FIGURES[cost] if name in row.figures]
            if len(parts) < len(FIGURES[cost]):
                return None
            return seconds_of(parts[0]) if cost in IN_BATCHES else added(parts)
    return None


def seconds_of(rate: Figure) -> Figure:
    """Seconds a sample, of samples a second."""
    return Figure(value=1 / rate.value, low=1 / rate.high, high=1 / rate.low, n=rate.n)


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
    load = record.config["load"]
    read = f"{short(at.since)} to {short(at.prefill)}" if at.since else short(at.prefill)
    limit = record.config["memory_limit"]
    within = (
        f", in batches within {size(float(limit)) if limit else 'all memory'}" if record.mode == "throughput" else ""
    )
    return (
        f"{record.base}, {read} tokens read, {load['prompt_tokens']} of prompt and {load['generate']} written{within}"
    )


def _compared(claim: Claim, at: Profiled, left: Line, right: Line) -> Compared:
    folders = tuple(dict.fromkeys((left.folder, right.folder)))
    return Compared(scale_of_model(str(left.record.config["model"])), where(left.record, at), folders,
                    _weighed(claim, left, right))  # fmt: skip


def _weighed(claim: Claim, left: Line, right: Line) -> Weighed:
    own, other = left.bounds, right.bounds
    if claim.cost not in MEASURED:
        return Weighed(claim.share * other.value - own.value, (own.value, other.value))
    constant = claim.growth and left.name == right.name
    costs = (own.value, 1.0) if constant else (own.value, other.value)
    if once := dict.fromkeys(line.name for line in (left, right) if line.repeats < 2):
        return Weighed(0.0, costs, where=machine(left.record), reason=f"{' and '.join(once)} measured once")
    if constant:
        gain = 1.0 if own.high < FACTOR else -1.0 if own.low >= FACTOR else 0.0
    else:
        gain = gain_of(claim.share * other.low / own.high, claim.share * other.high / own.low)
    repeats = min(left.repeats, right.repeats)
    return Weighed(gain, costs, where=f"{machine(left.record)}, {repeats} repeats")
