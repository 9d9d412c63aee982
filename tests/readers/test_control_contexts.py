"""Other contexts of every reader: the same queries at the same places, behind texts that share nothing with the own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.qa_files import write_csv, write_jsonl
from tests.readers.test_metaicl import official
from tests.tiny import tiny_llama
from ttabench.core.errors import UserError
from ttabench.core.types import Episode, Query
from ttabench.mini.world import categories_in, names_in
from ttabench.readers import Task, load

LM = tiny_llama()
QA = {"documents": 6, "questions": 2}
TWINS: list[tuple[str, dict[str, Any]]] = [
    ("streamingqa", QA),
    ("squad_seq", {**QA, "order": "titles"}),
    ("archivalqa", QA),
    ("streamingqa", {**QA, "kind": "grouped", "group_tokens": 200}),
    ("streamingqa", {**QA, "kind": "grouped", "group_documents": 3}),
    ("streamingqa", {**QA, "kind": "retention", "probe": 2, "every": 2}),
    ("superglue", {"queries": 4}),
    ("hellaswag", {"queries": 4}),
    ("metaicl", {"tasks": 3, "queries": 4, "steps": "1,4"}),
    ("lamp", {"users": 6, "steps": "1,4"}),
    ("pg19", {"tokens": "300", "window": 20, "stride": 8, "books": 2}),
    ("recall", {"tokens": 1500, "piece": 256, "books": 1}),
    ("shared_context", {"contexts": 2, "people": 3, "piece": "4k"}),
    ("shared_context", {"contexts": 1, "people": 3, "piece": "4k", "mode": "turns"}),
    ("longhealth", {"contexts": 2, "people": 3}),
    ("quality", {"contexts": 2, "people": 3, "piece": "4k"}),
    ("fact_consolidation", {"contexts": 2, "people": 4, "piece": "4k"}),
    *(
        ("msc", {"conversations": number, "ask": ask})
        for ask in ("questions", "turns")
        for number in (1, 3)
    ),
    ("dailydialog", {"rows": 12, "turns": 9}),
    ("ruler", {"length": 1500, "contexts": 2, "questions": 2, "piece": 1500}),
]


def texts(episode: Episode) -> set[str]:
    return {piece.text for piece in episode.chunks()}


def words(task: Task) -> list[tuple[Episode, Episode]]:
    return list(zip(task.episodes(LM), task.swapped_episodes(LM), strict=True))


@pytest.mark.parametrize(
    ("name", "options"), TWINS, ids=[f"{name} {options}" for name, options in TWINS]
)
def test_queries_stay_and_observations_are_others(name: str, options: dict[str, Any]) -> None:
    task = load(name, options=options, seed=1)
    pairs = words(task)
    assert pairs
    for own, other in pairs:
        assert own.key == other.key
        assert [step for step in own.steps if isinstance(step, Query)] == other.queries()
        assert [type(step) for step in own.steps] == [type(step) for step in other.steps]
        assert texts(own)
        if task.card.reader in ("qa_stream", "sessions", "dialogue", "shared_context"):
            assert not {n for t in texts(own) for n in names_in(t)} & {
                n for t in texts(other) for n in names_in(t)
            }
        else:
            assert not texts(own) & texts(other)
    again = load(name, options=options, seed=1)
    assert words(again) == pairs
    told = task.describe_swapped()
    assert told["notes"] == []
    assert told == again.describe_swapped()
    assert told["digest"] != load(name, options=options, seed=2).describe_swapped()["digest"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("superglue", {}),
        ("hellaswag", {}),
        ("winogrande", {}),
        ("openbookqa", {}),
        ("metaicl", {"tasks": 3}),
    ],
)
def test_a_synthetic_versions_other_rule_has_no_category_of_the_own(
    name: str, options: dict[str, Any]
) -> None:
    for own, other in words(load(name, options={"queries": 8, **options})):
        asked = [
            text
            for ask in own.queries()
            for text in (ask.prompt, *getattr(ask.want, "options", ()))
        ]
        assert categories_in(texts(own))
        assert not categories_in([*texts(own), *asked]) & categories_in(texts(other))


def qa_file(folder: Path, count: int) -> str:
    rows = [
        {"text": f"Text {i}.", "question": f"What is {i}?", "answers": str(i)} for i in range(count)
    ]
    return str(write_csv(folder / "test.csv", rows))


def test_documents_of_files_are_the_next_of_the_same_order(tmp_path: Path) -> None:
    source = qa_file(tmp_path, 7)
    order = load("streamingqa", source=source, options={"documents": "all"}, seed=3)
    (whole,) = order.episodes()
    read = [piece.text for piece in whole.chunks()]
    task = load("streamingqa", source=source, options={"documents": 3}, seed=3)
    ((own, other),) = words(task)
    assert [piece.text for piece in own.chunks()] == read[:3]
    assert [piece.text for piece in other.chunks()] == read[3:6]
    few = load("streamingqa", source=source, options={"documents": 5}, seed=3)
    ((_, left),) = words(few)
    assert [piece.text for piece in left.chunks()] == read[5:]
    (note,) = few.describe_swapped()["notes"]
    assert note.startswith("1 of 1 ")
    with pytest.raises(UserError, match="no other context"):
        order.describe_swapped()


def sst2(folder: Path, count: int, asked: int) -> Path:
    for name, rows in (("train", range(count)), ("validation", range(100, 100 + asked))):
        (folder / "SST-2").mkdir(exist_ok=True)
        write_jsonl(
            folder / "SST-2" / f"{name}.jsonl",
            [{"sentence": f"row {i}", "label": i % 2} for i in rows],
        )
    return folder


def test_demonstrations_of_files_are_the_next_of_the_same_draw(tmp_path: Path) -> None:
    source = str(sst2(tmp_path, 7, 3))
    options = {"task": "sst2", "shots": 3}
    ((own, other),) = words(load("superglue", source=source, options=options, seed=5))
    ((six, _),) = words(load("superglue", source=source, options={**options, "shots": 6}, seed=5))
    assert [piece.text for piece in six.chunks()] == [
        piece.text for e in (own, other) for piece in e.chunks()
    ]
    few = load("superglue", source=source, options={**options, "shots": 5}, seed=5)
    (note,) = few.describe_swapped()["notes"]
    assert note.startswith("1 of 1 ")
    with pytest.raises(UserError, match="no other context"):
        load("superglue", source=source, options={**options, "shots": 7}).describe_swapped()


def test_metaicl_reads_another_published_draw(tmp_path: Path) -> None:
    task = load(
        "metaicl",
        source=str(official(tmp_path)),
        options={"task": "quarel", "steps": "1,4"},
        seed=1,
    )
    ((own, other),) = words(task)
    assert [piece.text for piece in own.chunks()] == [
        f"Input: in {1300 + i} Output: yes" for i in range(4)
    ]
    assert [piece.text for piece in other.chunks()] == [
        f"Input: in {10000 + i} Output: yes" for i in range(4)
    ]
