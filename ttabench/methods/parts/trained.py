"""What gradient steps on a text train, as one vector of numbers a reader: all weights, or low-rank factors of maps.

Shape letters: B readers · N numbers of a reader · R rank · I/O features in and out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from ttabench.lm.forward.deltas import weights_as
from ttabench.lm.model import LM
from ttabench.lm.patch import Delta, Dense, LowRank, Patch
from ttabench.methods.parts import lora
from ttabench.methods.parts.dropout import KeptDropout
from ttabench.methods.parts.lora_shape import DescentSettings, LoraShape


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

    @contextmanager
    def in_place(self, parts: Mapping[str, Tensor]) -> Iterator[Patch]:
        """The base model under a patch of the factors."""
        yield Patch(deltas=self.low_rank({name: part[None] for name, part in parts.items()}))

    def deltas(self, vector_N: Tensor) -> dict[str, Delta]:
        """The low-rank deltas."""
        return {**self.low_rank({name: part[None] for name, part in shaped(vector_N, self.layout).items()})}

    def low_rank(self, parts: Mapping[str, Tensor], zeros: KeptDropout | None = None) -> dict[str, LowRank]:
        """The deltas of these parts, each [B, ...]; differentiable."""
        pairs = {name: (parts[f"{name}.a"], parts[f"{name}.b"]) for name in self._names}
        return lora.deltas(pairs, self._settings, zeros)


def trained_by(lm: LM, settings: DescentSettings) -> Weights | Factors:
    """The trained numbers of these settings."""
    return Factors(lm, settings) if settings.restrict == "lora" else Weights(lm)


MOMENTS = ("first_moment", "second_moment")


class Descent:
    """An optimiser of one reader.

    Args:
        vectors: "weights" [N], and of Adam `MOMENTS` [N]; changed in place.
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
