"""Texts cut by the tokens of a base model, or by an estimate of them where there is none yet; numbers of tokens as they
are typed."""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Protocol, TypeAlias

from pydantic import BeforeValidator, Field

from ttabench.core.amounts import CHARACTERS_A_TOKEN, tokens_in
from ttabench.core.types import Observe


class Tokens(Protocol):
    """A tokenizer; `ttabench.lm.model.LM` is one."""

    @property
    def frame_tokens(self) -> int:
        """Tokens around a context and a question: what begins a text and, in a chat template, what closes a turn."""

    def encode(self, text: str) -> list[int]:
        """Token ids without special tokens."""

    def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
        """The same, and where in the text each token begins (in characters)."""


Count: TypeAlias = Callable[[str], int]
"""How many tokens a text has."""


def estimate(text: str) -> int:
    """Tokens of a text where no tokenizer is at hand."""
    return math.ceil(len(text) / CHARACTERS_A_TOKEN)


def counted_by(tokens: Tokens | None) -> Count:
    """The count of a base model, or the estimate where there is none yet."""
    return estimate if tokens is None else lambda text: len(tokens.encode(text))


def fitting(sizes: Iterable[int], most: int, beside: int) -> int:
    """How many pieces of these sizes, one after another, fit into so many tokens beside what takes some of them."""
    return bisect_right(list(accumulate(sizes)), most - beside)


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
        words = (match.start() for match in re.finditer(r"\S+", text))
        return cls(text, tuple(ids), tuple(accumulate(starts, max)), tuple(words))

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

    def ends(self, piece: int) -> list[int]:
        """Tokens at which pieces end: with the last line that fits, or in a line that is longer than a piece."""
        ends: list[int] = []
        while (start := ends[-1] if ends else 0) < len(self):
            end = min(start + piece, len(self))
            if end < len(self):
                line = self.text.rfind("\n", 0, self.starts[end]) + 1
                token = bisect_left(self.starts, line)
                end = token if token > start else end
            ends.append(end)
        return ends

    def pieces(self, most: int, key: str, begin: int = 0) -> Iterator[Observe]:
        """The text in pieces of at most so many tokens; keys have their first tokens, counted from `begin`."""
        start = 0
        for end in self.ends(most):
            piece = self.range(start, end)
            yield Observe(text=piece.text, key=f"{key}@{begin + start}", joiner="", ids=piece.ids)
            start = end

    def _place(self, token: int) -> int:
        """The character at which the part of this token begins; characters before the first token are its own."""
        if token <= 0:
            return 0
        return self.starts[token] if token < len(self.starts) else len(self.text)


# --- in settings of protocols -----------------------------------------------------------------------------------------


def _count(value: object) -> object:
    """`"16k"` as 16,384."""
    count = tokens_in(value) if isinstance(value, str) else value
    if count is None:
        raise ValueError(f"{value!r} is no number of tokens such as 512 or 16k")
    return count


def listed(value: object) -> object:
    """`"1,2,4"` or one number as a tuple."""
    return tuple(value.split(",")) if isinstance(value, str) else (value,) if isinstance(value, int) else value


TokenCount = Annotated[int, BeforeValidator(_count), Field(gt=0)]
"""A number of tokens in the settings of a protocol, also as `16k`."""
TokenLimit = Annotated[int, BeforeValidator(_count), Field(ge=0)]
"""The same, where 0 means no limit."""
TokenCounts = Annotated[tuple[TokenCount, ...], Field(min_length=1), BeforeValidator(listed)]
"""Several, also as `4k,16k`."""
StepCounts = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), BeforeValidator(listed)]
"""Pieces after which something is asked, also as `1,2,4`."""
