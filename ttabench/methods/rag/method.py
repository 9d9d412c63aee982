"""Retrieval-augmented generation: every text is kept, and a question is answered behind those that it finds.

As in Table 2 of MAC, arXiv 2403.04317.
"""

from __future__ import annotations

import hashlib
import json
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any

import bm25s
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ttabench.core.errors import UserError
from ttabench.core.types import JOINER, Ask, Observe
from ttabench.lm.forward.patching import check_fits
from ttabench.lm.forward.tokens import new_ids, pad, piece_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import BaseMethod, PieceShares, tokens_read
from ttabench.methods.rag import BM25, RAG, RagSettings

if TYPE_CHECKING:
    from ttabench.methods.rag.dense import DenseRetriever


NO_ITEM = -1


def appended(tensors: Mapping[str, Tensor], name: str, rows_new: Sequence[Sequence[Tensor]]) -> dict[str, Tensor]:
    """Both tensors of that name with more items behind those of each row. `rows_new`: the next items of every row, each
    a tensor whose first dimension is its length."""
    pairs = [_row(tensors, name, row) for row in range(len(rows_new))]
    items_of_rows = [[*old, *new] for (old, _), new in zip(pairs, rows_new, strict=True)]
    like = next((item for row in items_of_rows for item in row), None)
    if like is None:
        return {}
    counts = [torch.tensor([*old, *map(len, new)]) for (_, old), new in zip(pairs, rows_new, strict=True)]
    table = pad_sequence([torch.cat([like[:0], *row]) for row in items_of_rows], batch_first=True)
    sizes = pad_sequence(counts, batch_first=True, padding_value=NO_ITEM)
    return {name: table, f"{name}_sizes": sizes.int()}


def items(tensors: Mapping[str, Tensor], name: str, row: int) -> list[Tensor]:
    """The items of one row, in order; none while nothing was appended."""
    whole, sizes = _row(tensors, name, row)
    return list(torch.split(whole[0], sizes)) if whole else []


def _row(tensors: Mapping[str, Tensor], name: str, row: int) -> tuple[list[Tensor], list[int]]:
    """All items of a row behind each other, if it has a tensor, and their lengths."""
    if name not in tensors:
        return [], []
    sizes = [size for size in tensors[f"{name}_sizes"][row].tolist() if size != NO_ITEM]
    return [tensors[name][row, : sum(sizes)]], sizes


NUL = "\0"


def packed(piece: Observe) -> bytes:
    """The bytes of a piece, all but its key."""
    fields = {"joiner": piece.joiner, "turns": piece.turns, "ids": piece.ids}
    more = {name: value for name, value in fields.items() if value not in (JOINER, None, ())}
    tail = NUL + json.dumps(more, separators=(",", ":")) if more or NUL in piece.text else ""
    return (piece.text + tail).encode("utf-8", "surrogatepass")


def unpacked(data: bytes) -> Observe:
    """The piece of these bytes, without a key."""
    whole = data.decode("utf-8", "surrogatepass")
    if NUL not in whole:
        return Observe(text=whole)
    text, _, tail = whole.rpartition(NUL)
    more: dict[str, Any] = {
        name: value if name == "joiner" else tuple(value) for name, value in json.loads(tail).items()
    }
    return Observe(text=text, **more)


logging.getLogger("bm25s").setLevel(logging.WARNING)  # importing it turns its debugging on


@lru_cache(maxsize=2**16)
def _hash(word: str) -> int:
    """64 bits of a word: two words of a vocabulary of a million share them once in 30 million vocabularies."""
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), signed=True)


def words_of(texts: Sequence[str]) -> list[Tensor]:
    """The hashed words of each text, int64, in its order."""
    split = bm25s.tokenize(list(texts), return_ids=False, show_progress=False)
    return [torch.tensor([_hash(word) for word in words], dtype=torch.int64) for words in split]


@dataclass(frozen=True)
class WordRetriever:
    """BM25 of hashed words."""

    k1: float
    b: float
    tensor = "words"
    identity = ""

    def documents(self, texts: Sequence[str]) -> list[Tensor]:
        """Ids that the state keeps of each text for its index."""
        return words_of(texts)

    def questions(self, texts: Sequence[str]) -> list[Tensor]:
        """Words that each question is compared by."""
        return words_of(texts)

    def scorer(self, documents: Sequence[Tensor]) -> Callable[[Tensor], NDArray[np.float32]]:
        """Gives how well the words of a question match each document."""
        return Bm25(documents, k1=self.k1, b=self.b).scores


class Bm25:
    """Weights of every word of a collection in every document of it."""

    def __init__(self, words: Sequence[Tensor], *, k1: float, b: float) -> None:
        ids_of_documents = [document.tolist() for document in words]
        self._places = {word: place for place, word in enumerate(sorted(set().union(*ids_of_documents)))}
        self._documents = len(ids_of_documents)
        self._index = bm25s.BM25(k1=k1, b=b)
        if self._places:
            ids = [[self._places[word] for word in document] for document in ids_of_documents]
            self._index.index((ids, dict(self._places)), create_empty_token=False, show_progress=False)

    def scores(self, words: Tensor) -> NDArray[np.float32]:
        """How well each document matches, [documents]; 0 where it has none of these hashed words of a question."""
        places = [self._places[word] for word in words.tolist() if word in self._places]
        if not places:
            return np.zeros(self._documents, dtype=np.float32)
        scores_K: NDArray[np.float32] = self._index.get_scores_from_ids(places)
        return scores_K


