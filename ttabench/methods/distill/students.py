"""What distillation trains, as one vector of numbers a reader: low-rank factors, or the keys and values of a prefix.

    student = student_of(lm, settings)
    start_N = student.start(ids)                    the numbers before training, for a reader of this context
    student.patch({name: part[None]})               what they do to the base, differentiable

Shape letters: B readers · N numbers of a reader · P slots · L layers · H heads · D head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ttabench.lm.forward.patching import encode
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, Prefix
from ttabench.methods.distill.settings import DistillSettings
from ttabench.methods.parts.trained import Factors


class Deltas:
    """Low-rank factors of linear maps, of which B is zero at the start. `layout`: shapes by name, as in the vector."""

    def __init__(self, lm: LM, settings: DistillSettings) -> None:
        self._factors = Factors(lm, settings)
        self.layout = self._factors.layout

    def start(self, ids: Sequence[int]) -> Tensor:  # noqa: ARG002  # as of slots
        """The base model as it is, whatever is read."""
        return self._factors.start()

    def patch(self, parts: Mapping[str, Tensor]) -> Patch:
        """The factors as deltas."""
        return Patch(deltas=self._factors.low_rank(parts))


class Slots:
    """Keys and values in front of the text. The first slot, that of what begins a text, is not trained."""

    def __init__(self, lm: LM, settings: DistillSettings) -> None:
        self._lm, self._slots = lm, settings.slots
        size = torch.Size((lm.kv_heads, settings.slots, lm.head_dim))
        self.layout = {f"{kind}.{layer}": size for layer in range(lm.layers) for kind in ("keys", "values")}

    def start(self, ids: Sequence[int]) -> Tensor:
        """Keys and values of the first tokens of the context; a shorter context is repeated."""
        wanted = self._slots - len(self._lm.start_ids)
        begun = (list(ids) or [self._lm.eos_id]) * wanted
        tokens_BT = torch.tensor([begun[:wanted]], dtype=torch.int64, device=self._lm.device)
        with torch.no_grad():
            prefix = encode(self._lm, Patch(tokens_BT=tokens_BT))
        assert prefix is not None, "tokens that are read are a prefix"
        pairs = zip(prefix.keys_LBHPD, prefix.values_LBHPD, strict=True)
        return torch.cat([tensor[0].float().flatten() for pair in pairs for tensor in pair])

    def patch(self, parts: Mapping[str, Tensor]) -> Patch:
        """A prefix after which text goes on as it would behind so many tokens."""
        layers = range(self._lm.layers)
        keys, values = (tuple(self._held(parts[f"{kind}.{layer}"]) for layer in layers) for kind in ("keys", "values"))
        next_B = torch.full((len(keys[0]),), self._slots, device=self._lm.device)
        return Patch(prefix=Prefix(keys, values, next_B, holds_bos=True))

    def _held(self, part_BHPD: Tensor) -> Tensor:
        """The same, without a gradient to the first slot."""
        return torch.cat([part_BHPD[:, :, :1].detach(), part_BHPD[:, :, 1:]], dim=2)


def student_of(lm: LM, settings: DistillSettings) -> Slots | Deltas:
    """The student of these settings.

    Raises:
        UserError: a linear map is named that the base does not have.
    """
    return Slots(lm, settings) if settings.target == "prefix" else Deltas(lm, settings)
