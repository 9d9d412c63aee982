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


class Muon(torch.optim.Optimizer):
    """Muon for the matrices of modules, Adam for what else they have: embeddings, gains, shifts, prompts.

    A parameter of three dimensions is a stack of matrices.

    Args:
        modules: whose parameters are trained, in the order of `parameters()`.
        betas: Adam's decays.
        weight_decay: decoupled from the gradient, of both.
    """

    def __init__(self, modules: nn.Module, lr: float, betas: tuple[float, float], weight_decay: float = 0.0) -> None:
        self.matrices = {id(matrix) for matrix in matrices(modules)}
        super().__init__(list(modules.parameters()), {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        assert closure is None, "Muon evaluates nothing again"
        for group in self.param_groups:
            moved = [matrix for matrix in group["params"] if matrix.grad is not None]
            turned = sorted((matrix for matrix in moved if id(matrix) in self.matrices), key=_shape)
            for (rows, columns), alike in groupby(turned, _shape):
                self._turn(list(alike), group, LIKE_ADAM * max(rows, columns) ** 0.5)
            for matrix in moved:
                if id(matrix) not in self.matrices:
                    self._adam(matrix, group)

    def _turn(self, alike: list[Tensor], group: dict[str, Any], scale: float) -> None:
        """Update matrices of one shape [M, N], or stacks of them, all at once."""
        momenta = [self._momentum(matrix) for matrix in alike]
        ahead = [_gradient(matrix).lerp(momentum, MOMENTUM) for matrix, momentum in zip(alike, momenta, strict=True)]
        stacked_SMN = torch.cat([matrix.reshape(-1, *matrix.shape[-2:]) for matrix in ahead])
        sizes = [matrix.shape[:-2].numel() for matrix in alike]
        for matrix, update in zip(alike, torch.split(orthogonal(stacked_SMN), sizes), strict=True):
            matrix.mul_(1 - group["lr"] * group["weight_decay"])
            matrix.add_(update.view_as(matrix), alpha=-group["lr"] * scale)

    def _momentum(self, parameter: Tensor) -> Tensor:
        """Mean of the gradients so far, with today's."""
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
        momentum: Tensor = state["exp_avg"].lerp_(_gradient(parameter), 1 - MOMENTUM)
        return momentum

    def _adam(self, parameter: Tensor, group: dict[str, Any]) -> None:
        (beta1, beta2), state, gradient = group["betas"], self.state[parameter], _gradient(parameter)
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        step = state["step"].item()
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].lerp_(gradient.square(), 1 - beta2)
        spread = (state["exp_avg_sq"] / (1 - beta2**step)).sqrt_().add_(1e-8)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.addcdiv_(state["exp_avg"], spread, value=-group["lr"] / (1 - beta1**step))


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


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
