"""Training loss of an episode in one forward: pieces, what they are compressed into, questions and answers in one row.

Shape letters: B episodes · T tokens · C width · N targets · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ttabench.core.types import Ask, Episode, Observe
from ttabench.lm.attention.layout import Layout
from ttabench.lm.forward.patching import hidden_states
from ttabench.lm.forward.tokens import piece_ids, window_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import Delta, Patch
from ttabench.methods.trainable import training_item

NOWHERE = -1
"""Block of padding."""
BEGINS = -1
"""Text number of the token that begins what is read."""


@dataclass
class Row:
    """One episode as the tokens of one row."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    """How many pieces a token sees as text, beyond its own block."""
    memories: list[int] = field(default_factory=list)
    """How many pieces a token sees as what they became."""
    texts: list[int] = field(default_factory=list)
    """At a token of a piece its number, from 1 on; `BEGINS`; else 0."""
    pieces: list[int] = field(default_factory=list)
    """At a COMP token the number of the piece, the last of them, that it compresses, from 1 on; else 0."""
    targets: list[tuple[int, int]] = field(default_factory=list)
    """(place, id of the token that is to be predicted there)."""
    slots: list[tuple[list[int], int]] = field(default_factory=list)
    """Of every slot that tokens are pooled into their places, and the number of their piece."""

    tokens: int = 0
    """Of all pieces so far."""
    done: int = 0
    """Pieces so far."""

    def add(self, ids: Sequence[int], first: int, block: int, **told: int) -> None:
        """More tokens of a block, at positions from `first` on; `told`: other fields, 0 where not given."""
        self.ids += ids
        self.positions += range(first, first + len(ids))
        self.blocks += [block] * len(ids)
        for name in ("reads", "memories", "texts", "pieces"):
            getattr(self, name).extend([told.get(name, 0)] * len(ids))

    def ask(self, lm: LM, ask: Ask, sees: str) -> None:
        """A question and its answer, a block of their own; the answer's last token is predicted and not read. Where no
        piece stands before it, it begins with what begins a text; `sees`: how it sees all pieces so far."""
        begun = self.done > 0
        window = window_ids(lm, ask, follows=begun)
        prompt, target = training_item(lm, ask, follows=bool(begun or window))
        text = [*([] if begun else lm.start_ids), *window, *prompt, *target]
        begin = len(self.ids) + len(text) - len(target)
        first = len(lm.start_ids) + self.tokens if begun else 0
        self.add(text[:-1], first, self.next_block, **{sees: self.done})
        self.targets += [(begin + place - 1, token) for place, token in enumerate(target)]

    @property
    def next_block(self) -> int:
        """A number that no block has."""
        return self.blocks[-1] + 1 if self.blocks else 0


Laying = Callable[[Row, list[int], int, int], None]
"""Adds a piece to a row that counts it already: its ids, the position of the first of them, and its block."""


def laid(
    lm: LM,
    episode: Episode,
    laying: Laying = lambda row, ids, first, block: row.add(ids, first, block, reads=row.done, texts=row.done),
    asking: Callable[[Row], None] = lambda _: None,
    sees: str = "reads",
) -> Row:
    """An episode as one row, by default under full context: pieces and questions see all pieces before them. `asking`:
    what is added before a question; `sees`: "reads", or "memories" where questions see what the pieces became."""
    row = Row()
    for step in episode.steps:
        if not isinstance(step, Observe):
            asking(row)
            row.ask(lm, step, sees)
            continue
        ids, block = piece_ids(lm, step, first=not row.tokens), row.next_block
        if not row.done:
            row.add(lm.start_ids, 0, block, texts=BEGINS)
        row.done += 1
        laying(row, ids, len(lm.start_ids) + row.tokens, block)
        row.tokens += len(ids)
    return row


@dataclass(frozen=True)
class Batch:
    """Rows of one length, padded behind."""

    ids_BT: Tensor
    positions_BT: Tensor
    blocks_BT: Tensor
    reads_BT: Tensor
    memories_BT: Tensor
    texts_BT: Tensor
    pieces_BT: Tensor

    @classmethod
    def of(cls, rows: Sequence[Row], lm: LM) -> Batch:
        """These rows, on the model's device."""
        longest = max(len(row.ids) for row in rows)
        empty = dict.fromkeys(("positions", "reads", "memories", "texts", "pieces"), 0)
        empty |= {"ids": lm.pad_id, "blocks": NOWHERE}
        parts = {
            f"{name}_BT": [getattr(row, name) + [fill] * (longest - len(row.ids)) for row in rows]
            for name, fill in empty.items()
        }
        return cls(**{name: torch.tensor(part, device=lm.device) for name, part in parts.items()})

    @property
    def real(self) -> Tensor:
        """bool [B, T], false where padded."""
        return self.blocks_BT != NOWHERE

    def sees(self, *, sink: bool = False) -> Tensor:
        """bool [B, T, T]: its own block up to itself, and the text that it reads; with `sink` what begins it, too."""
        size = self.ids_BT.shape[1]
        causal_TT = torch.ones(size, size, dtype=torch.bool, device=self.ids_BT.device).tril()
        own_BTT = self.blocks_BT[:, :, None] == self.blocks_BT[:, None]
        reads_BT1, texts_B1T = self.reads_BT[:, :, None], self.texts_BT[:, None]
        own_BTT = own_BTT | (texts_B1T > 0) & (texts_B1T <= reads_BT1)
        own_BTT = own_BTT | (texts_B1T == BEGINS) & ((reads_BT1 > 0) | sink)
        return own_BTT & causal_TT


LaidT = TypeVar("LaidT", bound=Any)
ALIKE = 1.25
"""How much longer than the shortest the longest row of a forward may be."""


def alike(rows: Sequence[LaidT]) -> list[list[LaidT]]:
    """The rows in groups of about one length, for a forward each: what is padded is computed, too."""
    groups: list[list[LaidT]] = []
    for row in sorted(rows, key=lambda row: len(row.ids)):
        if groups and len(row.ids) <= ALIKE * len(groups[-1][0].ids):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def mean_nll(rows: Sequence[Row], nll: Callable[[list[Row]], tuple[Tensor, int]]) -> Tensor:
    """Mean negative log-likelihood of all target tokens of these rows; `nll` gives the sum, and the count, of some."""
    asked = [row for row in rows if row.targets]
    assert asked, "training episodes without a query"
    sums, counts = zip(*map(nll, alike(asked)), strict=True)
    mean: Tensor = torch.stack(sums).sum() / sum(counts)
    return mean


def answer_nll(
    lm: LM,
    rows: Sequence[Row],
    batch: Batch,
    layout: Layout,
    deltas: Mapping[str, Delta],
    attending: AbstractContextManager[None],
) -> tuple[Tensor, int]:
    """Sum of the negative log-likelihoods of all target tokens, and their count; differentiable."""
    with attending:
        hidden_BTC, _ = hidden_states(lm, Patch(deltas=deltas), batch.ids_BT, layout, batch.real)
    places = [(number, place) for number, row in enumerate(rows) for place, _ in row.targets]
    wanted = [token for row in rows for _, token in row.targets]
    at_N2 = torch.tensor(places, device=lm.device)
    logits_NV = lm.logits(hidden_BTC[at_N2[:, 0], at_N2[:, 1]]).float()
    return cross_entropy(logits_NV, torch.tensor(wanted, device=lm.device), reduction="sum"), len(wanted)
