"""What a file leaves open is refused or counted, never chosen in silence; no row or card ends in a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.qa_files import refusal, write_jsonl
from ttabench.readers import load
from ttabench.records.schema import RunRecord
from ttabench.run.evaluation import ModelCache, execute
from ttabench.run.plan import make_plan
from ttabench.run.request import RunRequest

QA = {"text": "t", "question": "q", "answers": "word"}
RTE = {"premise": "P.", "hypothesis": "H.", "label": "entailment", "idx": 0}


def rte_folder(tmp_path: Path, train: list[dict[str, Any]], val: list[dict[str, Any]]) -> str:
    (tmp_path / "RTE").mkdir(exist_ok=True)
    for split, rows in (("train", train), ("val", val)):
        write_jsonl(tmp_path / "RTE" / f"{split}.jsonl", rows)
    return str(tmp_path)


def test_rows_without_an_answer_are_a_note(tmp_path: Path) -> None:
    def notes(*rows: dict[str, Any]) -> list[str]:
        path = write_jsonl(tmp_path / "x.jsonl", list(rows))
        task = load("streamingqa", source=str(path))
        assert task.describe()["notes"] == list(task.notes), "a record keeps them"
        return [note.replace(str(path), "FILE") for note in task.notes if "left out" in note]

    bare, mute = {**QA, "answers": ""}, {**QA, "question": " "}
    assert notes(QA) == []
    assert notes(QA, bare) == ["rows of FILE were left out (no answer: 1)"]
    assert notes(QA, bare, bare, mute) == ["rows of FILE were left out (no answer: 2, no question: 1)"]


def test_rows_left_out_stand_in_the_record_and_not_in_the_id(tmp_path: Path) -> None:
    def run(name: str, *rows: dict[str, Any]) -> RunRecord:
        request = RunRequest(method="none", task="qa", source=str(write_jsonl(tmp_path / f"{name}.jsonl", list(rows))))
        return execute(make_plan(request, seed=0), ModelCache(), tmp_path / name).record

    whole, part = run("whole", QA), run("part", QA, {**QA, "answers": ""})
    left_out = f"rows of {tmp_path / 'part.jsonl'} were left out (no answer: 1)"
    assert set(part.notes) - set(whole.notes) == {left_out}
    assert part.task["notes"] == [*whole.task["notes"], left_out]
    assert part.id == whole.id


def test_rows_without_text_are_counted(tmp_path: Path) -> None:
    train = [{**RTE, "premise": f"Shown {i}.", "idx": i} for i in range(3)]
    val = [{**RTE, "idx": i, **change} for i, change in enumerate([{}, {"premise": ""}, {"hypothesis": " "}])]
    source = rte_folder(tmp_path, [*train, {**RTE, "premise": "  "}], val)
    task = load("superglue", source=source, options={"task": "rte", "shots": 3})
    (episode,) = task.episodes()
    assert [ask.key for ask in episode.asks()] == ["0"]
    assert task.dropped == {
        "rte: empty premise": 1, "rte: empty hypothesis": 1, "rte: demonstration with an empty premise": 1,
    }  # fmt: skip
    assert task.describe()["dropped"] == dict(task.dropped)
    source = rte_folder(tmp_path, train, val[1:])
    message = refusal("superglue", source=source, options={"task": "rte", "shots": 1})
    assert "is usable (empty premise: 1, empty hypothesis: 1)" in message
