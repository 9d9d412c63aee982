"""Training CCM: an episode is read, compressed and asked in one forward, with the numbers of doing it piece by piece.

    BOS c(1) COMP c(2) COMP .. c(t) COMP I O        a token of c(j) or its COMP sees its own block and Mem(j-1),
                                                    a question after t pieces and its answer see themselves and Mem(t)

Where memories are concatenated, a mask says all of this. A merged memory is a mean of keys and values, which no mask
can say: in every layer the means of all steps stand as further slots behind the tokens' own, and tokens see them in
place of the COMP tokens they are made of.

Shape letters: B episodes · T tokens · E slots of merged memories · C width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from ttabench.core.types import Ask, Episode, Observe
from ttabench.lm.attention import Call, watched
from ttabench.lm.layout import Layout
from ttabench.lm.model import LM
from ttabench.lm.patch import Delta, Patch
from ttabench.lm.patching import hidden_states
from ttabench.lm.tokens import piece_ids, window_ids
from ttabench.methods.ccm.settings import CcmSettings
from ttabench.methods.trainable import training_item

NOWHERE = -1
"""Block of padding."""
BEGINS = -1
"""Piece of the token that begins what is read."""


@dataclass
class Row:
    """One episode as the tokens of one row."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    """A number for each piece with its COMP tokens, and for each question with its answer."""
    memories: list[int] = field(default_factory=list)
    """How many pieces the memory holds that a token sees."""
    pieces: list[int] = field(default_factory=list)
    """At a COMP token the piece that it compresses, from 1 on; `BEGINS`; else 0."""
    targets: list[tuple[int, int]] = field(default_factory=list)
    """(place, id of the token that is to be predicted there)."""

    def add(self, ids: Sequence[int], first: int, memory: int, piece: int, block: int) -> None:
        """More tokens of a block, at positions from `first` on."""
        self.ids += ids
        self.positions += range(first, first + len(ids))
        self.blocks += [block] * len(ids)
        self.memories += [memory] * len(ids)
        self.pieces += [piece] * len(ids)


def answer_nll(
    lm: LM, settings: CcmSettings, deltas: Mapping[str, Delta], embeddings_NC: Tensor, episodes: Sequence[Episode]
) -> tuple[Tensor, int]:
    """Sum of the negative log-likelihoods of all target tokens, and their count; differentiable.

    Raises:
        UserError: a position is none of the model's.
    """
    rows = [laid(lm, settings, episode) for episode in episodes]
    found = Batch.of(rows, lm)
    layout = Layout(
        positions_BT=found.positions_BT,
        sees_BTS=found.sees(settings),
        embeddings_BTC=lm.embedded(found.ids_BT, embeddings_NC),
        marked_BT=found.pieces_BT > 0 if settings.conditional else None,
    )
    merging = watched(found.merging(settings)) if settings.update == "merge" else nullcontext()
    with merging:
        hidden_BTC, _ = hidden_states(lm, Patch(deltas=deltas), found.ids_BT, layout, found.real)
    places = [(number, place) for number, row in enumerate(rows) for place, _ in row.targets]
    wanted = [token for row in rows for _, token in row.targets]
    assert wanted, "training episodes without a query"
    at = torch.tensor(places, device=lm.device)
    logits_NV = lm.logits(hidden_BTC[at[:, 0], at[:, 1]]).float()
    return cross_entropy(logits_NV, torch.tensor(wanted, device=lm.device), reduction="sum"), len(wanted)


def laid(lm: LM, settings: CcmSettings, episode: Episode) -> Row:
    """An episode as one row; questions may stand between pieces."""
    row, start, comp = Row(), list(lm.start_ids), settings.comp_tokens
    read, done = 0, 0
    for number, step in enumerate(episode.steps):
        if isinstance(step, Observe):
            text = piece_ids(lm, step, first=not read)
            memory = done if settings.recursive else 0
            if not done:
                row.add(start, 0, 0, BEGINS, number)
            row.add(text, len(start) + read, memory, 0, number)
            read, done = read + len(text), done + 1
            row.add(range(lm.vocab_size, lm.vocab_size + comp), len(start) + read, memory, done, number)
        else:
            _ask(lm, row, step, (number, done, read))
    return row


def _ask(lm: LM, row: Row, ask: Ask, where: tuple[int, int, int]) -> None:
    block, done, read = where
    window = window_ids(lm, ask, follows=bool(done))
    prompt, target = training_item(lm, ask, follows=bool(done or window))
    start = [] if done else list(lm.start_ids)
    text = [*start, *window, *prompt, *target]
    begin = len(row.ids) + len(text) - len(target)
    row.add(text[:-1], len(lm.start_ids) + read if done else 0, done, 0, block)
    row.targets += [(begin + place - 1, token) for place, token in enumerate(target)]


@dataclass(frozen=True)
class Batch:
    """Rows of one length, padded behind."""

    ids_BT: Tensor
    positions_BT: Tensor
    blocks_BT: Tensor
    memories_BT: Tensor
    pieces_BT: Tensor
    vocabulary: int

    @classmethod
    def of(cls, rows: Sequence[Row], lm: LM) -> Batch:
        """These rows, on the model's device."""
        longest = max(len(row.ids) for row in rows)
        empty = {"ids": lm.pad_id, "positions": 0, "blocks": NOWHERE, "memories": 0, "pieces": 0}
        parts = [
            torch.tensor([getattr(row, name) + [fill] * (longest - len(row.ids)) for row in rows], device=lm.device)
            for name, fill in empty.items()
        ]
        ids_BT, positions_BT, blocks_BT, memories_BT, pieces_BT = parts
        return cls(ids_BT, positions_BT, blocks_BT, memories_BT, pieces_BT, lm.vocab_size)

    @property
    def real(self) -> Tensor:
        """bool [B, T], false where padded."""
        return self.blocks_BT != NOWHERE

    def sees(self, settings: CcmSettings) -> Tensor:
        """bool [B, T, T]: its own block up to itself, the COMP tokens of its memory unless merged, and a sink."""
        size = self.ids_BT.shape[1]
        causal_TT = torch.ones(size, size, dtype=torch.bool, device=self.ids_BT.device).tril()
        own_BTT = (self.blocks_BT[:, :, None] == self.blocks_BT[:, None]) & causal_TT
        if settings.update == "concat":
            pieces_B1T = self.pieces_BT[:, None]
            own_BTT = own_BTT | (pieces_B1T > 0) & (pieces_B1T <= self.memories_BT[:, :, None])
        if settings.sink:
            own_BTT = own_BTT | (self.pieces_BT == BEGINS)[:, None] & causal_TT
        return own_BTT

    def merged(self, settings: CcmSettings) -> tuple[Tensor, Tensor]:
        """How much of each token's keys and values every slot of a merged memory holds, [B, E, T], and who sees it.

        Slots are those of the memory after the first piece, then of that after the second, and so on; bool [B, T, E].
        """
        comp, steps = settings.comp_tokens, int(self.pieces_BT.max())
        weights_SS = merge_weights(settings, steps).to(self.ids_BT.device)
        by_step_BST = weights_SS[:, (self.pieces_BT - 1).clamp(min=0)].transpose(0, 1)
        comp_ids_n = torch.arange(comp, device=self.ids_BT.device) + self.vocabulary
        of_kind_BnT = self.ids_BT[:, None] == comp_ids_n[:, None]
        mix_BET = (by_step_BST[:, :, None] * of_kind_BnT[:, None]).flatten(1, 2)
        made_E = torch.arange(1, steps + 1, device=self.ids_BT.device).repeat_interleave(comp)
        return mix_BET, self.memories_BT[:, :, None] == made_E

    def merging(self, settings: CcmSettings) -> Callable[[Call], Tensor]:
        """Attention of every layer, with the merged memories of all steps as further slots."""
        mix_BET, sees_BTE = self.merged(settings)

        def attend(call: Call) -> Tensor:
            assert call.mask is not None
            mix = mix_BET[:, None].to(call.key.dtype)
            key, value = (torch.cat([held, mix @ held], 2) for held in (call.key, call.value))
            mask = torch.cat([call.mask.expand(len(mix), -1, -1, -1), sees_BTE[:, None]], 3)
            out = scaled_dot_product_attention(
                call.query, key, value, attn_mask=mask, scale=call.scaling, enable_gqa=True
            )
            return out.transpose(1, 2)

        return attend


def merge_weights(settings: CcmSettings, steps: int) -> Tensor:
    """[S, S]: how much of each piece the memory after each step holds; rows sum to 1."""
    weights = torch.zeros(steps, steps)
    for step in range(steps):
        newest = settings.weight(step + 1)
        if step:
            weights[step] = (1 - newest) * weights[step - 1]
        weights[step, step] = newest
    return weights
