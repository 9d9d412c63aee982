"""Retrieval-augmented generation: every text is kept, and a question is answered behind those that it finds.

    adapt   texts and what their index is made of go into the state      no pass of the base model
    patch   the bare question, whatever template stands around it, finds `top` documents
    answer  the frozen LM reads them, in the order of the stream, and then the prompt

As in Table 2 of MAC, arXiv 2403.04317. Of documents that match a question equally well the later ones are read. The
weights of words depend on all documents: they are computed when something is asked, once for a state. Sentence encoders
make a vector of each document as it arrives.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Observe
from ttabench.lm.forward.patching import check_fits
from ttabench.lm.forward.tokens import new_ids, pad, piece_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import BaseMethod, tokens_read
from ttabench.methods.parts.ragged import appended, items
from ttabench.methods.piece_shares import PieceShares
from ttabench.methods.rag import RAG
from ttabench.methods.rag.bm25 import WordRetriever
from ttabench.methods.rag.settings import BM25, RagSettings
from ttabench.methods.rag.texts import packed, unpacked

MEND = "Read fewer or shorter ones: --set top=N, --set document_tokens=N."

READ_ALIKE = "texts read for a question: all alike, whatever their scores"


class Index(Protocol):
    """All documents of one reader, ready to be compared with a question."""

    def scores(self, question: Tensor, /) -> NDArray[np.float32]:
        """How well each document matches, [documents]."""
        ...


class Retriever(Protocol):
    """A retriever: it makes an index of texts."""

    @property
    def tensor(self) -> str:
        """Name of what the state keeps for the index."""
        ...

    @property
    def identity(self) -> str:
        """Digest of its weights; "" where it has none."""
        ...

    def documents(self, texts: Sequence[str]) -> list[Tensor]:
        """The part of each text that the state keeps."""
        ...

    def questions(self, texts: Sequence[str]) -> list[Tensor]:
        """The form in which each question is compared."""
        ...

    def index(self, documents: Sequence[Tensor]) -> Index:
        """The question, prepared once for all documents."""
        ...


@dataclass(frozen=True)
class Collection:
    """The documents of one reader, ready to be asked."""

    texts: list[Tensor]
    """UTF-8, uint8 each, see `texts`."""
    index: Index

    def piece(self, number: int) -> Observe:
        """A document as it was read."""
        return unpacked(self.texts[number].numpy().tobytes())


class Rag(BaseMethod[RagSettings]):
    """Retrieval. State: `texts` [R, bytes], and `words` [R, words] or `vectors` [R, documents, D]; `.._sizes` of each
    [R, documents], see `ragged`.

    Raises:
        UserError: an encoder that is not there, or not installed.
    """

    spec = RAG

    def __init__(self, lm: LM, settings: RagSettings) -> None:
        super().__init__(lm, settings)
        self.retriever = retriever_of(settings, lm.device)
        self._settled: tuple[weakref.ref[Tensor], list[Collection]] | None = None

    def begin(self, rows: int) -> State:
        """No documents."""
        meta = {"tokens_read": [0] * rows, "truncated_documents": [0] * rows, "keys": [[]] * rows}
        return State(rows, meta={**meta, "retriever": self.retriever.identity})

    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Keep the documents, and what their index is made of.

        Raises:
            UserError: the state is of another encoder.
        """
        self._check(state)
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
            "retriever": self.retriever.identity,
        }
        texts = [[torch.frombuffer(bytearray(packed(piece)), dtype=torch.uint8) for piece in row] for row in kept]
        indexed = [self.retriever.documents([piece.text for piece in row]) for row in kept]
        tensors = appended(state.tensors, "texts", texts) | appended(state.tensors, self.retriever.tensor, indexed)
        return replace(state, tensors=tensors, meta=meta)

    def _cut(self, piece: Observe) -> Observe:
        """The first tokens of a document that is longer."""
        ids = piece_ids(self.lm, replace(piece, turns=None), first=True)[: self.settings.document_tokens]
        return Observe(text=self.lm.decode(ids), key=piece.key, joiner=piece.joiner)

    def found(self, state: State, asks: Sequence[Ask]) -> list[list[int]]:
        """Numbers of the documents, from 0 in the order of the stream, that are read in front of each question.

        Raises:
            UserError: the index is of another encoder, or of other documents.
        """
        collections = self._collections(state)
        asked = self.retriever.questions([ask.question_text for ask in asks])
        rows = _rows(state, asks)
        return [
            best(collections[row].index.scores(query), self.settings.top)
            for row, query in zip(rows, asked, strict=True)
        ]

    def piece_shares(self, state: State, asks: Sequence[Ask]) -> PieceShares | None:
        """1 / (texts read) for each of the texts that a question reads, which all stand in the window, and 0 for the
        others; and how well each matches. None of no documents.

        Raises:
            UserError: the index is of another encoder, or of other documents.
        """
        if not asks or not any(state.meta["keys"]):
            return None
        (collection,), (keys,) = self._collections(state), state.meta["keys"]
        asked = self.retriever.questions([ask.question_text for ask in asks])
        scores_QK = torch.tensor(np.stack([collection.index.scores(query) for query in asked]))
        shares_QK = torch.zeros(scores_QK.shape)
        for row, read in enumerate(self.found(state, asks)):
            shares_QK[row, read] = 1 / len(read)
        names = tuple(key or f"piece {number}" for number, key in enumerate(keys))
        return PieceShares(names=names, shares_QK=shares_QK, meaning=READ_ALIKE, scores_QK=scores_QK)

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:
        """The documents found for each question, in the window.

        Raises:
            UserError: they do not fit the model's positions; see `found`.
        """
        if not asks or "texts" not in state.tensors:
            return Patch()
        numbers, collections = self.found(state, asks), self._collections(state)
        read = [self._ids(collections[row], own) for row, own in zip(_rows(state, asks), numbers, strict=True)]
        check_fits(self.lm, None, [len(self.lm.start_ids) + len(ids) for ids in read], MEND)
        ids_BT, mask_BT = pad(read, self.lm.pad_id, "right")
        return Patch(ids_BT.to(self.lm.device), mask_BT.to(self.lm.device))

    def _ids(self, collection: Collection, numbers: Sequence[int]) -> list[int]:
        pieces = [piece_ids(self.lm, collection.piece(n), first=not place) for place, n in enumerate(numbers)]
        return [token for ids in pieces for token in ids]

    def _check(self, state: State) -> None:
        if state.meta["retriever"] != self.retriever.identity:
            fault = (
                f"The index is of another encoder than {self.settings.retriever} is now (weights or pooling differ)."
            )
            raise UserError(fault, "Read the documents again with this one, or give that one.")

    def _collections(self, state: State) -> list[Collection]:
        """The documents of every reader; kept for as long as the same state is asked."""
        self._check(state)
        texts = state.tensors["texts"]
        if self._settled is None or self._settled[0]() is not texts:
            made = [self._collection(state, row) for row in range(state.rows)]
            self._settled = weakref.ref(texts), made
        return self._settled[1]

    def _collection(self, state: State, row: int) -> Collection:
        texts = items(state.tensors, "texts", row)
        indexed = items(state.tensors, self.retriever.tensor, row)
        if len(indexed) != len(texts):
            fault = f"The index is of another collection: {len(indexed)} documents, and {len(texts)} texts are kept."
            raise UserError(fault, "Read the documents again.")
        return Collection([text.cpu() for text in texts], self.retriever.index(indexed))


def retriever_of(settings: RagSettings, device: torch.device) -> Retriever:
    """The retriever that the settings name.

    Raises:
        UserError: an encoder that is not there, or not installed.
    """
    if settings.retriever == BM25:
        return WordRetriever(settings.k1, settings.b)
    from ttabench.methods.rag.dense import DenseRetriever

    return DenseRetriever(settings.retriever, settings.question_encoder, device)


def _rows(state: State, asks: Sequence[Ask]) -> Sequence[int]:
    """Whose documents answer each question: one reader's all of them, or each its own reader's."""
    return [0] * len(asks) if state.rows == 1 else range(state.rows)


def best(scores: NDArray[np.float32], top: int) -> list[int]:
    """The places of the `top` highest scores, in their order; of equal ones the last."""
    if len(scores) <= top:
        return list(range(len(scores)))
    least = np.partition(scores, len(scores) - top)[len(scores) - top]
    above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
    return sorted([*above.tolist(), *equal[len(equal) - (top - len(above)) :].tolist()])
