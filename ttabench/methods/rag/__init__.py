"""Retrieval: the state keeps documents and an index; retrieved documents precede each query."""

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
from ttabench.methods.parts.settings import Amount, check_amount, text_tokens
from ttabench.methods.spec import MethodSpec

CHARACTERS_A_WORD = 9
"""Characters of English text per word that is not a stop word of bm25s."""
BM25 = "bm25"


@dataclass(frozen=True, kw_only=True)
class RagSettings:
    """Settings of `rag`."""

    retriever: str = BM25
    """Ranking of documents: bm25, dense (all-MiniLM-L6-v2 from a package), or a sentence encoder by
    folder or hub id (facebook/contriever)."""
    top: int = 3
    """Documents read before each query (1, 3 and 5 in Table 2 of arXiv 2403.04317)."""
    read: Amount | None = None
    """Maximum tokens of documents before each query, or their share of all tokens read. Documents
    are added by score, and the last one is cut. None: `top` documents."""
    document_tokens: int = 512
    """Maximum tokens of a document; the rest is cut."""

    def __post_init__(self) -> None:
        if not self.retriever:
            raise ValueError("retriever must be bm25, dense, a folder or a hub id")
        if self.read is not None:
            check_amount("read", self.read)
        require_at_least(1, top=self.top, document_tokens=self.document_tokens)

    def token_limit(self, read: int, starts: int) -> int | None:
        """Return the maximum tokens of documents before a query, see `text_tokens`."""
        return None if self.read is None else text_tokens(self.read, read, starts)


def word_index_bytes(tokens: int, documents: int) -> int:
    """Return the bytes of the hashed words of English documents with these tokens in total."""
    words = round(tokens * CHARS_PER_TOKEN / CHARACTERS_A_WORD)
    return words * INT64_BYTES + documents * FLOAT32_BYTES


def cost(settings: RagSettings, shape: Shape, work: Workload) -> Cost | None:
    """Compute the cost of retrieval (arXiv 2403.04317, Table 2), None unless BM25 ranks documents.

    Documents are English text. Retrieved documents are read again before every query.
    """
    if settings.retriever != BM25:
        return None
    documents = [min(tokens, settings.document_tokens) for tokens in work.chunk_tokens]
    bare = closed_book_cost(shape, work)
    whole = sum(documents)
    if not documents:
        return bare
    limit = settings.token_limit(whole, shape.bos_tokens)
    if limit is None:
        found = min(settings.top, len(documents)) * whole // len(documents)
    else:
        found = min(limit, whole)
    slots = shape.bos_tokens + found
    return replace(
        bare,
        state_bytes=round(whole * CHARS_PER_TOKEN)
        + len(documents) * FLOAT32_BYTES
        + word_index_bytes(whole, len(documents)),
        ask_slots=slots + work.query_positions,
        ask_flops=shape.forward_flops(slots) + answer_flops(shape, work, slots, has_bos=True),
        positions=slots + work.query_positions,
    )


RAG = MethodSpec(
    name="rag",
    summary="all documents and an index; retrieved documents precede each query",
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
