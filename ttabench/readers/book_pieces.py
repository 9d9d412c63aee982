"""A long text cut by tokens into what is read and what is scored: every stride is scored before it is read.

    window 4, stride 2, text of 9 tokens          [0 1 2 3] [4 5] [6 7] [8]
    Observe(0..2), Ask(3 -> 4..5), Observe(3..4), Ask(5 -> 6..7), Observe(5..6), Ask(7 -> 8)

A stride is predicted from the token before it, which therefore is the prompt of its query and is read after it: what
a method keeps need not be able to predict anything by itself. The text is tokenised once; pieces carry its ids and the
characters they stand for. A text no longer than its first window is one query.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from ttabench.core.sizes import CHARACTERS_A_TOKEN
from ttabench.core.types import Ask, At, Observe, Score, Step
from ttabench.readers.tokens import Tokens

_WORD = re.compile(r"\S+")


class Span(NamedTuple):
    """Tokens `start` to `end` (not included) of a text."""

    start: int
    end: int
    asked: bool
    """Whether they are scored before they are read."""


def spans(total: int, first: int, stride: int, *, score_first: bool) -> list[Span]:
    """The pieces of a text of `total` tokens: the first one, then strides, the last as long as the text lasts."""
    assert min(total, first, stride) > 0, f"no text, window or stride in {total}, {first}, {stride}"
    if total <= first:
        return [Span(0, total, True)]
    bounds = [0, *range(first, total, stride), total]
    return [Span(start, end, start > 0 or score_first) for start, end in pairwise(bounds)]


def up_to(pieces: Sequence[Span], asked: int | None) -> list[Span]:
    """The pieces up to the one that is asked as number `asked`, counted from 1; all of them for None."""
    counts = accumulate(span.asked for span in pieces)
    return [span for span, count in zip(pieces, counts, strict=True) if asked is None or count <= asked]


@dataclass(frozen=True)
class CutText:
    """A text with its tokens."""

    text: str
    ids: tuple[int, ...]
    """Empty where no base model is known."""
    starts: tuple[int, ...]
    """Character at which each token begins, never falling."""
    words: tuple[int, ...]
    """Character at which each word begins."""

    @classmethod
    def of(cls, text: str, tokens: Tokens | None) -> CutText:
        """Tokenise a text, as a whole. Without a base model every 4 characters count as one token without an id."""
        ids, starts = list[int](), list(range(0, len(text), CHARACTERS_A_TOKEN))
        if tokens is not None:
            ids, starts = tokens.encode_with_starts(text)
        return cls(text, tuple(ids), tuple(accumulate(starts, max)), tuple(m.start() for m in _WORD.finditer(text)))

    def __len__(self) -> int:
        return len(self.starts)

    def range(self, start: int, end: int) -> CutText:
        """Only these tokens."""
        first, last = self._place(start), self._place(end)
        words = self.words[bisect_left(self.words, first) : bisect_left(self.words, last)]
        return CutText(
            self.text[first:last],
            self.ids[start:end],
            tuple(place - first for place in self.starts[start:end]),
            tuple(place - first for place in words),
        )

    def _place(self, token: int) -> int:
        """The character at which the part of this token begins; characters before the first token are its own."""
        if token <= 0:
            return 0
        return self.starts[token] if token < len(self.starts) else len(self.text)


def steps(text: CutText, pieces: Sequence[Span], key: str, book: str, lengths: Sequence[int]) -> Iterator[Step]:
    """The query about every piece that is asked, and what is read before it. A key is that of the text and the first
    token of the piece; each query carries the smallest of the ascending lengths that holds it as its place.
    """
    read = 0
    for start, end, asked in pieces:
        if not asked:
            continue
        before = max(0, start - 1)
        if before > read:
            piece = text.range(read, before)
            yield Observe(text=piece.text, key=f"{key}@{read}", joiner="", ids=piece.ids)
            read = before
        prompt, target = text.range(before, start), text.range(start, end)
        yield Ask(
            prompt=prompt.text,
            joiner="",
            key=f"{key}@{start}",
            want=Score(
                continuation=target.text,
                ids=target.ids,
                prompt_ids=prompt.ids,
                position=start,
                words=len(target.words),
            ),
            at=At(lengths[bisect_left(lengths, end)], "tokens"),
            subtask=book,
        )
