"""Compressive Transformer on a frozen model: keys and values of a piece are pooled, and behind those of other pieces.

Pooled by a learned convolution of kernel and stride `ratio`, one for keys and one for values of every layer, shared by
heads, which begins as the mean. Rae et al., arXiv 1911.05507, compress what leaves a window of activations; CCM (arXiv
2312.03414, section 4) compares with it and says no more than how much memory that takes.
Shape letters: L layers · B rows · H key/value heads · P slots · D head size · T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ttabench.core.types import Episode, Observe
from ttabench.lm.attention.layout import Layout
from ttabench.lm.forward.patching import hidden_states
from ttabench.lm.forward.tokens import new_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.ccm import COMPRESSIVE, CompressiveSettings
from ttabench.methods.ccm.comp_tokens import AttentionMemory, Memory, joined, memory_of, prefix_of


def pooled(held_BHTD: Tensor, kernel_RDD: Tensor) -> Tensor:
    """[B, H, G, D]: every R tokens as one slot. Of the last slot's tokens, if they are fewer, the sum is scaled up."""
    ratio, tokens = len(kernel_RDD), held_BHTD.shape[2]
    slots = -(-tokens // ratio)
    padded_BHTD = nn.functional.pad(held_BHTD, (0, 0, 0, slots * ratio - tokens))
    count_G1 = (tokens - ratio * torch.arange(slots, device=held_BHTD.device)).clamp(max=ratio)[:, None]
    kernel = kernel_RDD.to(held_BHTD.dtype).flatten(0, 1)
    return (padded_BHTD.reshape(*held_BHTD.shape[:2], slots, -1) @ kernel) * (ratio / count_G1)


class Compressive(AttentionMemory[CompressiveSettings]):
    """Pooled keys and values. State: keys and values of the slots, and the position of the next text token."""

    spec = COMPRESSIVE
    one_reader = True

    def __init__(self, lm: LM, settings: CompressiveSettings) -> None:
        super().__init__(lm, settings)
        ratio, size = settings.ratio, lm.head_dim
        mean = torch.eye(size).expand(lm.layers, 2, ratio, size, size) / ratio
        self.kernels = nn.ParameterList([nn.Parameter(mean.clone().to(lm.device))])

    def modules(self) -> nn.ModuleDict:
        """a and b, one of each a linear map, and the kernels [L, keys and values, ratio, D, D]."""
        return nn.ModuleDict({**super().modules(), "kernels": self.kernels})

    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Read and pool piece by piece, each behind the slots of those before it."""
        (texts,), (count,), memory = new_ids(self.lm, state, chunks), state.meta["tokens_read"], memory_of(state)
        with torch.set_grad_enabled(self._learning):
            for text in filter(None, texts):
                memory = joined(memory, self._read_on(memory, text, count))
                count += len(text)
        return self.remembered(state, memory, [count])

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Mean negative log-likelihood of the answers, over episodes: each is read, pooled and asked as in use."""
        loss_of = super().loss_parts
        return {"answer": torch.stack([loss_of([episode])["answer"] for episode in episodes]).mean()}

    def _read_on(self, memory: Memory | None, text: list[int], count: int) -> Memory:
        """The slots of a text behind the memory of so many tokens."""
        lm, next_B = self.lm, self.next_of([count])
        seen = self.begun(1) if memory is None else memory
        prefix = None if seen is None else prefix_of(seen, next_B)
        layout = Layout(positions_BT=next_B[:, None] + torch.arange(len(text), device=lm.device))
        ids_1T = torch.tensor([text], device=lm.device)
        _, window = hidden_states(lm, Patch(prefix=prefix, deltas=self.deltas), ids_1T, layout)
        after, kernels, size = window.prefix(), self.kernels[0], len(text)
        return torch.stack([
            torch.stack([pooled(held[..., -size:, :], kernels[layer, which]) for layer, held in enumerate(whole)])
            for which, whole in enumerate((after.keys_LBHPD, after.values_LBHPD))
        ])  # fmt: skip
