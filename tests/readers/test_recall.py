"""The reader of texts with facts: where they are cut, and what is asked at which distance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.qa_files import write_jsonl
from tests.tiny import tiny_llama
from ttabench.core.types import Episode, Query, StreamPosition
from ttabench.lm.model import load as load_lm
from ttabench.readers import load

LM = tiny_llama()
LINES = [
    "Ada lives in Yarm.",
    "It rained.",
    "Tavo lives in Selby.",
    "It rained again.",
    "Ada lives in Yarm.",
]
TEXT = "\n".join(LINES) + "\n"


def fact(name: str, answer: str, told: int, **more: Any) -> dict[str, Any]:
    options = ["Selby", "Yarm"]
    return {
        "key": name,
        "told": told,
        "question": f"Where is {name}?",
        "options": options,
        "answer": answer,
        **more,
    }


def ends_of(line: str) -> list[int]:
    return [at + len(line) for at in range(len(TEXT)) if TEXT.startswith(line, at)]


FACTS = [
    *(fact("Ada", "Yarm", end) for end in ends_of("Ada lives in Yarm.")),
    fact("Tavo", "Selby", ends_of("Tavo lives in Selby.")[0]),
]


def only(folder: Path, **options: Any) -> Episode:
    """The one episode of a task bound to the tiny model, where a token is a byte."""
    path = write_jsonl(folder / "test.jsonl", [{"title": "A", "text": TEXT, "facts": FACTS}])
    (episode,) = load(
        "recall", source=str(path), options={"distances": "8,64", "piece": 40, **options}
    ).episodes(LM)
    return episode


def asked(episode: Episode) -> list[tuple[str, int]]:
    return [(ask.prompt, ask.at.count) for ask in episode.queries()]


def test_chunks_joined_are_the_text_and_end_with_a_line_where_one_fits(tmp_path: Path) -> None:
    pieces = only(tmp_path).chunks()
    assert "".join(piece.text for piece in pieces) == TEXT
    assert [token for piece in pieces for token in piece.ids] == LM.encode(TEXT)
    assert all(piece.text.endswith("\n") for piece in pieces)
    assert [len(piece.ids) for piece in pieces] == [30, 38, 19]
    short = only(tmp_path, piece=10).chunks()
    assert [len(piece.text) for piece in short][:2] == [10, 9], "a line longer than a piece is cut"


def test_a_fact_is_asked_at_the_distance_at_which_it_was_reported_last(tmp_path: Path) -> None:
    assert asked(only(tmp_path)) == [("Where is Ada?", 8), ("Where is Tavo?", 64)]
    assert asked(only(tmp_path, distances="8")) == [("Where is Ada?", 8)], (
        "what was told before is not asked"
    )
    assert {ask.at for ask in only(tmp_path).queries()} == {
        StreamPosition(8, "distance"),
        StreamPosition(64, "distance"),
    }
    assert not StreamPosition(8, "distance").is_counted_at(64), (
        "a distance is of its own, not of greater ones"
    )
    sources = {piece.key: piece.text for piece in only(tmp_path, piece=20).chunks()}
    for ask in only(tmp_path, piece=20).queries():
        assert ask.question_text.split()[2].rstrip("?") in sources[ask.source_key], (
            "the piece that told it last"
        )


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_questions_of_the_synthetic_version_are_answered_by_what_its_books_tell(split: str) -> None:
    lm = load_lm("nano")
    task = load(
        "recall",
        split=split,
        seed=1,
        options={"tokens": 1200, "books": 2, "distances": "512,1k,2k"},
    )
    episodes = list(task.episodes(lm))
    assert len(episodes) == 2
    for episode in episodes:
        text = "".join(piece.text for piece in episode.chunks())
        assert 1000 < len(lm.encode(text)) <= 1200
        for ask in episode.queries():
            assert isinstance(ask, Query)
            entity = ask.key.partition("/")[2].partition("/")[0]
            assert entity in ask.prompt
            told = [line for line in text.replace("\n", " ").split(". ") if entity in line]
            assert any(ask.answers[0] in line for line in told)
            last = text.rindex(ask.answers[0])
            assert len(lm.encode(text[last:])) <= ask.at.count + 16, (
                "not told later than its distance says"
            )
    books = load("pg19", split=split, seed=1, options={"tokens": "1200", "books": 2})
    own = ["".join(piece.text for piece in each.chunks()) for each in episodes]
    assert all(any(text in book.read()[-1] for book in books.books) for text in own), (
        "the books of pg19"
    )  # type: ignore[attr-defined]
