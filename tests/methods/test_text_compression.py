"""`random_text`, `prompt_compression` and `summary`: whole words, in order, within the budget, by an independent score."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer
from transformers import (
    BertConfig,
    BertForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    XLMRobertaConfig,
    XLMRobertaForTokenClassification,
)

from tests.conftest import Command, error_line
from tests.lm.test_texts import chatting
from tests.methods.reading import QUESTION, read
from tests.tiny import MODEL_FACTORIES, MODEL_IDS, byte_tokenizer, tiny_llama
from ttabench.core.types import Chunk
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.lm.texts import TextTokenizer
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext
from ttabench.methods.parts.kept import stored_ids
from ttabench.methods.registry import find_method
from ttabench.methods.session import Session
from ttabench.methods.settings import build_settings
from ttabench.methods.text_compression.classifier import WordClassifier
from ttabench.methods.text_compression.method import TextCompression, split_words

TEXTS = (
    "Ada Voss, who was born in Hull, lives in Port Ansel.",
    "Bo Lind collects blue stamps, old maps and 2,500 radios.",
    "Cy Marr sails to Tern Island\n\nand back.",
)
WHOLE = "\n\n".join(TEXTS)
SELECTING = ("random_text", "prompt_compression")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def lm() -> LM:
    return tiny_llama()


def method(lm: LM, name: str, **settings: Any) -> TextCompression[Any]:
    spec = find_method(name)
    made = spec.load()(lm, build_settings(spec, settings))
    assert isinstance(made, TextCompression)
    return made


def kept(state: State) -> list[int]:
    return stored_ids(state.tensors, 1)[0]


# --- Words -----------------------------------------------------------------------------------------------------------


def trained(*, metaspace: bool) -> TextTokenizer:
    """A tokenizer with merges: byte-level as GPT-2's, or with blanks as "▁" as SentencePiece's."""
    backend = Tokenizer(models.BPE(byte_fallback=False, unk_token="<unk>" if metaspace else None))
    if metaspace:
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    else:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    alphabet = [] if metaspace else pre_tokenizers.ByteLevel.alphabet()
    special = ["<unk>", "<eos>"]
    trainer = BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    backend.train_from_iterator([WHOLE, "東京に住む。東京に。"] * 3, trainer)
    return TextTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>"), "trained"
    )


TOKENIZERS = {
    "bytes": lambda: TextTokenizer(byte_tokenizer(), "bytes"),
    "byte level": lambda: trained(metaspace=False),
    "metaspace": lambda: trained(metaspace=True),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_words_are_separated_by_white_space(kind: str) -> None:
    texts = TOKENIZERS[kind]()
    text = "Ada Voss, who was born in Port Ansel"
    words = [word for _, word in split_words(texts, texts.encode(text))]
    assert words == ["Ada", " Voss,", " who", " was", " born", " in", " Port", " Ansel"]


def test_leading_white_space_belongs_to_a_word() -> None:
    texts = TOKENIZERS["bytes"]()
    words = [word for _, word in split_words(texts, texts.encode("  Ada\n\n  sails.\t"))]
    assert words == ["  Ada", "\n\n  sails.", "\t"]


@pytest.mark.parametrize("kind", ["bytes", "byte level"])
def test_scripts_without_blanks_have_whole_characters(kind: str) -> None:
    texts = TOKENIZERS[kind]()
    text = "ดีมาก 東京に(Ada)。 é"
    words = [word for _, word in split_words(texts, texts.encode(text))]
    # the vowel sign of "ดี" is a mark, which stays on its letter; "東京に" is one token with merges
    thai, end = ["ดี", "ม", "า", "ก"], " é"
    han = [" 東", "京", "に(Ada)。"] if kind == "bytes" else [" 東京に(Ada)。"]
    assert words == [*thai, *han, end]


@given(st.text(max_size=40), st.sampled_from(["bytes", "byte level"]))
def test_words_are_all_of_a_text(text: str, kind: str) -> None:
    texts = TEXT_TOKENIZERS[kind]
    ids = texts.encode(text)
    words = split_words(texts, ids)
    assert [n for span, _ in words for n in span] == list(range(len(ids)))
    assert "".join(word for _, word in words) == text


TEXT_TOKENIZERS = {kind: TOKENIZERS[kind]() for kind in ("bytes", "byte level")}


def test_any_ids_are_split(lm: LM) -> None:
    """Ids of a book may begin within a character."""
    ids = torch.randint(0, 259, (300,), generator=torch.Generator().manual_seed(0)).tolist()
    assert [n for span, _ in split_words(lm, ids) for n in span] == list(range(300))


# --- Choice of words -------------------------------------------------------------------------------------------------


def is_subsequence(part: list[str], whole: list[str]) -> bool:
    left: Iterator[str] = iter(whole)
    return all(word in left for word in part)


@pytest.mark.parametrize("budget", [0.2, 0.5, 0.9, 37], ids=str)
@pytest.mark.parametrize("name", SELECTING)
def test_whole_words_stay_in_order_within_a_word_of_the_budget(
    lm: LM, name: str, budget: float
) -> None:
    state = read(method(lm, name, budget=budget), *TEXTS)
    ids, whole = kept(state), lm.encode(WHOLE)
    limit = budget if isinstance(budget, int) else int(budget * (len(whole) + 1))
    words = [word for _, word in split_words(lm, whole)]
    assert limit - max(map(len, words)) < len(ids) + 1 <= limit
    assert is_subsequence([word for _, word in split_words(lm, ids)], words)
    assert state.meta == {"tokens_read": [len(whole)], "kept_tokens": [len(ids)]}


def test_the_control_achieves_the_ratio_of_what_it_controls(lm: LM) -> None:
    sizes = {len(kept(read(method(lm, name, budget=0.5), *TEXTS * 3))) for name in SELECTING}
    assert max(sizes) - min(sizes) <= 2


def test_random_words_are_those_of_a_seed(lm: LM) -> None:
    choices = [kept(read(method(lm, "random_text", seed=seed), *TEXTS)) for seed in (0, 0, 1)]
    assert choices[0] == choices[1] != choices[2]


@pytest.mark.parametrize("name", [*SELECTING, "summary"])
@pytest.mark.parametrize("make", MODEL_FACTORIES, ids=MODEL_IDS)
def test_all_of_the_text_is_full_context(make: Any, name: str) -> None:
    base = make()
    full = Session(base, InContext(base, InContextSettings()))
    ours = Session(base, method(base, name, budget=1.0))
    for session in (full, ours):
        session.read([Chunk(text=text) for text in TEXTS])
    assert ours.method.evicts_nothing(ours.state.meta["tokens_read"][0])
    assert ours.answer(QUESTION) == full.answer(QUESTION)
    assert ours.gold_likelihoods(QUESTION) == full.gold_likelihoods(QUESTION)
    assert ours.count_context_slots(ours.patch(QUESTION), QUESTION[0]) == len(base.start_ids) + len(
        base.encode(WHOLE)
    )


@pytest.mark.parametrize("chunk", [2048, 50])
@pytest.mark.parametrize("make", MODEL_FACTORIES, ids=MODEL_IDS)
def test_words_are_those_with_the_most_self_information(make: Any, chunk: int) -> None:
    base = make()
    ids = base.encode(WHOLE)
    count = -(-len(ids) // chunk)
    values: list[float] = []
    for part in range(count):
        text = ids[len(ids) * part // count : len(ids) * (part + 1) // count]
        start = [*base.start_ids] or [base.eos_id]
        with torch.no_grad():
            logits_TV = base.model(torch.tensor([[*start, *text]])).logits[0, :-1]
        values += (-logits_TV.log_softmax(-1)[range(len(text)), text]).tolist()
    ours = method(base, "prompt_compression", budget=0.4, chunk=chunk)
    torch.testing.assert_close(
        torch.tensor(ours.score(ids, 0)),  # type: ignore[attr-defined]
        torch.tensor(values),
        rtol=1e-4,
        atol=1e-4,
    )
    spans = [span for span, _ in split_words(base, ids)]
    means = torch.tensor([sum(values[n] for n in span) / len(span) for span in spans])
    state = read(ours, *TEXTS)
    best = spans[int(means.argmax())]
    worst = spans[int(means.argmin())]
    text = base.decode(kept(state))
    assert base.decode([ids[n] for n in best]) in text
    assert base.decode([ids[n] for n in worst]) not in text.split(" ")
    left, taken = int(0.4 * (len(ids) + len(base.start_ids))) - len(base.start_ids), set[int]()
    for word in means.argsort(descending=True, stable=True).tolist():
        if len(spans[word]) <= left:
            left -= len(spans[word])
            taken.update(spans[word])
    assert kept(state) == [ids[n] for n in sorted(taken)]


@pytest.mark.parametrize("name", SELECTING)
def test_words_of_an_earlier_text_compete_with_those_of_a_later_one(lm: LM, name: str) -> None:
    ours = method(lm, name, budget=60)
    first = ours.adapt(ours.begin(1), [[Chunk(text=TEXTS[0])]])
    both = ours.adapt(first, [[Chunk(text=TEXTS[1])]])
    assert kept(first) == lm.encode(TEXTS[0])
    assert len(kept(both)) < 60
    words = [word for _, word in split_words(lm, kept(both))]
    assert is_subsequence(words, [word for _, word in split_words(lm, lm.encode(WHOLE))])
    texts = [set(split_texts(lm, text)) for text in TEXTS[:2]]
    assert all(any(word in own for word in words) for own in texts)
    assert first.nbytes == 12 * len(TEXTS[0]) + 8
    assert both.nbytes == 12 * 59 + 8


def split_texts(lm: LM, text: str) -> list[str]:
    return [word for _, word in split_words(lm, lm.encode(text))]


# --- LLMLingua-2 -----------------------------------------------------------------------------------------------------

PIECES = "ada voss lives in port ans ##el , who was b ##orn hull . bo sail ##s".split()
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "initializer_range": 1.0,
}
CLASSIFIED = "Ada Voss, who was born in Hull, lives in Port Ansel. "


def word_piece() -> PreTrainedTokenizerFast:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *PIECES]
    backend = Tokenizer(
        models.WordPiece({name: place for place, name in enumerate(names)}, unk_token="[UNK]")
    )
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]"
    )


def sentence_piece() -> PreTrainedTokenizerFast:
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    vocabulary = [(name, 0.0) for name in names] + [("▁", -3.0)]
    vocabulary += [
        (f"▁{word.removeprefix('##')}", -4.0) for word in ("Ada", "Voss", "lives", *PIECES)
    ]
    vocabulary += [(letter, -9.0) for letter in sorted({*CLASSIFIED} - {" "})]
    backend = Tokenizer(models.Unigram(vocabulary, unk_id=3))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", eos_token="</s>"
    )


def classifier(folder: Path, kind: str, **more: Any) -> tuple[str, PreTrainedModel, Any]:
    """A random classifier in a folder, as LLMLingua-2's are stored."""
    torch.manual_seed(0)
    tokenizer = word_piece() if kind == "bert" else sentence_piece()
    sizes = SIZES | {"vocab_size": len(tokenizer), "max_position_embeddings": 24} | more
    if kind == "bert":
        model: PreTrainedModel = BertForTokenClassification(BertConfig(**sizes))
    else:
        model = XLMRobertaForTokenClassification(XLMRobertaConfig(**sizes, pad_token_id=1))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder), model.eval(), tokenizer


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
@pytest.mark.parametrize("repetitions", [1, 3])
def test_probabilities_of_words_are_those_of_transformers(
    lm: LM, tmp_path: Path, kind: str, repetitions: int
) -> None:
    folder, model, tokenizer = classifier(tmp_path, kind)
    text = CLASSIFIED * repetitions
    words = split_texts(lm, text)
    ids = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    first, last = tokenizer("", add_special_tokens=True).input_ids
    part_tokens = 24 - 2 - 2  # positions that RoBERTa does not use, and special tokens
    probabilities = list[float]()
    for begin in range(0, len(ids.input_ids), part_tokens):
        window = torch.tensor([[first, *ids.input_ids[begin : begin + part_tokens], last]])
        with torch.no_grad():
            logits_T2 = model(input_ids=window).logits[0]
        probabilities += logits_T2.softmax(-1)[1:-1, 1].tolist()
    assert (len(probabilities) > part_tokens) == (repetitions > 1 or kind != "bert")
    ends, end = list[int](), 0
    for word in words:
        end += len(word)
        ends.append(end)
    expected = []
    for word, end in zip(words, ends, strict=True):
        own = [
            value
            for value, (_, stop) in zip(probabilities, ids.offset_mapping, strict=True)
            if end - len(word) < stop <= end
        ]
        expected.append(sum(own) / max(1, len(own)))
    found = WordClassifier(folder, CPU).keep_probabilities(words)
    assert found == pytest.approx(expected, abs=1e-5)
    assert max(found) > 2 * min(found)


