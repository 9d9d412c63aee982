"""Training loss of an episode in one forward pass: chunks, memory, queries and answers in a row.

A row is a sequence of blocks of tokens. A token sees its own block up to itself, and the whole of
some earlier blocks. As `memory`, it sees slots computed from keys and values of the row in each
layer.

Shape letters: B episodes · T tokens · C width · N targets · H key/value heads ·
    D head size · E slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ttabench.core.types import Chunk, Episode
from ttabench.lm.attention import AttentionCall, observe_attention
from ttabench.lm.forward.patching import hidden_states
from ttabench.lm.forward.tokens import chunk_ids, pad, window_ids
from ttabench.lm.forward.window import Layout
from ttabench.lm.inference.scoring import logprobs_of
from ttabench.lm.model import LM
from ttabench.lm.patch import Delta, Patch
from ttabench.methods.trainable import training_item


@dataclass
class Row:
    """Tokens of one episode as one row."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    memories: list[int] = field(default_factory=list)
    """Number of chunks that a token sees as slots."""
    marked: list[bool] = field(default_factory=list)
    """True for tokens with a LoRA that applies only to marked tokens."""
    targets: list[tuple[int, int]] = field(default_factory=list)
    """(position in the row, id of the token to predict there)."""

    spans: list[range] = field(default_factory=list)
    """Range of each block in the row."""
    sees: list[tuple[int, ...]] = field(default_factory=list)
    """Blocks that each block sees, itself included."""
    starts: list[int] = field(default_factory=list)
    """Blocks with the start of the text (BOS)."""
    texts: list[int] = field(default_factory=list)
    """Blocks with chunks."""
    comps: list[int] = field(default_factory=list)
    """Blocks with COMP tokens."""

    def add(
        self,
        ids: Sequence[int],
        first: int,
        sees: Iterable[int] = (),
        memory: int = 0,
        *,
        marked: bool = False,
    ) -> int:
        """Append a block at positions from `first`, and return its index."""
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
    """Append a chunk that sees all text before it."""
    row.texts.append(row.add(ids, first, [*row.starts, *row.texts]))


def episode_row(
    lm: LM,
    episode: Episode,
    add_text: Callable[[Row, list[int], int], None] = add_chunk,
    visible: Callable[[Row, int], tuple[list[int], int]] = lambda row, _: (
        [*row.starts, *row.texts],
        0,
    ),
) -> Row:
    """Convert an episode to one row, by default with full context.

    Args:
        add_text: appends a chunk to the row, from its ids and the position of the first one.
        visible: returns the blocks that the next query sees, and the number of chunks that it sees
            as slots. It may append blocks first, at the given position.
    """
    row, tokens = Row(), 0
    for step in episode.steps:
        begun = bool(row.texts)
        if isinstance(step, Chunk):
            ids = chunk_ids(lm, step, first=not tokens)
            if not begun and lm.start_ids:
                row.starts.append(row.add(lm.start_ids, 0))
            add_text(row, ids, len(lm.start_ids) + tokens)
            tokens += len(ids)
            continue
        first = len(lm.start_ids) + tokens if begun else 0
        seen, memory = visible(row, first) if begun else ([], 0)
        window = window_ids(lm, step, is_continuation=begun)
        prompt, target = training_item(lm, step, is_continuation=bool(begun or window))
        # the last token of the answer is predicted, but not read
        text = [*([] if begun else lm.start_ids), *window, *prompt, *target][:-1]
        end = row.spans[row.add(text, first, seen, memory)].stop
        row.targets += enumerate(target, end - len(target))
    return row


@dataclass(frozen=True)
class Batch:
    """Rows of one length, with padding at the end."""

    ids_BT: Tensor
    positions_BT: Tensor
    memories_BT: Tensor
    delta_mask_BT: Tensor
    real_BT: Tensor
    sees_BTT: Tensor
    """bool: mask of the tokens that each token sees."""

    @classmethod
    def of(cls, rows: Sequence[Row], lm: LM) -> Batch:
        """Pad rows to a batch on the model's device."""

        def padded(name: str) -> Tensor:
            return pad([getattr(row, name) for row in rows], 0, "right", lm.device)[0]

        ids_BT, real_BT = pad([row.ids for row in rows], lm.pad_id, "right", lm.device)
        pairs = [
            (row_index, b, other)
            for row_index, row in enumerate(rows)
            for b, seen in enumerate(row.sees)
            for other in seen
        ]
        blocks = max(len(row.spans) for row in rows)
        sees_BSS = torch.zeros(len(rows), blocks, blocks, dtype=torch.bool, device=lm.device)
        sees_BSS[torch.tensor(pairs, device=lm.device).unbind(1)] = True
        blocks_BT = padded("blocks")
        rows_B11 = torch.arange(len(rows), device=lm.device)[:, None, None]
        sees_BTT = sees_BSS[rows_B11, blocks_BT[:, :, None], blocks_BT[:, None]].tril()
        delta_mask_BT = padded("marked").bool()
        return cls(
            ids_BT, padded("positions"), padded("memories"), delta_mask_BT, real_BT, sees_BTT
        )


RowT = TypeVar("RowT", bound=Any)
MAX_LENGTH_RATIO = 1.25
"""Maximum ratio of the longest to the shortest row of a forward pass."""


def group_by_length(rows: Sequence[RowT]) -> list[list[RowT]]:
    """Group rows of similar length, one forward pass per group, to limit computation on padding."""
    groups: list[list[RowT]] = []
    for row in sorted(rows, key=lambda row: len(row.ids)):
        if groups and len(row.ids) <= MAX_LENGTH_RATIO * len(groups[-1][0].ids):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


Slots = tuple[Callable[[AttentionCall], tuple[Tensor, Tensor]], Tensor]
"""Function to keys and values of slots [B, H, E, D] of a layer; mask of slots, bool [B, T, E]."""


def row_loss(
    lm: LM,
    rows: Sequence[Row],
    deltas: Mapping[str, Delta],
    *,
    embeddings_NC: Tensor | None = None,
    marked: bool = False,
    slots: Callable[[list[Row], Batch], Slots] | None = None,
) -> Tensor:
    """Compute the answer NLL (nats/token) of these rows; differentiable.

    Args:
        deltas: weight deltas of the forward pass.
        embeddings_NC: embeddings of ids after the vocabulary.
        marked: True to apply the deltas only to marked tokens.
        slots: returns the memory slots of the rows of a forward pass.
    """
    with_targets = [row for row in rows if row.targets]
    assert with_targets, "training episodes without a query"
    values = []
    for group in group_by_length(with_targets):
        batch = Batch.of(group, lm)
        layout = Layout(
            positions_BT=batch.positions_BT,
            visible_BTS=batch.sees_BTT,
            embeddings_BTC=None if embeddings_NC is None else lm.embed(batch.ids_BT, embeddings_NC),
            delta_mask_BT=batch.delta_mask_BT if marked else None,
        )
        attend = None if slots is None else _attention_with_slots(*slots(group, batch))
        with observe_attention(attend):
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
    """Return an attention function [B, T, N, D] that adds the slots after the tokens."""

    def attend(call: AttentionCall) -> Tensor:
        assert call.mask is not None
        mask = torch.cat([call.mask.expand(len(sees_BTE), -1, -1, -1), sees_BTE[:, None]], 3)
        slot_keys, slot_values = make(call)
        keys = torch.cat([call.key, slot_keys], 2)
        values = torch.cat([call.value, slot_values], 2)
        return scaled_dot_product_attention(
            call.query, keys, values, mask, scale=call.scaling, enable_gqa=True
        ).transpose(1, 2)

    return attend
