"""Settings of `rag`."""

from __future__ import annotations

from dataclasses import dataclass

from ttabench.core.bounds import at_least

BM25 = "bm25"


@dataclass(frozen=True, kw_only=True)
class RagSettings:
    """Settings of `rag`."""

    retriever: str = BM25
    """What ranks documents by a question: bm25."""
    top: int = 3
    """Documents that are read in front of a question (1, 3 and 5 in Table 2 of arXiv 2403.04317)."""
    document_tokens: int = 512
    """A document keeps its first so many tokens of the base model."""
    k1: float = 1.5
    """bm25: how soon a word that is repeated counts no more."""
    b: float = 0.75
    """bm25: how much longer documents count less, from 0 to 1."""

    def __post_init__(self) -> None:
        if self.retriever != BM25:
            raise ValueError(f"retriever must be {BM25}, got {self.retriever!r}")
        at_least(1, top=self.top, document_tokens=self.document_tokens)
        at_least(0, k1=self.k1, b=self.b)
        if self.b > 1:
            raise ValueError(f"b must lie in [0, 1], got {self.b}")
