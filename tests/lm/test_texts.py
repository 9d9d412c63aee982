"""Texts as a model means them: what begins them, how pieces join, chat templates, what ends an answer."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.conftest import Command
from tests.tiny import byte_tokenizer, tiny_gpt2, tiny_llama
from ttabench.core.errors import UserError
from ttabench.core.types import Choose, Chunk, Generate, Query
from ttabench.lm.forward.tokens import choice_ids, gold_ids, new_chunk_ids, prompt_ids, window_ids
from ttabench.lm.inference.answering import answer_queries
from ttabench.lm.loading.hub import NANO_FOLDER
from ttabench.lm.model import LM, load
from ttabench.lm.patch import Patch
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext
from ttabench.readers.base import move_blanks_forward

TEMPLATE = (
    "{% for m in messages %}<|bos|>{{ m['role'] }}\n{{ m['content'] }}<|eos|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|bos|>assistant\n{% endif %}"
)
WORDS = st.lists(
    st.sampled_from(["Ada", " Voss", "\n", "\n\n", " ", ".", " 17", "é", "<|eos|>", "'s"]),
    max_size=8,
)


def chatting() -> LM:
    lm = tiny_llama()
    lm.tokenizer.chat_template = TEMPLATE
    lm.use_chat_template()
    return lm


@pytest.mark.parametrize("thinking", [False, True])
def test_a_template_is_given_a_fixed_date_and_thinks_only_if_asked(thinking: bool) -> None:
    lm = tiny_llama()
    lm.tokenizer.chat_template = (
        "{{ strftime_now('%d %b %Y') }}" + TEMPLATE + "{% if enable_thinking %}<t>{% endif %}"
    )
    lm.use_chat_template(thinking=thinking)
    assert lm.chat is not None
    assert lm.decode(lm.start_ids).startswith("26 Jul 2024")
    assert lm.chat.end.endswith("<t>") == thinking


def test_what_a_template_is_given_is_part_of_the_id_where_it_asks_for_it(
    ttabench: Command, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(NANO_FOLDER, model)

    def run(*more: str) -> dict[str, Any]:
        words = (
            "eval",
            "--model",
            model,
            "--source",
            "mini",
            "--chat-template",
            "--dry-run",
            "--json",
            *more,
        )
        return dict(ttabench(*words).json()["runs"][0])

    for template, value in (
        ("", None),
        ("{{ strftime_now('%Y') }}", "2024-07-26"),
        ("{{ enable_thinking }}", "off"),
    ):
        (model / "chat_template.jinja").write_text(template + TEMPLATE)
        given = run()["config"]["inputs"].get("template")
        assert given is None if value is None else value in given
        differs = run("--thinking")["id"] != run()["id"]
        assert differs == (value == "off")


@pytest.fixture(scope="module")
def nano() -> LM:
    return load(device="cpu")


def test_a_text_begins_with_what_its_tokenizer_adds() -> None:
    lm = tiny_llama()
    adds, knows = byte_tokenizer(), byte_tokenizer()
    knows.backend_tokenizer.post_processor = byte_tokenizer(
        bos=False
    ).backend_tokenizer.post_processor
    assert LM(lm.model, adds, "adds").bos_ids == (256,)
    silent = LM(lm.model, knows, "knows a BOS and adds none, as SmolLM2's does")
    assert knows.bos_token_id == 256
    assert silent.bos_ids == ()
    assert LM(lm.model, knows, "told to", bos="yes").bos_ids == (256,)
    assert LM(lm.model, adds, "told not to", bos="no").bos_ids == ()
    with pytest.raises(UserError, match="no BOS token"):
        LM(tiny_gpt2().model, byte_tokenizer(bos=False), "gpt2", bos="yes")


@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(WORDS, min_size=1, max_size=4), prompt=WORDS)
def test_the_tokens_of_chunks_are_those_of_the_whole_text(
    nano: LM, pieces: list[list[str]], prompt: list[str]
) -> None:
    texts = ["x" + "".join(piece) for piece in pieces]
    question = "Q" + "".join(prompt)
    steps = list(
        move_blanks_forward(
            [*(Chunk(text=text) for text in texts), Query(prompt=question, key="q")]
        )
    )
    read = [step for step in steps if isinstance(step, Chunk)]
    ask = next(step for step in steps if isinstance(step, Query))
    state = InContext(nano, InContextSettings()).begin(1)
    (rows,) = new_chunk_ids(nano, state, [[piece] for piece in read])
    whole = nano.encode("\n\n".join([*texts, question]))
    assert [token for row in rows for token in row] + prompt_ids(
        nano, ask, is_continuation=True
    ) == whole
    inside = Query(prompt=question, key="q", joiner=ask.joiner, window=tuple(read))
    assert (
        window_ids(nano, inside, is_continuation=False)
        + prompt_ids(nano, inside, is_continuation=True)
        == whole
    )


@settings(max_examples=60, deadline=None)
@given(prompt=WORDS, option=WORDS)
def test_prompt_and_option_are_the_tokens_of_both_together(
    nano: LM, prompt: list[str], option: list[str]
) -> None:
    question, end = "Q" + "".join(prompt), " o" + "".join(option)
    ask = Query(prompt=question, key="q", want=Choose(options=(end,)))
    (((ids, (found,)),),) = choice_ids(nano, [ask], is_continuation=False)
    assert ids + found == nano.encode(question + end)
    assert ids == nano.encode(question.rstrip())


def _sentencepiece(
    merges: Sequence[tuple[str, str]] = (("\u2581", "a"), ("\u2581", "b")),
) -> PreTrainedTokenizerFast:
    """A tokenizer that puts a blank in front of every text, as Llama 2's does."""
    letters = {letter: i + 3 for i, letter in enumerate("\u2581abcdefghijklmnopqrstuvwxyz\n.")}
    merged = {"".join(pair): i + 60 for i, pair in enumerate(merges)}
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **letters, **merged}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=list(merges), unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    backend.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def test_a_text_after_another_has_no_blank_of_the_tokenizers_in_front() -> None:
    lm = LM(tiny_llama().model, _sentencepiece(), "sentencepiece")
    whole = lm.encode("ab\nbc b")
    assert (
        lm.encode("ab")
        + lm.encode("\nbc", is_continuation=True)
        + lm.encode(" b", is_continuation=True)
        == whole
    )
    assert lm.encode("ab") + lm.encode("\nbc") != whole, "which is what the flag is for"
    assert lm.encode_many(["\nbc"], is_continuation=True) == [
        lm.encode("\nbc", is_continuation=True)
    ]


