"""The Pareto front: entries that no other one beats in quality, bytes of state and latency at once."""

from __future__ import annotations

from collections.abc import Sequence

from ttabench.report.entries import Entry

AXES = ("state_bytes", "ask_ms")
"""Costs beside the quality: bytes kept between queries, milliseconds of a query (two digits count: clocks vary)."""


def front(entries: Sequence[Entry]) -> list[Entry]:
    """The members, in the order given. An entry without one of the costs is none, and beats none."""
    points = [(entry, point) for entry in entries if (point := _point(entry)) is not None]
    return [entry for entry, point in points if not any(_beats(other, point) for _, other in points)]


def _point(entry: Entry) -> tuple[float, ...] | None:
    """More is better."""
    state, latency = (entry.costs.get(axis) for axis in AXES)
    return None if state is None or latency is None else (entry.worth, -state, -float(f"{latency:.2g}"))


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))
