"""Cards, sources and the qa_stream reader on the miniature world and on every published layout."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.qa_files import (
    CAMELS,
    SQUAD,
    load_error,
    nest_squad,
    steps,
    write_csv,
    write_jsonl,
    write_parquet,
)
from ttabench.core.types import Chunk, Score
from ttabench.readers import load
from ttabench.readers.cards import CARDS, load_card

TASKS = ["archivalqa", "squad_seq", "streamingqa"]

# --- cards ---------------------------------------------------------------------------------------------------------


def test_bundled_cards_are_named_like_their_files_and_fit_their_reader() -> None:
    assert set(TASKS) <= set(CARDS)
    for name, card in CARDS.items():
        assert card.name == name
        assert card.twin is not None
        assert {"train", "validation", "test"} <= set(card.splits)
        assert load(card).n_queries > 0


def test_unknown_names_get_the_closest() -> None:
    assert "Did you mean 'streamingqa'" in load_error("streamngqa")
    assert "Did you mean 'validation'" in load_error("streamingqa", split="valid")
    assert "Did you mean 'documents'" in load_error("streamingqa", options={"document": "3"})
    assert "Did you mean 'questions'" in load_error("streamingqa", options={"question": "3"})
    assert "prompt of task" in load_error("streamingqa", options={"prompt": "chatty"})


@pytest.mark.parametrize("name", [*CARDS])
def test_score_first_tasks_score_every_text_before_it_is_read(name: str) -> None:
    options = {"msc": {"ask": "turns"}, "pg19": {"tokens": "1k", "window": "256", "stride": "128"}}
    task = load(name, options=options.get(name, {}), limit=24)
    assert task.describe().get("score_first", False) == (name in ("dailydialog", "msc", "pg19"))
    if not task.is_score_first:
        assert name == "lm_eval" or not any(
            isinstance(query.want, Score)
            for episode in task.episodes()
            for query in episode.queries()
        )
        return
    for episode in task.episodes():
        read = list[Chunk]()
        for step in episode.steps:
            if isinstance(step, Chunk):
                read.append(step)
                continue
            assert isinstance(step.want, Score)
            scored = step.prompt + step.want.continuation
            # a short turn may occur twice: turns have the keys of their queries
            assert step.key not in [chunk.key for chunk in read]
            assert name != "pg19" or scored not in "".join(chunk.text for chunk in read)


# --- the miniature world -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_mini_is_deterministic_and_splits_differ(name: str) -> None:
    options = {"documents": "6", "questions": "2"}
    one, same, other = (load(name, seed=seed, options=options) for seed in (1, 1, 2))
    assert list(one.episodes()) == list(same.episodes()) == list(one.episodes())
    assert one.describe() == same.describe()
    assert one.describe()["digest"] != other.describe()["digest"]
    assert (one.n_chunks, one.n_queries, one.source) == (6, 12, "mini")
    train = load(name, split="train", options=options)
    texts = {o.text for task in (one, train) for e in task.episodes() for o in e.chunks()}
    assert len(texts) == 12
    json.dumps(one.describe())


@pytest.mark.parametrize(
    ("name", "asks"), [("streamingqa", 12), ("lamp", 3), ("metaicl", 3), ("superglue", 3)]
)
def test_training_reads_and_asks_as_much_as_it_is_reported(name: str, asks: int) -> None:
    task = load(name, split="train")
    episodes = list(islice(task.training_episodes(3, 4, 3), 3))
    assert episodes == list(islice(task.training_episodes(3, 4, 3), 3))
    assert {(len(episode.chunks()), len(episode.queries())) for episode in episodes} == {(4, asks)}
    assert len({episode.chunks()[0].text for episode in episodes}) > 1


def test_training_on_files_runs_in_epochs(tmp_path: Path) -> None:
    rows = [{"text": f"Text {i // 2}", "question": f"Q{i}?", "answers": f"a{i}"} for i in range(20)]
    task = load("streamingqa", source=str(write_csv(tmp_path / "train.csv", rows)), split="train")
    episodes = list(islice(task.training_episodes(seed=0, documents=3), 6))
    first, second = (
        [o.text for e in part for o in e.chunks()] for part in (episodes[:3], episodes[3:])
    )
    assert len(set(first)) == len(set(second)) == 9
    assert first != second


# --- published layouts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["csv", "bom", "jsonl.gz", "json", "parquet"])
def test_camels_layout(tmp_path: Path, layout: str) -> None:
    path = tmp_path / f"test.{layout}"
    if layout == "jsonl.gz":
        write_jsonl(path, CAMELS)
    elif layout == "json":
        path.write_text(json.dumps(CAMELS))
    elif layout == "parquet":
        write_parquet(path, CAMELS)
    else:
        plain = write_csv(tmp_path / "test.csv", CAMELS)
        if layout == "bom":
            plain.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    task = load("streamingqa", source=str(tmp_path), options={"order": "file"})
    texts, asks = steps(task)
    assert texts == ["Ada Voss lives in Port Ansel.", "Ole Brandt keeps a goat."]
    assert asks == [
        ("Where does Ada Voss live?", ("Ansel", "Port Ansel")),
        ("Who lives in Port Ansel?", ("Ada Voss",)),
        ("What does Ole Brandt keep?", ("a goat",)),
    ]
    assert task.source == f"folder:{tmp_path}"


OFFICIAL = {
    "qa_id": "eval-0",
    "question": "Who?",
    "answers": ["Ada Voss", "Ada"],
    "answers_additional": ["Voss", ""],
    "question_ts": 2,
    "evidence_ts": 1,
    "evidence_id": "k1",
    "recent_or_past": "past",
    "toxicity_threat": 0.1,
}


def test_official_streamingqa_with_companion_articles(tmp_path: Path) -> None:
    other = {**OFFICIAL, "qa_id": "eval-1", "evidence_id": "lost"}
    write_jsonl(tmp_path / "streaminqa_eval.jsonl.gz", [OFFICIAL, other])
    message = load_error("streamingqa", source=str(tmp_path))
    assert "questions without texts" in message
    assert "extraction.py" in message
    assert "articles.csv" in message
    write_jsonl(tmp_path / "articles.jsonl", [{"sorting_key": "k1", "text": "Ada Voss it was."}])
    task = load("streamingqa", source=str(tmp_path), options={"order": "file"})
    assert steps(task) == (["Ada Voss it was."], [("Who?", ("Ada", "Ada Voss", "Voss"))])
    assert task.dropped == {"no article": 1}


@pytest.mark.parametrize("layout", ["json", "csv", "shards"])
def test_squad_layouts(tmp_path: Path, layout: str) -> None:
    if layout == "json":
        (tmp_path / "dev-v1.1.json").write_text(json.dumps(nest_squad(SQUAD)))
    elif layout == "csv":
        write_csv(tmp_path / "squad_test.csv", SQUAD)
    else:
        (tmp_path / "plain_text").mkdir()
        write_parquet(
            tmp_path / "plain_text" / "validation-00000-of-00002-abc123.parquet", SQUAD[:4]
        )
        write_parquet(
            tmp_path / "plain_text" / "validation-00001-of-00002-abc123.parquet", SQUAD[4:]
        )
    task = load("squad_seq", source=str(tmp_path), options={"order": "file"})
    texts, asks = steps(task)
    assert texts == ["Text 0.", "Text 1.", "Text 2."]
    assert asks[0] == ("Which text 0?", ("Text", "Text 0"))
    (episode,) = task.episodes()
    assert [ask.key for ask in episode.queries()] == [row["id"] for row in SQUAD]


def test_archivalqa_layout_uses_the_paragraph(tmp_path: Path) -> None:
    row = {
        "id": "val_1",
        "question": "When?",
        "answer": "monday",
        "para_id": "7_1",
        "doc_id": 7,
        "para_num": 1,
        "text": "['p0', 'p1 monday']",
        "ans_paragraph": "p1 monday",
    }
    first = {**row, "id": "val_2", "para_num": 0, "ans_paragraph": "p0"}
    write_csv(tmp_path / "test.csv", [row, first])
    source = str(tmp_path)
    assert steps(load("archivalqa", source=source)) == (
        ["p0", "p1 monday"],
        [("When?", ("Monday",))] * 2,
    )


@pytest.mark.parametrize(
    ("split", "first", "last"),
    [("qa_train", 0, 18), ("qa_validation", 18, 19), ("train", 19, 37), ("validation", 37, 40)],
)
def test_squad_splits_are_rows_of_the_published_train_file(
    tmp_path: Path, split: str, first: int, last: int
) -> None:
    card = load_card("squad_seq")
    published = card.splits[split]
    assert published.of == 87599
    assert [round(row / 2190) for row in published.rows or ()] == [first, last], (
        "the same shares of 40 rows"
    )
    small = published.model_copy(update={"rows": (first, last), "of": 40})
    card = card.model_copy(update={"splits": {split: small}})
    path = write_csv(
        tmp_path / "train.csv", [{**SQUAD[0], "id": str(i), "context": f"c{i}"} for i in range(40)]
    )
    for source in (path, tmp_path):
        task = load(
            card, source=str(source), split=split, options={"order": "file", "documents": 9}
        )
        (episode,) = task.episodes()
        assert [ask.key for ask in episode.queries()] == [
            str(i) for i in range(first, min(last, first + 9))
        ]
        assert task.notes[:1] == (f"rows {first} to {last} of 40",)


def test_row_ranges_are_not_applied_to_other_files(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "train.csv", SQUAD)
    assert "rows 42118 to 82011 of 87599, but" in load_error(
        "squad_seq", source=str(tmp_path), split="train"
    )
    task = load("squad_seq", source=str(path), split="train")
    assert len(steps(task)[1]) == 6


# --- the hub -------------------------------------------------------------------------------------------------------


def test_hub_rows_come_with_pinned_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    calls: list[tuple[Any, ...]] = []

    def fake(path: str, config: str | None, *, split: str, revision: str | None) -> Any:
        calls.append((path, config, split, revision))
        return datasets.Dataset.from_list(SQUAD)

    monkeypatch.setattr(datasets, "load_dataset", fake)
    task = load("squad_seq", source="hub")
    assert task.source == "hub:rajpurkar/squad@7b6d24c4"
    assert len(steps(task)[1]) == 6
    assert calls == [
        ("rajpurkar/squad", "plain_text", "validation", "7b6d24c440a36b6815f21b70d25016731768db1f")
    ]
    assert "has 6 rows" in load_error("squad_seq", source="hub", split="train")
