"""Published archives load from every level of the folder they unpack to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.archives import BUILD
from tests.qa_files import shared
from ttabench.readers import Task, load

SHOTS = {"shots": 2}


def unpacked(tmp_path: Path, name: str) -> Path:
    BUILD[name](tmp_path)
    return tmp_path


def told(task: Task) -> tuple[set[str], set[str]]:
    """First words of what is read and of what is asked: the rows of `tests.archives` begin with their file."""
    skipped = ("Question:", "Input:", "Home:", "Easy", "Challenge")
    read, asked = set(), set()
    for episode in task.episodes():
        pairs = [
            *((piece.text, read) for piece in episode.observes()),
            *((ask.prompt, asked) for ask in episode.asks()),
        ]
        for text, words in pairs:
            words.add(next(word for word in text.split() if word not in skipped))
    return read, asked


LEVELS = [
    ("openbookqa", "openbookqa", ["", "OpenBookQA-V1-Sep2018/Data/Main"], "test"),
    ("arc_easy", "arc", ["", "ARC-V1-Feb2018-2", "ARC-V1-Feb2018-2/ARC-Easy"], "test"),
    ("arc_challenge", "arc", ["", "ARC-V1-Feb2018-2", "ARC-V1-Feb2018-2/ARC-Challenge"], "test"),
    ("winogrande", "winogrande", ["", "winogrande_1.1"], "dev"),
    ("superglue", "superglue", ["", "SuperGLUE", "SuperGLUE/BoolQ"], "val"),
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
