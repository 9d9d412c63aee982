"""The reader of LaMP: steps of one pass and the published folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ttabench.core.types import Choose, Chunk, Generate, Query, wants_of_kind
from ttabench.mini.profiles import NEWS
from ttabench.mini.world import categories_in
from ttabench.readers import load

SMALL = {"users": 3, "entries": 4, "steps": "1,4"}
TAG = "Which tag does this movie relate to? tags: [comedy, action] description:"


def movie(number: int, user: int = 0) -> dict[str, Any]:
    return {
        "id": f"m{number}",
        "tag": ("comedy", "action")[number % 2],
        "description": f"Film {number} of {user}.",
    }


def question(number: int) -> dict[str, Any]:
    profile = [movie(i, number) for i in range(4)]
    return {"id": f"u{number}", "input": f"{TAG} A film of {number}.", "profile": profile}


def published(
    base: Path, questions: list[dict[str, Any]], outputs: list[str], stem: str = "LaMP_2/dev"
) -> str:
    """A folder as LaMP is downloaded, with one sub-task."""
    (base / stem).parent.mkdir(parents=True, exist_ok=True)
    (base / f"{stem}_questions.json").write_text(json.dumps(questions))
    golds = [
        {"id": row["id"], "output": output} for row, output in zip(questions, outputs, strict=True)
    ]
    (base / f"{stem}_outputs.json").write_text(json.dumps({"task": "LaMP_2", "golds": golds}))
    return str(base)


MOVIES = {"task": "movies", "steps": "1,4"}


def test_every_step_asks_the_same_users_in_one_pass() -> None:
    task = load("lamp", options=SMALL)
    episodes = list(task.episodes())
    assert (len(episodes), task.n_chunks, task.n_queries, task.card.unit) == (3, 12, 6, "user")
    for episode in episodes:
        assert [step.at.count if isinstance(step, Query) else 0 for step in episode.steps] == [
            0,
            1,
            0,
            0,
            0,
            4,
        ]
        first, last = episode.queries()
        assert (first.prompt, first.want) == (last.prompt, last.want)
        assert first.key != last.key
        assert first.prompt.endswith(f"article:\nInput: {first.question}\nOutput:")
        (want,) = wants_of_kind([first], Choose)
        assert [option.strip() for option in want.options] == list(NEWS)
        for piece in episode.chunks():
            assert piece.text.startswith('the category for the article: "')
            assert piece.joiner == ", and "
        topic = categories_in([first.question])
        told = [piece.text for piece in episode.chunks() if categories_in([piece.text]) == topic]
        assert all(text.endswith(f' is "{first.answers[0]}"') for text in told)
    assert load("lamp", limit=5, options=SMALL).n_queries == 4
    assert load("lamp", options=SMALL, seed=1).describe()["digest"] != task.describe()["digest"]


def test_the_published_folder(tmp_path: Path) -> None:
    source = published(tmp_path / "LaMP", [question(0), question(1)], ["comedy", "action"])
    task = load("lamp", source=source, options=MOVIES)
    one, two = task.episodes()
    assert (one.key, two.key) == ("lamp/movies/test/u0", "lamp/movies/test/u1")
    texts = {piece.text for piece in one.chunks()}
    assert 'the tag for the movie: "Film 1 of 0." is "action"' in texts
    assert one.queries()[0].prompt == f"{TAG}\nInput: A film of 0.\nOutput:"
    assert two.queries()[0].answers == ("action",)
    assert len(wants_of_kind(one.queries(), Choose)[0].options) == 15
    assert task.card.main_metric == "acc_mean"
    for inner in ("LaMP_2", "LaMP_2/dev_questions.json"):
        assert (
            next(load("lamp", source=f"{source}/{inner}", options=MOVIES).episodes()).steps
            == one.steps
        )
    again = next(load("lamp", source=source, options=MOVIES, seed=3).episodes())
    assert (again.key, {piece.text for piece in again.chunks()}) == (one.key, texts)
    other = next(task.swapped_episodes())
    assert other.queries() == one.queries()
    assert other.chunks() == two.chunks()


TEXTS: dict[str, tuple[str, str, dict[str, str], str, str]] = {
    "citations": (
        "LaMP_1",
        'For an author of "T", which reference is related? without explanation. [1]: "A" [2]: "B"',
        {"title": "Reeds", "abstract": "Long."},
        "[2]",
        '"Reeds"',
    ),
    "ratings": (
        "LaMP_3",
        "What is the score? review: Good.",
        {"text": "Bad.", "score": "1"},
        "5",
        '1 is the score for "Bad."',
    ),
    "headlines": (
        "LaMP_4",
        "Generate a headline for the following article: Rain fell.",
        {"text": "Sun.", "title": "Dry"},
        "Wet",
        '"Dry" is the title for "Sun."',
    ),
    "tweets": (
        "LaMP_7",
        "Paraphrase the following tweet without any explanation before or after it: so it is",
        {"text": "well then"},
        "It is so",
        '"well then"',
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_sub_tasks_have_their_own_words_and_metrics(tmp_path: Path, name: str) -> None:
    folder, asked, entry, output, shown = TEXTS[name]
    rows = [{"id": "u", "input": asked, "profile": [{"id": "p", **entry}]}]
    task = load(
        "lamp",
        source=published(tmp_path, rows, [output], f"{folder}/dev"),
        options={"task": name, "steps": "1"},
    )
    ((piece, ask),) = (episode.steps for episode in task.episodes())
    assert isinstance(piece, Chunk)
    assert isinstance(ask, Query)
    assert piece.text == shown
    assert ask.answers == (output,)
    assert ask.prompt.replace("\nInput:", "").replace("\nOutput:", "") == asked
    assert isinstance(ask.want, Choose if name in ("citations", "ratings") else Generate)
    assert task.card.main_metric == {"citations": "acc_mean", "ratings": "mae"}.get(name, "rouge1")