def test_a_classifier_selects_words(lm: LM, tmp_path: Path) -> None:
    folder, _, _ = classifier(tmp_path, "bert")
    ours = method(lm, "prompt_compression", budget=0.5, scorer=folder)
    words = split_texts(lm, TEXTS[0])
    scores = WordClassifier(folder, CPU).keep_probabilities(words)
    best, worst = (words[scores.index(choose(scores))] for choose in (max, min))
    state = read(ours, TEXTS[0])
    assert best in split_texts(lm, lm.decode(kept(state)))
    assert worst not in split_texts(lm, lm.decode(kept(state)))
    assert kept(state) != kept(read(method(lm, "prompt_compression", budget=0.5), TEXTS[0]))


@pytest.mark.parametrize("labels", [0, 3])
def test_a_scorer_that_does_not_serve_is_refused(
    ttabench: Command, tmp_path: Path, labels: int
) -> None:
    scorer = "nothing of that name"
    if labels:
        scorer, _, _ = classifier(tmp_path / "three", "bert", num_labels=labels)
    words = ("eval", "--method", "prompt_compression", "--task", "streamingqa", "--limit", "2")
    ran = ttabench(*words, "--set", f"scorer={scorer}", "--out", tmp_path / "runs")
    assert ran.code == 2
    assert scorer in error_line(ran)


