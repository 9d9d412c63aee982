"""Low-rank factors of linear maps (LoRA): how they start, and the weight deltas they are.

Hu et al., arXiv 2106.09685.
Shape letters: R rank · I/O features in and out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ttabench.core.errors import UserError
from ttabench.lm.forward.deltas import weight_changes
from ttabench.lm.model import LM
from ttabench.lm.patch import Delta, Dense, LowRank
from ttabench.methods.parts.lora_shape import LoraShape
from ttabench.methods.trainable import Trainable


def target_names(lm: LM, targets: Sequence[str]) -> list[str]:
    """The linear maps inside the decoder layers whose names end in one of these; all of them where none is named."""
    named = lm.linear_names()
    known = sorted({name.rpartition(".")[2] for name in named})
    missing = [target for target in targets if target not in known]
    if missing:
        raise UserError(f"{lm.name} has no linear map {missing[0]!r}.", f"It has {', '.join(known)}.")
    return [name for name in named if not targets or name.rpartition(".")[2] in targets]


def by_layer(lm: LM, names: Sequence[str]) -> list[list[str]]:
    """These linear maps, given in model order, of each decoder layer: as many in every one."""
    maps_a_layer = len(names) // lm.layers
    if not names or maps_a_layer * lm.layers != len(names):
        fault = f"{lm.name} ({lm.config.model_type}) has {len(names)} of the wanted linear maps in {lm.layers} layers"
        raise UserError(f"{fault}, not as many in each.", "Use none, icl, rag, or lora with other --set targets.")
    return [list(names[begin : begin + maps_a_layer]) for begin in range(0, len(names), maps_a_layer)]


def started(lm: LM, shape: LoraShape, names: Sequence[str] | None = None) -> dict[str, tuple[Tensor, Tensor]]:
    """Fresh factors by linear map: A [R, I] drawn from the seed, B [O, R] zero; float32. `names`: of the maps, in place
    of those that the shape names."""
    factors = {}
    with torch.random.fork_rng():
        torch.manual_seed(shape.seed)
        for name in target_names(lm, shape.targets) if names is None else names:
            features_in, features_out = lm.linear_shape(name)
            a_RI = torch.empty(shape.rank, features_in)
            nn.init.kaiming_uniform_(a_RI, a=math.sqrt(5))
            factors[name] = a_RI.to(lm.device), torch.zeros(features_out, shape.rank, device=lm.device)
    return factors


def deltas(
    factors: Mapping[str, tuple[Tensor, Tensor]], shape: LoraShape, zeros: KeptDropout | None = None
) -> dict[str, LowRank]:
    """The weight deltas of these factors, differentiable: of rows [B, R, I], [B, O, R], or shared by all rows."""
    by_name = {}
    for name, (a, b) in factors.items():
        a_BRI, b_BOR = (a, b) if a.dim() == 3 else (a[None], b[None])
        scaled_BOR = b_BOR if shape.scale == 1.0 else b_BOR * shape.scale
        by_name[name] = LowRank(a_BRI, scaled_BOR, None if zeros is None else zeros.of(name))
    return by_name


def dense(lm: LM, deltas: Mapping[str, LowRank]) -> dict[str, Delta]:
    """The same as changes of whole weights, in the layout and the number format of each."""
    changes = (weight_changes(lm, {name: delta}) for name, delta in deltas.items())  # one float32 matrix at a time
    return {name: Dense(change[None].to(lm.dtype)) for one in changes for name, change in one.items()}


ShapeT = TypeVar("ShapeT", bound=LoraShape)


class OwnLora(Trainable[ShapeT]):
    """A method with a LoRA that is trained; by default of the maps that the settings name."""

    def __init__(self, lm: LM, settings: ShapeT, names: Sequence[str] | None = None) -> None:
        super().__init__(lm, settings)
        factors = started(lm, settings, names)
        self.names = list(factors)
        self.a = nn.ParameterList(a_RI for a_RI, _ in factors.values())
        self.b = nn.ParameterList(b_OR for _, b_OR in factors.values())

    def modules(self) -> nn.ModuleDict:
        """a and b, one of each a linear map."""
        return nn.ModuleDict({"a": self.a, "b": self.b})

    @property
    def deltas(self) -> dict[str, LowRank]:
        """The LoRA."""
        return deltas(dict(zip(self.names, zip(self.a, self.b, strict=True), strict=True)), self.settings)


class KeptDropout:
    """The dropout of one gradient step. `share`: of what enters a map that is zeroed, in (0, 1); the rest is scaled up;
    `again`: whether every map is met twice, the second time with the zeros of the first."""

    def __init__(self, share: float, seed: int, device: torch.device, *, again: bool) -> None:
        self._share, self._again = share, again
        self._generator = torch.Generator(device).manual_seed(seed)
        self._kept: dict[str, Tensor] = {}

    def of(self, name: str) -> Callable[[Tensor, Tensor], Tensor]:
        """That of the map of this name: from x [1, T, I] and A [1, R, I] to dropout(x) A^T [1, T, R]."""
        return partial(self._product, name)

    def _product(self, name: str, x_1TI: Tensor, a_1RI: Tensor) -> Tensor:
        low_1TR: Tensor = _Product.apply(x_1TI, a_1RI, partial(self._stays, name), self._share)  # type: ignore[no-untyped-call]
        return low_1TR

    def _stays(self, name: str, x_1TI: Tensor) -> tuple[Tensor, Tensor]:
        """1 where x stays and 0 where it does not, and the same as bits."""
        if name in self._kept:
            bits = self._kept.pop(name)
            return _unpacked(bits, x_1TI), bits
        stays_1TI = torch.empty_like(x_1TI, requires_grad=False).bernoulli_(1 - self._share, generator=self._generator)
        bits = stays_1TI.bool()
        if bits.device.type == "cpu":  # eight in a byte
            bits = torch.from_numpy(np.packbits(bits.numpy()))
        if self._again:
            self._kept[name] = bits
        return stays_1TI, bits


class _Product(torch.autograd.Function):
    """dropout(x) A^T that keeps x, which is there anyway, and bits."""

    @staticmethod
    def forward(
        ctx: Any, x_1TI: Tensor, a_1RI: Tensor, stays: Callable[[Tensor], tuple[Tensor, Tensor]], share: float
    ) -> Tensor:
        stays_1TI, bits = stays(x_1TI)
        ctx.share = share
        ctx.save_for_backward(x_1TI, a_1RI, bits)
        return torch.mm(stays_1TI.mul_(x_1TI).div_(1 - share)[0], a_1RI[0].T)[None]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        x_1TI, a_1RI, bits = ctx.saved_tensors
        stays_1TI = _unpacked(bits, x_1TI).div_(1 - ctx.share)
        slope_x = torch.mm(slopes[0][0], a_1RI[0])[None].mul_(stays_1TI) if ctx.needs_input_grad[0] else None
        return slope_x, torch.mm(slopes[0][0].T, stays_1TI.mul_(x_1TI)[0])[None], None, None


def _unpacked(bits: Tensor, like: Tensor) -> Tensor:
    if bits.dtype == torch.bool:
        return bits.to(like.dtype)
    return torch.from_numpy(np.unpackbits(bits.numpy(), count=like.numel())).view(like.shape).to(like.dtype)
