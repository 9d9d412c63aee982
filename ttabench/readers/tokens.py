"""Texts cut by the tokens of a base model, or by an estimate of them; numbers of tokens in
settings.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Protocol, TypeAlias

from pydantic import BeforeValidator, Field, NonNegativeInt

from ttabench.core.amounts import CHARS_PER_TOKEN, parse_tokens
from ttabench.core.types import Chunk


class Tokens(Protocol):
    """A tokenizer; `ttabench.lm.model.LM` is one."""

    @property
    def frame_tokens(self) -> int:
        """Tokens around a context and a query: the start of a text and, in a chat template, the end
        of a turn.
        """

    def encode(self, text: str) -> list[int]:
        """Encode a text without special tokens."""

    def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
        """Return token ids, and the character at which each token begins."""


TokenCounter: TypeAlias = Callable[[str], int]
"""Counts the tokens of a text."""


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text without a tokenizer."""
    return math.ceil(len(text) / CHARS_PER_TOKEN)


def token_counter(tokens: Tokens | None) -> TokenCounter:
    """Return the base model's token counter, or the estimate without one."""
    return estimate_tokens if tokens is None else lambda text: len(tokens.encode(text))


def count_fitting(sizes: Iterable[int], max_tokens: int, reserved: int) -> int:
    """Return how many consecutive items of these sizes fit into `max_tokens` minus `reserved`."""
    return bisect_right(list(accumulate(sizes)), max_tokens - reserved)


@dataclass(frozen=True)
class TokenizedText:
    """A text with its tokens."""

    text: str
    ids: tuple[int, ...]
    """Token ids; empty without a base model."""
    starts: tuple[int, ...]
    """Character at which each token begins, non-decreasing."""
    words: tuple[int, ...]
    """Character at which each word begins."""

    @classmethod
    def tokenize(cls, text: str, tokens: Tokens | None) -> TokenizedText:
        """Tokenise a text as a whole; without a base model every 4 characters count as one token
        without an id.
        """
        ids, starts = list[int](), list(range(0, len(text), CHARS_PER_TOKEN))
        if tokens is not None:
            ids, starts = tokens.encode_with_starts(text)
        words = (match.start() for match in re.finditer(r"\S+", text))
        return cls(text, tuple(ids), tuple(accumulate(starts, max)), tuple(words))

    def __len__(self) -> int:
        return len(self.starts)

    def slice_tokens(self, start: int, end: int) -> TokenizedText:
        """Return the text of the tokens from `start` to `end` (exclusive)."""
        first, last = self._first_char(start), self._first_char(end)
        words = self.words[bisect_left(self.words, first) : bisect_left(self.words, last)]
        return TokenizedText(
            self.text[first:last],
            self.ids[start:end],
            tuple(place - first for place in self.starts[start:end]),
            tuple(place - first for place in words),
        )

    def chunk_ends(self, max_tokens: int) -> list[int]:
        """Return the tokens at which chunks end: with the last line that fits, else inside a longer
        line.
        """
        ends: list[int] = []
        while (start := ends[-1] if ends else 0) < len(self):
            end = min(start + max_tokens, len(self))
            if end < len(self):
                line = self.text.rfind("\n", 0, self.starts[end]) + 1
                token = bisect_left(self.starts, line)
                end = token if token > start else end
            ends.append(end)
        return ends

    def chunks(self, max_tokens: int, key: str, begin: int = 0) -> Iterator[Chunk]:
        """Yield chunks of at most `max_tokens` tokens; a key contains the first token, counted from
        `begin`.
        """
        start = 0
        for end in self.chunk_ends(max_tokens):
            part = self.slice_tokens(start, end)
            yield Chunk(text=part.text, key=f"{key}@{begin + start}", joiner="", ids=part.ids)
            start = end

    def _first_char(self, token: int) -> int:
        """Return the character at which a token begins; the first token includes any characters
        before it.
        """
        if token <= 0:
            return 0
        return self.starts[token] if token < len(self.starts) else len(self.text)


# --- settings of protocols ------------------------------------------------------------------------


def _parse_tokens(value: object) -> object:
    """Parse `"16k"` as 16,384."""
    count = parse_tokens(value) if isinstance(value, str) else value
    if count is None:
        raise ValueError(f"{value!r} is not a number of tokens such as 512 or 16k")
    return count


def parse_list(value: object) -> object:
    """Parse `"1,2,4"`, or one number, as a tuple."""
    if isinstance(value, str):
        return tuple(value.split(","))
    return (value,) if isinstance(value, int) else value


TokenCount = Annotated[int, BeforeValidator(_parse_tokens), Field(gt=0)]
"""Number of tokens in protocol settings, also as `16k`."""
TokenLimit = Annotated[int, BeforeValidator(_parse_tokens), Field(ge=0)]
"""Number of tokens, where 0 means no limit."""
TokenCounts = Annotated[tuple[TokenCount, ...], Field(min_length=1), BeforeValidator(parse_list)]
"""Several numbers of tokens, also as `4k,16k`."""
StepCounts = Annotated[tuple[NonNegativeInt, ...], Field(min_length=1), BeforeValidator(parse_list)]
"""Numbers of chunks read before a query, also as `1,2,4`."""
