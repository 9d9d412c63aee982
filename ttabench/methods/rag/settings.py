"""Settings of `rag`."""

from __future__ import annotations

from dataclasses import dataclass

from ttabench.core.bounds import at_least

BM25 = "bm25"
DOCUMENTS, QUESTIONS = "ctx_encoder", "question_encoder"
"""What tells the two encoders of DPR apart in their names."""


@dataclass(frozen=True, kw_only=True)
class RagSettings:
    """Settings of `rag`."""

    retriever: str = BM25
    """What ranks documents: bm25; dense (all-MiniLM-L6-v2 of a package); or a sentence encoder, by folder or hub id
    (facebook/contriever, facebook/dpr-ctx_encoder-single-nq-base)."""
    question_retriever: str = ""
    """Encoder of questions where that is another one; empty: the same, or DPR's own beside its encoder of documents."""
    top: int = 3
    """Documents that are read in front of a question (1, 3 and 5 in Table 2 of arXiv 2403.04317)."""
    document_tokens: int = 512
    """A document keeps its first so many tokens of the base model."""
    k1: float = 1.5
    """bm25: how soon a word that is repeated counts no more."""
    b: float = 0.75
    """bm25: how much longer documents count less, from 0 to 1."""

    def __post_init__(self) -> None:
        if not self.retriever:
            raise ValueError("retriever must name one: bm25, dense, a folder or a hub id")
        if self.retriever == BM25 and self.question_retriever:
            raise ValueError(f"question_retriever is for encoders, got {self.question_retriever!r} beside {BM25}")
        at_least(1, top=self.top, document_tokens=self.document_tokens)
        at_least(0, k1=self.k1, b=self.b)
        if self.b > 1:
            raise ValueError(f"b must lie in [0, 1], got {self.b}")

    @property
    def question_encoder(self) -> str:
        """Name of the encoder of questions."""
        return self.question_retriever or self.retriever.replace(DOCUMENTS, QUESTIONS)
