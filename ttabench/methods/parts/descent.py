"""Gradient steps on one reader's numbers, whose optimiser goes on from document to document.

    descent = Descent({"weights": ..., "first_moment": ..., "second_moment": ...}, layout, settings, steps=12)
    loss = ...                                   of forwards under `descent.leaves`
    norm = descent.slopes(loss)                  gradients, clipped
    descent.step()                               the vectors given are changed in place

Shape letters: N numbers of a reader.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ttabench.methods.parts.descent_settings import DescentSettings
from ttabench.methods.parts.trained import shaped

MOMENTS = ("first_moment", "second_moment")


class Descent:
    """An optimiser of one reader.

    Args:
        vectors: "weights" [N], and of Adam `MOMENTS` [N]; changed in place.
        layout: shapes of the parts by name.
        settings: which optimiser.
        steps: taken before.
    """

    def __init__(
        self, vectors: Mapping[str, Tensor], layout: Mapping[str, torch.Size], settings: DescentSettings, steps: int
    ) -> None:
        self._clip = settings.clip
        self.leaves = {name: part.requires_grad_() for name, part in shaped(vectors["weights"], layout).items()}
        """Trained tensors by name: gradients reach them."""
        parts = list(self.leaves.values())
        if settings.optimizer == "sgd":
            self._optimiser: torch.optim.Optimizer = torch.optim.SGD(parts, lr=settings.lr)
            return
        betas = (0.9, settings.beta2)
        self._optimiser = torch.optim.Adam(parts, lr=settings.lr, betas=betas, eps=settings.eps, fused=True)
        first, second = (shaped(vectors[name], layout) for name in MOMENTS)
        for name, leaf in self.leaves.items():
            counted = torch.tensor(float(steps), device=leaf.device)
            self._optimiser.state[leaf] = {"step": counted, "exp_avg": first[name], "exp_avg_sq": second[name]}

    def slopes(self, loss: Tensor) -> float:
        """Take the gradients of a loss, clipped; their norm before that."""
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(torch.nn.utils.clip_grad_norm_(self.leaves.values(), self._clip))

    def step(self) -> None:
        """One step along the gradients taken."""
        self._optimiser.step()
