"""Retrieval-augmented generation: every text is kept, and a question is answered behind those that it finds.

    adapt   texts and an index of their words go into the state          no pass of any model
    patch   the bare question, whatever template stands around it, finds `top` documents
    answer  the frozen LM reads them, in the order of the stream, and then the prompt

As in Table 2 of MAC, arXiv 2403.04317. Of documents that match a question equally well the later ones are read. The
weights of words depend on all documents: they are computed when something is asked, once for a state.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ttabench.core.types import Ask, Observe
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.lm.patching import check_fits
from ttabench.lm.tokens import new_ids, pad, piece_ids
from ttabench.methods.base import BaseMethod, tokens_read
from ttabench.methods.parts.ragged import appended, items
from ttabench.methods.rag import RAG
from ttabench.methods.rag.bm25 import Bm25, words_of
from ttabench.methods.rag.settings import RagSettings
from ttabench.methods.rag.texts import packed, unpacked

MEND = "Read fewer or shorter ones: --set top=N, --set document_tokens=N."


@dataclass(frozen=True)
class Collection:
    """The documents of one reader, ready to be asked."""

    texts: list[Tensor]
    """UTF-8, uint8 each, see `texts`."""
    index: Bm25

    def best(self, question: str, top: int) -> list[int]:
        """The documents that match best, in the order of the stream."""
        return best(self.index.scores(question), top)

    def piece(self, number: int) -> Observe:
        """A document as it was read."""
        return unpacked(self.texts[number].numpy().tobytes())


class Rag(BaseMethod[RagSettings]):
    """Retrieval. State: `texts` [R, bytes] and `words` [R, words], `.._sizes` [R, documents] of each, see `ragged`."""

    spec = RAG

    def __init__(self, lm: LM, settings: RagSettings) -> None:
        super().__init__(lm, settings)
        self._settled: tuple[weakref.ref[Tensor], list[Collection]] | None = None

    def begin(self, rows: int) -> State:
        """No documents."""
        return State(rows, meta={"tokens_read": [0] * rows, "truncated_documents": [0] * rows, "keys": [[]] * rows})

    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Keep the documents and index their words."""
        lengths = [[len(ids) for ids in row] for row in new_ids(self.lm, state, chunks)]
        most = self.settings.document_tokens
        kept = [
            [self._cut(chunk[row]) if length > most else chunk[row] for chunk, length in zip(chunks, own, strict=True)]
            for row, own in enumerate(lengths)
        ]
        read = zip(tokens_read(state), lengths, strict=True)
        cut = zip(state.meta["truncated_documents"], lengths, strict=True)
        meta = {
            "tokens_read": [before + sum(min(length, most) for length in own) for before, own in read],
            "truncated_documents": [before + sum(length > most for length in own) for before, own in cut],
            "keys": [[*old, *(p.key for p in new)] for old, new in zip(state.meta["keys"], kept, strict=True)],
        }
        texts = [[torch.frombuffer(bytearray(packed(piece)), dtype=torch.uint8) for piece in row] for row in kept]
        words = [words_of([piece.text for piece in row]) for row in kept]
        tensors = appended(state.tensors, "texts", texts) | appended(state.tensors, "words", words)
        return replace(state, tensors=tensors, meta=meta)

    def _cut(self, piece: Observe) -> Observe:
        """The first tokens of a document that is longer."""
        ids = piece_ids(self.lm, replace(piece, turns=None), first=True)[: self.settings.document_tokens]
        return Observe(text=self.lm.decode(ids), key=piece.key, joiner=piece.joiner)

    def found(self, state: State, ask: Ask, row: int = 0) -> list[int]:
        """Numbers of the documents, from 0 in the order of the stream, that are read in front of this question."""
        return self._collections(state)[row].best(ask.bare, self.settings.top)

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:
        """The documents found for each question, in the window.

        Raises:
            UserError: they do not fit the model's positions.
        """
        if not asks or "texts" not in state.tensors:
            return Patch()
        collections = self._collections(state)
        rows = [0] * len(asks) if state.rows == 1 else range(state.rows)
        found = [self._read(collections[row], ask) for row, ask in zip(rows, asks, strict=True)]
        check_fits(self.lm, None, [len(self.lm.start_ids) + len(ids) for ids in found], MEND)
        ids_BT, mask_BT = pad(found, self.lm.pad_id, "right")
        return Patch(ids_BT.to(self.lm.device), mask_BT.to(self.lm.device))

    def _read(self, collection: Collection, ask: Ask) -> list[int]:
        numbers = collection.best(ask.bare, self.settings.top)
        pieces = [piece_ids(self.lm, collection.piece(n), first=not place) for place, n in enumerate(numbers)]
        return [token for ids in pieces for token in ids]

    def _collections(self, state: State) -> list[Collection]:
        """The documents of every reader; kept for as long as the same state is asked."""
        texts = state.tensors["texts"]
        if self._settled is None or self._settled[0]() is not texts:
            made = [self._collection(state, row) for row in range(state.rows)]
            self._settled = weakref.ref(texts), made
        return self._settled[1]

    def _collection(self, state: State, row: int) -> Collection:
        index = Bm25(items(state.tensors, "words", row), k1=self.settings.k1, b=self.settings.b)
        return Collection([text.cpu() for text in items(state.tensors, "texts", row)], index)


def best(scores: NDArray[np.float32], top: int) -> list[int]:
    """The places of the `top` highest scores, in their order; of equal ones the last."""
    if len(scores) <= top:
        return list(range(len(scores)))
    least = np.partition(scores, len(scores) - top)[len(scores) - top]
    above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
    return sorted([*above.tolist(), *equal[len(equal) - (top - len(above)) :].tolist()])
