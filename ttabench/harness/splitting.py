"""Where context ends and query begins in one long prompt, as text and as tokens.

lm-eval hands over demonstrations and query as one string. A method reads the demonstrations, piece by piece, and the
query is asked; under full context the tokens must be those of the whole string.

    "sunny: 1\\n\\nrainy: 0\\n\\nfoggy:"  ->  prefix "sunny: 1\\n\\nrainy: 0\\n\\n", query "foggy:"

A tokenizer may join the characters on both sides of a cut: byte-level BPE has one token for "\\n\\n" at the end of a
text and two before a word. `seam` finds a way to cut at which nothing is joined.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ttabench.errors import UserError
from ttabench.lm import LM
from ttabench.types import Observe

SEAM_TOKENS = 4
"""A cut may move by so many tokens into the context, no further."""


def common_cut(contexts: Sequence[str], delimiter: str) -> int:
    """Length of what all contexts begin with, up to and with its last delimiter; 0 where there is none."""
    at = contexts[0][: _common(contexts)].rfind(delimiter) if contexts else -1
    return 0 if at < 0 else at + len(delimiter)


def _common(rows: Sequence[Sequence[object]]) -> int:
    """How many elements all rows begin with."""
    return next((i for i, column in enumerate(zip(*rows, strict=False)) if len(set(column)) > 1), min(map(len, rows)))


def pieces(prefix: str, delimiter: str) -> list[Observe]:
    """The prefix in its pieces, each with the delimiter after it: together they are the prefix, letter by letter."""
    parts = re.split(f"((?:{re.escape(delimiter)})+)", prefix)
    texts, joiners = parts[::2], [*parts[1::2], ""]
    if not texts[0] and len(texts) > 1:  # a delimiter in front of everything belongs to the first piece
        texts, joiners = [joiners[0] + texts[1], *texts[2:]], joiners[1:]
    found = [(text, joiner) for text, joiner in zip(texts, joiners, strict=True) if text or joiner]
    return [Observe(text=text, joiner=joiner, key=f"piece {i}") for i, (text, joiner) in enumerate(found)]


@dataclass(frozen=True)
class Seam:
    """How a prefix is read so that the query's tokens follow those of the prefix as they do in the whole text."""

    pieces: tuple[Observe, ...]
    read: int
    """Letters of the context that the pieces cover; the rest stands in front of the query."""
    anchor: int
    """Where the last piece begins: from there on the text is tokenised together with the query."""
    anchor_ids: tuple[int, ...]


def seam(lm: LM, prefix: str, delimiter: str, contexts: Sequence[str]) -> Seam:
    """A way to read the prefix whose tokens, followed by the query's, are those of each whole context.

    Args:
        lm: the base model, for its tokenizer.
        prefix: what all the contexts begin with.
        delimiter: stands between the pieces.
        contexts: whole contexts, each of which goes on behind the prefix.

    Raises:
        UserError: the tokenizer joins prefix and query, wherever the text is cut.
    """
    first = lm.encode(contexts[0])
    for candidate in _candidates(lm, prefix, delimiter, first):
        ids = [lm.encode(piece.text + piece.joiner) for piece in candidate.pieces]
        joined = [token for each in ids for token in each]
        tails = lm.encode_many([context[candidate.anchor :] for context in contexts])
        skip = len(candidate.anchor_ids)
        fits = all(tail[:skip] == list(candidate.anchor_ids) and len(tail) > skip for tail in tails)
        if fits and first[: len(joined)] == joined:
            return candidate
    raise UserError(
        f"The tokenizer of {lm.name} joins demonstrations and query in {contexts[0][len(prefix) :][:40]!r}.",
        "Use split=none: every prompt is then asked as a whole.",
    )


def _candidates(lm: LM, prefix: str, delimiter: str, first: Sequence[int]) -> Iterator[Seam]:
    """Delimiters in front of the pieces; behind them; one piece; one piece less a few tokens."""
    natural = pieces(prefix, delimiter)
    leading = [
        Observe(text=(natural[i - 1].joiner if i else "") + piece.text, joiner="", key=piece.key)
        for i, piece in enumerate(natural)
    ]
    yield from (_seam(lm, way) for way in (leading, natural, [Observe(text=prefix, joiner="")]))
    whole = lm.encode(prefix)
    common = _common([whole, first])
    shorter = lm.decode(whole[:common])
    if len(whole) - common <= SEAM_TOKENS and shorter and prefix.startswith(shorter):
        yield _seam(lm, [Observe(text=shorter, joiner="")])


def _seam(lm: LM, way: Sequence[Observe]) -> Seam:
    read = sum(len(piece.text + piece.joiner) for piece in way)
    last = way[-1].text + way[-1].joiner
    return Seam(tuple(way), read, read - len(last), tuple(lm.encode(last)))
