"""Synthetic text of a given length: what a model costs does not depend on what the text says.

Numbered sentences, all different (methods may leave out what they have read before), cut into pieces of so many tokens
of the base model's tokenizer.
"""

from __future__ import annotations

from itertools import count

from ttabench.core.types import Ask, Generate, Observe
from ttabench.lm.model import LM

ROOM = 100_000
"""Sentence numbers between two readers of a batch."""


def pieces(lm: LM, tokens: int, piece_tokens: int, reader: int = 0) -> list[Observe]:
    """Pieces of `piece_tokens` tokens each, together `tokens`, BOS not counted.

    A joiner counts with the piece behind it, so the first has none. Tokenizers whose texts are not cut at tokens may
    give one more or less a piece.
    """
    texts: list[str] = []
    left, joiner = tokens, len(lm.encode(Observe(text="").joiner))
    while left > 0:
        room = left if left <= piece_tokens + joiner else piece_tokens  # no piece of a joiner alone
        start = reader * ROOM * ROOM + len(texts) * ROOM
        texts.append(lm.decode(lm.encode(_sentences(room, start), max(1, room - joiner if texts else room))))
        left -= room
    return [Observe(text=text, key=f"piece{number}") for number, text in enumerate(texts)]


def question(lm: LM, prompt_tokens: int, new_tokens: int, number: int = 0) -> Ask:
    """A query with a prompt of so many tokens, and an answer for training."""
    prompt = lm.decode(lm.encode(_sentences(prompt_tokens, number), prompt_tokens))
    return Ask(prompt=prompt, key=f"q{number}", want=Generate(answers=("nothing happened",), max_new_tokens=new_tokens))


def _sentences(tokens: int, start: int = 0) -> str:
    """More than `tokens` tokens of text in any tokenizer: each sentence has at least eight."""
    numbers = (number for number, _ in zip(count(start), range(tokens // 8 + 2), strict=False))
    return " ".join(f"Entry {number} of the log says that nothing happened on day {number}." for number in numbers)
