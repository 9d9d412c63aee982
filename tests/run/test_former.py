"""`eval` finds what earlier versions stored and left unfinished, and says when other versions made a stored run."""

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
from ttabench.records.store import EpisodeCost, RunFolder
from ttabench.run import evaluation, former
from ttabench.run.config import RunConfig

FIRST = {
    "verb": "eval", "method": "kvpress:AdaKVPress(SnapKVPress)", "task": "squad_seq", "model": "smollm2-135m",
    "source": "results/scratch/data/squad/dev-v1.1.json", "split": "test", "seed": 1, "limit": None, "preset": "",
    "settings": {"budget": 0.2},
    "task_options": {
        "paper_quirks": False, "kind": "stream", "documents": 8, "articles": "12:24", "order": "titles",
        "downsample": "contexts", "dedupe": True, "capitalise": True, "prompt": "qa", "examples": 0,
        "max_new_tokens": 16, "window": False, "group_tokens": 1024, "probe": 200, "every": 200,
        "document_tokens": 512, "question_tokens": 128, "answer_tokens": 24,
    },
    "checkpoint": "", "state": "", "device": "auto", "dtype": "auto", "batch_size": 32, "random_weights": False,
    "ask_only": False, "state_of": "own", "bos": "auto", "chat_template": True, "base_checkpoint": "shipped:qa",
    "inputs": {"rows": "98e2fe9ccbfa1c7c", "model": "8182dc25cbc71bdc", "base_checkpoint": "1f6bf46348e57195"},
}  # fmt: skip
"""A configuration that was stored as 00b8ee104900."""
Evaluate = Callable[..., Any]


@pytest.fixture
def evaluate(ttabench: Command, common: list[object]) -> Evaluate:
    """A run of six queries: its entry in the JSON of the command, or what is shown."""
    words = ["--method", "icl", "--set", "truncate=right", "--task-set", "documents=3", "--task-set", "questions=2",
             "--batch-size", 2]  # fmt: skip
    return lambda *more: ttabench("eval", *common, *words, *more)


def aged(folder: Path, *, fewer: bool = False) -> Path:
    """A stored run as it was in schema 1; with `fewer` before some settings of method, task and eval were there."""
    content = json.loads((folder / "run.json").read_text())
    before = former._first(RunConfig(**content["config"]))
    content |= {"schema_version": 1, "id": before, "rows": [{**row, "run": before} for row in content["rows"]]}
    del content["formerly"]
    if fewer:
        del content["config"]["settings"]["max_tokens"], content["config"]["bos"]
        del content["config"]["task_options"]["answer_tokens"]
    (folder / "run.json").write_text(json.dumps(content, indent=1))
    return folder.rename(folder.with_name(before))


def refuse(*_: object) -> None:
    raise AssertionError("a stored run needs no model")


def test_ids_of_schema_1_are_computed_as_they_were() -> None:
    assert former._first(RunConfig(**FIRST)) == "00b8ee104900"


@pytest.mark.parametrize("fewer", [False, True])
def test_a_run_of_an_earlier_version_is_found(
    evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fewer: bool
) -> None:
    first = evaluate("--json").json()["runs"][0]
    old = aged(Path(first["folder"]), fewer=fewer)
    assert old.name != first["id"]
    monkeypatch.setattr(evaluation.ModelCache, "get", refuse)
    again = evaluate("--json").json()["runs"][0]
    assert (again["how"], again["id"], again["formerly"]) == ("stored", first["id"], old.name)
    assert (again["rows"], again["folder"]) == (first["rows"], first["folder"])
    assert sorted(path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()) == [first["id"]]
    assert (Path(first["folder"]) / "samples.parquet").exists()


def test_it_is_read_by_compare_and_list_before_that(evaluate: Evaluate, ttabench: Command, tmp_path: Path) -> None:
    first = evaluate("--json").json()["runs"][0]
    assert evaluate("--seed", 1).code == 0
    old = aged(Path(first["folder"]))
    assert old.name in ttabench("list", "runs", "--out", tmp_path / "runs", "--json").out
    assert len(ttabench("compare", "--out", tmp_path / "runs", "--json").json()["runs"]) == 1
    assert old.is_dir(), "what only reads renames nothing"


def test_an_unfinished_run_of_an_earlier_version_goes_on(
    evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = evaluate("--json", "--out", tmp_path / "whole").json()["runs"][0]
    before = former._first(RunConfig(**whole["config"]))

    def die(self: RunFolder, cost: EpisodeCost) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "end_episode", die)
        assert evaluate().code == 130
    folder = tmp_path / "runs" / whole["id"]
    partial = folder / "partial.jsonl"
    partial.write_text(partial.read_text().replace(whole["id"], before))
    folder.rename(folder.with_name(before))
    went_on = evaluate()
    assert "6 queries are answered already" in went_on.err
    assert json.loads((folder / "run.json").read_text())["rows"] == whole["rows"]
    assert not folder.with_name(before).exists()


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
