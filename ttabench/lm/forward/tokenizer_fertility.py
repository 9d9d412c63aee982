"""Whether a tokenizer was made for texts like these: how long the pieces are that it cuts their words into.

    fertility_caveats(lm, ["The library opens at nine."])    ["nano hardly knows this kind of text (2.2 bytes of a ..."]

A tokenizer joins what was frequent in the texts it was made from. SmolLM2's has 5 bytes of an English word in a token,
and 2.7 of a German one; nano's has 4 to 5 in its miniature world and 2 to 3 in English. Words are letters only, so that
numbers do not count; bytes are those of UTF-8, so that scripts of few, long characters count alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from ttabench.core.architectures import NANO

if TYPE_CHECKING:
    from ttabench.lm.model import LM

WORD = re.compile(r"[^\W\d_]+")
ENGLISH = "smollm2-135m-qa"
"""A base model that reads English and answers in a few words."""
LEAST_BYTES = 3.4
"""Bytes of words in a token below which a text is not what the tokenizer was made for."""
LEAST_WORDS, MOST_WORDS = 5, 2000
"""Fewer words tell nothing; more are not looked at."""
LEAST_TOKENS = 1024
"""A smaller vocabulary is of bytes or characters, and tells nothing of any language."""


def bytes_a_token(lm: LM, texts: Iterable[str]) -> float | None:
    """UTF-8 bytes of words in a token, the blank in front included; None for too few words or a small vocabulary."""
    found = (match[0] for text in texts for match in WORD.finditer(text))
    words = [f" {word}" for word in islice(found, MOST_WORDS)]
    if len(words) < LEAST_WORDS or len(lm.tokenizer) < LEAST_TOKENS:
        return None
    return sum(len(word.encode()) for word in words) / sum(map(len, lm.encode_many(words)))


def fertility_caveats(lm: LM, texts: Iterable[str]) -> list[str]:
    """One sentence where the texts are not what the model was made for, else none."""
    share = None if lm.random_weights else bytes_a_token(lm, texts)
    if share is None or share >= LEAST_BYTES:
        return []
    known = f"{lm.name} hardly knows this kind of text ({share:.1f} bytes of a word in a token)"
    better = f"; use --model {ENGLISH} for English" if lm.name == NANO else ""
    return [f"{known}: its answers say little about the method{better}"]