# --- Summaries -------------------------------------------------------------------------------------------------------


def written(base: LM, ids: list[int], count: int) -> list[int]:
    """Greedy tokens after these ids, one by one, without a cache."""
    found = list[int]()
    for _ in range(count):
        with torch.no_grad():
            logits_V = base.model(torch.tensor([[*ids, *found]])).logits[0, -1]
        logits_V[base.text_vocab_size :] = -torch.inf
        if int(logits_V.argmax()) in base.eos_ids:
            break
        found.append(int(logits_V.argmax()))
    return found


def test_a_summary_is_what_the_model_writes(lm: LM) -> None:
    ours = method(lm, "summary", budget=0.25, prompt="\nThe facts in {words} words:")
    limit = int(0.25 * (len(WHOLE) + 1)) - 1
    words = len(split_texts(lm, WHOLE)) * limit // len(WHOLE)
    prompt = [*lm.start_ids, *lm.encode(f"{WHOLE}\nThe facts in {words} words:")]
    state = read(ours, *TEXTS)
    assert kept(state) == written(lm, prompt, limit)
    assert state.meta["kept_tokens"] == [len(kept(state))]
    assert state.nbytes == 8 * (limit + 1)


def test_a_chat_template_makes_the_summary_an_answer() -> None:
    base = chatting()
    ours = method(base, "summary", budget=60, prompt="\nSum up.")
    turn = [{"role": "user", "content": f"{WHOLE}\nSum up."}]
    text = base.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    limit = 60 - len(base.start_ids)
    assert kept(read(ours, *TEXTS)) == written(base, base.encode(text, parse_special=True), limit)


