"""Pieces of context as the bytes that a state keeps of them, and back.

    packed(Observe(text="Ada Voss lives in Port Ansel."))     b"Ada Voss lives in Port Ansel."
    unpacked(b"Ada Voss lives in Port Ansel.")                Observe(text="Ada Voss lives in Port Ansel.")

A text is its UTF-8. What else decides how a piece is read (a joiner of its own, turns of a chat, ids of the tokenizer)
stands behind a NUL, as JSON.
"""

from __future__ import annotations

import json
from typing import Any

from ttabench.core.types import JOINER, Observe

NUL = "\0"


def packed(piece: Observe) -> bytes:
    """The bytes of a piece, all but its key."""
    more: dict[str, Any] = {}
    if piece.joiner != JOINER:
        more["joiner"] = piece.joiner
    if piece.turns is not None:
        more["turns"] = piece.turns
    if piece.ids:
        more["ids"] = piece.ids
    tail = NUL + json.dumps(more, separators=(",", ":")) if more or NUL in piece.text else ""
    return (piece.text + tail).encode("utf-8", "surrogatepass")


def unpacked(data: bytes) -> Observe:
    """The piece of these bytes, without a key."""
    whole = data.decode("utf-8", "surrogatepass")
    if NUL not in whole:
        return Observe(text=whole)
    text, _, tail = whole.rpartition(NUL)
    more = json.loads(tail)
    turns = more.get("turns")
    return Observe(
        text=text,
        joiner=more.get("joiner", JOINER),
        ids=tuple(more.get("ids", ())),
        turns=None if turns is None else (turns[0], turns[1]),
    )
