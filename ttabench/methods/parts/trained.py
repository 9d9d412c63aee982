"""What gradient steps on a text train, as one vector of numbers a reader: all weights, or low-rank factors of maps.

Shape letters: B readers · N numbers of a reader · R rank · I/O features in and out.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ttabench.lm.model import LM
from ttabench.lm.patch import Delta, Dense, Patch
from ttabench.methods.parts import lora
from ttabench.methods.parts.lora_shape import LoraShape


def shaped(vector_N: Tensor, layout: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Views of the parts of a vector [N], by name."""
    parts = torch.split(vector_N, [size.numel() for size in layout.values()])
    return {name: part.view(size) for (name, size), part in zip(layout.items(), parts, strict=True)}


class Weights:
    """All weights of the base model; one that stands in two places (embedding and head) counts once."""

    def __init__(self, lm: LM) -> None:
        self._lm = lm
        self.layout = {name: weight.shape for name, weight in lm.model.named_parameters()}

    def start(self) -> Tensor:
        """The base's own weights."""
        return torch.cat([weight.detach().float().flatten() for weight in self._lm.model.parameters()])

    def deltas(self, vector_N: Tensor) -> dict[str, Delta]:
        """Their differences from the base's own."""
        return {name: Dense(part[None]) for name, part in shaped(vector_N - self.start(), self.layout).items()}


class Factors:
    """Low-rank factors of linear maps."""

    def __init__(self, lm: LM, settings: LoraShape) -> None:
        self._lm, self._settings = lm, settings
        self._names = lora.target_names(lm, settings.targets)
        self.layout: dict[str, torch.Size] = {}
        for name in self._names:
            features_in, features_out = lm.linear_shape(name)
            self.layout[f"{name}.a"] = torch.Size((settings.rank, features_in))
            self.layout[f"{name}.b"] = torch.Size((features_out, settings.rank))

    def start(self) -> Tensor:
        """A drawn from the seed, B zero."""
        pairs = lora.started(self._lm, self._settings).values()
        return torch.cat([factor.flatten() for pair in pairs for factor in pair])

    def deltas(self, vector_N: Tensor) -> dict[str, Delta]:
        """The low-rank deltas."""
        return dict(self.patch(shaped(vector_N, self.layout)).deltas)

    def patch(self, parts: Mapping[str, Tensor], dropout: float = 0.0) -> Patch:
        """The deltas of these parts, see `lora.deltas`; differentiable."""
        pairs = {name: (parts[f"{name}.a"], parts[f"{name}.b"]) for name in self._names}
        return Patch(deltas=lora.deltas(pairs, self._settings, dropout))
