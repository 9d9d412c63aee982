"""Conversations of several sessions: what is read and asked, the published layouts, and what is refused or dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.qa_files import load_error, shared, write_jsonl
from ttabench.core.errors import UserError
from ttabench.core.types import Chunk, Generate, Query, Score, StreamPosition, wants_of_kind
from ttabench.readers import Task, load

SMALL = {"conversations": 3}


def row(
    name: str, said: list[list[str]], now: list[str], question: str = "", answer: str = "x"
) -> dict[str, Any]:
    """A row of session 5; earlier sessions have no ids of their speakers, as published."""
    made: dict[str, Any] = {
        "metadata": {"initial_data_id": name},
        "previous_dialogs": [{"dialog": [{"text": text} for text in turns]} for turns in said],
        "dialog": [{"text": text, "id": f"Speaker {2 - i % 2}"} for i, text in enumerate(now)],
    }
    return {**made, "self_instruct": {"B": question, "A": answer}} if question else made


ROWS = [
    row(
        "a",
        [["Hi.", "Hello, a cat!"], ["Yes, Tom."]],
        ["Back again?", "I am."],
        "Whose is it?",
        "Tom",
    ),
    row(
        "a",
        [["Hi.", "Hello, a cat!"], ["Yes, Tom."]],
        ["Back again?", "I am."],
        "What is it?",
        "a cat",
    ),
    row("b", [["Rain.", "Again."], ["Sun."]], ["Fog."], "Which weather?", "fog"),
]


def turns(task: Task) -> dict[int, list[tuple[str, str]]]:
    """(prompt, continuation) of every scored turn, by sessions read."""
    found: dict[int, list[tuple[str, str]]] = {}
    for episode in task.episodes():
        for ask in episode.queries():
            (want,) = wants_of_kind([ask], Score)
            found.setdefault(ask.at.count, []).append((ask.prompt, want.continuation))
    return found


def test_earlier_sessions_are_read_and_then_all_questions_asked(tmp_path: Path) -> None:
    source = str(write_jsonl(tmp_path / "msc_self_instruct.jsonl", ROWS))
    task = load("msc", source=source)
    first, second = task.episodes()
    assert [each.text for each in first.chunks()] == [
        "Speaker 1: Hi.\nSpeaker 2: Hello, a cat!",
        "Speaker 1: Yes, Tom.",
    ]
    assert [type(step) for step in first.steps] == [Chunk, Chunk, Query, Query]
    assert [(ask.question, ask.answers, ask.at) for ask in first.queries()] == [
        ("Whose is it?", ("Tom",), StreamPosition(2)),
        ("What is it?", ("a cat",), StreamPosition(2)),
    ]
    (want,) = wants_of_kind(second.queries(), Generate)
    assert want.max_new_tokens == 20
    assert second.queries()[0].prompt.startswith(
        "## Instruction: Answer the question based on the context above."
    )
    assert [ask.key for episode in (first, second) for ask in episode.queries()] == [
        "a",
        "a/q2",
        "b",
    ]
    assert load("msc", source=source, limit=2).n_queries == 2
    one = load("msc", source=source, options={"conversations": 1}, seed=3)
    assert len(list(one.episodes())) == 1


def test_turns_of_the_last_session_are_scored_and_then_read(tmp_path: Path) -> None:
    said = [["One.", "Two."], ["Three."]]
    rows = [
        row("a", said, ["Four.", "Five.", "Six."]),
        row("b", [], ["Eins."]),
        row("c", [], list("UVWXYZ")),
    ]
    source = str(write_jsonl(tmp_path / "test.jsonl", rows))
    task = load("msc", source=source, options={"ask": "turns"})
    first, second, third = task.episodes()
    assert [(o.text, o.joiner) for o in first.chunks()] == [
        ("Speaker 1: One.\nSpeaker 2: Two.", "\n\n"),
        ("Speaker 1: Three.", "\n\n"),
        ("Speaker 2: Four.", "\n\n"),
        ("Speaker 1: Five.", "\n"),
    ]
    kinds = [type(step) for step in first.steps]
    assert kinds == [Chunk, Chunk, Query, Chunk, Query, Chunk, Query], (
        "each turn is read after it was scored"
    )
    assert [(ask.prompt, ask.joiner, ask.at) for ask in first.queries()] == [
        ("Speaker 2:", "\n\n", StreamPosition(2)),
        ("Speaker 1:", "\n", StreamPosition(3)),
        ("Speaker 2:", "\n", StreamPosition(4)),
    ]
    assert [want.continuation for want in wants_of_kind(first.queries(), Score)] == [
        " Four.",
        " Five.",
        " Six.",
    ]
    assert (len(second.chunks()), len(second.queries()), len(third.queries())) == (0, 1, 6)
    others = {
        episode.key: [o.text for o in episode.chunks()] for episode in task.swapped_episodes()
    }
    assert others[first.key] == [
        f"Speaker {2 - i % 2}: {letter}" for i, letter in enumerate("UVWX")
    ], "enough turns"
    assert others[third.key][:2] == ["Speaker 1: One.\nSpeaker 2: Two.", "Speaker 1: Three."], (
        "the longest there is"
    )
    (note,) = task.describe_swapped()["notes"]
    assert note.startswith("1 of 3 ")
    assert set(turns(load("msc", source=source, options={"ask": "turns", "steps": "1,3"}))) == {
        1,
        3,
    }


def test_another_context_is_never_of_the_same_conversation(tmp_path: Path) -> None:
    same = [row("a", [["One."]], ["x"], "Q?"), row("a", [["Two."]], ["x"], "Q?")]
    source = write_jsonl(tmp_path / "test.jsonl", same)
    task = load("msc", source=str(source))
    assert [episode.key for episode in task.episodes()] == ["msc/test/a", "msc/test/a#2"]
    with pytest.raises(UserError, match="no other context"):
        task.describe_swapped()
    write_jsonl(source, [*same, row("b", [["Three."], ["Four."]], ["x"], "Q?")])
    texts = [
        [o.text for o in episode.chunks()]
        for episode in load("msc", source=str(source)).swapped_episodes()
    ]
    assert texts == [["Speaker 1: Three."], ["Speaker 1: Three."], ["Speaker 1: One."]]
    (note,) = load("msc", source=str(source)).describe_swapped()["notes"]
    assert note.startswith("1 of 3 ")


def put(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_jsonl(file, rows)


def test_the_last_session_of_parlais_folders_holds_those_before_it(tmp_path: Path) -> None:
    top = tmp_path / "msc" / "msc_dialogue"
    put(
        top / "session_2" / "valid.txt",
        [row("a", [["Hi."]], ["Two."]), row("b", [["Hm."]], ["Zwei."])],
    )
    put(top / "session_3" / "valid.txt", [row("a", [["Hi."], ["Two."]], ["Three."])])
    for source in (tmp_path, tmp_path / "msc", top):
        task = load("msc", source=str(source), split="validation", options={"ask": "turns"})
        assert turns(task) == {2: [("Speaker 2:", " Three.")]}
    assert any("session 3 of" in note for note in task.notes)
    options = {"ask": "turns"}
    second = load(
        "msc", source=str(top / "session_2" / "valid.txt"), split="validation", options=options
    )
    assert [episode.key for episode in second.episodes()] == [
        "msc/validation/a",
        "msc/validation/b",
    ]
    assert "No file of split 'train'" in load_error(
        "msc", source=str(top), split="train", options=options
    )
    assert "lacks the column 'self_instruct'" in load_error(
        "msc", source=str(top), split="validation"
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"previous_dialogs": [{"dialog": []}]}, "a session without turns"),
        ({"dialog": [{"text": " "}]}, "a turn without text"),
        ({"self_instruct": {"B": "Q?", "A": None}}, "no answer"),
        ({"self_instruct": None}, "no question"),
        ({}, "the same row twice"),
    ],
)
def test_rows_that_cannot_be_used_are_counted_by_reason(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    bad = {**ROWS[2], **change}
    path = write_jsonl(tmp_path / "test.jsonl", [*ROWS, bad])
    task = load("msc", source=str(path))
    assert task.dropped == {reason: 1}
    assert task.n_queries == 3
    if change:
        write_jsonl(path, [bad])
        assert f"None of the 1 rows of {path} is usable ({reason}: 1)" in load_error(
            "msc", source=str(path)
        )


def test_published_rows() -> None:
    asked = load("msc", source=shared("msc/made_up_schema/msc_self_instruct.jsonl"))
    (episode,) = asked.episodes()
    assert (len(episode.chunks()), episode.queries()[0].answers) == (4, ("Biscuit!",))
    folder = shared("msc/made_up_schema/msc_dialogue")
    assert min(turns(load("msc", source=folder, options={"ask": "turns"}))) == 4
    real = shared("msc/reconstructed_msc_personasummary")
    for split in ("train", "validation", "test"):
        task = load("msc", source=real, split=split, options={"ask": "turns"})
        assert min(turns(task)) == 0
        assert task.dropped == {}
