"""What retrieval costs: the documents are kept as text, and those found are read anew in front of every question.

retrieval(RetrievalSettings(top_k=3), shape, work).ask_flops      three pieces of mean length, prompt and answer
"""

from __future__ import annotations

from dataclasses import dataclass

from ttabench.core.bounds import at_least
from ttabench.cost.formula import Formula
from ttabench.cost.load import INTEGER, SINGLE, Cost, Workload, answer, closed_book
from ttabench.cost.shape import Shape


@dataclass(frozen=True, kw_only=True)
class RetrievalSettings:
    """Settings of retrieval."""

    top_k: int = 3
    """Pieces in front of a question."""

    def __post_init__(self) -> None:
        at_least(1, top_k=self.top_k)


def retrieval(settings: RetrievalSettings, shape: Shape, work: Workload) -> Cost:
    """BM25 (Robertson and Zaragoza, 2009; as in arXiv 2403.04317, table 2). The index holds at most one posting a
    token, a document number and a score; adding up scores is nothing beside a forward pass."""
    if not work.pieces:
        return closed_book(shape, work)
    found = min(settings.top_k, len(work.pieces)) * round(work.tokens / len(work.pieces))
    slots = shape.starts + found
    return Cost(
        parameters=shape.parameters,
        state_floats=work.tokens,
        state_bytes=work.tokens * (INTEGER + 2 * SINGLE),
        ask_slots=slots + work.asked,
        ask_flops=shape.forward(slots) + answer(shape, work, slots, begun=True),
        positions=slots + work.asked,
    )


FORMULAS = (Formula(name="retrieval", Settings=RetrievalSettings, cost=retrieval),)
