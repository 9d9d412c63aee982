"""Parametric retrieval: a LoRA of each document, and the sum of those retrieved for a query.

Su et al., "Parametric Retrieval Augmented Generation", arXiv 2501.15915.

Shape letters: K documents · N parameters of a LoRA.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttabench.core.types import Chunk, Query
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.distill import LORA_PER_DOCUMENT, LoraPerDocumentSettings
from ttabench.methods.distill.cartridge import SelfStudy
from ttabench.methods.parts.lora import split_vector
from ttabench.methods.rag.method import DocumentRanking, WordRetriever


class LoraPerDocument(SelfStudy[LoraPerDocumentSettings]):
    """A LoRA of each document.

    State: `weights` [1, K, N], float32, and the words of all documents, see `DocumentRanking`.
    """

    spec = LORA_PER_DOCUMENT
    granularity = "chunk"

    def __init__(self, lm: LM, settings: LoraPerDocumentSettings) -> None:
        super().__init__(lm, settings)
        self._ranking = DocumentRanking(WordRetriever())

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Train a new LoRA on each document alone, and add its words to the index."""
        alone = [super(LoraPerDocument, self).adapt(self.begin(1), [row]) for row in chunks]
        stored = [state.tensors["weights"]] if "weights" in state.tensors else []
        weights_1KN = torch.cat([*stored, *(one.tensors["weights"][None] for one in alone)], 1)
        index = self._ranking.append(state.tensors, [chunk.text for (chunk,) in chunks])
        tokens_read = sum(one.meta["tokens_read"][0] for one in (state, *alone))
        return State(1, {"weights": weights_1KN, **index}, {"tokens_read": [tokens_read]})

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:
        """Return the sum of the LoRAs of the `top` documents of each query."""
        merged = Patch()
        if not queries or "weights" not in state.tensors:
            return merged
        (weights_KN,) = state.tensors["weights"]
        best = [
            ranked[: self.settings.top] for ranked in self._ranking.rank(state.tensors, queries)
        ]
        for documents in zip(*best, strict=True):
            rows = [split_vector(weights_KN[document], self.layout) for document in documents]
            merged += self.student_patch(
                {name: torch.stack([row[name] for row in rows]) for name in self.layout}
            )
        return merged
