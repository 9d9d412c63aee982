"""RULER: what contexts hold at any length, lm-eval's wording, published rows, and files that sub-tasks need."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.qa_files import write_jsonl, write_parquet
from tests.tiny import tiny_llama
from ttabench.core.errors import UserError
from ttabench.core.types import Episode, Generate, Query, wants_of_kind
from ttabench.lm.forward.tokens import gold_ids, prompt_ids
from ttabench.readers import load
from ttabench.readers.ruler import Ruler
from ttabench.stats.metrics import metric

MADE = ("niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "cwe", "fwe")
SIZES = {"niah_single_1": 128, "vt": 30, "cwe": 120, "fwe": 50, "qa_1": 32, "qa_2": 32}
ESSAY = " ".join(
    f"Essay sentence {number} says {word}."
    for number, word in enumerate("one two three".split() * 700)
)
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class Four:
    """A tokenizer of one token for four letters, with five tokens around a context and its question."""

    frame_tokens = 5

    def encode(self, text: str) -> list[int]:
        return list(range(-(-len(text) // 4)))

    def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
        return self.encode(text), list(range(0, len(text), 4))


FOUR = Four()


def episodes(limit: int | None = 1, source: str = "generated", **options: Any) -> list[Episode]:
    options = {"tasks": "niah_single_1", "contexts": 2} | options
    return list(load("ruler", source=source, limit=limit, options=options).episodes(FOUR))


def only(name: str, **options: Any) -> tuple[str, Query]:
    """(context, first query) of the first context of a sub-task."""
    (episode, *_) = episodes(tasks=name, **options)
    return "".join(piece.text for piece in episode.chunks()), episode.queries()[0]


def room(ask: Query) -> int:
    (want,) = wants_of_kind([ask], Generate)
    return want.max_new_tokens


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(MADE), st.integers(3000, 9000), st.integers(0, 99))
def test_a_context_fills_its_length_and_a_longer_one_asks_the_same(
    name: str, length: int, seed: int
) -> None:
    task = load(
        "ruler", source="generated", seed=seed, limit=1, options={"tasks": name, "length": length}
    )
    ((episode, (key, sample)),) = task.episodes_with_source(FOUR)  # type: ignore[attr-defined]
    (ask,) = episode.queries()
    assert isinstance(task, Ruler)
    size = task._sizes[id(FOUR), key]
    for units, fits in ((size, True), (size + 1, False)):
        used = (
            len(FOUR.encode(sample.write(units)))
            + len(FOUR.encode("\n\n" + ask.prompt))
            + 5
            + room(ask)
        )
        assert (used <= length) == fits or (units > size and sample.max_units == size)
    assert "".join(piece.text for piece in episode.chunks()) + ask.joiner == sample.write(size)
    assert room(ask) == SIZES.get(name, 128)
    if name not in ("cwe", "fwe"):  # words come as often as their length has it
        longer = load(
            "ruler",
            source="generated",
            seed=seed,
            limit=1,
            options={"tasks": name, "length": 2 * length},
        )
        ((other, _),) = longer.episodes_with_source(FOUR)  # type: ignore[attr-defined]
        assert [one.prompt for one in other.queries()] == [ask.prompt]
        assert sum(len(piece.text) for piece in other.chunks()) > 1.5 * sum(
            len(p.text) for p in episode.chunks()
        )


def test_answers_are_what_a_context_reports() -> None:
    context, ask = only("niah_multikey_2", questions=3)
    key = re.findall(r"for (\S+) mentioned", ask.prompt)[0]
    assert (
        f"One of the special magic numbers for {key} is: {ask.answers[0]}." in context.splitlines()
    )
    context, ask = only("vt", questions=2)
    first = re.findall(r"VAR (\w{5}) = (\d{5})", context)
    links = dict(re.findall(r"VAR (\w{5}) = VAR (\w{5})", context))
    value = re.findall(r"value (\d{5})", ask.prompt)[0]
    (start,) = (name for name, own in first if own == value)
    assert [links.get(name, start) for name in ask.answers] == [start, *ask.answers[:-1]]
    context, ask = only("cwe")
    counts = Counter(re.findall(r"\d+\. (\S+)", context.rpartition("Memorize")[2]))
    assert {word for word, _ in counts.most_common(10)} == set(ask.answers)
    assert set(counts.values()) == {30, 3}
    context, ask = only("fwe")
    words = Counter(re.findall(r"\b[a-z]{6}\b|\.\.\.", context.partition("coded words. ")[2]))
    assert [word for word, _ in words.most_common(4)] == ["...", *ask.answers]


def written(module: str) -> dict[str, Any]:
    """Constants of a module of lm-eval's task, which takes packages that need not be here."""
    spec = find_spec("lm_eval")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "tasks" / "ruler" / f"{module}.py"
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


@pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-eval is not installed")
def test_prompts_have_the_words_of_lm_eval() -> None:
    context, ask = only("niah_single_1")
    template, body = written("niah_utils")["TEMPLATE"], context.partition("\n")[2]
    key = re.findall(r"for (\S+) mentioned", ask.prompt)[0]
    for old, new in (("Some", "A"), ("are all", "is"), ("are", "is")):
        template = template.replace(old, new)
    prefix = f"The special magic number for {key} mentioned in the provided text is"
    theirs = f"{template.format(type_needle_v='number', context=body, query=key)} {prefix}"
    assert context + ask.joiner + ask.prompt == theirs
    needle = written("prepare_niah")["NEEDLE"].format(
        type_needle_v="numbers", key=key, value=ask.answers[0]
    )
    noise = (
        "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
    )
    assert set(body.splitlines()) == {needle, noise}

    context, ask = only("vt")
    own = written("vt_utils")["CONFIG"]["variable_tracking"]
    value = re.findall(r"value (\d{5})", ask.prompt)[0]
    template = own["template"] + own["answer_prefix"]
    last = context.rpartition("Memorize and track")[2].partition("\n\n")[2]
    theirs = template.format(context=f"{last}\n", query=value, num_v=5).rstrip()
    assert (
        "Memorize and track" + context.rpartition("Memorize and track")[2] + ask.joiner + ask.prompt
    ) == theirs

    for name, opening in (("cwe", "Below is"), ("fwe", "Read the")):
        context, ask = only(name)
        own = written(f"{name}_utils")["CONFIG"]
        before, _, after = (own["template"] + own["answer_prefix"]).partition("{context}")
        whole = opening + context.rpartition(opening)[2] + ask.joiner + ask.prompt
        assert whole.startswith(before)
        assert whole.endswith(after)
        assert own["tokens_to_generate"] == room(ask)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Essays, SQuAD and HotpotQA, in the published shapes."""
    (tmp_path / "PaulGrahamEssays.json").write_text(json.dumps({"text": ESSAY}))
    answers = [{"text": "in 1066", "answer_start": 0}, {"text": "1066", "answer_start": 3}]
    paragraphs = [
        {
            "context": f"Paragraph {n} of article {a}. " + "Words. " * 40,
            "qas": [
                {
                    "id": f"{a}{n}",
                    "question": f"When is {a}{n}?",
                    "answers": answers,
                    "is_impossible": False,
                },
                {"id": f"{a}{n}x", "question": "Never?", "answers": [], "is_impossible": True},
            ],
        }
        for a in range(8)
        for n in range(10)
    ]
    data = [{"title": f"A{a}", "paragraphs": paragraphs[10 * a : 10 * a + 10]} for a in range(8)]
    (tmp_path / "dev-v2.0.json").write_text(json.dumps({"version": "v2.0", "data": data}))
    hops = [
        {
            "_id": str(n),
            "question": f"Who is {n}?",
            "answer": f"Person {n}",
            "context": [[f"Title {n}.{i}", ["A sentence. ", "Another. " * 20]] for i in range(10)],
        }
        for n in range(9)
    ]
    (tmp_path / "hotpotqa.json").write_text(json.dumps(hops))
    return tmp_path


def test_all_thirteen_are_made_of_a_folder_of_files(folder: Path) -> None:
    task = load("ruler", source=str(folder), limit=13, options={"length": 4096})
    assert task.notes == ()
    texts = {}
    for episode in task.episodes(FOUR):
        (ask,) = episode.queries()
        texts[ask.subtask] = "".join(piece.text for piece in episode.chunks()), ask
        assert all(answer in texts[ask.subtask][0] for answer in ask.answers) == (
            ask.subtask[:3] != "qa_"
        )
    assert len(texts) == 13
    assert len(texts["niah_multiquery"][1].answers) == len(texts["niah_multivalue"][1].answers) == 4
    context, ask = texts["qa_1"]
    assert ask.prompt.endswith("Answer:")
    assert ask.answers == ("in 1066", "1066")
    article, number = re.findall(r"When is (\d)(\d)", ask.prompt)[0]
    assert f"Paragraph {number} of article {article}." in context
    shown = re.findall(r"of article (\d)", context)
    assert shown.count(article) == 10, "paragraphs of its article come first"
    context, ask = texts["qa_2"]
    (own,) = re.findall(r"Who is (\d)", ask.prompt)
    assert context.count(f"Title {own}.") == 10


def test_what_cannot_be_made_is_left_out_or_refused_in_one_line(tmp_path: Path) -> None:
    (note,) = load("ruler", source="generated").notes
    assert ": niah_single_2, niah_single_3, niah_multikey_1" in note
    assert "squad.json" in note
    for name, needed in (("niah_single_2", "PaulGrahamEssays.json"), ("qa_2", "hotpotqa.json")):
        with pytest.raises(UserError, match=rf"{name} of ruler .*--source.*{needed}"):
            load("ruler", source="generated", options={"tasks": name})
    with pytest.raises(UserError, match=r"length=240 .*niah_single_1.* 2\d\d tokens"):
        episodes(length=240)
    with pytest.raises(UserError, match=r"RULER.*PaulGrahamEssays"):
        load("ruler", source=str(tmp_path))


def test_of_several_right_strings_the_share_counts_and_of_alternatives_whether_one_is_there() -> (
    None
):
    judge = metric("string_match")
    second, alternatives = (
        Query(prompt="Which?", key="k", want=Generate(answers=("Rex", "Tom"), all_of=all_of))
        for all_of in (True, False)
    )
    assert [judge(told, second) for told in ("it is TOM", "Rex or tom", "")] == [0.5, 1.0, 0.0]
    assert [judge(told, alternatives) for told in ("it is TOM", "")] == [1.0, 0.0]


def test_the_beginning_of_an_answer_is_given_in_the_turn_of_the_assistant() -> None:
    lm = tiny_llama()
    want = Generate(answers=("1", "2"), prefix="They are", all_of=True)
    ask = Query(prompt="Which? They are", key="k", want=want, joiner="\n")
    assert lm.decode(prompt_ids(lm, ask, is_continuation=True)) == "\nWhich? They are"
    assert lm.decode(gold_ids(lm, ask)) == " 1, 2"
    around = lm.frame_tokens
    lm.tokenizer.chat_template = TEMPLATE
    lm.use_chat_template()
    assert (
        lm.decode(prompt_ids(lm, ask, is_continuation=True))
        == "\nWhich?<|end|><|assistant|>They are"
    )
    assert lm.decode(gold_ids(lm, ask)) == " 1, 2"
    assert lm.frame_tokens - around == len("<|user|>") - around + len("<|end|><|assistant|>")


def test_published_rows_give_the_episodes_that_they_were_made_of(
    tmp_path: Path, folder: Path
) -> None:
    made = load("ruler", source=str(folder), limit=26, options={"contexts": 2})
    rows = []
    for key, sample in made.samples():  # type: ignore[attr-defined]
        (question,) = sample.questions
        rows.append(
            {
                "context": made._text(key, sample, FOUR),  # type: ignore[attr-defined]
                "question": f"{question.text} ",
                "answer_prefix": question.prefix,
                "answer": list(question.answers),
                "task": sample.subtask,
                "max_new_tokens": sample.max_new_tokens,
            }
        )
    (tmp_path / "4096").mkdir()
    write_parquet(tmp_path / "4096" / "test-00000-of-00001.parquet", rows)
    read = load("ruler", source=str(tmp_path / "4096"))
    assert read.counts()["contexts"] == 26
    for own, other in zip(made.episodes(FOUR), read.episodes(FOUR), strict=True):
        assert [chunk.text for chunk in own.chunks()] == [chunk.text for chunk in other.chunks()]
        ((one, two),) = zip(own.queries(), other.queries(), strict=True)
        assert (one.prompt, one.joiner, one.want, one.subtask) == (
            two.prompt,
            two.joiner,
            two.want,
            two.subtask,
        )
    for own, other in zip(read.episodes(FOUR), read.swapped_episodes(FOUR), strict=True):
        assert own.queries() == other.queries()
        assert own.chunks() != other.chunks()
    (chosen, _) = load("ruler", source=str(tmp_path / "4096"), options={"tasks": "vt"}).episodes(
        FOUR
    )
    assert chosen.queries()[0].subtask == "vt"


ROW = {
    "context": "Bo sat.\n",
    "question": "Who sat? ",
    "answer_prefix": "Answer:",
    "answer": ["Bo"],
    "task": "qa_1",
    "max_new_tokens": 32,
}


@pytest.mark.parametrize(
    ("change", "options", "fault"),
    [
        ({"answer": []}, {}, "line 1: the question has no answer"),
        ({"context": 3}, {}, "line 1: context must be text"),
        ({"max_new_tokens": "many"}, {}, "line 1: .*'many'"),
        ({}, {"tasks": "vt"}, "'vt'"),
        ({}, {"length": "4k"}, "length"),
    ],
)
def test_published_rows_that_cannot_be_scored_are_refused(
    tmp_path: Path, change: dict[str, Any], options: dict[str, Any], fault: str
) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{**ROW, **change}])
    with pytest.raises(UserError, match=fault):
        load("ruler", source=str(path), options=options)


def test_a_single_published_row_has_no_other_context(tmp_path: Path) -> None:
    task = load("ruler", source=str(write_jsonl(tmp_path / "rows.jsonl", [ROW])))
    with pytest.raises(UserError, match="no other context"):
        list(task.swapped_episodes(FOUR))
