"""Training loss of an episode in one forward: pieces, what they are compressed into, questions and answers in one row.

A row is blocks of tokens. A block sees itself up to each token, and all of some blocks before it; or, as `memory`,
slots that attention makes of the row's own keys and values, layer by layer.

Shape letters: B episodes · T tokens · C width · N targets · H key/value heads · D head size · E slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ttabench.core.types import Chunk, Episode
from ttabench.lm.attention import AttentionCall, observe_attention
from ttabench.lm.forward.patching import hidden_states
from ttabench.lm.forward.tokens import chunk_ids, window_ids
from ttabench.lm.forward.window import Layout
from ttabench.lm.inference.scoring import logprobs_of
from ttabench.lm.model import LM
from ttabench.lm.patch import Delta, Patch
from ttabench.methods.trainable import training_item


@dataclass
class Row:
    """One episode as the tokens of one row."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    memories: list[int] = field(default_factory=list)
    """How many pieces a token sees as slots."""
    marked: list[bool] = field(default_factory=list)
    """At which tokens a LoRA acts that does not act at all."""
    targets: list[tuple[int, int]] = field(default_factory=list)
    """(place, id of the token that is to be predicted there)."""

    spans: list[range] = field(default_factory=list)
    """Places of each block."""
    sees: list[tuple[int, ...]] = field(default_factory=list)
    """Blocks that each block sees, itself among them."""
    starts: list[int] = field(default_factory=list)
    """Blocks: of what begins the text; of the pieces; of COMP tokens."""
    texts: list[int] = field(default_factory=list)
    comps: list[int] = field(default_factory=list)

    def add(
        self,
        ids: Sequence[int],
        first: int,
        sees: Iterable[int] = (),
        memory: int = 0,
        *,
        marked: bool = False,
    ) -> int:
        """A block more, at positions from `first` on; its number."""
        block, begin = len(self.spans), len(self.ids)
        self.ids += ids
        self.positions += range(first, first + len(ids))
        self.blocks += [block] * len(ids)
        self.memories += [memory] * len(ids)
        self.marked += [marked] * len(ids)
        self.spans.append(range(begin, len(self.ids)))
        self.sees.append((*sees, block))
        return block


def add_chunk(row: Row, ids: list[int], first: int) -> None:
    """A piece that sees all text before it."""
    row.texts.append(row.add(ids, first, [*row.starts, *row.texts]))


def episode_row(
    lm: LM,
    episode: Episode,
    piece: Callable[[Row, list[int], int], None] = add_chunk,
    question: Callable[[Row, int], tuple[list[int], int]] = lambda row, _: (
        [*row.starts, *row.texts],
        0,
    ),
) -> Row:
    """An episode as one row, by default under full context. `piece` adds a piece to the row: its ids, and the position
    of the first of them; `question`: which blocks the next question sees, and how many pieces as slots; it may add
    blocks first, at that position."""
    row, tokens = Row(), 0
    for step in episode.steps:
        begun = bool(row.texts)
        if isinstance(step, Chunk):
            ids = chunk_ids(lm, step, first=not tokens)
            if not begun and lm.start_ids:
                row.starts.append(row.add(lm.start_ids, 0))
            piece(row, ids, len(lm.start_ids) + tokens)
            tokens += len(ids)
            continue
        first = len(lm.start_ids) + tokens if begun else 0
        seen, memory = question(row, first) if begun else ([], 0)
        window = window_ids(lm, step, is_continuation=begun)
        prompt, target = training_item(lm, step, is_continuation=bool(begun or window))
        # the answer's last token is predicted and not read
        text = [*([] if begun else lm.start_ids), *window, *prompt, *target][:-1]
        end = row.spans[row.add(text, first, seen, memory)].stop
        row.targets += enumerate(target, end - len(target))
    return row


