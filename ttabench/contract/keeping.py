"""The exception of a broken promise, and when two computations count as equal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ABSOLUTE, RELATIVE = 1e-4, 1e-4
"""How far numbers of one computation in two orders may lie apart: a share of the largest (or of 1), and of each.
A window of StreamAdapter reads through deltas made of what it read before: in float32 rows of a batch were seen 3.6e-5
of the largest logit apart from rows alone, in float64 2e-14."""


class Broken(Exception):
    """A promise is not kept; says what was seen."""


def near(what: str, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    """Refuse tensors of other shapes, or further apart than one computation in two orders.

    Raises:
        Broken: with the largest difference.
    """
    if len(ours) != len(theirs):
        raise Broken(f"{what}: {len(ours)} tensors, and {len(theirs)}")
    for one, other in zip(ours, theirs, strict=True):
        if one.shape != other.shape:
            raise Broken(f"{what}: shapes {tuple(one.shape)} and {tuple(other.shape)}")
        apart, most = (one.float() - other.float()).abs(), other.float().abs().max().clamp(min=1.0)
        if not bool((apart <= ABSOLUTE * most + RELATIVE * other.float().abs()).all()):
            raise Broken(f"{what} differ by up to {float(apart.max()):.2g}")


def equal(what: str, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    """Refuse tensors that are not bit for bit the same.

    Raises:
        Broken: they are not.
    """
    if len(ours) != len(theirs) or not all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True)):
        raise Broken(f"{what} are not bit for bit the same")


def furthest(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """The largest difference of any two numbers."""
    return max(float((one - other).abs().max()) for one, other in zip(ours, theirs, strict=True))
