"""The reader of MetaICL: steps of one pass, the official folder, and what it refuses."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.qa_files import refusal, shared, write_jsonl
from ttabench.errors import UserError
from ttabench.readers import load
from ttabench.readers.formats import RawRow
from ttabench.readers.metaicl_files import DRAWS, parse

SMALL = {"tasks": 2, "queries": 3, "demonstrations": 4, "steps": "1,4"}


def row(number: int, task: str = "quarel", **changes: Any) -> dict[str, Any]:
    return {"task": task, "input": f"in {number}", "output": "yes", "options": ["no", "yes"], **changes}


def official(base: Path, **test_row: Any) -> Path:
    """A folder as MetaICL writes it, with one test task and one training task."""
    (base / "config").mkdir(parents=True)
    config = {"train": ["piqa"], "test": ["quarel", "codah"]}
    (base / "config" / "hr_to_lr.json").write_text(json.dumps(config))
    for task in ("quarel", "piqa"):
        place = base / "data" / task
        place.mkdir(parents=True)
        for draw in DRAWS:
            write_jsonl(place / f"{task}_16_{draw}_train.jsonl", [row(draw * 100 + i, task) for i in range(16)])
    held = [row(7, **test_row), row(1300), row(8)]
    write_jsonl(base / "data" / "quarel" / "quarel_16_100_test.jsonl", held)
    return base


def test_rows_are_asked_after_each_step_of_one_pass() -> None:
    task = load("metaicl", options=SMALL)
    episodes = list(task.episodes())
    assert (len(episodes), task.n_observes, task.n_asks) == (2, 8, 12)
    for episode in episodes:
        kinds = [getattr(step, "step", None) for step in episode.steps]
        assert kinds == [None, 1, 1, 1, None, None, None, 4, 4, 4]
        asked = episode.asks()
        assert [ask.prompt for ask in asked[:3]] == [ask.prompt for ask in asked[3:]]
        assert len({ask.key for ask in asked}) == 6
        for piece in episode.observes():
            assert piece.text.startswith("Input: ")
            assert piece.joiner == " "
            assert not any(piece.text.startswith(ask.prompt) for ask in asked)
        for ask in asked:
            assert ask.gold is not None
            assert ask.options[ask.gold] == f" {ask.answers[0]}"


def test_layouts_and_ways_to_answer() -> None:
    task = load("metaicl", options={**SMALL, "layout": "genadapter", "answer": "generate"})
    episode = next(task.episodes())
    assert episode.observes()[0].joiner == "\n\n"
    assert "\nOutput: " in episode.observes()[0].text
    assert {ask.mode for ask in episode.asks()} == {"generate"}
    assert task.card.metrics == ("em", "em_prefix")
    with_pmi = load("metaicl", options={**SMALL, "pmi": "true"})
    assert "acc_pmi" in with_pmi.card.metrics
    assert next(with_pmi.episodes()).asks()[0].blank == "Output:"
    assert load("metaicl", limit=5, options=SMALL).n_asks == 4


def test_training_episodes() -> None:
    task = load("metaicl", split="train", options=SMALL)
    episodes = list(islice(task.training(3, 4, 2), 4))
    assert episodes == list(islice(task.training(3, 4, 2), 4))
    assert [(len(episode.observes()), len(episode.asks())) for episode in episodes] == [(4, 2)] * 4
    assert len({episode.observes()[0].text for episode in episodes}) > 1


def test_the_official_folder(tmp_path: Path) -> None:
    base = official(tmp_path / "MetaICL")
    task = load("metaicl", source=str(base), seed=1)
    assert task.notes == ("1 of 2 tasks have no files and were left out: codah",)
    (episode,) = task.episodes()
    assert [piece.text for piece in episode.observes()] == [f"Input: in {1300 + i} Output: yes" for i in range(16)]
    assert {ask.prompt for ask in episode.asks()} == {"Input: in 7 Output:", "Input: in 8 Output:"}
    assert task.dropped == {"quarel: query equal to a demonstration": 1}
    assert {ask.step for ask in episode.asks()} == {1, 2, 4, 8, 16}
    assert next(load("metaicl", source=str(base), seed=0).episodes()).asks()[1].prompt == "Input: in 1300 Output:"


def test_training_from_the_official_folder_uses_its_training_tasks(tmp_path: Path) -> None:
    task = load("metaicl", source=str(official(tmp_path / "MetaICL")), split="train")
    for episode in islice(task.training(0, 8, 2), 5):
        assert {ask.part for ask in episode.asks()} == {"piqa"}
        assert len({piece.text for piece in episode.observes()}) == 8


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"options": "yes"}, "options are 'yes', no list"),
        ({"options": ["no", "maybe"]}, "output 'yes' is not among the options 'no, maybe'"),
        ({"input": 4}, "input is 4, no text"),
        ({"output": None}, "output is None, no text"),
    ],
)
def test_bad_rows(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    base = official(tmp_path / "MetaICL", **change)
    message = refusal("metaicl", source=str(base))
    assert "quarel_16_100_test.jsonl line 1" in message
    assert expected in message


def test_bad_requests(tmp_path: Path) -> None:
    base = official(tmp_path / "MetaICL")
    source = str(base)
    assert "Did you mean 'quarel'" in refusal("metaicl", source=source, options={"task": "quarl"})
    assert "codah_16_100_train.jsonl of codah" in refusal("metaicl", source=source, options={"task": "codah"})
    assert "none of the 5 published draws" in refusal("metaicl", source=source, seed=5)
    assert "step 32 needs more than the 16" in refusal("metaicl", source=source, options={"steps": "1,32"})
    assert "steps" in refusal("metaicl", options={"steps": "1,x"})
    assert "on no hub" in refusal("metaicl", source="hub")
    assert "has no folder 'data'" in refusal("metaicl", source=str(tmp_path))
    assert "less than one row at each of 5 steps" in refusal("metaicl", limit=4)
    (base / "data" / "quarel" / "quarel_16_100_test.jsonl").write_text('{"task": "quarel"}\n')
    assert "line 1 lacks the column 'input'" in refusal("metaicl", source=source)
    (base / "config" / "hr_to_lr.json").write_text("[]")
    assert "has no list 'test' of tasks" in refusal("metaicl", source=source)


def test_free_answers_are_generated_not_chosen(tmp_path: Path) -> None:
    base = official(tmp_path / "MetaICL")
    write_jsonl(base / "data" / "quarel" / "quarel_16_100_test.jsonl", [row(1, options=[]), row(2)])
    assert load("metaicl", source=str(base)).dropped == {"quarel: no options": 1}
    assert load("metaicl", source=str(base), options={"answer": "generate"}).n_asks == 10
    write_jsonl(base / "data" / "quarel" / "quarel_16_100_test.jsonl", [row(1, options=[])])
    assert "answer=generate" in refusal("metaicl", source=str(base), options={"task": "quarel"})


def test_published_files() -> None:
    task = load("metaicl", source=shared("metaicl"), seed=2, options={"steps": "1,16"})
    names = {episode.asks()[0].part for episode in task.episodes()}
    assert names == set(task.describe()["parts"])
    assert {"commonsense_qa", "superglue-cb", "ai2_arc"} <= names
    assert all(len(episode.observes()) == 16 for episode in task.episodes())


cells = st.one_of(st.none(), st.integers(), st.text(max_size=5), st.lists(st.text(max_size=2), max_size=3))


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.sampled_from(["task", "input", "output", "options"]), cells))
def test_any_row_is_read_or_refused_in_one_line(values: dict[str, object]) -> None:
    try:
        found, _ = parse([RawRow("here", values)])
    except UserError as error:
        complaint = str(error)
        assert complaint.startswith("here")
        assert "\n" not in complaint
    else:
        assert all(each.output in each.options for each in found)
