"""What readers that cut by tokens ask of a base model, and a stand-in for when there is none yet."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, TypeAlias

from ttabench.core.sizes import CHARACTERS_A_TOKEN


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
