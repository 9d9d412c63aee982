"""COMP tokens: they read a text, and their keys and values are what it becomes.

Kim et al., arXiv 2312.03414, equation 1.
Shape letters: L layers · B rows · H key/value heads · P slots · D head size · T tokens · C width · n COMP tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ttabench.core.types import Ask, Episode
from ttabench.lm.attention.interface import Call
from ttabench.lm.attention.layout import Layout
from ttabench.lm.forward.patching import hidden_states, read
from ttabench.lm.forward.tokens import pad
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch, Prefix, State
from ttabench.methods.ccm import AttentionLora, CcmSettings, GistingSettings
from ttabench.methods.parts import one_forward
from ttabench.methods.parts.lora import OwnLora
from ttabench.methods.parts.one_forward import Batch, Row, answer_nll

Memory: TypeAlias = tuple[Tensor, Tensor]
"""Keys and values [L, B, H, P, D]."""
LoraT = TypeVar("LoraT", bound=AttentionLora)
CompT = TypeVar("CompT", bound=GistingSettings)


class AttentionMemory(OwnLora[LoraT]):
    """A LoRA on the maps of attention, and a memory that is a prefix."""

    needs = ("hooks", "embeddings", "shape")

    def __init__(self, lm: LM, settings: LoraT) -> None:
        super().__init__(lm, settings, None if settings.targets else attention_maps(lm))

    def begun(self, rows: int, deltas: dict[str, LowRank] | None = None) -> Memory | None:
        """Keys and values of what begins a text, of as many rows; None where nothing does."""
        if not self.lm.start_ids:
            return None
        start = read(self.lm, Patch(deltas=deltas or {}), torch.zeros(rows, 0, dtype=torch.int64))
        return torch.stack(start.keys_LBHPD), torch.stack(start.values_LBHPD)

    def remembered(self, state: State, memory: Memory | None, counts: list[int], **meta: list[int]) -> State:
        """The state that goes on from this one with a memory of so many tokens."""
        tensors = {} if memory is None else {"keys": memory[0], "values": memory[1], "next": self.next_of(counts)}
        return State(state.rows, tensors, {"tokens_read": counts, **meta})

    def next_of(self, counts: Sequence[int]) -> Tensor:
        """Position of the next text token, [B], behind so many tokens of context."""
        return torch.tensor(counts, device=self.lm.device) + len(self.lm.start_ids)


class CompTokens(AttentionMemory[CompT]):
    """COMP tokens with embeddings of their own."""

    def __init__(self, lm: LM, settings: CompT) -> None:
        super().__init__(lm, settings)
        first = first_embeddings(lm, settings.comp_tokens)
        self.embeddings = nn.Embedding(settings.comp_tokens, first.shape[1], _weight=first)

    def modules(self) -> nn.ModuleDict:
        """a and b, one of each a linear map, and the embeddings of the COMP tokens."""
        return nn.ModuleDict({**super().modules(), "embeddings": self.embeddings})

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The memory as a prefix; where the LoRA acts at every token, the LoRA too."""
        memory = memory_of(state)
        prefix = None if memory is None else prefix_of(memory, state.tensors["next"])
        return Patch(prefix=prefix, deltas=self.outside)

    @property
    def outside(self) -> dict[str, LowRank]:
        """The deltas at tokens that are no COMP tokens."""
        return {} if self.settings.conditional else self.deltas

    def compressed(self, seen: Memory | None, texts: Sequence[list[int]], counts: Sequence[int]) -> Memory:
        """Keys and values of the COMP tokens behind these texts, [L, B, H, n, D]. `seen`: what texts and COMP tokens
        see beside themselves; `counts`: tokens of context before each."""
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


def memory_of(state: State) -> Memory | None:
    """The memory in a state; None before anything was read."""
    return (state.tensors["keys"], state.tensors["values"]) if "keys" in state.tensors else None


def joined(memory: Memory | None, fresh: Memory) -> Memory:
    """One behind the other."""
    return fresh if memory is None else (torch.cat([memory[0], fresh[0]], 3), torch.cat([memory[1], fresh[1]], 3))


