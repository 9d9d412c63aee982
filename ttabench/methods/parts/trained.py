"""What gradient steps on a text train, as one vector of numbers a reader: all weights, or low-rank factors of maps.

    trained = trained_by(lm, settings)
    start_N = trained.start()                               the base model as it is
    with trained.in_place(leaves) as patch: ...             forwards see the leaves, gradients reach them
    trained.deltas(vectors_BN)                              what they change, for a `Patch`

Shape letters: B readers · N numbers of a reader · R rank · I/O features in and out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from ttabench.lm.forward.deltas import weights_as
from ttabench.lm.model import LM
from ttabench.lm.patch import Delta, Dense, Patch
from ttabench.methods.parts import lora
from ttabench.methods.parts.descent_settings import DescentSettings
from ttabench.methods.parts.lora_shape import LoraShape


class Trained(Protocol):
    """Trained numbers, and how they act on the base model."""

    layout: Mapping[str, torch.Size]
    """Shapes of its parts by name, in the order in which they stand in the vector."""

    def start(self) -> Tensor:
        """The numbers [N] at which the base model is as it was, float32."""
        ...

    def in_place(self, parts: Mapping[str, Tensor]) -> Iterator[Patch]:
        """Run a block in which the base model acts under these parts and the patch given; differentiable."""
        ...

    def deltas(self, vectors_BN: Tensor) -> dict[str, Delta]:
        """Weight changes that these numbers stand for."""
        ...


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

    @contextmanager
    def in_place(self, parts: Mapping[str, Tensor]) -> Iterator[Patch]:
        """The weights stand in for the base's own."""
        with weights_as(self._lm, parts):
            yield Patch()

    def deltas(self, vectors_BN: Tensor) -> dict[str, Delta]:
        """Their differences from the base's own; of one reader."""
        changed = (vectors_BN - self.start()).unbind()
        assert len(changed) == 1, "all weights are those of one reader"
        return {name: Dense(part[None]) for name, part in shaped(changed[0], self.layout).items()}


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

    @contextmanager
    def in_place(self, parts: Mapping[str, Tensor]) -> Iterator[Patch]:
        """The base model under a patch of the factors."""
        yield Patch(deltas=self.low_rank({name: part[None] for name, part in parts.items()}))

    def deltas(self, vectors_BN: Tensor) -> dict[str, Delta]:
        """The low-rank deltas of every reader."""
        rows = [shaped(vector_N, self.layout) for vector_N in vectors_BN]
        return self.low_rank({name: torch.stack([row[name] for row in rows]) for name in self.layout})

    def low_rank(self, parts: Mapping[str, Tensor]) -> dict[str, Delta]:
        """The deltas of these parts, each [B, ...]; differentiable."""
        pairs = {name: (parts[f"{name}.a"], parts[f"{name}.b"]) for name in self._names}
        return {**lora.deltas(pairs, self._settings)}


def trained_by(lm: LM, settings: DescentSettings) -> Weights | Factors:
    """The trained numbers of these settings.

    Raises:
        UserError: a linear map is named that the base does not have.
    """
    return Factors(lm, settings) if settings.restrict == "lora" else Weights(lm)
