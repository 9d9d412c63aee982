"""Retrieval-augmented generation: every text is kept, and a question is answered behind those that it finds.

As in Table 2 of MAC, arXiv 2403.04317.
Shape letters: Q questions · K documents.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any, TypeAlias

import bm25s
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ttabench.core.types import JOINER, Chunk, Query
from ttabench.lm.forward.patching import check_fits
from ttabench.lm.forward.tokens import chunk_ids, new_chunk_ids, pad
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import BaseMethod
from ttabench.methods.rag import BM25, RAG, RagSettings

if TYPE_CHECKING:
    from ttabench.methods.rag.dense import DenseRetriever

Scorer: TypeAlias = Callable[[Tensor], NDArray[np.float32]]
"""How well a question matches each document, [K]."""
FEWER_DOCUMENTS_HINT = "Read fewer or shorter ones: --set top=N, --set document_tokens=N."
NUL = "\0"
K1, B = 1.5, 0.75
"""Of BM25: how soon a word that is repeated counts no more, and how much longer documents count less."""
logging.getLogger("bm25s").setLevel(logging.WARNING)  # importing it turns its debugging on


def append_items(
    tensors: Mapping[str, Tensor], name: str, new: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Both tensors of that name with more items, each of which may have a length of its own."""
    whole = [*split_items(tensors, name), *new]
    sizes = torch.tensor([[len(item) for item in whole]], dtype=torch.int32)
    return {name: torch.cat(whole)[None], f"{name}_sizes": sizes} if whole else {}


def split_items(tensors: Mapping[str, Tensor], name: str) -> list[Tensor]:
    """The items, in order, on the CPU; none while nothing was appended."""
    return (
        list(torch.split(tensors[name][0].cpu(), tensors[f"{name}_sizes"][0].tolist()))
        if name in tensors
        else []
    )


def encode_chunk(chunk: Chunk) -> Tensor:
    """The bytes of a piece, uint8, all but its key."""
    fields = {"joiner": chunk.joiner, "turns": chunk.turns, "ids": chunk.ids}
    more = {name: value for name, value in fields.items() if value not in (JOINER, None, ())}
    tail = NUL + json.dumps(more, separators=(",", ":")) if more or NUL in chunk.text else ""
    return torch.frombuffer(
        bytearray((chunk.text + tail).encode("utf-8", "surrogatepass")), dtype=torch.uint8
    )


def decode_chunk(data: Tensor) -> Chunk:
    """The piece of these bytes, without a key."""
    whole = data.numpy().tobytes().decode("utf-8", "surrogatepass")
    text, nul, tail = whole.rpartition(NUL)
    if not nul:
        return Chunk(text=whole)
    fields_given = json.loads(tail).items()
    more: dict[str, Any] = {
        name: value if name == "joiner" else tuple(value) for name, value in fields_given
    }
    return Chunk(text=text, **more)


@lru_cache(maxsize=2**16)
def _hash(word: str) -> int:
    """64 bits of a word: two words of a vocabulary of a million share them once in 30 million vocabularies."""
    return int.from_bytes(
        hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), signed=True
    )


class WordRetriever:
    """BM25 of hashed words."""

    tensor = "words"

    def documents(self, texts: Sequence[str]) -> list[Tensor]:
        """The hashed words of each text, int64, in its order."""
        split = bm25s.tokenize(list(texts), return_ids=False, show_progress=False)
        return [torch.tensor([_hash(word) for word in words], dtype=torch.int64) for words in split]

    questions = documents

    def scorer(self, documents: Sequence[Tensor]) -> Scorer:
        """BM25 over these documents; 0 where one has no word of a question."""
        words_of_documents = [document.tolist() for document in documents]
        places = {
            word: place for place, word in enumerate(sorted(set().union(*words_of_documents)))
        }
        index = bm25s.BM25(k1=K1, b=B)
        if places:
            ids = [[places[word] for word in words] for words in words_of_documents]
            index.index((ids, dict(places)), create_empty_token=False, show_progress=False)

        def scores(words: Tensor) -> NDArray[np.float32]:
            asked = [places[word] for word in words.tolist() if word in places]
            return (
                index.get_scores_from_ids(asked)
                if asked
                else np.zeros(len(documents), dtype=np.float32)
            )

        return scores


