"""What retrieval costs: texts and an index are kept, and the documents found are read anew in front of every question.

cost(RagSettings(top=3), shape, work).ask_flops      three pieces of mean length, then prompt and answer

Bytes depend on the words of a text: on paper it is English, of four characters a token.
"""

from __future__ import annotations

from dataclasses import replace

from ttabench.core.sizes import CHARACTERS_A_TOKEN
from ttabench.cost.load import INTEGER, SINGLE, Cost, Workload, answer, closed_book
from ttabench.cost.shape import Shape
from ttabench.methods.rag.settings import RagSettings

CHARACTERS_A_WORD = 9
"""Characters of English text for each word that is not a stop word of bm25s."""


def cost(settings: RagSettings, shape: Shape, work: Workload) -> Cost:
    """Retrieval (arXiv 2403.04317, Table 2) by BM25; adding up scores is nothing beside a forward pass."""
    bare = closed_book(shape, work)
    if not work.pieces:
        return bare
    pieces = [min(tokens, settings.document_tokens) for tokens in work.pieces]
    found = min(settings.top, len(pieces)) * sum(pieces) // len(pieces)
    slots = shape.starts + found
    characters = sum(pieces) * CHARACTERS_A_TOKEN
    words = round(characters / CHARACTERS_A_WORD)
    return replace(
        bare,
        state_bytes=round(characters) + words * INTEGER + 2 * len(pieces) * SINGLE,
        ask_slots=slots + work.asked,
        ask_flops=shape.forward(slots) + answer(shape, work, slots, begun=True),
        positions=slots + work.asked,
    )
