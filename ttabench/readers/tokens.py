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

from ttabench.core.amounts import CHARS_PER_TOKEN, parse_tokens
from ttabench.core.types import Chunk


class Tokens(Protocol):
    """A tokenizer; `ttabench.lm.model.LM` is one."""

    @property
    def frame_tokens(self) -> int:
        """Tokens around a context and a question: what begins a text and, in a chat template, what closes a turn."""

    def encode(self, text: str) -> list[int]:
        """Token ids without special tokens."""

    def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
        """The same, and where in the text each token begins (in characters)."""


TokenCounter: TypeAlias = Callable[[str], int]
"""How many tokens a text has."""


def estimate_tokens(text: str) -> int:
    """Tokens of a text where no tokenizer is at hand."""
    return math.ceil(len(text) / CHARS_PER_TOKEN)


def token_counter(tokens: Tokens | None) -> TokenCounter:
    """The count of a base model, or the estimate where there is none yet."""
    return estimate_tokens if tokens is None else lambda text: len(tokens.encode(text))


def count_fitting(sizes: Iterable[int], max_tokens: int, reserved: int) -> int:
    """How many pieces of these sizes, one after another, fit into so many tokens beside what takes some of them."""
    return bisect_right(list(accumulate(sizes)), max_tokens - reserved)


@dataclass(frozen=True)
class TokenizedText:
    """A text with its tokens."""

    text: str
    ids: tuple[int, ...]
    """Empty where no base model is known."""
    starts: tuple[int, ...]
    """Character at which each token begins, never falling."""
    words: tuple[int, ...]
    """Character at which each word begins."""

    @classmethod
    def tokenize(cls, text: str, tokens: Tokens | None) -> TokenizedText:
        """Tokenise a text, as a whole. Without a base model every 4 characters count as one token without an id."""
        ids, starts = list[int](), list(range(0, len(text), CHARS_PER_TOKEN))
        if tokens is not None:
            ids, starts = tokens.encode_with_starts(text)
        words = (match.start() for match in re.finditer(r"\S+", text))
        return cls(text, tuple(ids), tuple(accumulate(starts, max)), tuple(words))

    def __len__(self) -> int:
        return len(self.starts)

    def slice_tokens(self, start: int, end: int) -> TokenizedText:
        """Only these tokens."""
        first, last = self._first_char(start), self._first_char(end)
        words = self.words[bisect_left(self.words, first) : bisect_left(self.words, last)]
        return TokenizedText(
            self.text[first:last],
            self.ids[start:end],
            tuple(place - first for place in self.starts[start:end]),
            tuple(place - first for place in words),
        )

    def chunk_ends(self, chunk: int) -> list[int]:
        """Tokens at which pieces end: with the last line that fits, or in a line that is longer than a piece."""
        ends: list[int] = []
        while (start := ends[-1] if ends else 0) < len(self):
            end = min(start + chunk, len(self))
            if end < len(self):
                line = self.text.rfind("\n", 0, self.starts[end]) + 1
                token = bisect_left(self.starts, line)
                end = token if token > start else end
            ends.append(end)
        return ends

    def chunks(self, max_tokens: int, key: str, begin: int = 0) -> Iterator[Chunk]:
        """The text in pieces of at most so many tokens; keys have their first tokens, counted from `begin`."""
        start = 0
        for end in self.chunk_ends(max_tokens):
            chunk = self.slice_tokens(start, end)
            yield Chunk(text=chunk.text, key=f"{key}@{begin + start}", joiner="", ids=chunk.ids)
            start = end

    def _first_char(self, token: int) -> int:
        """The character at which the part of this token begins; characters before the first token are its own."""
        if token <= 0:
            return 0
        return self.starts[token] if token < len(self.starts) else len(self.text)


# --- in settings of protocols -----------------------------------------------------------------------------------------


def _parse_tokens(value: object) -> object:
    """`"16k"` as 16,384."""
    count = parse_tokens(value) if isinstance(value, str) else value
    if count is None:
        raise ValueError(f"{value!r} is no number of tokens such as 512 or 16k")
    return count


def parse_list(value: object) -> object:
    """`"1,2,4"` or one number as a tuple."""
    return (
        tuple(value.split(","))
        if isinstance(value, str)
        else (value,)
        if isinstance(value, int)
        else value
    )


TokenCount = Annotated[int, BeforeValidator(_parse_tokens), Field(gt=0)]
"""A number of tokens in the settings of a protocol, also as `16k`."""
TokenLimit = Annotated[int, BeforeValidator(_parse_tokens), Field(ge=0)]
"""The same, where 0 means no limit."""
TokenCounts = Annotated[tuple[TokenCount, ...], Field(min_length=1), BeforeValidator(parse_list)]
"""Several, also as `4k,16k`."""
StepCounts = Annotated[
    tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), BeforeValidator(parse_list)
]
"""Pieces after which something is asked, also as `1,2,4`."""
