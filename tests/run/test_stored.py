"""`eval` finds what is stored and no run that may be another, and says when other versions made a stored run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command
from ttabench.core.environment import versions
from ttabench.core.errors import UserError
from ttabench.methods.registry import known_settings
from ttabench.records.schema import load_record
from ttabench.run import evaluation

Evaluate = Callable[..., Any]
OLD = "00b8ee104900"


@pytest.fixture
def evaluate(ttabench: Command, common: list[object]) -> Evaluate:
    """A run of six queries: its entry in the JSON of the command, or what is shown."""
    words = ["--method", "icl", "--set", "truncate=right", "--task-set", "documents=3", "--task-set", "questions=2",
             "--batch-size", 2]  # fmt: skip
    return lambda *more: ttabench("eval", *common, *words, *more)


def aged(folder: Path) -> Path:
    """A stored run as it was in schema 1, whose records say nothing of what stood on the task's card."""
    content = json.loads((folder / "run.json").read_text())
    content |= {"schema_version": 1, "id": OLD, "rows": [{**row, "run": OLD} for row in content["rows"]]}
    del content["formerly"], content["config"]["inputs"]["card"]
    (folder / "run.json").write_text(json.dumps(content, indent=1))
    return folder.rename(folder.with_name(OLD))


def refuse(*_: object) -> None:
    raise AssertionError("a stored run needs no model")


def test_the_same_command_twice_is_stored(evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch) -> None:
    first = evaluate("--json").json()["runs"][0]
    monkeypatch.setattr(evaluation.ModelCache, "get", refuse)
    again = evaluate("--json").json()["runs"][0]
    assert (again["how"], again["id"], again["rows"]) == ("stored", first["id"], first["rows"])


def test_a_record_says_which_way_the_model_was_run(evaluate: Evaluate, tmp_path: Path) -> None:
    """Records of earlier versions do not, and are read, with the id they had."""
    first = evaluate("--json").json()["runs"][0]
    folder = Path(first["folder"])
    assert load_record(folder).paths == {"adapt": "lean", "ask": "lean"}
    content = json.loads((folder / "run.json").read_text())
    del content["paths"]
    (folder / "run.json").write_text(json.dumps(content, indent=1))
    assert load_record(folder).paths == {}
    again = evaluate("--json").json()["runs"][0]
    assert (again["how"], again["id"]) == ("stored", first["id"])


def test_a_run_of_an_earlier_version_whose_card_nobody_knows_is_made_anew(evaluate: Evaluate, tmp_path: Path) -> None:
    first = evaluate("--json").json()["runs"][0]
    old = aged(Path(first["folder"]))
    again = evaluate("--json").json()["runs"][0]
    assert (again["how"], again["id"]) == ("new", first["id"])
    assert sorted(path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()) == sorted([OLD, first["id"]])
    assert load_record(old).id == OLD, "it is read as before"


def test_it_is_read_by_compare_and_list(evaluate: Evaluate, ttabench: Command, tmp_path: Path) -> None:
    first = evaluate("--json").json()["runs"][0]
    old = aged(Path(first["folder"]))
    assert old.name in ttabench("list", "runs", "--out", tmp_path / "runs", "--json").out
    assert len(ttabench("compare", "--out", tmp_path / "runs", "--json").json()["runs"]) == 1
    assert evaluate("--seed", 1).code == 0
    labels = [each["label"] for each in ttabench("compare", "--out", tmp_path / "runs", "--json").json()["runs"]]
    assert labels == ["icl"], "a run that says nothing of its card stands with those of its task"


def test_a_stored_run_says_which_versions_it_had(evaluate: Evaluate) -> None:
    first = evaluate("--json").json()["runs"][0]
    assert "was made with" not in evaluate().err
    file = Path(first["folder"]) / "run.json"
    stored = json.loads(file.read_text())
    stored["versions"] |= {"torch": "0.1", "ttabench": "0.0.1"}
    stored["config"]["settings"]["max_tokens"] = 64  # its default was another then
    file.write_text(json.dumps(stored))
    now = versions()
    told = f"ttabench 0.0.1 (now {now['ttabench']}), torch 0.1 (now {now['torch']}), max_tokens 64 (now None)"
    said = [line for line in evaluate().err.splitlines() if "made with" in line]
    assert said == [f"Run {stored['id']} was made with {told}."]
    assert evaluate("--quiet").err == f"{said[0]}\n", "figures would be others, so it is always said"
    stored["config"]["settings"]["max_tokens"] = None
    stored["task"]["metrics"].remove("f1_max")
    file.write_text(json.dumps(stored))
    assert evaluate("--quiet").err == f"Run {stored['id']} was made without f1_max; --force runs it again.\n"
    stored["task"]["metrics"].append("f1_max")
    file.write_text(json.dumps(stored))
    assert evaluate("--quiet").err == "", "other versions alone are told where people look"


def test_defaults_of_another_method_of_that_name_say_nothing() -> None:
    assert known_settings("icl")
    with pytest.raises(UserError, match=r"icl is now of ttabench, not of mine==1\."):
        known_settings("icl", "mine==1")
