"""The reader of MetaICL: steps of one pass and the official folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.qa_files import write_jsonl
from ttabench.core.errors import UserError
from ttabench.core.types import Choose, Chunk, Query, wants_of_kind
from ttabench.readers import load
from ttabench.readers.metaicl import PUBLISHED_DRAWS

SMALL = {"tasks": 2, "queries": 3, "demonstrations": 4, "steps": "1,4"}


def chosen(asks: list[Query]) -> list[tuple[Choose, Query]]:
    return list(zip(wants_of_kind(asks, Choose), asks, strict=True))


class Letters:
    """A tokenizer of one token a letter."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
        return self.encode(text), list(range(len(text)))


LETTERS = Letters()


def row(number: int, task: str = "quarel", **changes: Any) -> dict[str, Any]:
    return {
        "task": task,
        "input": f"in {number}",
        "output": "yes",
        "options": ["no", "yes"],
        **changes,
    }


def official(base: Path, **test_row: Any) -> Path:
    """A folder as MetaICL writes it, with one test task and one training task."""
    (base / "config").mkdir(parents=True)
    config = {"train": ["piqa"], "test": ["quarel", "codah"]}
    (base / "config" / "hr_to_lr.json").write_text(json.dumps(config))
    for task in ("quarel", "piqa"):
        place = base / "data" / task
        place.mkdir(parents=True)
        for draw in PUBLISHED_DRAWS:
            write_jsonl(
                place / f"{task}_16_{draw}_train.jsonl",
                [row(draw * 100 + i, task) for i in range(16)],
            )
    held = [row(7, **test_row), row(1300), row(8)]
    write_jsonl(base / "data" / "quarel" / "quarel_16_100_test.jsonl", held)
    return base


def test_rows_are_asked_after_each_step_of_one_pass() -> None:
    task = load("metaicl", options=SMALL)
    episodes = list(task.episodes())
    assert (len(episodes), task.n_chunks, task.n_queries) == (2, 8, 12)
    for episode in episodes:
        kinds = [step.at.count if isinstance(step, Query) else None for step in episode.steps]
        assert kinds == [None, 1, 1, 1, None, None, None, 4, 4, 4]
        asked = episode.queries()
        assert [ask.prompt for ask in asked[:3]] == [ask.prompt for ask in asked[3:]]
        assert len({ask.key for ask in asked}) == 6
        assert all(
            piece.text.startswith("Input: ") and piece.joiner == " " for piece in episode.chunks()
        )
        assert all(
            want.options[want.gold or 0] == f" {ask.answers[0]}" for want, ask in chosen(asked)
        )


def test_the_official_folder(tmp_path: Path) -> None:
    base = official(tmp_path / "MetaICL")
    task = load("metaicl", source=str(base), seed=1)
    missing, equal = task.notes
    assert missing.startswith("1 of 2 tasks")
    assert missing.endswith(": codah")
    assert str(base) in equal
    assert "(quarel: query equal to a demonstration: 1)" in equal
    (episode,) = task.episodes()
    assert [piece.text for piece in episode.chunks()] == [
        f"Input: in {1300 + i} Output: yes" for i in range(16)
    ]
    assert {ask.prompt for ask in episode.queries()} == {
        "Input: in 7 Output:",
        "Input: in 8 Output:",
    }
    assert task.dropped == {"quarel: query equal to a demonstration": 1}
    assert {ask.at.count for ask in episode.queries()} == {1, 2, 4, 8, 16}
    assert (
        next(load("metaicl", source=str(base), seed=0).episodes()).queries()[1].prompt
        == "Input: in 1300 Output:"
    )


# --- lengths --------------------------------------------------------------------------------------------------------


def sized(base: Path, demonstrations: list[int], queries: list[int], spare: int = 20) -> Path:
    """A task whose rows are as long as told, in characters: `Input: {input} Output: yes`; 17 of them are the frame."""
    official(base)
    place = base / "data" / "quarel"

    def rows(sizes: list[int], letter: str) -> list[dict[str, Any]]:
        return [
            row(i, input=f"{letter}{i:x}".ljust(size - 19, ".")) for i, size in enumerate(sizes)
        ]

    write_jsonl(place / "quarel_16_100_train.jsonl", rows(demonstrations, "d"))
    write_jsonl(place / "quarel_16_13_train.jsonl", rows([spare] * 16, "s"))
    write_jsonl(place / "quarel_16_100_test.jsonl", rows(queries, "q"))
    return base


def asked_after(source: Path, **options: Any) -> tuple[list[str], dict[str, int]]:
    """(first characters of what is read, how many of them before each query), one character a token."""
    task = load(
        "metaicl",
        source=str(source),
        options={"max_example_tokens": 60, "max_tokens": 0, **options},
    )
    read: list[str] = []
    before: dict[str, int] = {}
    for episode in task.episodes(LETTERS):
        for step in episode.steps:
            if isinstance(step, Chunk):
                read.append(step.text.removeprefix("Input: ").partition(".")[0].split()[0])
            else:
                before[step.key] = len(read)
    return read, before


def test_examples_that_are_too_long_are_replaced_from_the_next_draw(tmp_path: Path) -> None:
    source = sized(tmp_path / "MetaICL", [30, 61, 60, *[30] * 13], [30, 60, 61])
    read, before = asked_after(source, steps="2,16")
    assert read == ["d0", *(f"d{i:x}" for i in range(2, 16)), "s0"]
    assert before == {"0@2": 2, "1@2": 2, "0@16": 16, "1@16": 16}
    task = load("metaicl", source=str(source), options={"max_example_tokens": 60, "steps": "2,16"})
    assert task.dropped == {}  # 4 characters a token, until a model counts
    list(task.episodes(LETTERS))
    assert task.dropped["quarel: demonstration too long"] == 1
    assert task.dropped["quarel: query too long"] == 1
    assert len(next(task.training_episodes(0, 8)).chunks()) == 8


def test_a_query_is_asked_after_as_many_demonstrations_as_fit_next_to_it(tmp_path: Path) -> None:
    # A demonstration takes 31 tokens with its blank; beside a query of 30 there is room for 300 - 30 = 270: 8 of them.
    source = sized(tmp_path / "MetaICL", [30] * 16, [30, 60])
    read, before = asked_after(source, steps="4,8,16", max_tokens=300)
    assert len(read) == 8
    assert before == {"0@4": 4, "1@4": 4, "0@8": 8, "1@8": 7, "0@16": 8, "1@16": 7}
    task = load(
        "metaicl",
        source=str(source),
        options={"steps": "4,8,16", "max_tokens": 300, "max_example_tokens": 60},
    )
    list(task.episodes(LETTERS))
    assert task.dropped == {"quarel: query asked after fewer demonstrations": 3}


@pytest.mark.parametrize("config", [{"test": 5}, {"test": [5]}, {"test": None}, []], ids=str)
def test_a_list_of_tasks_that_is_none_is_refused(tmp_path: Path, config: object) -> None:
    folder = official(tmp_path / "MetaICL")
    (folder / "config" / "hr_to_lr.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"hr_to_lr\.json"):
        load("metaicl", source=str(folder))
