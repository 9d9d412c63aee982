"""BM25 by bm25s: words of documents as hashes in the state; weights of words once the state is settled.

    hashes = words_of(["Ada Voss lives in Port Ansel."])       one tensor of hashed words a text
    Bm25(hashes, k1=1.5, b=0.75).scores(*words_of(["Where does Ada live?"]))

Robertson et al., "Okapi at TREC-3" (1994), in Lucene's form (Kamphuis et al., 2020) as bm25s (arXiv 2407.03618) has it.
Words are bm25s' own: letters and digits in lower case, two or more, without its English stop words, not stemmed.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import bm25s
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
    """BM25 of hashed words.

    Args:
        k1: how soon a word that is repeated counts no more.
        b: how much longer documents count less.
    """

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

    def index(self, documents: Sequence[Tensor]) -> Bm25:
        """The question, prepared once for all documents."""
        return Bm25(documents, k1=self.k1, b=self.b)


class Bm25:
    """Weights of every word of a collection in every document of it.

    Args:
        words: the hashed words of each document.
        k1: how soon a word that is repeated counts no more.
        b: how much longer documents count less.
    """

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
