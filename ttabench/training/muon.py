"""Muon: matrices are updated by their orthogonalised momentum, all other parameters by Adam.

    M <- b M + (1 - b) G                                     mean of the gradients G
    U ~ orthogonal factor of b M + (1 - b) G                 five Newton-Schulz steps: singular values near 1
    W <- W - lr 0.2 sqrt(max(rows, columns)) U               about as large as an update of Adam: one rate serves both

Jordan et al., 2024; the factor: Liu et al., arXiv 2502.16982. `torch.optim.Muon` takes no stacked matrices and computes
in bfloat16. Shape letters: S matrices of one shape · M rows · N columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
STEPS = 5
"""Of the Newton-Schulz iteration."""
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
LIKE_ADAM = 0.2
"""Root mean square of Adam's updates, about."""


class Muon(torch.optim.AdamW):
    """Muon for the matrices of modules, Adam for what else they have: embeddings, gains, shifts, prompts.

    A parameter of three dimensions is a stack of matrices.

    Args:
        modules: whose parameters are trained, in the order of `parameters()`.
        adam: options of Adam, of which `lr` and `weight_decay` hold for both.
    """

    def __init__(self, modules: nn.Module, **adam: Any) -> None:
        self.matrices = {id(matrix) for matrix in matrices(modules)}
        super().__init__(modules.parameters(), **adam)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient; those of matrices are spent by it."""
        assert closure is None, "Muon evaluates nothing again"
        for group in self.param_groups:
            moved = [matrix for matrix in group["params"] if matrix.grad is not None and id(matrix) in self.matrices]
            for _, alike in groupby(sorted(moved, key=_shape), _shape):
                self._turn(list(alike), group["lr"], group["weight_decay"])
        super().step()

    def _turn(self, alike: list[nn.Parameter], rate: float, decay: float) -> None:
        """Update matrices of one shape [M, N], or stacks of them, all at once."""
        ahead = []
        for matrix in alike:
            gradient, matrix.grad, state = matrix.grad, None, self.state[matrix]  # Adam leaves alone what has none
            assert gradient is not None
            if not state:
                state["step"], state["exp_avg"] = torch.zeros(()), torch.zeros_like(matrix)
            state["exp_avg"].lerp_(gradient, 1 - MOMENTUM)
            ahead.append(gradient.lerp(state["exp_avg"], MOMENTUM).reshape(-1, *_shape(matrix)))
        updates = torch.split(orthogonal(torch.cat(ahead)), [len(stack) for stack in ahead])
        scale = LIKE_ADAM * max(_shape(alike[0])) ** 0.5
        for matrix, update in zip(alike, updates, strict=True):
            matrix.mul_(1 - rate * decay)
            matrix.add_(update.view_as(matrix), alpha=-rate * scale)


def matrices(modules: nn.Module) -> Iterable[nn.Parameter]:
    """Weights that map one vector to another: of linear layers, stacks of them, and low-rank factors (`ParameterList`).

    Other parameters of two dimensions hold vectors side by side: learned queries, gains of several slots, embeddings.
    """
    for module in modules.modules():
        if isinstance(module, nn.ParameterList):
            yield from (parameter for parameter in module if parameter.dim() == 2)
            continue
        weight = getattr(module, "weight", None)
        mapping = isinstance(module, nn.Linear) or (isinstance(weight, nn.Parameter) and weight.dim() == 3)
        if mapping and isinstance(weight, nn.Parameter):
            yield weight


def orthogonal(stacked_SMN: Tensor) -> Tensor:
    """Matrices of the same singular vectors with singular values near 1 (about 0.7 to 1.2), [S, M, N]."""
    tall = stacked_SMN.shape[1] > stacked_SMN.shape[2]
    x: Tensor = stacked_SMN.mT if tall else stacked_SMN
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


def _shape(parameter: Tensor) -> tuple[int, int]:
    return parameter.shape[-2], parameter.shape[-1]