class Rag(BaseMethod[RagSettings]):
    """Retrieval. State: `texts` [1, bytes], and `words` [1, words] or `vectors` [1, K, D]; `.._sizes` of each [1, K],
    see `append_items`."""

    spec = RAG
    counts = ("tokens_read", "truncated_documents")
    supports_batching = False

    def __init__(self, lm: LM, settings: RagSettings) -> None:
        super().__init__(lm, settings)
        self.retriever: WordRetriever | DenseRetriever = WordRetriever()
        if settings.retriever != BM25:
            from ttabench.methods.rag.dense import DenseRetriever

            self.retriever = DenseRetriever(settings.retriever, lm.device)
        self._cached_scorer: tuple[Tensor, Scorer] | None = None

    def begin(self, rows: int) -> State:
        """No documents."""
        return State(rows, meta={**super().begin(rows).meta, "keys": [[]]})

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Keep the documents, and what their index is made of."""
        lengths, most = (
            [len(ids) for ids in new_chunk_ids(self.lm, state, chunks)[0]],
            self.settings.document_tokens,
        )
        kept = [
            self._truncate(chunk) if size > most else chunk
            for (chunk,), size in zip(chunks, lengths, strict=True)
        ]
        meta = {
            "tokens_read": [
                state.meta["tokens_read"][0] + sum(min(size, most) for size in lengths)
            ],
            "truncated_documents": [
                state.meta["truncated_documents"][0] + sum(size > most for size in lengths)
            ],
            "keys": [[*state.meta["keys"][0], *(chunk.key for chunk in kept)]],
        }
        indexed = self.retriever.documents([chunk.text for chunk in kept])
        tensors = append_items(state.tensors, "texts", [encode_chunk(chunk) for chunk in kept])
        return State(1, tensors | append_items(state.tensors, self.retriever.tensor, indexed), meta)

    def _truncate(self, chunk: Chunk) -> Chunk:
        """The first tokens of a document that is longer."""
        ids = chunk_ids(self.lm, replace(chunk, turns=None), first=True)[
            : self.settings.document_tokens
        ]
        return Chunk(text=self.lm.decode(ids), key=chunk.key, joiner=chunk.joiner)

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:
        """The documents found for each question, in the window."""
        if not queries or "texts" not in state.tensors:
            return Patch()
        read = [
            [token for ids in found.values() for token in ids]
            for found in self.find_documents(state, queries)
        ]
        check_fits(
            self.lm, None, [len(self.lm.start_ids) + len(ids) for ids in read], FEWER_DOCUMENTS_HINT
        )
        ids_BT, mask_BT = pad(read, self.lm.pad_id, "right")
        return Patch(ids_BT.to(self.lm.device), mask_BT.to(self.lm.device))

    def find_documents(self, state: State, queries: Sequence[Query]) -> list[dict[int, list[int]]]:
        """Ids of the documents that each question reads as they stand in the window, by their number, from 0 in the
        order of the stream; where room decides, of as many as fit, the worst one cut."""
        held = state.tensors["texts"]
        if (
            self._cached_scorer is None or self._cached_scorer[0] is not held
        ):  # the index stays while one state is asked
            self._cached_scorer = (
                held,
                self.retriever.scorer(split_items(state.tensors, self.retriever.tensor)),
            )
        texts, (read,) = split_items(state.tensors, "texts"), state.meta["tokens_read"]
        room = self.settings.token_limit(read, len(self.lm.start_ids))
        by_question = []
        for question in self.retriever.questions([query.question_text for query in queries]):
            # the best first, of equal ones the last
            ranked = np.argsort(self._cached_scorer[1](question), kind="stable")[::-1].tolist()
            if room is None:
                ranked = ranked[: self.settings.top]
            else:
                lengths = accumulate(
                    len(chunk_ids(self.lm, decode_chunk(texts[n]), first=False)) for n in ranked
                )
                ranked = ranked[
                    : 1 + sum(1 for _ in takewhile(lambda length: length < room, lengths))
                ]
            found, left = dict[int, list[int]](), room
            for number in ranked:
                found[number] = chunk_ids(
                    self.lm, decode_chunk(texts[number]), first=number == min(ranked)
                )[:left]
                left = None if left is None else left - len(found[number])
            by_question.append(dict(sorted(found.items())))
        return by_question