MEND = "Read fewer or shorter ones: --set top=N, --set document_tokens=N."

READ_ALIKE = "texts read for a question: all alike, whatever their scores"


@dataclass(frozen=True)
class Collection:
    """The documents of one reader, ready to be asked."""

    texts: list[Tensor]
    """UTF-8, uint8 each, see `packed`."""
    scores: Callable[[Tensor], NDArray[np.float32]]
    """Of a question, for each."""

    def piece(self, number: int) -> Observe:
        """A document as it was read."""
        return unpacked(self.texts[number].numpy().tobytes())


class Rag(BaseMethod[RagSettings]):
    """Retrieval. State: `texts` [R, bytes], and `words` [R, words] or `vectors` [R, documents, D]; `.._sizes` of each
    [R, documents], see `appended`."""

    spec = RAG

    def __init__(self, lm: LM, settings: RagSettings) -> None:
        super().__init__(lm, settings)
        self.retriever: WordRetriever | DenseRetriever = WordRetriever(settings.k1, settings.b)
        if settings.retriever != BM25:
            from ttabench.methods.rag.dense import DenseRetriever

            self.retriever = DenseRetriever(settings.retriever, lm.device)
        self._settled: tuple[weakref.ref[Tensor], list[Collection]] | None = None

    def begin(self, rows: int) -> State:
        """No documents."""
        meta = {"tokens_read": [0] * rows, "truncated_documents": [0] * rows, "keys": [[]] * rows}
        return State(rows, meta={**meta, "retriever": self.retriever.identity})

    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Keep the documents, and what their index is made of."""
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
        """Numbers of the documents, from 0 in the order of the stream, that are read in front of each question."""
        return [sorted(ids) for ids in self._read(state, asks)]

    def _read(self, state: State, asks: Sequence[Ask]) -> list[dict[int, list[int]]]:
        """Ids of the documents that each question reads, by their number, the best one first where room decides."""
        collections, read = self._collections(state), tokens_read(state)
        asked = self.retriever.questions([ask.question_text for ask in asks])
        found = []
        for row, query in zip([0] * len(asks) if state.rows == 1 else range(state.rows), asked, strict=True):
            room = self.settings.room(read[row], len(self.lm.start_ids))
            ranked = ranking(collections[row].scores(query))
            found.append(self._ids(collections[row], ranked[: self.settings.top] if room is None else ranked, room))
        return found

    def piece_shares(self, state: State, asks: Sequence[Ask]) -> PieceShares | None:
        """1 / (texts read) for each of the texts that a question reads, which all stand in the window, and 0 for the
        others; and how well each matches. None of no documents."""
        if not asks or not any(state.meta["keys"]):
            return None
        (collection,), (keys,) = self._collections(state), state.meta["keys"]
        asked = self.retriever.questions([ask.question_text for ask in asks])
        scores_QK = torch.tensor(np.stack([collection.scores(query) for query in asked]))
        shares_QK = torch.zeros(scores_QK.shape)
        for row, read in enumerate(self.found(state, asks)):
            shares_QK[row, read] = 1 / len(read)
        names = tuple(key or f"piece {number}" for number, key in enumerate(keys))
        return PieceShares(names=names, shares_QK=shares_QK, meaning=READ_ALIKE, scores_QK=scores_QK)

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:
        """The documents found for each question, in the window."""
        if not asks or "texts" not in state.tensors:
            return Patch()
        read = [[token for _, ids in sorted(own.items()) for token in ids] for own in self._read(state, asks)]
        check_fits(self.lm, None, [len(self.lm.start_ids) + len(ids) for ids in read], MEND)
        ids_BT, mask_BT = pad(read, self.lm.pad_id, "right")
        return Patch(ids_BT.to(self.lm.device), mask_BT.to(self.lm.device))

    def _ids(self, collection: Collection, ranked: Sequence[int], room: int | None) -> dict[int, list[int]]:
        """Ids by document, as they stand in the window; where room decides, of as many as fit, the last one cut."""
        if room is not None:
            lengths = accumulate(len(piece_ids(self.lm, collection.piece(n), first=False)) for n in ranked)
            ranked = ranked[: 1 + sum(1 for _ in takewhile(lambda length: length < room, lengths))]
        found, left = dict[int, list[int]](), room
        for number in ranked:
            found[number] = piece_ids(self.lm, collection.piece(number), first=number == min(ranked))[:left]
            left = None if left is None else left - len(found[number])
        return found

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
            made = []
            for row in range(state.rows):
                kept, indexed = (items(state.tensors, name, row) for name in ("texts", self.retriever.tensor))
                made.append(Collection([text.cpu() for text in kept], self.retriever.scorer(indexed)))
            self._settled = weakref.ref(texts), made
        return self._settled[1]


def ranking(scores: NDArray[np.float32]) -> list[int]:
    """All places, the highest score first; of equal ones the last."""
    places: list[int] = np.argsort(scores, kind="stable")[::-1].tolist()
    return places
