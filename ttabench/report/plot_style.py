"""How pictures of comparisons look: a colour and a marker a method, bytes as people read them, a place for 0 bytes.

places([0, 65536, 2621440])        where each stands on the axis: 0 left of a gap, the others by their logarithm
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ttabench.core.amounts import size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee7733", "#009988", "#882255", "#777777",
)  # fmt: skip
"""Told apart with red-green blindness, too (after Paul Tol's bright and vibrant schemes)."""
MARKERS = "osD^vP*X<>"
ENDS = {"none": ("#000000", "x"), "icl": ("#000000", "s")}
TICK = 2
"""Powers of two between ticks, at least."""
MOST_TICKS = 6
EDGE = 3
"""Per cent beyond 0 and 100 that a mark needs."""


def styles(methods: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour and marker by method, a pair of its own each for a hundred of them; floor and ceiling are black."""
    by_label: dict[str, dict[str, Any]] = {}
    others = 0
    for method in dict.fromkeys(methods):
        if method in ENDS:
            colour, marker = ENDS[method]
        else:
            turn = others // len(COLOURS)
            colour, marker = COLOURS[others % len(COLOURS)], MARKERS[(others + turn) % len(MARKERS)]
            others += 1
        by_label[method] = {"color": colour, "marker": marker}
    return by_label


def bytes_axis(axes: Axes, values: Sequence[float]) -> list[float]:
    """Set up an axis of bytes by powers of two and return where each value stands; 0 has a strip of its own."""
    logs = [math.log2(value) for value in values if value > 0]
    low, high = (math.floor(min(logs)), math.ceil(max(logs))) if logs else (10, 20)
    low, high = (low - 1, high + 1) if high - low < TICK else (low, high)
    step = max(TICK, math.ceil((high - low) / MOST_TICKS))
    ticks = list(range(low, high + step, step))
    zero = low - max(1.0, (ticks[-1] - low) / 8)
    labels = [size(2**tick).replace(".0 ", " ") for tick in ticks]
    if len(logs) < len(values):
        axes.axvline((zero + low) / 2, color="0.6", linestyle=(0, (2, 2)), linewidth=1)
        ticks, labels = [zero, *ticks], ["0", *labels]  # type: ignore[list-item]
    axes.set_xticks(ticks, labels, rotation=30, ha="right", fontsize="small")
    margin = (ticks[-1] - ticks[0]) / 20
    axes.set_xlim(ticks[0] - margin, ticks[-1] + margin)
    return [math.log2(value) if value > 0 else zero for value in values]


def plain_numbers(axes: Axes, lone: bool) -> None:
    """Plain numbers upwards, with room around a lone value."""
    from matplotlib.ticker import ScalarFormatter

    formatter = ScalarFormatter(useOffset=False)
    formatter.set_scientific(False)
    axes.yaxis.set_major_formatter(formatter)
    if lone:
        low, high = axes.get_ylim()
        middle, half = (low + high) / 2, max(high - low, abs(low + high) / 10, 1e-9)
        axes.set_ylim(middle - half, middle + half)


def shares_axis(axes: Axes) -> None:
    """Upwards no more than shares can be, 0 to 100, with room for marks at the ends."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -EDGE), min(high, 100 + EDGE))
