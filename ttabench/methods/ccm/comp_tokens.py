"""COMP tokens: they read a text, and their keys and values are what it becomes.

Kim et al., arXiv 2312.03414, equation 1.

Shape letters: L layers · B rows · H key/value heads · P slots · D head size · T tokens · C width · n COMP tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from ttabench.core.types import Ask
from ttabench.lm.attention.layout import Layout
from ttabench.lm.forward.patching import hidden_states, read
from ttabench.lm.forward.tokens import pad
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch, Prefix, State
from ttabench.methods.ccm.settings import AttentionLora, GistingSettings
from ttabench.methods.parts import lora
from ttabench.methods.parts.one_forward import Batch, Row, answer_nll
from ttabench.methods.trainable import Trainable

Memory: TypeAlias = tuple[Tensor, Tensor]
"""Keys and values [L, B, H, P, D]."""
LoraT = TypeVar("LoraT", bound=AttentionLora)
CompT = TypeVar("CompT", bound=GistingSettings)


class OwnLora(Trainable[LoraT]):
    """A LoRA on the maps of attention, and a memory that is a prefix."""

    needs = ("hooks", "embeddings", "shape")

    def __init__(self, lm: LM, settings: LoraT) -> None:
        super().__init__(lm, settings)
        started = lora.started(lm, settings, None if settings.targets else attention_maps(lm))
        self.names = list(started)
        self.a = nn.ParameterList(a_RI for a_RI, _ in started.values())
        self.b = nn.ParameterList(b_OR for _, b_OR in started.values())

    def modules(self) -> nn.ModuleDict:
        """a and b, one of each a linear map."""
        return nn.ModuleDict({"a": self.a, "b": self.b})

    @property
    def deltas(self) -> dict[str, LowRank]:
        """The LoRA."""
        return lora.deltas(dict(zip(self.names, zip(self.a, self.b, strict=True), strict=True)), self.settings)

    def begun(self, rows: int, deltas: dict[str, LowRank] | None = None) -> Memory | None:
        """Keys and values of what begins a text, of as many rows; None where nothing does."""
        if not self.lm.start_ids:
            return None
        start = read(self.lm, Patch(deltas=deltas or {}), torch.zeros(rows, 0, dtype=torch.int64))
        return torch.stack(start.keys_LBHPD), torch.stack(start.values_LBHPD)

    def next_of(self, counts: Sequence[int]) -> Tensor:
        """Position of the next text token, [B], behind so many tokens of context."""
        return torch.tensor(counts, device=self.lm.device) + len(self.lm.start_ids)


class CompTokens(OwnLora[CompT]):
    """COMP tokens with embeddings of their own."""

    def __init__(self, lm: LM, settings: CompT) -> None:
        super().__init__(lm, settings)
        first = first_embeddings(lm, settings.comp_tokens)
        self.embeddings = nn.Embedding(settings.comp_tokens, first.shape[1], _weight=first)

    def modules(self) -> nn.ModuleDict:
        """a and b, one of each a linear map, and the embeddings of the COMP tokens."""
        return nn.ModuleDict({"a": self.a, "b": self.b, "embeddings": self.embeddings})

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The memory as a prefix; where the LoRA acts at every token, the LoRA too."""
        if "keys" not in state.tensors:
            return Patch(deltas=self.outside)
        keys, values, following = (state.tensors[name] for name in ("keys", "values", "next"))
        return Patch(prefix=prefix_of((keys, values), following), deltas=self.outside)

    @property
    def outside(self) -> dict[str, LowRank]:
        """The deltas at tokens that are no COMP tokens."""
        return {} if self.settings.conditional else self.deltas

    def compressed(self, seen: Memory | None, texts: Sequence[list[int]], counts: Sequence[int]) -> Memory:
        """Keys and values of the COMP tokens behind these texts, [L, B, H, n, D].

        Args:
            seen: what texts and COMP tokens see beside themselves.
            counts: tokens of context before each.
        """
        lm, s = self.lm, self.settings
        tokens_BT, mask_BT = pad(list(texts), lm.pad_id, "left")
        first_B1 = torch.tensor(counts)[:, None] + len(lm.start_ids)
        positions_BT = first_B1 + mask_BT.long().cumsum(1) - 1
        comp_n = torch.arange(s.comp_tokens)
        lengths_B1 = torch.tensor([len(text) for text in texts])[:, None]
        ids_BT = torch.cat([tokens_BT, (lm.vocab_size + comp_n).expand(len(texts), -1)], 1).to(lm.device)
        positions_BT = torch.cat([positions_BT, first_B1 + lengths_B1 + comp_n], 1).to(lm.device)
        mask_BT = torch.cat([mask_BT.bool(), torch.ones(len(texts), s.comp_tokens, dtype=torch.bool)], 1).to(lm.device)
        layout = Layout(
            positions_BT=positions_BT.clamp(min=0),
            embeddings_BTC=lm.embedded(ids_BT, self.embeddings.weight),
            marked_BT=ids_BT >= lm.vocab_size if s.conditional else None,
        )
        prefix = None if seen is None else prefix_of(seen, first_B1[:, 0].to(lm.device))
        _, window = hidden_states(lm, Patch(prefix=prefix, deltas=self.deltas), ids_BT, layout, mask_BT)
        after = window.prefix()
        slots = after.keys_LBHPD[0].shape[2]
        comp = after.take(torch.arange(slots - s.comp_tokens, slots, device=lm.device))
        return torch.stack(comp.keys_LBHPD), torch.stack(comp.values_LBHPD)

    def answer_nll(
        self, rows: Sequence[Row], batch: Batch, sees_BTS: Tensor, attending: AbstractContextManager[None]
    ) -> tuple[Tensor, int]:
        """Sum of the negative log-likelihoods of the answers in these rows, and how many tokens those are."""
        layout = Layout(
            positions_BT=batch.positions_BT,
            sees_BTS=sees_BTS,
            embeddings_BTC=self.lm.embedded(batch.ids_BT, self.embeddings.weight),
            marked_BT=batch.pieces_BT > 0 if self.settings.conditional else None,
        )
        return answer_nll(self.lm, rows, batch, layout, self.deltas, attending)


def attention_maps(lm: LM) -> list[str]:
    """The linear maps of attention."""
    return [name for name in lm.linear_names() if name.split(".")[-2] in ("self_attn", "attn", "attention")]


def first_embeddings(lm: LM, comp_tokens: int) -> Tensor:
    """Where the embeddings of COMP tokens begin: row i is the mean of every n-th row of the vocabulary, from i on."""
    table_VC: Tensor = lm.model.get_input_embeddings().weight.detach().float()
    return torch.stack([table_VC[row::comp_tokens].mean(0) for row in range(comp_tokens)])


def prefix_of(memory: Memory, next_B: Tensor, real_BP: Tensor | None = None) -> Prefix:
    """A memory in front of text that goes on at these positions; `real_BP` is false where a slot is padding."""
    keys, values = memory
    masks: dict[str, Any] = {} if real_BP is None else {"mask_BP": real_BP}
    return Prefix(tuple(keys.unbind(0)), tuple(values.unbind(0)), next_B, holds_bos=True, **masks)


def joined(memory: Memory | None, fresh: Memory) -> Memory:
    """One behind the other."""
    return fresh if memory is None else (torch.cat([memory[0], fresh[0]], 3), torch.cat([memory[1], fresh[1]], 3))
