"""Retrieval: documents and an index of them are kept, and those found are read in front of each question."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ttabench.core.amounts import CHARS_PER_TOKEN
from ttabench.core.errors import require_at_least
from ttabench.cost import (
    FLOAT32_BYTES,
    INT64_BYTES,
    Cost,
    Shape,
    Workload,
    answer_flops,
    closed_book_cost,
)
from ttabench.methods.parts.settings import Amount, check_amount, in_tokens
from ttabench.methods.spec import MethodSpec

CHARACTERS_A_WORD = 9
"""Characters of English text for each word that is not a stop word of bm25s."""
BM25 = "bm25"


@dataclass(frozen=True, kw_only=True)
class RagSettings:
    """Settings of `rag`."""

    retriever: str = BM25
    """What ranks documents: bm25; dense (all-MiniLM-L6-v2 of a package); or a sentence encoder, by folder or hub id
    (facebook/contriever)."""
    top: int = 3
    """Documents that are read in front of a question (1, 3 and 5 in Table 2 of arXiv 2403.04317)."""
    read: Amount | None = None
    """Tokens of documents that are read in front of a question at most, or their share of all that were read: documents
    in the order of their scores until it is full, the last one cut. None: `top` documents."""
    document_tokens: int = 512
    """A document keeps its first so many tokens of the base model."""

    def __post_init__(self) -> None:
        if not self.retriever:
            raise ValueError("retriever must name one: bm25, dense, a folder or a hub id")
        if self.read is not None:
            check_amount("read", self.read)
        require_at_least(1, top=self.top, document_tokens=self.document_tokens)

    def token_limit(self, read: int, starts: int) -> int | None:
        """Tokens of documents in front of a question, where the context has so many and a text begins with `bos_tokens`."""
        return None if self.read is None else max(1, in_tokens(self.read, read + starts) - starts)


def cost(settings: RagSettings, shape: Shape, work: Workload) -> Cost | None:
    """Retrieval (arXiv 2403.04317, Table 2): texts of English words and an index are kept, and what is found is read
    anew in front of every question. None where an encoder ranks documents."""
    if settings.retriever != BM25:
        return None
    pieces = [min(tokens, settings.document_tokens) for tokens in work.chunk_tokens]
    bare, whole = closed_book_cost(shape, work), sum(pieces)
    if not pieces:
        return bare
    room = settings.token_limit(whole, shape.bos_tokens)
    found = (
        min(settings.top, len(pieces)) * whole // len(pieces) if room is None else min(room, whole)
    )
    slots, characters = shape.bos_tokens + found, whole * CHARS_PER_TOKEN
    return replace(
        bare,
        state_bytes=round(characters)
        + round(characters / CHARACTERS_A_WORD) * INT64_BYTES
        + 2 * len(pieces) * FLOAT32_BYTES,
        ask_slots=slots + work.query_positions,
        ask_flops=shape.forward_flops(slots) + answer_flops(shape, work, slots, has_bos=True),
        positions=slots + work.query_positions,
    )


RAG = MethodSpec(
    name="rag",
    summary="all texts and an index; a question reads what it finds",
    import_path="ttabench.methods.rag.method:Rag",
    Settings=RagSettings,
    presets={"nano": RagSettings(top=1)},
    growth="linear",
    query_aware=True,
    cost=cost,
    keep=lambda amount: {"read": amount},
    test_settings=RagSettings(top=2),
    deprecated_settings={"question_retriever": "", "k1": 1.5, "b": 0.75},
    paper="2403.04317",
)
METHODS = (RAG,)
