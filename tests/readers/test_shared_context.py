"""The reader of contexts that many questions share: published rows, its two modes, pieces, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.qa_files import write_jsonl
from tests.tiny import tiny_llama
from ttabench.core.errors import UserError
from ttabench.core.types import Choose, Chunk, Episode, Query, wants_of_kind
from ttabench.readers import load
from ttabench.readers.shared_context import SUB_TASKS

LM = tiny_llama()
KV = {
    "id": 7,
    "context": '{"a1": "x9", "b2": "y8"}\nNothing else.',
    "multi_turns": [{"input": 'Key "a1":', "answer": "x9"}, {"input": 'Key "b2":', "answer": "y8"}],
}
OTHER = {
    "id": 8,
    "context": '{"c3": "z7"}',
    "multi_turns": [{"input": 'Key "c3":', "answer": "z7"}],
}


def bound(folder: Path, rows: list[dict[str, Any]], name: str = "test", **options: Any) -> Any:
    return load(
        "shared_context", source=str(write_jsonl(folder / f"{name}.jsonl", rows)), options=options
    )


def shown(episode: Episode) -> list[str]:
    return [step.text if isinstance(step, Chunk) else f"? {step.prompt}" for step in episode.steps]


def test_questions_are_asked_alone_or_after_the_turns_before_them_with_their_right_answers(
    tmp_path: Path,
) -> None:
    (short, _) = bound(tmp_path, [KV, OTHER], tokens=9).episodes(LM)
    assert [piece.text for piece in short.chunks()] == [KV["context"][:5], KV["context"][-4:]], (
        "both ends"
    )
    (alone, _) = bound(tmp_path, [KV, OTHER]).episodes(LM)
    assert shown(alone) == [KV["context"], '? Key "a1":', '? Key "b2":']
    assert {ask.at.count for ask in alone.queries()} == {0}
    (later, _) = bound(tmp_path, [KV, OTHER], mode="turns").episodes(LM)
    assert shown(later) == [KV["context"], '? Key "a1":', 'Key "a1": x9', '? Key "b2":']
    assert [ask.at.count for ask in later.queries()] == [1, 2]
    assert [(a.key, a.prompt, a.want) for a in alone.queries()] == [
        (a.key, a.prompt, a.want) for a in later.queries()
    ]


def test_a_sub_task_has_its_words_length_and_metrics(tmp_path: Path) -> None:
    for name, task in SUB_TASKS.items():
        turn = {"input": "Which?", "answer": "B" if name == "choice_eng" else "3"}
        options = {"options": ["Ada", "Bo"]} if name == "choice_eng" else {}
        rows = [{"id": 0, "context": "Text.", "multi_turns": [turn | options]}]
        made = bound(tmp_path, rows, f"scbench_{name}")
        ((piece, ask),) = (episode.steps for episode in made.episodes(LM))
        assert isinstance(piece, Chunk)
        assert isinstance(ask, Query)
        assert piece.text == f"{task.lead}Text."
        assert made.card.main_metric == task.metrics[0]
        if name != "choice_eng":
            assert ask.want.max_new_tokens == task.max_new_tokens  # type: ignore[union-attr]
    assert bound(tmp_path, [KV], task="scbench_vt").card.main_metric == "string_match"
    (episode,) = bound(tmp_path, [KV], task="qa_eng").episodes(LM)
    assert episode.queries()[0].prompt == 'Question: Key "a1":\nAnswer:'


@pytest.mark.parametrize("answer", ["Bo", "B"])
def test_options_are_chosen_by_their_letters(tmp_path: Path, answer: str) -> None:
    turns = [{"input": "Who sat?", "options": ["Ada", "Bo", "Cy", "Di"], "answer": answer}] * 2
    rows = [{"id": 0, "context": "Bo sat.", "multi_turns": turns}]
    made = bound(tmp_path, rows, task="choice_eng", mode="turns")
    (episode,) = made.episodes(LM)
    asks = episode.queries()
    words = "Question: Who sat?\nA. Ada\nB. Bo\nC. Cy\nD. Di\n\nThe letter of the correct answer is"
    assert asks[0].prompt == words
    assert wants_of_kind(asks[:1], Choose)[0].options == (" A", " B", " C", " D")
    assert wants_of_kind(asks[:1], Choose)[0].gold == 1
    assert episode.chunks()[1].text == f"{words} B"
    assert made.card.metrics[0] == "acc"


def test_rows_of_memoryagentbench(tmp_path: Path) -> None:
    row = {
        "context": "Bo sat in Yarm.",
        "questions": ["Who sat?", "Where?"],
        "answers": [["Bo", "Bo Lind"], ["Yarm"]],
        "metadata": {"source": "eventqa_full", "qa_pair_ids": ["a", "b"]},
    }
    pq.write_table(
        pa.Table.from_pylist([row]), tmp_path / "Accurate_Retrieval-00000-of-00001.parquet"
    )
    task = load(
        "shared_context", source=str(tmp_path / "Accurate_Retrieval-00000-of-00001.parquet")
    )
    (episode,) = task.episodes(LM)
    assert shown(episode) == ["Bo sat in Yarm.", "? Who sat?", "? Where?"]
    assert [ask.answers for ask in episode.queries()] == [("Bo", "Bo Lind"), ("Yarm",)]
    assert {ask.subtask for ask in episode.queries()} == {"eventqa_full"}
    assert task.card.main_metric == "contains_em"


def test_another_context_brings_its_own_turns(tmp_path: Path) -> None:
    task = bound(tmp_path, [KV, OTHER], mode="turns")
    (first, second) = task.swapped_episodes(LM)
    assert shown(first) == [OTHER["context"], '? Key "a1":', 'Key "c3": z7', '? Key "b2":']
    assert shown(second) == [KV["context"], '? Key "c3":']


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"context": 3, "multi_turns": []}, "context must be text, got 3"),
        ({"context": "T.", "multi_turns": [{"input": "Q?"}]}, "a turn has no answer"),
        ({"context": "T.", "multi_turns": [{"input": "Q?", "answer": {"a": 1}}]}, "list of texts"),
        (
            {
                "context": "T.",
                "multi_turns": [{"input": "Q?", "answer": "E", "options": ["a", "b"]}],
            },
            "its 2 options",
        ),
        ({"context": "T."}, "lacks the column"),
    ],
)
def test_a_row_that_is_none_is_reported_in_a_line(
    tmp_path: Path, row: dict[str, Any], fault: str
) -> None:
    with pytest.raises(UserError, match=fault):
        bound(tmp_path, [row])


def test_what_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="sub-task"):
        bound(tmp_path, [KV], task="kvv")
    with pytest.raises(UserError, match="no other context"):
        list(bound(tmp_path, [KV]).swapped_episodes(LM))
    some = {
        "id": 1,
        "context": "T.",
        "multi_turns": [{"input": "Q?", "answer": "a", "options": ["a", "b"]}],
    }
    with pytest.raises(UserError, match="with options and others without"):
        bound(tmp_path, [KV, some])
    with pytest.raises(UserError, match="1 people with 1 facts"):
        load("shared_context", options={"people": 1, "facts": 1})


def test_babilong_and_longmemeval_load_as_published(tmp_path: Path) -> None:
    rows = [
        {
            "input": f"Mary went to the {place}. It rained.",
            "question": "Where is Mary? ",
            "target": place,
        }
        for place in ("kitchen", "garden")
    ]
    bound = load("babilong", source=str(write_jsonl(tmp_path / "4k.jsonl", rows)))
    one, two = bound.episodes(LM)
    assert shown(one) == [
        "Mary went to the kitchen. It rained.",
        "? Question: Where is Mary?\nAnswer:",
    ]
    assert [step.text for step in next(iter(bound.swapped_episodes(LM))).chunks()] == [
        step.text for step in two.chunks()
    ]
    chat = [
        [
            {"role": "user", "content": f"My cat is {name}."},
            {"role": "assistant", "content": "Noted."},
        ]
        for name in ("Tom", "Kit")
    ]
    asked = {
        "question": "What is my cat called?",
        "answer": "Tom",
        "haystack_sessions": chat,
        "haystack_dates": ["2023/05/01", "2023/05/02"],
    }
    kinds = {"1": "multi-session", "2_abs": "multi-session", "3": "single-session-preference"}
    rows = [asked | {"question_id": key, "question_type": kind} for key, kind in kinds.items()]
    bound = load("longmemeval", source=str(write_jsonl(tmp_path / "longmemeval_s.jsonl", rows)))
    (episode,) = bound.episodes(LM)
    text = "2023/05/01\nuser: My cat is Tom.\nassistant: Noted.\n\n2023/05/02\nuser: My cat is Kit.\nassistant: Noted."
    assert "".join(step.text for step in episode.chunks()) == text
    assert [ask.subtask for ask in episode.queries()] == ["multi-session"]
    assert bound.dropped == {"judged by a language model": 2}
