"""The reader of dialogues: turns in words, what is read and asked, and where they come from."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.qa_files import shared, write_csv, write_jsonl, write_parquet
from tests.tiny import tiny_llama
from ttabench.core.types import Chunk, Episode, Score, wants_of_kind
from ttabench.mini.world import names_in
from ttabench.readers import Task, load
from ttabench.readers.dialogue import detokenize

LM = tiny_llama()
"""A token is a byte."""


def spoken(count: int, word: str = "turn") -> list[str]:
    return [f"{word} {number} ." for number in range(count)]


def put(folder: Path, name: str, dialogues: list[list[str]]) -> Path:
    """A file as it is published."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(" ".join(f"{turn} __eou__" for turn in turns) + "\n" for turns in dialogues)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def of(source: Path, **options: Any) -> Task:
    return load("dailydialog", source=str(source), options=options)


def shape(episode: Episode) -> list[str | tuple[str, str, int]]:
    """What is read as a text, what is asked as (prompt, continuation, step)."""
    return [
        step.text
        if isinstance(step, Chunk)
        else (step.prompt, wants_of_kind([step], Score)[0].continuation, step.at.count)
        for step in episode.steps
    ]


@pytest.mark.parametrize(
    ("published", "plain"),
    [
        ("Let ’ s see , it costs 15 yuan . ", "Let's see, it costs 15 yuan."),
        (" I ' Ve got it ; don ’ t ask me !", "I'Ve got it; don't ask me!"),
        (
            "Really ？ “ Yes ” ... it is nine o ' clock 。",
            'Really? " Yes "... it is nine o\'clock.',
        ),
        ("my parents ' home , ' I said '", "my parents ' home, ' I said '"),
        ("It's  fine .", "It's fine."),
    ],
)
def test_turns_lose_the_blanks_of_tokenising(published: str, plain: str) -> None:
    assert detokenize(published) == detokenize(plain) == plain


def test_turns_are_read_and_the_next_one_is_scored(tmp_path: Path) -> None:
    (episode,) = of(put(tmp_path, "dialogues_test.txt", [spoken(7)]), steps="1,2,4").episodes()
    assert shape(episode) == [
        "\nA: turn 0.",
        ("\nA: turn 1.\nA:", " turn 2.", 1),
        "\nA: turn 1.",
        ("\nA: turn 2.\nA:", " turn 3.", 2),
        "\nA: turn 2.",
        "\nA: turn 3.",
        ("\nA: turn 4.\nA:", " turn 5.", 4),
    ]
    assert {step.joiner for step in episode.steps} == {""}, (
        "the speaker's line is part of what is read"
    )
    assert [wants_of_kind([ask], Score)[0].words for ask in episode.queries()] == [2, 2, 2]
    assert [ask.question for ask in episode.queries()] == ["turn 1.", "turn 2.", "turn 4."]


def test_every_published_layout_gives_the_same(tmp_path: Path) -> None:
    made = [spoken(7), spoken(4, "other")]
    rows = [
        {"dialog": turns, "act": [1] * len(turns), "emotion": [0] * len(turns)} for turns in made
    ]
    put(tmp_path / "a" / "ijcnlp_dailydialog" / "test", "dialogues_test.txt", made)
    put(tmp_path / "b", "dialogues_test.txt.gz", made)
    (tmp_path / "c" / "data").mkdir(parents=True)
    write_parquet(tmp_path / "c" / "data" / "test-00000-of-00001.parquet", rows)
    sources = [
        tmp_path / "a",
        tmp_path / "a" / "ijcnlp_dailydialog" / "test",
        tmp_path / "b",
        tmp_path / "c",
        write_jsonl(tmp_path / "test.jsonl", rows),
        write_csv(
            tmp_path / "test.csv",
            [{"dialog": "".join(f"{turn} __eou__ " for turn in t)} for t in made],
        ),
    ]
    tasks = [of(source) for source in sources]
    assert [list(task.episodes()) for task in tasks] == [list(tasks[0].episodes())] * len(sources)
    assert len({task.describe()["digest"] for task in tasks}) == 1
    assert tasks[0].describe()["dialogues"] == 2


def test_what_is_not_asked_is_counted_by_reason(tmp_path: Path) -> None:
    rows = [spoken(2), spoken(5), [*spoken(3), " "], spoken(3, "x" * 40), spoken(6)]
    task = of(put(tmp_path, "test.txt", rows), max_turn_tokens=30, max_tokens=60, steps="1,2")
    assert [episode.key for episode in task.episodes(LM)] == ["dailydialog/test/1"]
    assert task.dropped == {
        "fewer than 3 turns": 1,
        "an empty turn": 1,
        "a turn of more than 30 tokens": 1,
        "more than 60 tokens": 1,
    }
    free = of(tmp_path / "test.txt", max_turn_tokens=0, max_tokens=0)
    assert len(list(free.episodes(LM))) == 3


def test_each_t_has_the_dialogues_with_enough_turns(tmp_path: Path) -> None:
    path = put(tmp_path, "test.txt", [spoken(n) for n in (3, 4, 6, 10, 14, 15)])

    def asked(**options: Any) -> dict[int, int]:
        return dict(
            Counter(
                ask.at.count
                for episode in of(path, **options).episodes()
                for ask in episode.queries()
            )
        )

    assert asked() == {1: 6, 2: 5, 4: 4, 8: 3, 12: 2}
    assert asked(same_dialogues=True) == dict.fromkeys((1, 2, 4, 8, 12), 2)
    assert asked(steps="0,1,20") == {0: 6, 1: 6}


# --- the miniature world -------------------------------------------------------------------------------------------


def test_what_is_scored_in_the_synthetic_version_was_reported_before() -> None:
    for episode in load("dailydialog", seed=3).episodes():
        read: set[str] = set()
        for step in episode.steps:
            if isinstance(step, Chunk):
                read |= names_in(step.text)
            else:
                assert names_in(step.answers[0]) <= read | names_in(step.question)
                assert names_in(step.answers[0])
    task = load("dailydialog")
    assert Counter(ask.at.count for e in task.episodes() for ask in e.queries()) == dict.fromkeys(
        (1, 2, 4, 8, 12), 64
    )
    assert task.notes == ()


# --- other contexts ------------------------------------------------------------------------------------------------


def test_another_dialogue_is_the_next_one_with_enough_turns(tmp_path: Path) -> None:
    made = [spoken(6, "a"), spoken(4, "b"), spoken(7, "c"), spoken(6, "a"), spoken(14, "d")]
    task = of(put(tmp_path, "test.txt", made))
    read = [
        [piece.text.split()[1] for piece in episode.chunks()] for episode in task.swapped_episodes()
    ]
    assert read == [["b"] * 4, ["c"] * 2, ["a"] * 4, ["d"] * 4, ["c"] * 7]
    (note,) = task.describe_swapped()["notes"]
    assert note.startswith("1 of 5 ")
    alike = of(put(tmp_path, "alike.txt", [spoken(5)] * 3))
    with pytest.raises(Exception, match="no other context"):
        alike.describe_swapped()


# --- real rows -----------------------------------------------------------------------------------------------------


def test_real_rows_are_counted_by_reason() -> None:
    task = load("dailydialog", source=shared("dailydialog"))
    assert dict(task.dropped) == {"fewer than 3 turns": 15, "a turn of more than 128 tokens": 1}
    assert (task.describe()["dialogues"], task.describe()["turns"]) == (285, 2357)
    assert Counter(a.at.count for e in task.episodes() for a in e.queries()) == {
        1: 284,
        2: 276,
        4: 204,
        8: 104,
        12: 28,
    }
