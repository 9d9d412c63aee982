"""How pictures and the page look: a colour and a marker a method, an axis of bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ttabench.core.amounts import size

COLOURS = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee7733", "#009988", "#882255", "#777777",
)  # fmt: skip
"""Told apart with red-green blindness, too (after Paul Tol's bright and vibrant schemes)."""
MARKERS = "osD^vP*X<>"
ENDS = {"none": ("#000000", "x"), "icl": ("#000000", "s")}
MOST_TICKS = 6


def styles(methods: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour and marker by method, a pair of its own each for a hundred of them; floor and ceiling are black."""
    names = list(dict.fromkeys(methods))
    others = [name for name in names if name not in ENDS]
    pairs = ENDS | {
        name: (COLOURS[place % len(COLOURS)], MARKERS[(place + place // len(COLOURS)) % len(MARKERS)])
        for place, name in enumerate(others)
    }
    return {name: {"color": pairs[name][0], "marker": pairs[name][1]} for name in names}


def bytes_ticks(values: Sequence[float]) -> tuple[dict[int, str], float]:
    """(0, where it is among these values, and powers of two around the others, each with its name; the least that is
    no 0): for an axis that is linear below half of the least, and logarithmic above."""
    positive = [value for value in values if value > 0] or [1024.0]
    low, high = math.floor(math.log2(min(positive))), math.ceil(math.log2(max(positive)))
    step = max(2, math.ceil((high - low) / MOST_TICKS))
    ticks = {2**power: size(2**power).replace(".0 ", " ") for power in range(low, high + step, step)}
    return {**({0: "0"} if 0.0 in values else {}), **ticks}, min(positive)
