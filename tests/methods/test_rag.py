"""`rag`: BM25 by hand, encoders that pool as their files say, and what is read in front of a question.

Encoders are random BERTs of one layer, saved in the layouts of sentence-transformers and Contriever.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch.nn.functional import normalize
from transformers import BertConfig, BertModel, PreTrainedModel, PreTrainedTokenizerFast

import ttabench as tta
from tests.conftest import Command
from tests.methods.reading import read
from tests.tiny import tiny_llama
from tests.tiny_methods import make_chunks
from ttabench.core.errors import UserError
from ttabench.core.types import Chunk, Query
from ttabench.lm.model import LM
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext
from ttabench.methods.parts.stored import DENSE_MODULE, DENSE_REQUIREMENT
from ttabench.methods.rag import RagSettings
from ttabench.methods.rag.dense import DenseRetriever
from ttabench.methods.rag.method import Rag, WordRetriever
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


def ask(prompt: str, question: str = "") -> Query:
    return Query(prompt=prompt, key=prompt, question=question)


def by_hand(
    texts: Sequence[Sequence[str]], question: Sequence[str], k1: float, b: float
) -> list[float]:
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


def test_scores_are_those_of_the_formula() -> None:
    split = bm25s.tokenize(list(TEXTS), return_ids=False, show_progress=False)
    question = "Who lives in old Port Ansel, or collects blue maps, or dances?"
    (asked,) = bm25s.tokenize([question], return_ids=False, show_progress=False)
    retriever = WordRetriever()
    found = retriever.scorer(retriever.encode(TEXTS))(*retriever.encode([question]))
    np.testing.assert_allclose(found, by_hand(split, asked, 1.5, 0.75), rtol=1e-5)
    assert found[4] == 0
    assert not np.allclose(found, by_hand(split, asked, 2.5, 0.75))


def test_the_bare_question_retrieves_whatever_stands_around_it(lm: LM) -> None:
    method = Rag(lm, RagSettings(top=1))
    state = read(method, *TEXTS)
    bare = "Where does Ada Voss live?"
    templated = f"Blue stamps and blue maps, old radios.\nQuestion: {bare}\nAnswer:"
    found = method.find_documents(state, [ask(bare), ask(templated, bare), ask(templated)])
    assert [list(own) for own in found] == [[0], [0], [1]]


def test_documents_are_read_in_the_order_of_the_stream_as_full_context_reads_them(lm: LM) -> None:
    method = Rag(lm, RagSettings(top=2))
    question = ask("Who sails to Tern Island, Ada Voss?")
    session, full = Session(lm, method), Session(lm, InContext(lm, InContextSettings()))
    session.read(make_chunks(*TEXTS))
    full.read([make_chunks(*TEXTS)[number] for number in (0, 2)])
    assert [list(own) for own in method.find_documents(session.state, [question])] == [[0, 2]]
    ours, theirs = session.patch([question]).prefix, full.patch([question]).prefix
    assert ours is not None
    assert theirs is not None
    for one, other in zip(ours.keys_LBHPD, theirs.keys_LBHPD, strict=True):
        torch.testing.assert_close(one, other)
    assert session.answer([question]) == full.answer([question])


def test_a_run_knows_what_it_reads_and_nothing_of_what_another_reads(ttabench: Command) -> None:
    ran = ttabench("eval --method rag --task streamingqa --limit 8 --swap-state --json")
    assert ran.code == 0
    runs = ran.json()["runs"]
    f1 = {
        run["config"]["state_of"]: row["value"]
        for run in runs
        for row in run["rows"]
        if row["metric"] == "f1"
    }
    assert f1["own"] > 0.75
    assert f1["other"] < 0.25
    assert f1["none"] < 0.25


WORDS = "ada bo lives in port ansel collects blue stamps sails where does who query . ?".split()
VOCABULARY = {
    word: place for place, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])
}
SIZES: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "initializer_range": 0.5,
}
WRITTEN = ["Ada lives in Port Ansel.", "Bo collects blue stamps.", "Ada sails.", "Bo lives."]
CPU = torch.device("cpu")


def tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", model_max_length=32
    )


def saved(folder: Path, model: PreTrainedModel, **files: Any) -> str:
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    for name, value in files.items():
        path = folder / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(value), encoding="utf-8")
    return str(folder)


def bert(seed: int = 0, **more: Any) -> BertModel:
    torch.manual_seed(seed)
    return BertModel(BertConfig(**SIZES | more)).eval()


def modules(*kinds: str) -> list[dict[str, Any]]:
    folders = [
        "" if kind == "Transformer" else f"{number}_{kind}" for number, kind in enumerate(kinds)
    ]
    return [
        {"idx": n, "path": folders[n], "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(kinds)
    ]


def sentence(
    folder: Path, pooling: str = "mean_tokens", *, normal: bool = True, seed: int = 0, **files: Any
) -> str:
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normal else [])]
    pools = {
        "word_embedding_dimension": 16,
        f"pooling_mode_{pooling}": True,
        "pooling_mode_weightedmean_tokens": False,
    }
    return saved(
        folder, bert(seed), **{"modules": modules(*kinds), "1_Pooling/config": pools} | files
    )


def hidden(model: PreTrainedModel, text: str) -> torch.Tensor:
    """Last hidden states [T, D] of one text, unpadded."""
    ids = tokenizer()(text, return_tensors="pt").input_ids
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=ids).last_hidden_state[0]
    return found


def test_texts_are_averaged_and_normalised_as_the_files_say(tmp_path: Path) -> None:
    mean = torch.stack([hidden(bert(), text).mean(0) for text in WRITTEN])
    plain = {"config_sentence_transformers": {"similarity_fn_name": "dot"}}
    for number, (folder, wanted) in enumerate(
        (
            (sentence(tmp_path / "mean"), normalize(mean, dim=1)),
            (sentence(tmp_path / "cosine", normal=False), normalize(mean, dim=1)),
            (sentence(tmp_path / "dot", normal=False, **plain), mean),
        )
    ):
        found = torch.cat(DenseRetriever(folder, CPU).encode(WRITTEN))
        torch.testing.assert_close(found, wanted, msg=str(number))
    prompts = {"config_sentence_transformers": {"prompts": {"query": "query: "}}}
    for folder in (
        sentence(tmp_path / "cls", "cls_token"),
        sentence(tmp_path / "prompts", **prompts),
    ):
        with pytest.raises(UserError, match="pooling"):
            DenseRetriever(folder, CPU)


def test_an_encoder_finds_each_text_by_itself(tmp_path: Path) -> None:
    method = Rag(tiny_llama(), RagSettings(retriever=sentence(tmp_path)))
    state = method.adapt(method.begin(1), [[Chunk(text=text)] for text in WRITTEN])
    found = method.find_documents(state, [Query(prompt=text, key="q") for text in WRITTEN])
    assert all(number in read for number, read in enumerate(found)), "each text finds itself"
    assert state.nbytes == sum(map(len, WRITTEN)) + len(WRITTEN) * (16 * 4 + 2 * 4)


def test_a_run_is_of_the_weights_of_its_encoder(ttabench: Command, tmp_path: Path) -> None:
    def identity() -> str:
        words = (
            "eval",
            "--method",
            "rag",
            "--task",
            "streamingqa",
            "--limit",
            "2",
            "--set",
            f"retriever={tmp_path}/e",
        )
        (run,) = ttabench(*words, "--out", tmp_path / "runs", "--json").json()["runs"]
        return str(run["id"])

    sentence(tmp_path / "e")
    first = identity()
    assert identity() == first
    sentence(tmp_path / "e", seed=1)
    assert identity() != first


def test_a_state_answers_with_the_encoder_that_made_its_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sentence(tmp_path / "e")
    session = tta.Session("nano", "rag", settings={"retriever": "./e"})
    session.read(WRITTEN)
    session.save("mine")
    where = tmp_path / "elsewhere"
    where.mkdir()
    monkeypatch.chdir(where)
    again = {"state": tmp_path / "mine", "settings": {"retriever": "../e"}}
    tta.Session("nano", "rag", **again)  # the same encoder by another path
    sentence(tmp_path / "e", seed=1)
    with pytest.raises(UserError, match="setting retriever"):
        tta.Session("nano", "rag", **again)


@pytest.mark.english
@pytest.mark.skipif(find_spec(DENSE_MODULE) is None, reason=f"{DENSE_REQUIREMENT} is not installed")
def test_minilm_of_the_package_ranks_by_meaning() -> None:
    encoder = DenseRetriever("dense", CPU)
    documents = torch.cat(encoder.encode(["The cat sat on the mat.", "Shares fell on Monday."]))
    asked = torch.cat(encoder.encode(["What did the kitten lie on?", "How was the stock market?"]))
    assert (asked @ documents.T).argmax(1).tolist() == [0, 1]
    assert encoder.normalised


@pytest.mark.parametrize(
    "files",
    [
        {"modules": 5},
        {"modules": [5]},
        {"1_Pooling/config": [1]},
        {"sentence_bert_config": [1]},
        {"sentence_bert_config": {"max_seq_length": "many"}},
        {"sentence_bert_config": {"max_seq_length": -1}},
        {"config_sentence_transformers": {"prompts": [1]}},
        {"config_sentence_transformers": 5},
    ],
    ids=str,
)
def test_an_encoder_whose_files_say_nonsense_is_refused(
    tmp_path: Path, files: dict[str, Any]
) -> None:
    with pytest.raises(UserError):
        DenseRetriever(sentence(tmp_path, **files), CPU)


def test_an_encoder_of_fewer_words_than_its_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, bert(vocab_size=4))
    with pytest.raises(UserError, match=tmp_path.name):
        DenseRetriever(folder, CPU).encode(WRITTEN)
