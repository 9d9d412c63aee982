"""What retrieval costs: texts and an index are kept, and the documents found are read anew in front of every question.

    cost(RagSettings(top=3), shape, work).ask_flops      three pieces of mean length, then prompt and answer

Bytes depend on the words of a text: on paper it is English, of four characters a token. An encoder is taken to cut a
text into as many tokens as the base model does, and two more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ttabench.core.checked_file import json_of
from ttabench.core.sizes import CHARACTERS_A_TOKEN
from ttabench.cost.load import INTEGER, SINGLE, Cost, Workload, answer, closed_book
from ttabench.cost.shape import Shape
from ttabench.methods.rag.settings import BM25, RagSettings

CHARACTERS_A_WORD = 9
"""Characters of English text for each word that is not a stop word of bm25s."""


@dataclass(frozen=True)
class Encoder:
    """A BERT: a stack of layers under a table of words, positions and two types."""

    width: int
    layers: int
    feed_forward: int
    vocabulary: int = 30_522
    positions: int = 512
    pooler: bool = True
    projection: int = 0

    @property
    def parameters(self) -> int:
        """All of them, biases and norms too."""
        width, feed = self.width, self.feed_forward
        tables = (self.vocabulary + self.positions + 2 + 2) * width
        layer = 4 * (width**2 + width) + 2 * width * feed + feed + width + 4 * width
        last = width**2 + width if self.pooler else 0
        return tables + self.layers * layer + last + self.projection * (width + 1)

    def read(self, tokens: int) -> int:
        """Operations of one text, every token of which attends to all."""
        length, width = min(tokens + 2, self.positions), self.width
        linear = 2 * length * (4 * width**2 + 2 * width * self.feed_forward)
        once = 2 * (width**2 if self.pooler else 0) + 2 * width * self.projection
        return self.layers * (linear + 4 * width * length**2) + once

    @property
    def size(self) -> int:
        """Numbers in the vector of a text."""
        return self.projection or self.width


_BASE = Encoder(768, 12, 3072)
PUBLISHED: Mapping[str, Encoder] = {
    "dense": Encoder(384, 6, 1536),
    "facebook/contriever": _BASE,
    "facebook/dpr-ctx_encoder-single-nq-base": replace(_BASE, pooler=False),
    "facebook/dpr-question_encoder-single-nq-base": replace(_BASE, pooler=False),
}
"""all-MiniLM-L6-v2 (2002.10957), Contriever (2112.09118) and DPR (2004.04906), from their published configurations."""


def encoder_of(name: str) -> Encoder | None:
    """The encoder of that name, or of the BERT in that folder; None where neither is known."""
    if name in PUBLISHED:
        return PUBLISHED[name]
    try:
        config: dict[str, Any] = json_of(Path(name).expanduser() / "config.json")
        dpr = config["model_type"] == "dpr"
        if config["model_type"] != "bert" and not dpr:
            return None
        return Encoder(
            width=int(config["hidden_size"]),
            layers=int(config["num_hidden_layers"]),
            feed_forward=int(config["intermediate_size"]),
            vocabulary=int(config["vocab_size"]),
            positions=int(config["max_position_embeddings"]),
            pooler=not dpr,
            projection=int(config.get("projection_dim", 0)) if dpr else 0,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def cost(settings: RagSettings, shape: Shape, work: Workload) -> Cost | None:
    """Retrieval (arXiv 2403.04317, Table 2); adding up scores is nothing beside a forward pass."""
    documents, questions = encoder_of(settings.retriever), encoder_of(settings.question_encoder)
    if settings.retriever != BM25 and (documents is None or questions is None):
        return None
    pieces = [min(tokens, settings.document_tokens) for tokens in work.pieces]
    adapt_flops = ask_flops = added = floats = 0
    if documents is not None and questions is not None:
        adapt_flops, ask_flops = sum(map(documents.read, pieces)), questions.read(work.prompt_tokens)
        added = documents.parameters
        added += questions.parameters if settings.question_encoder != settings.retriever else 0
        floats = len(pieces) * documents.size
    bare = replace(closed_book(shape, work), added_parameters=added)
    if not pieces:
        return bare
    tokens_found = min(settings.top, len(pieces)) * sum(pieces) // len(pieces)
    slots = shape.starts + tokens_found
    characters = sum(pieces) * CHARACTERS_A_TOKEN
    index = floats * SINGLE if floats else round(characters / CHARACTERS_A_WORD) * INTEGER
    return replace(
        bare,
        state_floats=floats,
        state_bytes=round(characters) + index + 2 * len(pieces) * SINGLE,
        adapt_flops=adapt_flops,
        ask_slots=slots + work.asked,
        ask_flops=ask_flops + shape.forward(slots) + answer(shape, work, slots, begun=True),
        positions=slots + work.asked,
    )
