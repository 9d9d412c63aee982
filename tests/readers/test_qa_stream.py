"""Protocols of the qa_stream reader, and the slices of published files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.qa_files import shared, steps, write_csv
from ttabench.core.errors import UserError
from ttabench.readers import Task, load

# --- protocols -----------------------------------------------------------------------------------------------------


@pytest.fixture
def stream(tmp_path: Path) -> Callable[..., Task]:
    rows = [
        {
            "qa_id": f"q{i}",
            "text": f"text {i // 2} " + "x" * 90,
            "question": f"Q{i}?",
            "answers": f"a{i}",
        }
        for i in range(10)
    ]
    path = write_csv(tmp_path / "stream.csv", rows)
    return lambda seed=0, limit=None, **options: load(
        "streamingqa", source=str(path), seed=seed, limit=limit, options=options
    )


def test_orders(stream: Callable[..., Task]) -> None:
    heads = {
        order: [text[5] for text in steps(stream(order=order))[0]] for order in ("file", "random")
    }
    assert heads["file"] == list("01234")
    assert sorted(heads["random"]) == list("01234")
    assert len({tuple(steps(stream(seed=seed))[0]) for seed in range(6)}) > 1
    assert steps(stream(documents=2))[0] == steps(stream())[0][:2]
    with pytest.raises(UserError, match="order=titles needs titles"):
        list(stream(order="titles").episodes())


def test_limit_spreads_over_the_stream(stream: Callable[..., Task]) -> None:
    task = stream(limit=5, order="file")
    texts, asks = steps(task)
    assert len(texts) == 5
    assert [prompt for prompt, _ in asks] == ["Q0?", "Q2?", "Q4?", "Q6?", "Q8?"]
    assert len(steps(stream(limit=99))[1]) == 10
    with pytest.raises(UserError, match="--limit"):
        stream(limit=0)


def test_grouped_protocol(stream: Callable[..., Task]) -> None:
    task = stream(kind="grouped", group_tokens=300, order="file", prompt="instruction")
    ask = next(task.episodes()).queries()[0]
    assert ask.question
    assert ask.prompt.endswith(f"Question: {ask.question}\nAnswer:")
    episodes = list(task.episodes(SimpleNamespace(encode=lambda _: [0] * 200)))
    assert [len(e.chunks()) for e in episodes] == [1, 1, 1, 2]  # 1,000 tokens need 4 groups of 300
    assert [len(e.queries()) for e in episodes] == [2, 2, 2, 4]
    assert len({e.key for e in episodes}) == 4
    assert episodes[0].queries()[0].prompt.endswith("Question: Q0?\nAnswer:")
    assert len(list(task.episodes())) == 1
    assert task.describe()["protocol"]["documents"] is None


def test_retention_protocol(stream: Callable[..., Task]) -> None:
    task = stream(kind="retention", probe=1, every=2, order="file")
    (episode,) = task.episodes()
    assert [(a.at.count, a.key) for a in episode.queries()] == [
        (1, "q0@1"),
        (1, "q1@1"),
        (3, "q0@3"),
        (3, "q1@3"),
        (5, "q0@5"),
        (5, "q1@5"),
    ]
    assert {a.source_key for a in episode.queries()} == {episode.chunks()[0].key}
    assert (task.n_chunks, task.n_queries) == (5, 6)


# --- the slices of published files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "source", "split", "documents", "questions"),
    [
        ("squad_seq", "squad/mac_layout", "test", 120, 558),
        ("squad_seq", "squad/dev-v1.1.json", "test", 120, 558),
        ("squad_seq", "squad", "test", 120, 558),
        ("streamingqa", "streamingqa/made_up_schema/camels_mac_layout", "test", 1, 2),
        ("streamingqa", "streamingqa/made_up_schema/camels_mac_layout", "qa_validation", 1, 2),
        ("archivalqa", "archivalqa/made_up_schema", "test", 2, 2),
    ],
)
def test_published_slices(
    name: str, source: str, split: str, documents: int | None, questions: int
) -> None:
    task = load(name, source=shared(source), split=split)
    assert task.n_queries == questions
    assert documents in (None, task.n_chunks)
    assert not task.dropped
    assert all(
        ask.answers[0] == min(ask.answers, key=len) for e in task.episodes() for ask in e.queries()
    )
