"""Pictures: whether one can be written under a name, how it is written, and how all of them and the page look."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttabench.core.amounts import size
from ttabench.core.errors import UserError
from ttabench.core.files import replacing, unwritable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
COLOURS = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee7733", "#009988", "#882255", "#777777",
)  # fmt: skip
"""Told apart with red-green blindness, too (after Paul Tol's bright and vibrant schemes)."""
MARKERS = "osD^vP*X<>"
ENDS = {"none": ("#000000", "x"), "icl": ("#000000", "s")}
MOST_TICKS = 6


def check_path(path: Path, option: str = "--plot", suffixes: Sequence[str] = SUFFIXES, what: str = "picture") -> None:
    """Whether a picture, or what else ends so, can be written under this name, which was typed behind this option."""
    if path.suffix.lower() not in suffixes:
        raise UserError(f"{option} {path} is no {what}.", f"Give a file that ends in {', '.join(suffixes)}.")
    if not path.parent.is_dir():
        raise UserError(f"{option} {path} cannot be written: there is no folder {path.parent}.", "Make it first.")
    if path.is_symlink():
        raise UserError(f"{option} {path} is a link to another file.", "Name that file, or remove the link.")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{option} {path} cannot be written.", "Give a file in a folder of yours.")


def write(figure: Figure, path: Path, *, around: bool = False, dpi: int = 150) -> None:
    """Write a figure in the form of the suffix; `around`: as large as what is drawn, labels beyond its edges too."""
    kind, tight = path.suffix.lower().removeprefix("."), "tight" if around else None
    try:
        with replacing(path) as scratch:
            metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
            figure.savefig(scratch, format=kind, dpi=dpi, metadata=metadata, bbox_inches=tight)
    except OSError as error:
        raise unwritable(path.parent, error) from None


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
