"""Retrieval-augmented generation: the state keeps all documents; retrieved ones precede a query.

As in Table 2 of MAC, arXiv 2403.04317.
Shape letters: Q questions · K documents.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from ttabench.methods.base import Method
from ttabench.methods.rag import BM25, RAG, RagSettings

if TYPE_CHECKING:
    from ttabench.methods.rag.dense import DenseRetriever

Scorer: TypeAlias = Callable[[Tensor], NDArray[np.float32]]
"""Function from a query's words or vector to the score of each document, [K]."""
FEWER_DOCUMENTS_HINT = "Use fewer or shorter documents: --set top=N, --set document_tokens=N."
NUL = "\0"
K1, B = 1.5, 0.75
"""BM25: saturation of repeated words, and length normalisation."""
logging.getLogger("bm25s").setLevel(logging.WARNING)  # importing bm25s enables its debug log


def append_items(
    tensors: Mapping[str, Tensor], name: str, new: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Append items of any length to the tensors `name` and `name_sizes`."""
    whole = [*split_items(tensors, name), *new]
    sizes = torch.tensor([[len(item) for item in whole]], dtype=torch.int32)
    return {name: torch.cat(whole)[None], f"{name}_sizes": sizes} if whole else {}


def split_items(tensors: Mapping[str, Tensor], name: str) -> list[Tensor]:
    """Return the items in order, on the CPU."""
    if name not in tensors:
        return []
    return list(torch.split(tensors[name][0].cpu(), tensors[f"{name}_sizes"][0].tolist()))


def encode_chunk(chunk: Chunk) -> Tensor:
    """Encode a chunk without its key to bytes, uint8."""
    fields = {"joiner": chunk.joiner, "turns": chunk.turns, "ids": chunk.ids}
    more = {name: value for name, value in fields.items() if value not in (JOINER, None, ())}
    tail = NUL + json.dumps(more, separators=(",", ":")) if more or NUL in chunk.text else ""
    data = (chunk.text + tail).encode("utf-8", "surrogatepass")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def decode_chunk(data: Tensor) -> Chunk:
    """Decode a chunk, without a key, from bytes."""
    whole = data.numpy().tobytes().decode("utf-8", "surrogatepass")
    text, nul, tail = whole.rpartition(NUL)
    if not nul:
        return Chunk(text=whole)
    fields: dict[str, Any] = json.loads(tail)
    fields |= {name: tuple(value) for name, value in fields.items() if name != "joiner"}
    return Chunk(text=text, **fields)


@lru_cache(maxsize=2**16)
def _hash(word: str) -> int:
    """Hash a word to 64 bits. One in 30 million vocabularies of a million words has a collision."""
    data = word.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), signed=True)


class WordRetriever:
    """BM25 on hashed words."""

    tensor = "words"

    def encode(self, texts: Sequence[str]) -> list[Tensor]:
        """Hash the words of each text in order, int64."""
        split = bm25s.tokenize(list(texts), return_ids=False, show_progress=False)
        return [torch.tensor([_hash(word) for word in words], dtype=torch.int64) for words in split]

    def scorer(self, documents: Sequence[Tensor]) -> Scorer:
        """Return BM25 over these documents: a score of 0 if no word matches."""
        document_words = [document.tolist() for document in documents]
        vocabulary = sorted(set().union(*document_words))
        word_ids = {word: number for number, word in enumerate(vocabulary)}
        index = bm25s.BM25(k1=K1, b=B)
        if word_ids:
            ids = [[word_ids[word] for word in words] for words in document_words]
            index.index((ids, word_ids), create_empty_token=False, show_progress=False)

        def scores(words: Tensor) -> NDArray[np.float32]:
            query_ids = index.get_tokens_ids(words.tolist()) if word_ids else []
            if not query_ids:
                return np.zeros(len(documents), dtype=np.float32)
            return index.get_scores_from_ids(query_ids)

        return scores


class DocumentRanking:
    """Ranking of the documents of a state; the scorer of the last state is cached."""

    def __init__(self, retriever: WordRetriever | DenseRetriever) -> None:
        self.retriever = retriever
        self._cached_scorer: tuple[Tensor, Scorer] | None = None

    def append(self, tensors: Mapping[str, Tensor], texts: Sequence[str]) -> dict[str, Tensor]:
        """Return the state tensors of the index, with these documents appended."""
        return append_items(tensors, self.retriever.tensor, self.retriever.encode(texts))

    def rank(self, tensors: Mapping[str, Tensor], queries: Sequence[Query]) -> Iterator[list[int]]:
        """Yield the numbers of all documents for each query, best first. Later ones win ties."""
        stored = tensors[self.retriever.tensor]
        if self._cached_scorer is None or self._cached_scorer[0] is not stored:
            items = split_items(tensors, self.retriever.tensor)
            self._cached_scorer = stored, self.retriever.scorer(items)
        for query in self.retriever.encode([query.question_text for query in queries]):
            yield np.argsort(self._cached_scorer[1](query), kind="stable")[::-1].tolist()


class Rag(Method[RagSettings]):
    """Retrieval method.

    State: `texts` [1, bytes], and `words` [1, words] or `vectors` [1, K, D]; `.._sizes` of each
    [1, K], see `append_items`.
    """

    spec = RAG
    counts = ("tokens_read", "truncated_documents")
    supports_batching = False

    def __init__(self, lm: LM, settings: RagSettings) -> None:
        super().__init__(lm, settings)
        retriever: WordRetriever | DenseRetriever = WordRetriever()
        if settings.retriever != BM25:
            from ttabench.methods.rag.dense import DenseRetriever

            retriever = DenseRetriever(settings.retriever, lm.device)
        self._ranking = DocumentRanking(retriever)

    def begin(self, rows: int) -> State:
        """Return a state without documents."""
        return State(rows, meta={**super().begin(rows).meta, "keys": [[]]})

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Add the documents and their words or vectors to the state."""
        lengths = [len(ids) for ids in new_chunk_ids(self.lm, state, chunks)[0]]
        limit = self.settings.document_tokens
        kept = [
            self._truncate(chunk) if size > limit else chunk
            for (chunk,), size in zip(chunks, lengths, strict=True)
        ]
        tokens = state.meta["tokens_read"][0] + sum(min(size, limit) for size in lengths)
        truncated = state.meta["truncated_documents"][0] + sum(size > limit for size in lengths)
        meta = {
            "tokens_read": [tokens],
            "truncated_documents": [truncated],
            "keys": [[*state.meta["keys"][0], *(chunk.key for chunk in kept)]],
        }
        tensors = append_items(state.tensors, "texts", [encode_chunk(chunk) for chunk in kept])
        tensors |= self._ranking.append(state.tensors, [chunk.text for chunk in kept])
        return State(1, tensors, meta)

    def _truncate(self, chunk: Chunk) -> Chunk:
        """Cut a document to its first `document_tokens` tokens."""
        ids = chunk_ids(self.lm, replace(chunk, turns=None), first=True)
        text = self.lm.decode(ids[: self.settings.document_tokens])
        return Chunk(text=text, key=chunk.key, joiner=chunk.joiner)

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:
        """Return the retrieved documents of each query as tokens in the window."""
        if not queries or "texts" not in state.tensors:
            return Patch()
        read = [
            [token for ids in found.values() for token in ids]
            for found in self.find_documents(state, queries)
        ]
        lengths = [len(self.lm.start_ids) + len(ids) for ids in read]
        check_fits(self.lm, None, lengths, FEWER_DOCUMENTS_HINT)
        return Patch(*pad(read, self.lm.pad_id, "right", self.lm.device))

    def find_documents(self, state: State, queries: Sequence[Query]) -> list[dict[int, list[int]]]:
        """Retrieve documents for each query: token ids by document number, in reading order.

        Numbers start at 0. With a token limit (`read`), the document with the lowest score is cut.
        """
        texts = split_items(state.tensors, "texts")
        limit = self.settings.token_limit(state.meta["tokens_read"][0], len(self.lm.start_ids))
        by_query = []
        for best_first in self._ranking.rank(state.tensors, queries):
            if limit is None:
                ranked = best_first[: self.settings.top]
            else:
                lengths = accumulate(
                    len(chunk_ids(self.lm, decode_chunk(texts[n]), first=False)) for n in best_first
                )
                full = sum(1 for _ in takewhile(lambda length: length < limit, lengths))
                ranked = best_first[: 1 + full]
            found = dict[int, list[int]]()
            left = limit
            for number in ranked:
                chunk = decode_chunk(texts[number])
                found[number] = chunk_ids(self.lm, chunk, first=number == min(ranked))[:left]
                left = None if left is None else left - len(found[number])
            by_query.append(dict(sorted(found.items())))
        return by_query
