"""What a file leaves open is refused or counted, never chosen in silence; no row or card ends in a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.archives import BUILD
from tests.qa_files import refusal, write_jsonl
from ttabench.readers import load
from ttabench.readers.cards import cards_folder
from ttabench.records.schema import RunRecord
from ttabench.run.base_model import ModelCache
from ttabench.run.evaluation import execute
from ttabench.run.plan import make_plan
from ttabench.run.request import RunRequest

CSV = "text,question,answers\n"
QA = {"text": "t", "question": "q", "answers": "word"}
COPA = {"premise": "p.", "choice1": "a", "choice2": "b", "question": "cause", "label": 0}
RTE = {"premise": "P.", "hypothesis": "H.", "label": "entailment", "idx": 0}


def test_columns_without_a_name_may_repeat(tmp_path: Path) -> None:
    path = tmp_path / "test.csv"
    path.write_text(",,text,question,answers\n0,0,t,q,word\n")
    assert load("streamingqa", source=str(path)).n_asks == 1
    path.write_text("text,question,answers\r\nt,q,word\r")
    assert load("streamingqa", source=str(path)).n_asks == 1, "any line break ends a file"


def rte_folder(tmp_path: Path, train: list[dict[str, Any]], val: list[dict[str, Any]]) -> str:
    for split, rows in (("train", train), ("val", val)):
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    return str(tmp_path)


def test_rows_without_an_answer_are_a_note(tmp_path: Path) -> None:
    def notes(*rows: dict[str, Any]) -> list[str]:
        path = write_jsonl(tmp_path / "x.jsonl", list(rows))
        task = load("streamingqa", source=str(path))
        assert task.describe()["notes"] == list(task.notes), "a record keeps them"
        return [note.replace(str(path), "FILE") for note in task.notes if "left out" in note]

    bare, mute = {**QA, "answers": ""}, {**QA, "question": " "}
    assert notes(QA) == []
    assert notes(QA, bare) == ["1 row of FILE was left out: no answer"]
    assert notes(QA, bare, bare, mute) == ["3 rows of FILE were left out: no answer (2), no question (1)"]


def test_rows_left_out_stand_in_the_record_and_not_in_the_id(tmp_path: Path) -> None:
    def run(name: str, *rows: dict[str, Any]) -> RunRecord:
        request = RunRequest(method="none", task="qa", source=str(write_jsonl(tmp_path / f"{name}.jsonl", list(rows))))
        return execute(make_plan(request, seed=0), ModelCache(), tmp_path / name).record

    whole, part = run("whole", QA), run("part", QA, {**QA, "answers": ""})
    left_out = f"1 row of {tmp_path / 'part.jsonl'} was left out: no answer"
    assert set(part.notes) - set(whole.notes) == {left_out}
    assert part.task["notes"] == [*whole.task["notes"], left_out]
    assert part.id == whole.id


def test_rows_whose_label_is_hidden_are_a_note(tmp_path: Path) -> None:
    train = [{**RTE, "premise": f"Shown {i}.", "idx": i} for i in range(3)]
    hidden = [{**RTE, "label": -1, "idx": i} for i in range(1, 4)]
    source = rte_folder(tmp_path, train, [RTE, *hidden])
    task = load("superglue", source=source, options={"task": "rte", "shots": 2})
    assert task.notes[-1:] == (f"3 rows of {tmp_path} were left out: rte: label hidden",)
    assert not load("superglue", source=rte_folder(tmp_path, train, [RTE]), options={"task": "rte", "shots": 2}).notes
    twin = load("superglue", options={"task": "sst2", "demonstrations": 64, "queries": 64})
    assert twin.dropped, "its demonstrations repeat queries"
    assert not twin.notes, "the miniature world has no files"


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


@pytest.mark.parametrize(
    ("name", "part", "row", "reason"),
    [
        ("superglue", "copa", {**COPA, "premise": "."}, "premise"),
        ("superglue", "copa", {**COPA, "choice2": " "}, "option"),
        ("piqa", "piqa", {"goal": "g", "sol1": "", "sol2": "b", "label": 1}, "option"),
        ("winogrande", "winogrande", {"sentence": "So _", "option1": "a", "option2": "b", "answer": "1"}, "option"),
        ("hellaswag", "hellaswag",
         {"activity_label": "A", "ctx_a": " ", "ctx_b": "", "endings": ["a", "b"], "label": 0}, "query"),
        ("arc_easy", "arc_easy", {"question": {"stem": "", "choices": [{"text": "a", "label": "A"}]}, "answerKey": "A"},
         "question"),
    ],
)  # fmt: skip
def test_empty_rows_of_every_shape(tmp_path: Path, name: str, part: str, row: dict[str, Any], reason: str) -> None:
    path = write_jsonl(tmp_path / "mine.jsonl", [row])
    message = refusal(name, source=str(path), options={"task": part, "shots": 0})
    assert f"(empty {reason}: 1)" in message


def test_a_sentence_may_begin_with_its_blank(tmp_path: Path) -> None:
    row = {"sentence": "_ left.", "option1": "a", "option2": "b", "answer": "1"}
    assert load("winogrande", source=str(write_jsonl(tmp_path / "dev.jsonl", [row])), options={"shots": 0}).n_asks == 1


def test_empty_rows_of_metaicl_are_counted(tmp_path: Path) -> None:
    BUILD["metaicl"](tmp_path)
    place = tmp_path / "MetaICL" / "data" / "quarel" / "quarel_16_100_test.jsonl"
    row = {"task": "quarel", "input": "in", "output": "yes", "options": ["no", "yes"]}
    write_jsonl(place, [row, {**row, "input": " "}, {**row, "output": "", "options": ["", "yes"]}])
    task = load("metaicl", source=str(tmp_path), options={"steps": "1"})
    assert (task.n_asks, task.dropped) == (1, {"quarel: empty input, output or option": 2})


@pytest.mark.parametrize(
    ("twin", "expected"),
    [
        ({"generator": "ttabench.mini.qa:nosuch"}, "there is no such function"),
        ({"generator": "ttabench.mini.world:entities"}, "it makes no rows from a split and a seed"),
        ({"generator": "ttabench.mini.demonstrations:superglue"}, "no miniature twin of 'test'"),
        ({"generator": "ttabench.mini.demonstrations:metaicl"}, "it makes rows for another reader"),
        (
            {"generator": "ttabench.mini.qa:streamingqa", "arguments": {"questions": "two"}},
            "twin.arguments.questions takes int, got 'two'",
        ),
        (
            {"generator": "ttabench.mini.qa:streamingqa", "arguments": {"question": 2}},
            "twin.arguments.question is no argument of ttabench.mini.qa:streamingqa",
        ),
    ],
)
def test_generators_of_cards(tmp_path: Path, twin: dict[str, Any], expected: str) -> None:
    data = yaml.safe_load((cards_folder() / "streamingqa.yaml").read_text(encoding="utf-8"))
    path = tmp_path / "mine.yaml"
    protocol = {"protocol": {"documents": 2}}
    path.write_text(yaml.safe_dump({**data, "name": "mine", "twin": {**protocol, **twin}}), encoding="utf-8")
    assert expected in refusal(str(path))
