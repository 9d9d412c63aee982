"""Dense retrieval: vectors of documents in the state, and their dot products with that of the question."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ttabench.core.errors import UserError
from ttabench.methods.parts.stored import SentenceEncoder


class DenseRetriever:
    """One encoder for documents and questions, or one each."""

    tensor = "vectors"

    def __init__(self, documents: str, questions: str, device: torch.device) -> None:
        self._documents = SentenceEncoder(documents, device)
        self._questions = self._documents if questions == documents else SentenceEncoder(questions, device)
        if self._questions.documents_only:
            hint = "Give the other one: --set question_retriever=FOLDER or hub id."
            raise UserError(f"{questions} encodes documents, not questions (DPR has an encoder for each).", hint)
        if self._questions.width != self._documents.width:
            sizes = f"{self._questions.width} numbers of {questions}, {self._documents.width} of {documents}"
            raise UserError(f"Vectors of two sizes cannot be compared: {sizes}.", "Give encoders of one pair.")
        used = (self._documents,) if self._questions is self._documents else (self._documents, self._questions)
        self.identity = "+".join(encoder.fingerprint for encoder in used)

    def documents(self, texts: Sequence[str]) -> list[Tensor]:
        """The vector [1, D] of each text."""
        return list(torch.split(self._documents(texts, "document"), 1)) if texts else []

    def questions(self, texts: Sequence[str]) -> list[Tensor]:
        """The vector [1, D] of each question."""
        return list(torch.split(self._questions(texts, "question"), 1))

    def scorer(self, documents: Sequence[Tensor]) -> Callable[[Tensor], NDArray[np.float32]]:
        """Gives the dot product of a question's vector with that of each document, [documents]."""
        vectors_KD = torch.cat([vector.cpu() for vector in documents])
        return lambda vector_1D: (vectors_KD @ vector_1D[0]).numpy()
