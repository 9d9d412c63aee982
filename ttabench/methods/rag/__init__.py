"""Retrieval: documents and an index of them are kept, and those found are read in front of each question."""

from __future__ import annotations

from ttabench.methods.rag.cost import cost
from ttabench.methods.rag.settings import RagSettings
from ttabench.methods.spec import MethodSpec, always

RAG = MethodSpec(
    name="rag",
    summary="all texts and an index; a question reads what it finds",
    where="ttabench.methods.rag.method:Rag",
    Settings=RagSettings,
    presets={"nano": RagSettings(top=1)},
    growth="linear",
    looks_at_question=True,
    piece_shares=always,
    cost=cost,
    checked=RagSettings(top=2),
    paper="2403.04317",
)
METHODS = (RAG,)
