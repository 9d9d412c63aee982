"""An episode as the rows of one forward: its chunks, and what is to be predicted after some of them.

Chen et al., arXiv 2411.05877, section 2.3 and appendix: rows are texts by themselves, positions from 0 on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from ttabench.core.types import Ask, Episode, Observe
from ttabench.lm.forward.tokens import new_ids, window_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.methods.trainable import training_item

Cut = Callable[[Sequence[list[int]], bool], list[list[int]]]
"""(ids of pieces, whether something was read before) to the chunks that they are read in."""


@dataclass(frozen=True)
class Row:
    """A text that is read by itself."""

    ids: list[int]
    owner: int
    """Number of the episode whose chunks it is adapted to."""
    after: int
    """How many of these chunks."""
    first: int = 0
    """Place of the first target in `ids`; it is predicted from the token before."""
    part: str = ""
    """Of the loss; empty where nothing is predicted."""

    @property
    def targets(self) -> int:
        """Tokens that are predicted."""
        return len(self.ids) - self.first if self.part else 0


@dataclass(frozen=True)
class Rows:
    """All rows of a forward."""

    chunks: list[Row]
    asked: list[Row]

    @property
    def all(self) -> list[Row]:
        """Chunks first."""
        return [*self.chunks, *self.asked]

    def __add__(self, other: Rows) -> Rows:
        """Both together."""
        return Rows([*self.chunks, *other.chunks], [*self.asked, *other.asked])


def answers(lm: LM, episode: Episode, owner: int, cut: Cut) -> Rows:
    """Chunks of what is read, and every question with its answer behind the chunks that stand before it."""
    chunks: list[Row] = []
    asked: list[Row] = []
    unread: list[Observe] = []

    def flush() -> None:
        ids, before = _ids(lm, unread, begun=bool(chunks)), len(chunks)
        chunks.extend(Row(each, owner, before + at) for at, each in enumerate(cut(ids, bool(chunks))))
        unread.clear()

    for step in episode.steps:
        if isinstance(step, Observe):
            unread.append(step)
        else:
            flush()
            asked.append(_asked(lm, step, owner, len(chunks)))
    return Rows(chunks, asked)


def texts(lm: LM, episode: Episode, owner: int, cut: Cut, parts: Sequence[str]) -> Rows:
    """Chunks of what is read; with "completion" their own tokens are predicted, with "reconstruction" a stretch of what
    was read up to each, as long as the longest chunk, drawn from torch's generator."""
    read = cut(_ids(lm, episode.observes(), begun=False), False)
    part = "completion" if "completion" in parts else ""
    chunks = [Row(ids, owner, at, first=1, part=part) for at, ids in enumerate(read)]
    if "reconstruction" not in parts:
        return Rows(chunks, [])
    whole = [token for ids in read for token in ids]
    longest, asked, end = 0, [], 0
    for at, ids in enumerate(read, 1):
        end, longest = end + len(ids), max(longest, len(ids))
        begin = int(torch.randint(end - min(end, longest) + 1, ()))
        asked.append(Row(whole[begin : begin + longest], owner, at, first=1, part="reconstruction"))
    return Rows(chunks, asked)


def read_by_base(rows: Rows) -> Rows:
    """The same with every chunk read by the base model; what is predicted in them stands in rows of its own."""
    separate = apart(rows)
    return Rows([replace(row, after=0) for row in separate.chunks], separate.asked)


def apart(rows: Rows) -> Rows:
    """The same with what is predicted in chunks as rows of their own, so that it may be adapted to other chunks."""
    again = [row for row in rows.chunks if row.part]
    return Rows([replace(row, part="") for row in rows.chunks], [*again, *rows.asked])


def adapted_to(rows: Rows, shift: int | None) -> Rows:
    """The same with what is asked adapted to as many chunks of the episode `shift` further on; None: to nothing."""
    counts: dict[int, int] = {}
    for row in rows.chunks:
        counts[row.owner] = counts.get(row.owner, 0) + 1
    owners = max(counts) + 1

    def moved(row: Row) -> Row:
        if shift is None:
            return replace(row, after=0)
        owner = (row.owner + shift) % owners
        return replace(row, owner=owner, after=min(row.after, counts.get(owner, 0)))

    return Rows(rows.chunks, [moved(row) for row in rows.asked])


def _ids(lm: LM, pieces: Sequence[Observe], *, begun: bool) -> list[list[int]]:
    """Ids of pieces that follow what was read before, if anything was."""
    before = State(1, meta={"tokens_read": [int(begun)]})
    return new_ids(lm, before, [[piece] for piece in pieces])[0]


def _asked(lm: LM, ask: Ask, owner: int, after: int) -> Row:
    window = window_ids(lm, ask, follows=False)
    prompt, target = training_item(lm, ask, follows=bool(window))
    ids = [*lm.start_ids, *window, *prompt, *target]
    return Row(ids, owner, after, first=len(ids) - len(target), part="answer")
