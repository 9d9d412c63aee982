"""Rotary position embeddings undone and redone, through the base model's own angles.

    rotary = Rotary(lm)
    bare = rotary.unrotate(keys_BHPD, positions_BP)       keys as they were before the model rotated them
    rotary.rotate(bare, slots_BP)                         the same keys at other positions

RoFormer, arXiv 2104.09864, equation 34, in the half-split layout of transformers' Llama. Scaled variants multiply sine
and cosine by a factor (`attention_scaling`), so undoing divides by its square; partial ones rotate the first features.

Shape letters: B rows · H heads · P positions · D head size · F rotated features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ttabench.core.errors import UserError
from ttabench.lm.model import LM


def rotates(lm: LM) -> bool:
    """Whether the base model tells positions by rotating queries and keys."""
    return isinstance(getattr(lm.decoder, "rotary_emb", None), torch.nn.Module)


class Rotary:
    """The rotation of a base model.

    Args:
        lm: the base model.

    Raises:
        UserError: it does not rotate its keys.
    """

    def __init__(self, lm: LM) -> None:
        if not rotates(lm):
            fault = f"positions=cache moves rotated keys, but {lm.name} has no rotary position embeddings."
            raise UserError(fault, "Use --set positions=original.")
        self._angles = lm.decoder.get_submodule("rotary_emb")

    def rotate(self, x_BHPD: Tensor, positions_BP: Tensor) -> Tensor:
        """Queries or keys [..., B, H, P, D] at these positions ([B, P], or [1, P])."""
        cos, sin = self._cos_sin(positions_BP)
        part, rest = _split(x_BHPD, cos)
        return torch.cat([(part * cos + _half_turned(part) * sin).to(x_BHPD.dtype), rest], dim=-1)

    def unrotate(self, x_BHPD: Tensor, positions_BP: Tensor) -> Tensor:
        """The inverse of `rotate`."""
        cos, sin = self._cos_sin(positions_BP)
        part, rest = _split(x_BHPD, cos)
        bare = (part * cos - _half_turned(part) * sin) / (cos.square() + sin.square())
        return torch.cat([bare.to(x_BHPD.dtype), rest], dim=-1)

    def _cos_sin(self, positions_BP: Tensor) -> tuple[Tensor, Tensor]:
        """[B, 1, P, F] each, float32."""
        like = torch.empty(0, device=positions_BP.device, dtype=torch.float32)
        cos, sin = self._angles(like, positions_BP)
        return cos.unsqueeze(1), sin.unsqueeze(1)


def _split(x_BHPD: Tensor, cos_B1PF: Tensor) -> tuple[Tensor, Tensor]:
    return x_BHPD[..., : cos_B1PF.shape[-1]].float(), x_BHPD[..., cos_B1PF.shape[-1] :]


def _half_turned(x_BHPF: Tensor) -> Tensor:
    first, second = x_BHPF.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)
