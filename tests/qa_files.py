"""Small files in the published layouts of question-answering data, and how a loaded task looks."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.places import DATA
from ttabench.core.errors import UserError
from ttabench.readers import Task, load

CAMELS = [
    {
        "text": "Ada Voss lives in Port Ansel.",
        "question": "Where does Ada Voss live?",
        "answers": r"Port Ansel\Ansel",
    },
    {
        "text": "Ole Brandt keeps a goat.",
        "question": "What does Ole Brandt keep?",
        "answers": "a goat",
    },
    {
        "text": "Ada Voss lives in Port Ansel.",
        "question": "Who lives in Port Ansel?",
        "answers": "Ada Voss",
    },
]
SQUAD = [
    {
        "id": f"q{i}",
        "title": f"T{i // 2}",
        "context": f"Text {i // 2}.",
        "question": f"Which text {i}?",
        "answers": {"text": [f"text {i // 2}", "text"], "answer_start": [0, 0]},
    }
    for i in range(6)
]


def shared(name: str) -> str:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not part of a checkout")
    return str(path)


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def nest_squad(rows: list[dict[str, Any]]) -> dict[str, Any]:
    articles: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        answers = [{"text": t, "answer_start": 0} for t in row["answers"]["text"]]
        question = {"id": row["id"], "question": row["question"], "answers": answers}
        articles.setdefault(row["title"], {}).setdefault(row["context"], []).append(question)
    paragraphs = {t: [{"context": c, "qas": q} for c, q in p.items()] for t, p in articles.items()}
    return {
        "version": "1.1",
        "data": [{"title": title, "paragraphs": p} for title, p in paragraphs.items()],
    }


def steps(task: Task) -> tuple[list[str], list[tuple[str, tuple[str, ...]]]]:
    """(texts observed, (prompt, answers) asked) of a one-episode task."""
    (episode,) = task.episodes()
    return [o.text for o in episode.chunks()], [(a.prompt, a.answers) for a in episode.queries()]


def load_error(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(UserError) as caught:
        list(load(*args, **kwargs).episodes())
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    return message


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    parquet.write_table(arrow.Table.from_pylist(rows), path)
