"""Retrieval: documents and an index of them are kept, and those found are read in front of each question."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ttabench.core.amounts import CHARACTERS_A_TOKEN
from ttabench.core.errors import at_least
from ttabench.cost import INTEGER, SINGLE, Cost, Shape, Workload, answer, closed_book
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
        at_least(1, top=self.top, document_tokens=self.document_tokens)

    def room(self, read: int, starts: int) -> int | None:
        """Tokens of documents in front of a question, where the context has so many and a text begins with `starts`."""
        return None if self.read is None else max(1, in_tokens(self.read, read + starts) - starts)


def cost(settings: RagSettings, shape: Shape, work: Workload) -> Cost | None:
    """Retrieval (arXiv 2403.04317, Table 2): texts of English words and an index are kept, and what is found is read
    anew in front of every question. None where an encoder ranks documents."""
    if settings.retriever != BM25:
        return None
    pieces = [min(tokens, settings.document_tokens) for tokens in work.pieces]
    bare, whole = closed_book(shape, work), sum(pieces)
    if not pieces:
        return bare
    room = settings.room(whole, shape.starts)
    found = min(settings.top, len(pieces)) * whole // len(pieces) if room is None else min(room, whole)
    slots, characters = shape.starts + found, whole * CHARACTERS_A_TOKEN
    return replace(
        bare,
        state_bytes=round(characters) + round(characters / CHARACTERS_A_WORD) * INTEGER + 2 * len(pieces) * SINGLE,
        ask_slots=slots + work.asked,
        ask_flops=shape.forward(slots) + answer(shape, work, slots, begun=True),
        positions=slots + work.asked,
    )


RAG = MethodSpec(
    name="rag",
    summary="all texts and an index; a question reads what it finds",
    where="ttabench.methods.rag.method:Rag",
    Settings=RagSettings,
    presets={"nano": RagSettings(top=1)},
    growth="linear",
    looks_at_question=True,
    cost=cost,
    keep=lambda amount: {"read": amount},
    checked=RagSettings(top=2),
    retired={"question_retriever": "", "k1": 1.5, "b": 0.75},
    paper="2403.04317",
)
METHODS = (RAG,)
