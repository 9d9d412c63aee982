"""Low-rank factors of several rows, each trained by an AdamW of its own, from the gradients of one backward.

    factors = RowFactors(vectors, layout, adam)     a row's factors and moments are vectors: [B, N]
    factors.pairs(rows=2)                           leaves A [2, R, I] and B [2, O, R] by linear map
    (loss of row 0 + loss of row 1).backward()      rows do not mix: each has factors of its own
    factors.step([1e-3, None])                      row 0 steps, row 1 has had no loss

Everything is updated in place: factors and gradients are views of one tensor each, nothing is gathered or copied.

Shape letters: B rows · N numbers of a row's factors · R rank · I/O features in and out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

Factors = dict[str, tuple[Tensor, Tensor]]
Layout = Mapping[str, tuple[torch.Size, torch.Size]]
"""Shapes of A and B by linear map, in order."""


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Options of AdamW."""

    beta2: float
    eps: float
    decay: float
    clip: float
    """Largest norm of a row's gradient."""


def shaped(vectors_BN: Tensor, layout: Layout) -> Factors:
    """Views A [B, R, I] and B [B, O, R] of the vectors, by linear map."""
    sizes = [size for pair in layout.values() for size in pair]
    parts = torch.split(vectors_BN, [size.numel() for size in sizes], dim=1)
    views = iter(part.view(len(vectors_BN), *size) for part, size in zip(parts, sizes, strict=True))
    return {name: (next(views), next(views)) for name in layout}


class RowFactors:
    """Factors in training; the tensors given are changed in place.

    Args:
        vectors: "factors", "first_moment" and "second_moment" [B, N], "steps" int64 [B].
        layout: see `Layout`.
        adam: see `Adam`.
    """

    def __init__(self, vectors: Mapping[str, Tensor], layout: Layout, adam: Adam) -> None:
        self._vectors_BN, self._layout, self._clip = vectors["factors"], layout, adam.clip
        self._slopes_BN = torch.zeros_like(self._vectors_BN)
        self._rows = list(self._vectors_BN)
        self._optimiser = torch.optim.AdamW(
            [{"params": [row]} for row in self._rows],
            betas=(0.9, adam.beta2),
            eps=adam.eps,
            weight_decay=adam.decay,
            fused=True,
        )
        for number, row in enumerate(self._rows):
            counted = vectors["steps"][number].to(torch.float32)
            first, second = vectors["first_moment"][number], vectors["second_moment"][number]
            self._optimiser.state[row] = {"step": counted, "exp_avg": first, "exp_avg_sq": second}
        self._leaves: dict[int, Factors] = {}

    def pairs(self, rows: int) -> Factors:
        """The factors of the first so many rows, leaves with gradients at zero."""
        self._slopes_BN.zero_()
        if rows not in self._leaves:
            values = shaped(self._vectors_BN[:rows], self._layout)
            slopes = shaped(self._slopes_BN[:rows], self._layout)
            for name, pair in values.items():
                for value, slope in zip(pair, slopes[name], strict=True):
                    value.requires_grad_().register_post_accumulate_grad_hook(partial(_moved, slope))  # type: ignore[no-untyped-call]
            self._leaves = {rows: values}
        return self._leaves[rows]

    def step(self, rates: Sequence[float | None]) -> None:
        """One step of the first rows, at these learning rates; None for a row that stays as it is."""
        for number, (row, group) in enumerate(zip(self._rows, self._optimiser.param_groups, strict=True)):
            rate = rates[number] if number < len(rates) else None
            row.grad = None if rate is None else self._slopes_BN[number]
            if rate is not None:
                group["lr"] = rate
                torch.nn.utils.clip_grad_norm_([row], self._clip)
        self._optimiser.step()


def _moved(slope: Tensor, leaf: Tensor) -> None:
    """Add what came back for a leaf to its place among the gradients."""
    assert leaf.grad is not None, "the hook runs once there is a gradient"
    slope.add_(leaf.grad)
    leaf.grad = None
