"""Published archives load from every level of the folder they unpack to; a wrong split is never asked in silence."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import archives
from tests.archives import BUILD
from tests.qa_files import refusal, shared
from ttabench.readers import Task, load

SHOTS = {"shots": 2}
BOOKS = {"tokens": "40", "window": 20, "stride": 8}


def unpacked(tmp_path: Path, name: str) -> Path:
    BUILD[name](tmp_path)
    return tmp_path


def told(task: Task) -> tuple[set[str], set[str]]:
    """First words of what is read and of what is asked: the rows of `tests.archives` begin with their file."""
    skipped = ("Question:", "Input:", "Home:", "Easy", "Challenge")
    read, asked = set(), set()
    for episode in task.episodes():
        for text, words in [
            *((piece.text, read) for piece in episode.observes()),
            *((ask.prompt, asked) for ask in episode.asks()),
        ]:
            words.add(next(word for word in text.split() if word not in skipped))
    return read, asked


LEVELS = [
    ("openbookqa", "openbookqa", ["", "OpenBookQA-V1-Sep2018", "OpenBookQA-V1-Sep2018/Data",
                                  "OpenBookQA-V1-Sep2018/Data/Main", "OpenBookQA-V1-Sep2018/Data/Additional"], "test"),
    ("arc_easy", "arc", ["", "ARC-V1-Feb2018-2", "ARC-V1-Feb2018-2/ARC-Easy"], "test"),
    ("arc_challenge", "arc", ["", "ARC-V1-Feb2018-2", "ARC-V1-Feb2018-2/ARC-Challenge"], "test"),
    ("winogrande", "winogrande", ["", "winogrande_1.1"], "dev"),
    ("superglue", "superglue", ["", "SuperGLUE", "SuperGLUE/BoolQ", "SuperGLUE/CB", "SuperGLUE/COPA",
                                "SuperGLUE/RTE"], "val"),
    ("superglue", "sst2", ["", "GLUE", "GLUE/SST-2"], "dev"),
    ("hellaswag", "hellaswag", ["", "hellaswag", "hellaswag/data"], "val"),
    ("piqa", "piqa", ["piqa", "piqa/data", ""], "dev"),
    ("piqa", "physicaliqa", ["", "physicaliqa-train-dev"], "dev"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "archive", "level", "asked"),
    [(name, archive, level, asked) for name, archive, levels, asked in LEVELS for level in levels],
)
def test_every_level_of_an_archive_shows_training_rows_and_asks_those_that_papers_score(
    tmp_path: Path, name: str, archive: str, level: str, asked: str
) -> None:
    task = load(name, source=str(unpacked(tmp_path, archive) / level), options=SHOTS)
    assert told(task) == ({"train"}, {asked})
    assert not [note for note in task.notes if "left out" not in note], "nothing to warn of"
    expected = {"superglue": ["boolq", "cb", "copa", "rte"], "sst2": ["sst2"]}.get(archive, [name])
    if "/" in level and archive == "superglue":
        expected = [level.rpartition("/")[2].lower()]
    assert [episode.asks()[0].subtask for episode in task.episodes()] == expected
    assert task.source == f"folder:{tmp_path / level}"


@pytest.mark.parametrize("level", ["", "SQuAD"])
def test_squad(tmp_path: Path, level: str) -> None:
    source = str(unpacked(tmp_path, "squad") / level)
    assert told(load("squad_seq", source=source)) == ({"dev"}, {"dev"})
    message = refusal("squad_seq", source=source, split="train")
    assert "rows 42118 to 82011 of 87599, but" in message
    assert "train-v1.1.json" in message


@pytest.mark.parametrize("level", ["", "MetaICL", "MetaICL/data"])
def test_metaicl(tmp_path: Path, level: str) -> None:
    source = str(unpacked(tmp_path, "metaicl") / level)
    task = load("metaicl", source=source, options={"steps": "2"})
    assert told(task) == ({"train"}, {"test"})
    assert not task.notes
    (note,) = load("metaicl", source=source, split="validation", options={"steps": "2"}).notes
    assert "rows of the training tasks" in note


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_pg19(tmp_path: Path, split: str) -> None:
    base = unpacked(tmp_path, "pg19")
    for level in ("", "pg19", f"pg19/{split}"):
        task = load("pg19", source=str(base / level), split=split, options=BOOKS)
        (episode,) = task.episodes()
        assert episode.steps[0].text.startswith(f"{split} words")  # type: ignore[union-attr]
        assert episode.asks()[0].subtask.split()[1] in ("One", "Two", "Three"), "titles are in metadata.csv above"
        assert len(task.notes) == 1, "only that all books are scored"


# --- sizes, formats ------------------------------------------------------------------------------------------------


def test_sizes_of_winogrande(tmp_path: Path) -> None:
    source = str(unpacked(tmp_path, "winogrande"))

    def shown(**options: str) -> set[str]:
        task = load("winogrande", source=source, options={**SHOTS, **options})
        assert not task.notes
        return {" ".join(piece.text.split()[:2]) for episode in task.episodes() for piece in episode.observes()}

    assert shown() == {"train xl"}
    for size in ("xs", "s", "m", "l", "xl"):
        assert shown(size=size) == {f"train {size}"}
    plain, sized = (load("winogrande", source=source, options={**SHOTS, **more}) for more in ({}, {"size": "m"}))
    assert "size" not in plain.describe()["protocol"], "records of runs without a size stay what they were"
    assert sized.describe()["protocol"]["size"] == "m"


# --- which split is asked ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "archive", "file", "split"),
    [
        ("openbookqa", "openbookqa", "OpenBookQA-V1-Sep2018/Data/Main/train.jsonl", "test"),
        ("arc_easy", "arc", "ARC-V1-Feb2018-2/ARC-Easy/ARC-Easy-Train.jsonl", "test"),
        ("squad_seq", "squad", "SQuAD/train-v1.1.json", "test"),
        ("pg19", "pg19", "pg19/train", "test"),
        ("pg19", "pg19", "pg19/train/1.txt", "test"),
    ],
)
def test_what_is_known_to_be_another_split_serves_with_a_note(
    tmp_path: Path, name: str, archive: str, file: str, split: str
) -> None:
    options = BOOKS if name == "pg19" else SHOTS if name != "squad_seq" else {}
    task = load(name, source=str(unpacked(tmp_path, archive) / file), split=split, options=options)
    assert any(f"as split {split!r}" in note for note in task.notes)


def test_a_split_of_training_rows_says_so(tmp_path: Path) -> None:
    source = str(unpacked(tmp_path, "openbookqa"))
    task = load("openbookqa", source=source, split="validation", options=SHOTS)
    assert told(task) == ({"train"}, {"train"})
    assert task.notes == ("split validation asks published training rows that are not shown",)
    assert not load("openbookqa", split="validation").notes, "the miniature world has the split"


def test_a_missing_split_is_not_replaced_by_another(tmp_path: Path) -> None:
    base = unpacked(tmp_path, "pg19") / "pg19"
    shutil.rmtree(base / "test")
    archives.put(base / "README.txt", "no book " * 30)
    assert "No file of split 'test' of pg19" in refusal("pg19", source=str(base), options=BOOKS)
    main = unpacked(tmp_path, "openbookqa") / "OpenBookQA-V1-Sep2018" / "Data" / "Main"
    for path in main.glob("test.*"):
        path.unlink()
    shutil.rmtree(main.parent / "Additional")
    message = refusal("openbookqa", source=str(tmp_path))
    assert "No file of split 'test' of openbookqa" in message
    assert "--source FILE" not in message, "a task of two splits needs a folder"


# --- the real files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "levels", "asks"),
    [
        ("superglue", ["superglue"], 733), ("superglue", ["sst2", "sst2/SST-2"], 872),
        ("superglue", ["superglue/COPA"], 100), ("hellaswag", ["hellaswag"], 400), ("piqa", ["piqa"], 400),
        ("arc_easy", ["arc", "arc/ARC-V1-Feb2018-2", "arc/ARC-V1-Feb2018-2/ARC-Easy"], 300),
        ("arc_challenge", ["arc", "arc/ARC-V1-Feb2018-2"], 300), ("squad_seq", ["squad"], 558),
        ("metaicl", ["metaicl", "metaicl/data"], None),
    ],
)  # fmt: skip
def test_real_rows(name: str, levels: list[str], asks: int | None) -> None:
    tasks = [load(name, source=shared(level)) for level in levels]
    assert len({task.describe()["digest"] for task in tasks}) == 1
    assert asks in (None, tasks[0].n_asks)
    assert name == "metaicl" or not tasks[0].dropped
    assert not [note for note in tasks[0].notes if "split" in note]