def laid(lm: LM, settings: CcmSettings, episode: Episode) -> Row:
    """An episode as one row: behind every piece its COMP tokens."""

    def compress(row: Row, ids: list[int], first: int, block: int) -> None:
        memory = row.done - 1 if settings.recursive else 0
        row.add(ids, first, block, memories=memory, texts=row.done)
        comp = comp_ids(lm, settings.comp_tokens)
        row.add(comp, first + len(ids), block, memories=memory, pieces=row.done)

    return one_forward.laid(lm, episode, compress, sees="memories")


def laid_whole(lm: LM, comp_tokens: int, episode: Episode) -> Row:
    """An episode as one row: before each run of questions COMP tokens that read the whole text."""

    def compress(row: Row) -> None:
        if max(row.pieces, default=0) < row.done:
            first = len(lm.start_ids) + row.tokens
            row.add(comp_ids(lm, comp_tokens), first, row.next_block, reads=row.done, pieces=row.done)

    return one_forward.laid(lm, episode, asking=compress, sees="memories")


def comp_ids(lm: LM, comp_tokens: int) -> range:
    """Ids of the COMP tokens: those behind the vocabulary."""
    return range(lm.vocab_size, lm.vocab_size + comp_tokens)


def sees_all(batch: Batch, *, sink: bool) -> Tensor:
    """bool [B, T, T]: what stands in the row, and the COMP tokens of every piece of its memory."""
    pieces_B1T = batch.pieces_BT[:, None]
    return batch.sees(sink=sink) | (pieces_B1T > 0) & (pieces_B1T <= batch.memories_BT[:, :, None])


def sees_newest(batch: Batch) -> Tensor:
    """bool [B, T, T]: what stands in the row, and the newest COMP tokens of its memory."""
    pieces_B1T = batch.pieces_BT[:, None]
    return batch.sees() | (pieces_B1T > 0) & (pieces_B1T == batch.memories_BT[:, :, None])


def merged(batch: Batch, settings: CcmSettings, lm: LM) -> tuple[Tensor, Tensor]:
    """How much of each token's keys and values every slot of a merged memory holds, [B, E, T], and who sees it.

    Slots are those of the memory after the first piece, then of that after the second, and so on; bool [B, T, E].
    """
    comp, steps, device = settings.comp_tokens, max(1, int(batch.pieces_BT.max())), batch.ids_BT.device
    weights_SS = merge_weights(settings, steps).to(device)
    by_step_BST = weights_SS[:, (batch.pieces_BT - 1).clamp(min=0)].transpose(0, 1)
    of_kind_BnT = batch.ids_BT[:, None] == torch.tensor(comp_ids(lm, comp), device=device)[:, None]
    mix_BET = (by_step_BST[:, :, None] * of_kind_BnT[:, None]).flatten(1, 2)
    made_E = torch.arange(1, steps + 1, device=device).repeat_interleave(comp)
    return mix_BET, batch.memories_BT[:, :, None] == made_E


def merging(mix_BET: Tensor, sees_BTE: Tensor) -> Callable[[Call], Tensor]:
    """Attention of every layer, with the merged memories of all steps as further slots."""

    def attend(call: Call) -> Tensor:
        mix = mix_BET[:, None].to(call.key.dtype)
        return with_more(call, mix @ call.key, mix @ call.value, sees_BTE)

    return attend


def with_more(call: Call, key: Tensor, value: Tensor, sees_BTE: Tensor) -> Tensor:
    """Attention of one layer, [B, T, N, D], with further keys and values [B, H, E, D] that some tokens see."""
    assert call.mask is not None
    mask = torch.cat([call.mask.expand(len(sees_BTE), -1, -1, -1), sees_BTE[:, None]], 3)
    keys, values = torch.cat([call.key, key], 2), torch.cat([call.value, value], 2)
    out = scaled_dot_product_attention(call.query, keys, values, attn_mask=mask, scale=call.scaling, enable_gqa=True)
    return out.transpose(1, 2)


def merge_weights(settings: CcmSettings, steps: int) -> Tensor:
    """[S, S]: how much of each piece the memory after each step holds; rows sum to 1."""
    weights = torch.zeros(steps, steps)
    for step in range(steps):
        newest = settings.weight(step + 1)
        if step:
            weights[step] = (1 - newest) * weights[step - 1]
        weights[step, step] = newest
    return weights