def test_a_chat_template_stands_around_context_and_question() -> None:
    lm = chatting()
    assert lm.chat is not None
    pieces = [Chunk(text="Ada lives in Hull."), Chunk(text="Bo sails <|eos|>.")]
    method = InContext(lm, InContextSettings())
    (rows,) = new_chunk_ids(lm, method.begin(1), [[piece] for piece in pieces])
    ask = Query(prompt="Who sails?", key="q", want=Generate(answers=("Bo",)))
    ids = [
        *lm.start_ids,
        *(token for row in rows for token in row),
        *prompt_ids(lm, ask, is_continuation=True),
    ]
    turn = [{"role": "user", "content": "Ada lives in Hull.\n\nBo sails @.\n\nWho sails?"}]
    rendered = lm.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    before, after = rendered.split("@")
    assert ids == lm.encode(before, parse_special=True) + lm.encode("<|eos|>") + lm.encode(
        after, parse_special=True
    )
    assert gold_ids(lm, ask) == [*lm.encode("Bo"), lm.eos_id], (
        "the answer begins the next turn, without a delimiter"
    )


@pytest.mark.parametrize(
    "template", [None, "{{ raise_exception('no') }}", "hello", "{{ messages[0]['content'] * 2 }}"]
)
def test_a_chat_template_that_does_not_serve(template: str | None) -> None:
    lm = tiny_llama()
    lm.tokenizer.chat_template = template
    with pytest.raises(UserError, match="--chat-template"):
        lm.use_chat_template()


class _Writing:
    """Greedy decoding that writes given tokens, then x."""

    def __init__(self, texts: list[list[int]]) -> None:
        self.texts = texts

    def __call__(self, lm: LM, patch: Patch, texts: Any, count: int, pick: Any = None) -> Any:  # noqa: ARG002
        for step in range(count):
            yield torch.tensor(
                [row[step] if step < len(row) else lm.encode("x")[0] for row in self.texts]
            )


def _answers(
    lm: LM, monkeypatch: pytest.MonkeyPatch, texts: list[list[int]], **more: Any
) -> list[Any]:
    monkeypatch.setattr("ttabench.lm.inference.answering.greedy_tokens", _Writing(texts))
    want = Generate(answers=("x",), max_new_tokens=16, **more)
    asks = [Query(prompt="Q", key=str(i), want=want) for i in range(len(texts))]
    return answer_queries(lm, Patch(), asks)


def test_answers_end_at_stop_strings_and_lose_their_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny_llama()
    written = [lm.encode(text) for text in ("\nanswer: Hull\nQ", "Hull, by the te", "\n" * 16)]
    found = _answers(lm, monkeypatch, written, stops=("\n",), leads=("Answer:",))
    assert [each.prediction for each in found] == ["Hull", "Hull, by the tex", ""]
    assert [each.ended for each in found] == [True, False, False]
