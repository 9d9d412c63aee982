"""Low-rank factors of linear maps (LoRA, arXiv 2106.09685), and parameters trained on a text.

Shape letters: B rows · N trained numbers per sequence · R rank · I/O features in and out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ttabench.core.errors import UserError
from ttabench.lm.forward.patching import weight_changes
from ttabench.lm.model import LM
from ttabench.lm.patch import Delta, Dense, LowRank, Patch
from ttabench.methods.parts.settings import LoraShape
from ttabench.methods.trainable import Trainable


def target_names(lm: LM, targets: Sequence[str]) -> list[str]:
    """Return the linear maps of the decoder layers with these last names, or all if none is given.

    Raises:
        UserError: the model has no linear map of a name.
    """
    all_names = lm.linear_names()
    known = sorted({name.rpartition(".")[2] for name in all_names})
    for target in targets:
        if target not in known:
            fault = f"{lm.name} has no linear map {target!r}."
            raise UserError(fault, f"Use one of {', '.join(known)}.")
    return [name for name in all_names if not targets or name.rpartition(".")[2] in targets]


def attention_linear_names(lm: LM) -> list[str]:
    """Return the linear maps of attention."""
    return [
        name
        for name in lm.linear_names()
        if name.split(".")[-2] in ("self_attn", "attn", "attention")
    ]


def group_by_layer(lm: LM, names: Sequence[str]) -> list[list[str]]:
    """Group linear maps, given in model order, by decoder layer.

    Raises:
        UserError: layers have different numbers or shapes of these maps, or none.
    """
    maps_a_layer = len(names) // lm.layers
    if not names or maps_a_layer * lm.layers != len(names):
        fault = f"{lm.name} ({lm.config.model_type}) must have equally many of the linear maps"
        fault = f"{fault} in each of {lm.layers} layers, but has {len(names)}."
        raise UserError(fault, "Use none, icl, rag, or lora with other --set targets.")
    begins = range(0, len(names), maps_a_layer)
    layers = [list(names[begin : begin + maps_a_layer]) for begin in begins]
    if len({tuple(map(lm.linear_shape, layer)) for layer in layers}) > 1:
        fault = (
            f"{lm.name} ({lm.config.model_type}) has linear maps of different shapes in its layers."
        )
        raise UserError(fault, "Use none, icl, rag or templora.")
    return layers


def init_factors(
    lm: LM, shape: LoraShape, names: Sequence[str] | None = None
) -> dict[str, tuple[Tensor, Tensor]]:
    """Create factors by linear map: A [R, I] from the seed, B [O, R] zero; float32.

    `names` of linear maps replace the targets of `shape`.
    """
    factors = {}
    with torch.random.fork_rng():
        torch.manual_seed(shape.seed)
        for name in target_names(lm, shape.targets) if names is None else names:
            features_in, features_out = lm.linear_shape(name)
            a_RI = nn.Linear(features_in, shape.rank, bias=False).weight.detach()
            b_OR = torch.zeros(features_out, shape.rank, device=lm.device)
            factors[name] = a_RI.to(lm.device), b_OR
    return factors


def deltas(
    factors: Mapping[str, tuple[Tensor, Tensor]], shape: LoraShape, dropout: float = 0.0
) -> dict[str, LowRank]:
    """Build differentiable weight deltas of factors, per row [B, R, I], [B, O, R], or shared.

    `dropout` is the share of inputs of the maps that is zeroed, with torch's random generator.
    """

    def dropped(x_BTI: Tensor, a_BRI: Tensor) -> Tensor:
        return functional.dropout(x_BTI, dropout) @ a_BRI.mT

    by_name = {}
    for name, (a, b) in factors.items():
        a_BRI, b_BOR = (a, b) if a.dim() == 3 else (a[None], b[None])
        scaled_BOR = b_BOR if shape.scale == 1.0 else b_BOR * shape.scale
        by_name[name] = LowRank(a_BRI, scaled_BOR, dropped if dropout else None)
    return by_name


def dense_deltas(lm: LM, deltas: Mapping[str, LowRank]) -> dict[str, Delta]:
    """Convert low-rank deltas to dense ones, in the layout and dtype of the weights."""
    # one float32 matrix in memory at a time
    return {
        parameter: Dense(change[None].to(lm.dtype))
        for name, delta in deltas.items()
        for parameter, change in weight_changes(lm, {name: delta}).items()
    }


ShapeT = TypeVar("ShapeT", bound=LoraShape)


class TrainableLora(Trainable[ShapeT]):
    """Method with a trained LoRA, by default on the targets of the settings."""

    def __init__(self, lm: LM, settings: ShapeT, names: Sequence[str] | None = None) -> None:
        super().__init__(lm, settings)
        factors = init_factors(lm, settings, names)
        self.names = list(factors)
        self.a = nn.ParameterList(a_RI for a_RI, _ in factors.values())
        self.b = nn.ParameterList(b_OR for _, b_OR in factors.values())

    def modules(self) -> nn.ModuleDict:
        """Return the factors a and b of all linear maps."""
        return nn.ModuleDict({"a": self.a, "b": self.b})

    @property
    def deltas(self) -> dict[str, LowRank]:
        """Weight deltas of the LoRA."""
        factors = zip(self.names, zip(self.a, self.b, strict=True), strict=True)
        return deltas(dict(factors), self.settings)


def split_vector(vector_N: Tensor, layout: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Split a vector [N] into views by name."""
    parts = torch.split(vector_N, [size.numel() for size in layout.values()])
    return {name: part.view(size) for (name, size), part in zip(layout.items(), parts, strict=True)}


class Weights:
    """All weights of the base model as trained parameters; a tied weight counts once."""

    def __init__(self, lm: LM) -> None:
        self._lm = lm
        self.layout = {name: weight.shape for name, weight in lm.model.named_parameters()}

    def start(self) -> Tensor:
        """Return the weights of the base model as a vector."""
        return torch.cat(
            [weight.detach().float().flatten() for weight in self._lm.model.parameters()]
        )

    def deltas(self, vector_N: Tensor) -> dict[str, Delta]:
        """Return the differences from the base model's weights."""
        return {
            name: Dense(part[None])
            for name, part in split_vector(vector_N - self.start(), self.layout).items()
        }


class Factors:
    """Low-rank factors of linear maps as trained parameters."""

    def __init__(self, lm: LM, settings: LoraShape) -> None:
        self._lm, self._settings = lm, settings
        self._names = target_names(lm, settings.targets)
        self.layout: dict[str, torch.Size] = {}
        for name in self._names:
            features_in, features_out = lm.linear_shape(name)
            self.layout[f"{name}.a"] = torch.Size((settings.rank, features_in))
            self.layout[f"{name}.b"] = torch.Size((features_out, settings.rank))

    def start(self) -> Tensor:
        """Return initial factors as a vector: A from the seed, B zero."""
        pairs = init_factors(self._lm, self._settings).values()
        return torch.cat([factor.flatten() for pair in pairs for factor in pair])

    def patch(self, parts: Mapping[str, Tensor], dropout: float = 0.0) -> Patch:
        """Return the differentiable deltas of these factors, see `deltas`."""
        pairs = {name: (parts[f"{name}.a"], parts[f"{name}.b"]) for name in self._names}
        return Patch(deltas=deltas(pairs, self._settings, dropout))
