"""Where context ends and query begins in one long prompt of lm-eval, as text and as tokens.

    "sunny: 1\\n\\nrainy: 0\\n\\nfoggy:"  ->  prefix "sunny: 1\\n\\nrainy: 0\\n\\n", query "foggy:"

A tokenizer may join the characters on both sides of a cut; `seam` finds a way to cut at which nothing is joined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ttabench.core.errors import UserError
from ttabench.core.types import Observe

SEAM_LETTERS = 40
"""A cut may move by so many letters into the context, no further."""
Encode: TypeAlias = Callable[[Sequence[str], bool], list[list[int]]]
"""Token ids of texts; the flag says whether they go on behind other text."""


def common_cut(contexts: Sequence[str], delimiter: str) -> int:
    """Length of what all contexts begin with, up to and with its last delimiter; 0 where there is none."""
    at = contexts[0][: _common(contexts)].rfind(delimiter) if contexts else -1
    return 0 if at < 0 else at + len(delimiter)


def _common(rows: Sequence[Sequence[object]]) -> int:
    """How many elements all rows begin with."""
    return next((i for i, column in enumerate(zip(*rows, strict=False)) if len(set(column)) > 1), min(map(len, rows)))


def parts(prefix: str, delimiter: str) -> list[tuple[str, str]]:
    """The prefix as pieces, each with the delimiter in front of it as joiner; the last delimiter joins the query."""
    texts = re.split(f"((?:{re.escape(delimiter)})+)", prefix)
    pieces = [(text, joiner) for text, joiner in zip(texts[::2], ["", *texts[1::2]], strict=True) if text]
    if pieces and pieces[0][1]:  # a delimiter in front of everything belongs to the first piece
        pieces[0] = (pieces[0][1] + pieces[0][0], "")
    return pieces


def observes(prefix: str, delimiter: str) -> list[Observe]:
    """The prefix in pieces to read."""
    pieces = parts(prefix, delimiter)
    return [Observe(text=text, joiner=joiner, key=f"piece {i}") for i, (text, joiner) in enumerate(pieces)]


@dataclass(frozen=True)
class Seam:
    """How a prefix is read so that the query's tokens follow those of the prefix as they do in the whole text."""

    pieces: tuple[Observe, ...]
    """With their token ids."""
    read: int
    """Letters of the context that the pieces cover; the rest stands in front of the query."""
    anchor: int
    """Where the last piece begins: from there on the text is tokenised together with the query."""
    anchor_ids: tuple[int, ...]


def seam(encode: Encode, prefix: str, pieces: Sequence[tuple[str, str]], contexts: Sequence[str]) -> Seam:
    """A way to read what all contexts begin with (in pieces, each with the joiner in front of it) whose tokens,
    followed by the query's, are those of each whole context."""
    (first,) = encode(contexts[:1], False)
    for texts in _candidates(encode, prefix, pieces, first):
        ids = [*encode(texts[:1], False), *encode(texts[1:], True)]
        read = sum(map(len, texts))
        anchor, skip = read - len(texts[-1]), len(ids[-1])
        tails = encode([context[anchor:] for context in contexts], anchor > 0)
        fits = all(tail[:skip] == ids[-1] and len(tail) > skip for tail in tails)
        joined = [token for own_ids in ids for token in own_ids]
        if fits and first[: len(joined)] == joined:
            made = [
                Observe(text=text, joiner="", ids=tuple(own_ids), key=f"piece {i}")
                for i, (text, own_ids) in enumerate(zip(texts, ids, strict=True))
            ]
            return Seam(tuple(made), read, anchor, tuple(ids[-1]))
    raise UserError(
        f"The tokenizer joins context and query in {contexts[0][len(prefix) :][:40]!r}.",
        "Use split=none: every prompt is then asked as a whole.",
    )


def _candidates(
    encode: Encode, prefix: str, pieces: Sequence[tuple[str, str]], first: Sequence[int]
) -> Iterator[list[str]]:
    """Joiners in front of the pieces; behind them; one piece; one piece less some tokens."""
    yield [joiner + text for text, joiner in pieces]
    behind = [*(joiner for _, joiner in pieces[1:]), prefix[sum(len(text + joiner) for text, joiner in pieces) :]]
    yield [text + joiner for (text, _), joiner in zip(pieces, behind, strict=True)]
    yield [prefix]
    (whole,) = encode([prefix], False)
    common = _common([whole, first])
    for length in range(len(prefix) - 1, max(0, len(prefix) - SEAM_LETTERS), -1):
        (shorter,) = encode([prefix[:length]], False)
        if len(shorter) <= common and shorter == first[: len(shorter)]:
            yield [prefix[:length]]
            return