@dataclass(frozen=True)
class Batch:
    """Rows of one length, padded behind."""

    ids_BT: Tensor
    positions_BT: Tensor
    memories_BT: Tensor
    delta_mask_BT: Tensor
    real_BT: Tensor
    sees_BTT: Tensor
    """bool: which tokens each of them sees."""

    @classmethod
    def of(cls, rows: Sequence[Row], lm: LM) -> Batch:
        """These rows, on the model's device."""
        longest = max(len(row.ids) for row in rows)

        def padded(name: str, fill: int = 0) -> Tensor:
            values = [getattr(row, name) + [fill] * (longest - len(row.ids)) for row in rows]
            return torch.tensor(values, device=lm.device)

        pairs = [
            (row_index, b, other)
            for row_index, row in enumerate(rows)
            for b, seen in enumerate(row.sees)
            for other in seen
        ]
        blocks = max(len(row.spans) for row in rows)
        sees_BSS = torch.zeros(len(rows), blocks, blocks, dtype=torch.bool, device=lm.device)
        sees_BSS[torch.tensor(pairs, device=lm.device).unbind(1)] = True
        blocks_BT, at_B11 = (
            padded("blocks"),
            torch.arange(len(rows), device=lm.device)[:, None, None],
        )
        sees_BTT = sees_BSS[at_B11, blocks_BT[:, :, None], blocks_BT[:, None]].tril()
        lengths_B1 = torch.tensor([[len(row.ids)] for row in rows], device=lm.device)
        real_BT = torch.arange(longest, device=lm.device) < lengths_B1
        ids_BT, delta_mask_BT = padded("ids", lm.pad_id), padded("marked").bool()
        return cls(
            ids_BT, padded("positions"), padded("memories"), delta_mask_BT, real_BT, sees_BTT
        )


RowT = TypeVar("RowT", bound=Any)
MAX_LENGTH_RATIO = 1.25
"""How much longer than the shortest the longest row of a forward may be."""


def group_by_length(rows: Sequence[RowT]) -> list[list[RowT]]:
    """The rows in groups of about one length, for a forward each: what is padded is computed, too."""
    groups: list[list[RowT]] = []
    for row in sorted(rows, key=lambda row: len(row.ids)):
        if groups and len(row.ids) <= MAX_LENGTH_RATIO * len(groups[-1][0].ids):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


Slots = tuple[Callable[[AttentionCall], tuple[Tensor, Tensor]], Tensor]
"""What makes keys and values [B, H, E, D] of a layer's own, and which of them each token sees, bool [B, T, E]."""


def answer_loss(
    lm: LM,
    rows: Sequence[Row],
    deltas: Mapping[str, Delta],
    *,
    embeddings_NC: Tensor | None = None,
    marked: bool = False,
    slots: Callable[[list[Row], Batch], Slots] | None = None,
) -> Tensor:
    """Mean negative log-likelihood of all target tokens of these rows; differentiable. `deltas`: under which the
    rows are read; `embeddings_NC`: of the ids behind the vocabulary; `marked`: whether the deltas act at marked tokens
    alone; `slots`: what a forward's rows remember beside what they see."""
    asked = [row for row in rows if row.targets]
    assert asked, "training episodes without a query"
    values = []
    for group in group_by_length(asked):
        batch = Batch.of(group, lm)
        layout = Layout(
            positions_BT=batch.positions_BT,
            visible_BTS=batch.sees_BTT,
            embeddings_BTC=None if embeddings_NC is None else lm.embed(batch.ids_BT, embeddings_NC),
            delta_mask_BT=batch.delta_mask_BT if marked else None,
        )
        with (
            nullcontext()
            if slots is None
            else observe_attention(_attention_with_slots(*slots(group, batch)))
        ):
            hidden_BTC, _ = hidden_states(
                lm, Patch(deltas=deltas), batch.ids_BT, layout, batch.real_BT
            )
        places = [
            (row_index, place, token)
            for row_index, row in enumerate(group)
            for place, token in row.targets
        ]
        rows_N, places_N, wanted_N = torch.tensor(places, device=lm.device).unbind(1)
        values.append(logprobs_of(lm, hidden_BTC[rows_N, places_N], wanted_N))
    return -torch.cat(values).mean()


def _attention_with_slots(
    make: Callable[[AttentionCall], tuple[Tensor, Tensor]], sees_BTE: Tensor
) -> Callable[[AttentionCall], Tensor]:
    """Attention of every layer, [B, T, N, D], with the slots behind the tokens."""

    def attend(call: AttentionCall) -> Tensor:
        assert call.mask is not None
        mask = torch.cat([call.mask.expand(len(sees_BTE), -1, -1, -1), sees_BTE[:, None]], 3)
        keys, values = (
            torch.cat(pair, 2) for pair in zip((call.key, call.value), make(call), strict=True)
        )
        about: dict[str, Any] = {"attn_mask": mask, "scale": call.scaling, "enable_gqa": True}
        return scaled_dot_product_attention(call.query, keys, values, **about).transpose(1, 2)

    return attend
