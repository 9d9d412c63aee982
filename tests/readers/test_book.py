"""The reader of books: how texts are cut, and where they come from."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.tiny import tiny_llama
from ttabench.core.types import Chunk, Episode, Query, Score, Step, StreamPosition, wants_of_kind
from ttabench.lm.model import load as load_lm
from ttabench.readers import load
from ttabench.readers.book import book_steps, cut_spans
from ttabench.readers.tokens import TokenizedText

LM = tiny_llama()
SMALL = {"tokens": "100", "window": 20, "stride": 8}
sizes = st.integers(1, 60)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)


def pieces(episode: Episode) -> list[tuple[str, int, int]]:
    """(kind, first token, tokens) of every step."""
    return [
        (
            "read" if isinstance(step, Chunk) else "ask",
            int(step.key.rpartition("@")[2]),
            len(ids_of(step)),
        )
        for step in episode.steps
    ]


def ids_of(step: Step) -> tuple[int, ...]:
    return step.ids if isinstance(step, Chunk) else score(step).ids


def score(ask: Query) -> Score:
    (want,) = wants_of_kind([ask], Score)
    return want


def only(**options: Any) -> Episode:
    """The one episode of a task bound to the tiny model, where a token is a byte."""
    source = str(options.pop("source"))
    (episode,) = load("pg19", source=source, options={**SMALL, **options}).episodes(LM)
    return episode


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@given(st.integers(1, 400), sizes, sizes)
def test_every_token_after_the_first_window_is_scored_once(
    total: int, first: int, stride: int
) -> None:
    found = cut_spans(total, first, stride)
    assert [token for span in found for token in range(span.start, span.end)] == list(range(total))
    scored = [token for span in found if span.is_scored for token in range(span.start, span.end)]
    assert scored == list(range(0 if total <= first else first, total))
    assert all(span.end - span.start <= (first if span.start == 0 else stride) for span in found)


@settings(deadline=None)
@given(texts, sizes, sizes)
def test_chunks_joined_are_the_text_and_its_tokens(text: str, first: int, stride: int) -> None:
    cut = TokenizedText.tokenize(text, LM)
    assert list(cut.ids) == LM.encode(text)
    pieces = [span._replace(is_scored=True) for span in cut_spans(len(cut), first, stride)]
    found = list(book_steps(cut, pieces, "b", "", [10_000]))
    asks = [step for step in found if isinstance(step, Query)]
    assert "".join(ask.answers[0] for ask in asks) == text
    assert [token for ask in asks for token in score(ask).ids] == list(cut.ids)
    assert sum(score(ask).words for ask in asks) == len(text.split())
    read: tuple[int, ...] = ()
    seen = ""
    for step in found:
        if isinstance(step, Chunk):
            read, seen = read + step.ids, seen + step.text
        else:
            assert read + score(step).prompt_ids == cut.ids[: score(step).position], (
                "all that stands before it, once"
            )
            assert text.startswith(seen + step.prompt + step.answers[0])


def test_strides_are_scored_before_they_are_read(tmp_path: Path) -> None:
    path = put(tmp_path, "a.txt", "".join(chr(97 + i % 26) for i in range(45)))
    found = only(source=path)
    assert pieces(found) == [
        ("read", 0, 19),
        ("ask", 20, 8),
        ("read", 19, 8),
        ("ask", 28, 8),
        ("read", 27, 8),
        ("ask", 36, 8),
        ("read", 35, 8),
        ("ask", 44, 1),
    ]
    assert found.queries()[0].prompt == "t", (
        "a stride is predicted from the token before it, which is read after it"
    )
    assert [score(ask).position for ask in found.queries()] == [20, 28, 36, 44]
    assert {(len(score(ask).prompt_ids), ask.at) for ask in found.queries()} == {
        (1, StreamPosition(100, "tokens"))
    }

    assert pieces(only(source=path, tokens="30"))[-1] == ("ask", 28, 2)


@pytest.mark.parametrize("length", [2, 19, 20])
def test_a_book_no_longer_than_a_window_is_scored_whole(length: int, tmp_path: Path) -> None:
    assert pieces(only(source=put(tmp_path, "a.txt", "x" * length))) == [("ask", 0, length)]


def test_the_official_folder(tmp_path: Path) -> None:
    put(tmp_path, "test/9.txt", "nine " * 9)
    put(tmp_path, "test/7.txt", "\ufeffseven\r\n\r\nlines ")
    put(tmp_path, "test/8.txt", " \n")
    put(tmp_path, "train/1.txt", "one")
    task = load("pg19", source=str(tmp_path), options=SMALL)
    episodes = list(task.episodes(LM))
    assert [episode.key for episode in episodes] == ["pg19/test/7", "pg19/test/9"]
    assert [episode.queries()[0].subtask for episode in episodes] == ["7", "9"]
    assert episodes[0].queries()[0].answers == ("seven\r\n\r\nlines ",), (
        "line ends are part of the text"
    )
    assert task.dropped == {"no text": 1}
    assert task.source == f"folder:{tmp_path}"
    train = load("pg19", source=str(tmp_path / "train"), split="train", options=SMALL)
    assert [episode.key for episode in train.episodes()] == ["pg19/train/1"]
    json.dumps(task.describe())


def test_mini_books_are_as_long_as_asked_for() -> None:
    lm = load_lm("nano")
    task = load("pg19", options={"tokens": "2k,4k", "window": "1k", "books": 2})
    one, two = task.episodes(lm)
    for episode in (one, two):
        last = episode.queries()[-1]
        assert score(last).position + len(score(last).ids) == 4096
        assert {ask.at.count for ask in episode.queries()} == {2048, 4096}
    assert list(task.episodes(lm)) == list(
        load("pg19", options=task.describe()["protocol"]).episodes(lm)
    )
    assert task.n_queries == pytest.approx(12, rel=0.3), "an estimate of 4 characters a token"
    assert task.n_chunks == task.n_queries
    shorter = load("pg19", options={"tokens": "2k", "window": "1k", "books": 2}).episodes(lm)
    for begun, whole in zip(shorter, (one, two), strict=True):
        assert begun.key == whole.key
        assert begun.queries() == whole.queries()[:2], (
            "runs of two lengths are paired over what is the same text"
        )


def test_training_sequences_are_cut_like_books(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "train/1.txt", "".join(chr(33 + i % 90) for i in range(9000)))
    put(tmp_path, "train/2.txt", "short")
    options = {**SMALL, "sequence_tokens": 50}
    task = load("pg19", source=str(tmp_path), split="train", options=options)
    cut, whole = list[str](), TokenizedText.tokenize
    monkeypatch.setattr(
        TokenizedText, "tokenize", lambda text, tokens: cut.append(text) or whole(text, tokens)
    )
    found = list(islice(task.training_episodes(0, 1, tokens=LM), 6))
    assert max(map(len, cut)) == 32 * 50, "of a long book a part is tokenised"
    long = [episode for episode in found if len(episode.steps) > 1]
    assert len(long) == 3, "a sequence of every book an epoch"
    assert len({episode.chunks()[0].text for episode in long}) > 1, "from random places"
    assert found == list(islice(task.training_episodes(0, 1, tokens=LM), 6))