def test_a_text_beyond_the_positions_is_summarized_in_parts(lm: LM) -> None:
    text = " ".join(TEXTS * 8)
    assert len(text) > 2 * lm.max_positions
    state = method(lm, "summary", budget=90).adapt(
        method(lm, "summary").begin(1), [[Chunk(text=text)]]
    )
    assert 0 < len(kept(state)) <= 89
    ids, request = lm.encode(text), " Sum up."
    ours = method(lm, "summary", budget=90, prompt=request)
    part_tokens = int((lm.max_positions - 1 - len(request)) / (1 + 89 / len(ids)))
    count = -(-len(ids) // part_tokens)
    parts = [ids[len(ids) * n // count : len(ids) * (n + 1) // count] for n in range(count)]
    limits = [89 * (n + 1) // count - 89 * n // count for n in range(count)]
    expected = [
        token
        for part, limit in zip(parts, limits, strict=True)
        for token in written(lm, [*lm.start_ids, *part, *lm.encode(request)], limit)
    ]
    assert count > 1
    assert kept(read(ours, text)) == expected


def test_a_summary_is_summarized_with_later_text(lm: LM) -> None:
    ours = method(lm, "summary", budget=60, prompt=" Sum up.")
    first = read(ours, *TEXTS[:2])
    again = ours.adapt(first, [[Chunk(text=TEXTS[2])]])
    later = lm.encode("\n\n" + TEXTS[2], is_continuation=True)
    whole = [*lm.start_ids, *kept(first), *later, *lm.encode(" Sum up.")]
    assert kept(again) == written(lm, whole, 59)
    assert kept(read(ours, TEXTS[0])) == lm.encode(TEXTS[0])


def test_a_run_shows_the_share_of_tokens_that_is_read(ttabench: Command, tmp_path: Path) -> None:
    words = ("--task", "streamingqa", "--limit", "2", "--task-set", "documents=4", "--json")
    for name in (*SELECTING, "summary"):
        ran = ttabench("eval", "--method", name, "--keep", "0.4", *words, "--out", tmp_path)
        (run,) = ran.json()["runs"]
        assert 0.36 < run["cost"]["kept_share"] <= 0.4, name
