"""The Pareto front: entries that no other one beats in quality, bytes of state and latency at once.

Latencies count where all were measured on one machine, and on a calm one; else quality and bytes do alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from ttabench.report.entries import Entry

AXES = ("state_bytes", "ask_ms")
"""Costs beside the quality: bytes kept between queries, milliseconds of a query (two digits count: clocks vary)."""


def front(entries: Sequence[Entry]) -> list[Entry]:
    """The members, in the order given: lines under their own state. One without a cost is none, and beats none.

    Another text's state and an empty one are controls, which nobody would choose: they are none, and beat none.
    """
    axes = AXES if timed(entries) else AXES[:1]
    own = [entry for entry in entries if entry.state_of == "own"]
    points = [(entry, point) for entry in own if (point := _point(entry, axes)) is not None]
    return [entry for entry, point in points if not any(_beats(other, point) for _, other in points)]


def timed(entries: Sequence[Entry]) -> bool:
    """Whether their milliseconds can be compared: of one machine, on which nothing else computed."""
    return len({entry.machine for entry in entries}) == 1 and not any(entry.busy for entry in entries)


def _point(entry: Entry, axes: Sequence[str]) -> tuple[float, ...] | None:
    """More is better."""
    costs = [entry.costs.get(axis) for axis in axes]
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return None
    return (entry.worth, *(-float(f"{cost:.2g}") if axis == "ask_ms" else -cost
                           for axis, cost in zip(axes, known, strict=True)))  # fmt: skip


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))
