"""`rag`: BM25 by hand, and what is read in front of a question."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import bm25s
import numpy as np
import pytest
import torch

from tests.conftest import Command
from tests.methods.reading import read
from tests.tiny import tiny_llama
from tests.tiny_methods import observes
from ttabench.core.types import Ask
from ttabench.lm.model import LM
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext
from ttabench.methods.rag import RagSettings
from ttabench.methods.rag.method import Rag, WordRetriever, ranking
from ttabench.methods.session import Session

TEXTS = (
    "Ada Voss lives in Port Ansel.",
    "Bo Lind collects blue stamps and old blue maps of Port Ansel.",
    "Cy Marr sails to Tern Island, and sails back.",
    "The radios of Di Okoro are old.",
    "... ?",
)


@pytest.fixture(scope="module")
def lm() -> LM:
    return tiny_llama()


def ask(prompt: str, question: str = "") -> Ask:
    return Ask(prompt=prompt, key=prompt, question=question)


def by_hand(texts: Sequence[Sequence[str]], question: Sequence[str], k1: float, b: float) -> list[float]:
    """Lucene's BM25: log(1 + (N - n + 0.5) / (n + 0.5)) tf / (tf + k1 (1 - b + b length / mean length)), summed."""
    mean = sum(map(len, texts)) / len(texts)
    scores = []
    for words in texts:
        counts, score = Counter(words), 0.0
        for word in question:
            holding = sum(word in other for other in texts)
            rarity = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
            damped = counts[word] + k1 * (1 - b + b * len(words) / mean)
            score += rarity * counts[word] / damped if holding else 0.0
        scores.append(score)
    return scores


@pytest.mark.parametrize(("k1", "b"), [(1.5, 0.75), (0.9, 0.4), (2.0, 0.0)])
def test_scores_are_those_of_the_formula(k1: float, b: float) -> None:
    split = bm25s.tokenize(list(TEXTS), return_ids=False, show_progress=False)
    question = "Who lives in old Port Ansel, or collects blue maps, or dances?"
    (asked,) = bm25s.tokenize([question], return_ids=False, show_progress=False)
    retriever = WordRetriever(k1, b)
    found = retriever.scorer(retriever.documents(TEXTS))(*retriever.questions([question]))
    np.testing.assert_allclose(found, by_hand(split, asked, k1, b), rtol=1e-5)
    assert found[4] == 0
    assert not np.allclose(found, by_hand(split, asked, k1 + 1, b))


def test_the_best_come_first_and_of_equals_the_last() -> None:
    assert ranking(np.array([1, 2, 0, 2, 1], dtype=np.float32)) == [3, 1, 4, 0, 2]


def test_the_bare_question_retrieves_whatever_stands_around_it(lm: LM) -> None:
    method = Rag(lm, RagSettings(top=1))
    state = read(method, *TEXTS)
    bare = "Where does Ada Voss live?"
    templated = f"Blue stamps and blue maps, old radios.\nQuestion: {bare}\nAnswer:"
    assert method.found(state, [ask(bare), ask(templated, bare), ask(templated)]) == [[0], [0], [1]]


def test_the_texts_read_share_alike_and_say_how_well_they_match(lm: LM) -> None:
    rag = Rag(lm, RagSettings(top=2))
    shares = rag.piece_shares(read(rag, *TEXTS), [ask("Does Bo Lind collect maps?"), ask("Who sails?")])
    assert shares is not None
    assert shares.scores_QK is not None
    assert shares.names == ("d0", "d1", "d2", "d3", "d4")
    assert shares.shares_QK.tolist() == [[0, 0.5, 0, 0, 0.5], [0, 0, 0.5, 0, 0.5]], "of equal ones the last"
    assert shares.largest(0, 5) == [1, 4]
    assert shares.largest(1, 1) == [2]
    assert float(shares.scores_QK[0, 1]) > float(shares.scores_QK[0].sum()) / 2
    assert rag.piece_shares(rag.begin(1), [ask("Who?")]) is None


def test_documents_are_read_in_the_order_of_the_stream_as_full_context_reads_them(lm: LM) -> None:
    method = Rag(lm, RagSettings(top=2))
    question = ask("Who sails to Tern Island, Ada Voss?")
    session, full = Session(lm, method), Session(lm, InContext(lm, InContextSettings()))
    session.read(observes(*TEXTS))
    full.read([observes(*TEXTS)[number] for number in (0, 2)])
    assert method.found(session.state, [question]) == [[0, 2]]
    ours, theirs = session.patch([question]).prefix, full.patch([question]).prefix
    assert ours is not None
    assert theirs is not None
    for one, other in zip(ours.keys_LBHPD, theirs.keys_LBHPD, strict=True):
        torch.testing.assert_close(one, other)
    assert session.answer([question]) == full.answer([question])


def test_a_run_knows_what_it_reads_and_nothing_of_what_another_reads(ttabench: Command) -> None:
    ran = ttabench("eval", "--method", "rag", "--task", "streamingqa", "--limit", "8", "--swap-state", "--json")
    assert ran.code == 0
    runs = ran.json()["runs"]
    f1 = {run["config"]["state_of"]: row["value"] for run in runs for row in run["rows"] if row["metric"] == "f1"}
    assert f1["own"] > 0.75
    assert f1["other"] < 0.25
    assert f1["none"] < 0.25
