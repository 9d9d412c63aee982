"""Published archives load from every level of the folder they unpack to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.qa_files import shared, write_jsonl
from ttabench.readers import Task, load

ARC, OPENBOOK = "ARC-V1-Feb2018-2", "OpenBookQA-V1-Sep2018/Data/Main"
FILES: dict[str, list[str]] = {
    "openbookqa": [f"{OPENBOOK}/{split}" for split in ("train", "dev", "test")],
    "arc_easy": [f"{ARC}/ARC-Easy/ARC-Easy-{split}" for split in ("Train", "Dev", "Test")],
    "winogrande": ["winogrande_1.1/train_xs", "winogrande_1.1/train_xl", "winogrande_1.1/dev"],
    "superglue": [
        f"SuperGLUE/{task}/{split}" for task in ("BoolQ", "RTE") for split in ("train", "val")
    ],
    "hellaswag": [f"hellaswag/data/hellaswag_{split}" for split in ("train", "val")],
    "piqa": [f"piqa/data/{split}" for split in ("train", "valid", "tests")],
}
LEVELS = {
    "openbookqa": ("test", ["", OPENBOOK]),
    "arc_easy": ("Test", ["", ARC, f"{ARC}/ARC-Easy"]),
    "winogrande": ("dev", ["", "winogrande_1.1"]),
    "superglue": ("val", ["", "SuperGLUE", "SuperGLUE/BoolQ"]),
    "hellaswag": ("hellaswag-val", ["", "hellaswag", "hellaswag/data"]),
    "piqa": ("valid", ["", "piqa", "piqa/data"]),
}
"""The file whose rows papers score, and folders that may be given."""


def row(name: str, tag: str, number: int) -> dict[str, Any]:
    """A row whose text begins with its file."""
    text = f"{tag} text {number}"
    choices = [{"text": f"choice {letter}", "label": letter} for letter in "ABCD"]
    question = {"id": text, "question": {"stem": text, "choices": choices}, "answerKey": "B"}
    rows: dict[str, dict[str, Any]] = {
        "openbookqa": question,
        "arc_easy": question,
        "winogrande": {
            "sentence": f"{text}: Ann saw Bea when _ left.",
            "option1": "Ann",
            "option2": "Bea",
        },
        "superglue": {
            "passage": text,
            "question": "is it so",
            "label": 1,
            "premise": text,
            "hypothesis": "h",
        },
        "hellaswag": {
            "activity_label": "Home",
            "ctx_a": text,
            "ctx_b": "",
            "endings": list("abcd"),
            "label": 1,
        },
        "piqa": {"goal": text, "sol1": "a", "sol2": "b"},
    }
    return rows[name]


def unpack(base: Path, name: str) -> None:
    for place in FILES[name]:
        stem = base / place
        stem.parent.mkdir(parents=True, exist_ok=True)
        tag = stem.name.rpartition("-")[2].replace("_", "-")
        write_jsonl(
            stem.with_name(f"{stem.name}.jsonl"), [row(name, tag, number) for number in range(4)]
        )
        if name in ("piqa", "winogrande"):
            stem.with_name(f"{stem.name}-labels.lst").write_text("1\n" * 4)


def told(task: Task) -> tuple[set[str], set[str]]:
    """Files of what is read and of what is asked."""
    names = {
        "train",
        "Train",
        "train-xl",
        "hellaswag-train",
        *(asked for asked, _ in LEVELS.values()),
    }
    episodes = list(task.episodes())
    read = " ".join(piece.text for episode in episodes for piece in episode.chunks())
    asked = " ".join(ask.prompt for episode in episodes for ask in episode.queries())
    return names & set(read.split()), names & set(asked.split())


@pytest.mark.parametrize(
    ("name", "level"), [(name, level) for name, (_, all_) in LEVELS.items() for level in all_]
)
def test_every_level_of_an_archive_shows_training_rows_and_asks_those_that_papers_score(
    tmp_path: Path, name: str, level: str
) -> None:
    unpack(tmp_path, name)
    task = load(name, source=str(tmp_path / level), options={"shots": 2})
    read, asked = told(task)
    assert (len(read), asked) == (1, {LEVELS[name][0]})
    assert "train" in read.pop().casefold()
    assert not [note for note in task.notes if "excluded" not in note], "nothing to warn of"
    parts = [episode.queries()[0].subtask for episode in task.episodes()]
    assert parts == (
        [name] if name != "superglue" else ["boolq"] if "BoolQ" in level else ["boolq", "rte"]
    )
    assert task.source == f"folder:{tmp_path / level}"


@pytest.mark.parametrize(
    ("name", "levels", "asks"),
    [
        ("superglue", ["superglue"], 733),
        ("superglue", ["sst2", "sst2/SST-2"], 872),
        ("hellaswag", ["hellaswag"], 400),
        ("piqa", ["piqa"], 400),
        ("arc_easy", ["arc", "arc/ARC-V1-Feb2018-2", "arc/ARC-V1-Feb2018-2/ARC-Easy"], 300),
        ("squad_seq", ["squad"], 558),
        ("metaicl", ["metaicl", "metaicl/data"], None),
    ],
)
def test_real_rows(name: str, levels: list[str], asks: int | None) -> None:
    tasks = [load(name, source=shared(level)) for level in levels]
    assert len({task.describe()["digest"] for task in tasks}) == 1
    assert asks in (None, tasks[0].n_queries)
    assert name == "metaicl" or not tasks[0].dropped
