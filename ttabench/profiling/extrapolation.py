"""What a row that would take too long should measure, from the rows of shorter lengths; and which lengths to try first.

    shorter(65536)                                (1024, 4096, 16384)
    extended(method, 65536, rows)                 seconds, bytes, operations at 64k: figures with n = 0

The trend of the two longest rows goes on: a line, or b T + c T^2 where a figure grows faster than its length. How fast
it may grow follows from the state. Under a state of fixed size, reading grows in proportion to the tokens at most, and
an answer does not grow; under one that grows with them, reading grows with their square at most, and an answer in
proportion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ttabench.core.sizes import short
from ttabench.core.types import Growth
from ttabench.profiling.limits import Limits
from ttabench.profiling.rows import Figure, Row, added

FIRST, STEP = 1024, 4
"""Tokens of the shortest length that is tried, and how many times as long the next one is."""
LEAST = 2
"""Lengths that a figure is extended from, at least."""
OF_THE_ROW = ("wall_seconds", "cpu_seconds", "load_average_start", "load_average_end", "pieces")
"""Figures of how a row was measured."""
DERIVED = ("total_seconds", "tokens_per_second", "adapt_limit_share", "first_limit_share", "decode_limit_share")
READING = ("adapt_seconds", "adapt_cpu_seconds", "adapt_flops", "adapt_moved_bytes")
"""Figures of reading all tokens."""


def shorter(tokens: int) -> tuple[int, ...]:
    """Lengths to try before one of which nothing is known; none where it is short itself."""
    lengths = [FIRST]
    while lengths[-1] * STEP < tokens:
        lengths.append(lengths[-1] * STEP)
    return tuple(lengths) if len(lengths) > 1 else ()


def extended(
    method: str, growth: Growth, tokens: int, rows: Mapping[int, Row], limits: Limits | None = None
) -> Row | None:
    """The row of a length as the rows of shorter ones go on; None where there are fewer than `LEAST` of them.

    Args:
        method: its name.
        growth: of its state.
        tokens: the length.
        rows: measured rows by length.
        limits: of the machine, for shares of them.
    """
    known = {length: row for length, row in sorted(rows.items()) if length < tokens and row.status == "ok"}
    if len(known) < LEAST:
        return None
    (_, first), (_, last) = ends = list(known.items())[-2:]
    lengths = [length for length, _ in ends]
    figures = {}
    for name in first.figures.keys() & last.figures.keys() - {*OF_THE_ROW, *DERIVED}:
        power = 1 if name == "tokens_read" else (growth == "linear") + (name in READING)
        value = continued(lengths, [row.figures[name].value for _, row in ends], tokens, power)
        figures[name] = _unmeasured(value)
    figures |= _derived(figures, limits)
    *before, longest = map(short, lengths)
    note = f"extended from {', '.join(before)} and {longest}, not measured; --full measures it"
    return Row(method=method, prefill=tokens, figures=figures, notes=(note,))


def continued(lengths: Sequence[int], values: Sequence[float], tokens: int, power: int) -> float:
    """The value at `tokens` of what goes on from two lengths.

    Args:
        lengths: the two, in tokens.
        values: at these.
        tokens: more than both.
        power: of the length that the value may grow with: 0, 1 or 2.
    """
    (short_, long), (low, high) = lengths, values
    if power == 0 or high <= low:
        return high
    slope, proportion = (high - low) / (long - short_), high / long
    if slope <= proportion:
        return high + slope * (tokens - long)
    if power == 1:
        return proportion * tokens
    square = min(proportion / long, (proportion - low / short_) / (long - short_))
    return (proportion - square * long) * tokens + square * tokens**2


def _derived(figures: Mapping[str, Figure], limits: Limits | None) -> dict[str, Figure]:
    """Figures that others make: totals, rates, shares of the machine's limits."""
    derived: dict[str, Figure] = {}
    phases = [figures[name] for name in ("adapt_seconds", "first_seconds", "decode_seconds") if name in figures]
    if phases:
        derived["total_seconds"] = added(phases)
    if "token_ms" in figures and figures["token_ms"].value:
        derived["tokens_per_second"] = _unmeasured(1000 / figures["token_ms"].value)
    for phase, seconds in (("adapt", "adapt_seconds"), ("first", "first_seconds"), ("decode", "token_ms")):
        if limits is None or not {f"{phase}_flops", f"{phase}_moved_bytes", seconds} <= set(figures):
            continue
        took = figures[seconds].value / (1000 if seconds.endswith("_ms") else 1)
        flops, moved = figures[f"{phase}_flops"].value, figures[f"{phase}_moved_bytes"].value
        if took > 0 and flops:
            derived[f"{phase}_limit_share"] = _unmeasured(limits.share(flops, moved, took))
    return derived


def _unmeasured(value: float) -> Figure:
    return Figure(value=value, low=value, high=value, n=0)
