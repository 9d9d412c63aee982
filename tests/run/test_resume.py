"""A run that goes on counts what was answered, once, and nothing else; its record is that of a run never stopped; one
that is stored is found, and says when other versions or another device made it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from torch import Tensor

from tests.conftest import SMALL_MAC_OPTIONS, Command, CommandResult, error_line
from tests.records.test_records import sample
from ttabench.core.types import Episode
from ttabench.lm.model import LM
from ttabench.records.folder import RunFolder
from ttabench.records.samples import EpisodeCost, Sample, read_samples

COUNTED = ("pieces", "tokens_read", "episodes", "state_bytes", "patch_bytes")
"""Costs that do not depend on a clock."""
METHODS = {
    "icl": ("--method", "icl", "--set", "truncate=right"),
    "snapkv": (
        "--method",
        "snapkv",
        "--set",
        "positions=cache",
        "--set",
        "chunk=128",
        "--set",
        "budget=64",
    ),
    "mac": ("--method", "mac", *SMALL_MAC_OPTIONS.split()),
}
Evaluate = Callable[..., CommandResult]


@pytest.fixture
def evaluate(ttabench: Command, common: str, tmp_path: Path) -> Evaluate:
    """Six queries of one episode, two at once."""
    words = "--task-set documents=3 --task-set questions=2 --batch-size 2".split()
    return lambda *more, method="icl": ttabench(f"eval {common}", *METHODS[method], *words, *more)


@pytest.fixture
def killed(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> tuple[Path, dict[str, Any]]:
    """The partial results of a run killed before its episode ended, and the record of a whole one."""
    whole = evaluate("--json", "--out", tmp_path / "whole").json()["runs"][0]

    def die(self: RunFolder, cost: EpisodeCost) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "finish_episode", die)
        assert evaluate().code == 130
    (partial,) = (tmp_path / "runs").rglob("partial.jsonl")
    assert len(partial.read_text().splitlines()) == 3
    return partial, whole


def lines(partial: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in partial.read_text().splitlines()]


def write(partial: Path, found: list[Any]) -> None:
    partial.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in found)
    )


def merged(line: Any, change: Any) -> Any:
    """A JSON value with some of its values changed, at any depth."""
    if not isinstance(line, dict) or not isinstance(change, dict):
        return change
    return {**line, **{key: merged(line.get(key), value) for key, value in change.items()}}


def assert_same(ran: CommandResult, whole: dict[str, Any], folder: Path) -> None:
    record = ran.json()["runs"][0]
    assert record["n"] == whole["n"] == 6
    assert record["rows"] == whole["rows"]
    assert record["notes"] == whole["notes"]
    assert {key: record["cost"][key] for key in COUNTED} == {
        key: whole["cost"][key] for key in COUNTED
    }
    columns = ["episode", "key", "prediction", "f1"]
    assert sorted(zip(*read_samples(folder, columns).values(), strict=True)) == sorted(
        zip(*read_samples(Path(whole["folder"]), columns).values(), strict=True)
    )


def test_doubled_and_foreign_lines_do_not_count(
    evaluate: Evaluate, killed: tuple[Path, dict[str, Any]]
) -> None:
    partial, whole = killed
    found = lines(partial)
    first = found[0]["value"][0]
    foreign = {**found[0], "value": [merged(first, {"ask": {"key": "nobody asked"}})]}
    elsewhere = {**found[0], "value": [{**first, "episode": "another"}]}
    of_another_run = {**found[2], "run": "0123456789ab"}
    write(partial, [*found[:2], *found[:2], foreign, elsewhere, of_another_run])
    shown = evaluate("--json")
    assert_same(shown, whole, partial.parent)


def test_a_run_whose_logits_break_keeps_what_it_has_and_goes_on(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = evaluate("--json", "--out", tmp_path / "whole", method="mac").json()["runs"][0]
    logits, append, answered = LM.logits, RunFolder.append, []

    def kept(self: RunFolder, samples: Sequence[Sample]) -> None:
        append(self, samples)
        answered.extend(samples)

    def breaking(self: LM, hidden_ND: Tensor) -> Tensor:
        return logits(self, hidden_ND) * (float("nan") if answered else 1.0)

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append", kept)
        patched.setattr(LM, "logits", breaking)
        line = error_line(evaluate("--quiet", method="mac"))
    assert re.search(r"Error: streamingqa/test/seed0: .*not finite", line)
    (partial,) = (tmp_path / "runs").rglob("partial.jsonl")
    assert not (partial.parent / "run.json").exists()
    assert len(answered) == 2
    ran = evaluate("--json", method="mac")
    assert_same(ran, whole, partial.parent)
    assert ran.json()["runs"][0]["how"] == "continued"


def asks() -> Episode:
    return Episode(key="e", steps=tuple(sample(key).ask for key in "abc"))


def resumed(tmp_path: Path, edit: Callable[[list[Any]], list[Any]]) -> RunFolder:
    """Three answers as a killed run left them, edited, taken up."""
    before = RunFolder(tmp_path, "r")
    for key in "abc":
        before.append([sample(key)])
    partial = before.path / "partial.jsonl"
    write(partial, edit(lines(partial)))
    folder = RunFolder(tmp_path, "r")
    folder.resume()
    folder.resume_episodes([asks()], ["f1"])
    return folder


@pytest.mark.parametrize(
    "change",
    [
        {"answer": {"prediction": 3}},
        {"metrics": {"other": 1.0}},
        {"metrics": None},
        {"answer": {"logprobs": []}},
        {"read_slots": ""},
        {"ask": {"want": {"mode": "score"}}},
        {"ask": {"prompt": "\ud800"}},
        {"ask": {"prompt": "Whose?"}},
        {"ask": {"at": {"count": 2}}},
        {"ask": None},
    ],
    ids=str,
)
def test_a_sample_of_wrong_types_does_not_count(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = resumed(
        tmp_path,
        lambda found: [
            found[0],
            {**found[1], "value": [merged(found[1]["value"][0], change)]},
            found[2],
        ],
    )
    assert [kept.key for kept in folder.samples] == ["a", "c"]


@pytest.mark.parametrize(("method", "batches"), [("icl", 1), ("snapkv", 3), ("mac", 1), ("mac", 3)])
def test_costs_are_those_of_a_run_never_killed(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str, batches: int
) -> None:
    """Killed after so many of three batches: after the last of them only the end of the episode is missing."""
    whole = evaluate("--json", "--out", tmp_path / "whole", method=method).json()["runs"][0]
    append, left = RunFolder.append, batches

    def die(self: RunFolder, samples: Any) -> None:
        nonlocal left
        append(self, samples)
        left -= 1
        if not left:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append", die)
        assert evaluate(method=method).code == 130
    ran = evaluate("--json", method=method)
    cost = ran.json()["runs"][0]["cost"]
    assert_same(ran, whole, Path(ran.json()["runs"][0]["folder"]))
    assert cost["ask_peak_memory_bytes"] > 0
    assert (cost["encode_seconds"] > 0) == (whole["cost"]["encode_seconds"] > 0)


CLOCKS = {"ask_ms", "ask_cpu_ms"}
ORDERS: dict[str, tuple[object, ...]] = {
    "seeds": ("--batch-contexts", 2, "--seeds", "0,1"),
    "ask only": ("--batch-contexts", 3, "--ask-only", "--limit", 9),
    "interleaved": ("--batch-contexts", 3, "--task", "msc"),
    "other states": ("--batch-contexts", 3, "--swap-state"),
    "large batches": ("--batch-contexts", 3, "--batch-size", 2),
}


@pytest.mark.parametrize("name", ORDERS)
def test_samples_of_a_run_killed_twice_have_the_order_of_one_never_killed(
    ttabench: Command, tiny_base: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """Killed after some writes, in the middle of a group too, and again after some more."""
    method = METHODS["snapkv"]
    if "--ask-only" in ORDERS[name]:
        (tmp_path / "a.txt").write_text("Ada Voss lives in Port Ansel.")
        method = ("--state", str(tmp_path / "state"))
        made = (
            "--method",
            "icl",
            "--model",
            tiny_base,
            "--context",
            tmp_path / "a.txt",
            "--out",
            method[1],
        )
        assert ttabench("adapt", *made).code == 0
    words: tuple[object, ...] = (
        "eval",
        *method,
        "--task",
        "shared_context",
        "--source",
        "mini",
        "--model",
        tiny_base,
    )
    words += ("--limit", 5, "--batch-size", 1, "--task-set", "max_new_tokens=2", *ORDERS[name])
    writes = list[str]()
    write = RunFolder.write

    def stored(out: str, *kills: int) -> list[dict[str, Any]]:
        def die(self: RunFolder, line: dict[str, Any]) -> None:
            write(self, line)
            writes.append(line["kind"])
            if len(writes) == kill:
                raise KeyboardInterrupt

        for kill in (*kills, 0):
            writes.clear()
            with monkeypatch.context() as patched:
                patched.setattr(RunFolder, "write", die)
                ran = ttabench(*words, "--json", "--out", tmp_path / out)
            assert ran.code == (130 if kill else 0), ran.err
        tables = []
        for run in ran.json()["runs"]:
            table = pq.read_table(Path(run["folder"]) / "samples.parquet").drop(list(CLOCKS))
            pq.write_table(table, tmp_path / "plain.parquet")
            digests = {
                column: each
                for column, each in run["sample_digests"].items()
                if column not in CLOCKS
            }
            tables.append({"bytes": (tmp_path / "plain.parquet").read_bytes(), "digests": digests})
        return tables

    whole = stored("whole")
    count = len(writes)
    assert count >= 8
    for kills in ((1, 3), (4, 3), (count - 1,)):
        assert stored(f"{kills}", *kills) == whole, kills


def test_a_stored_run_reports_on_what_it_was_made(evaluate: Evaluate) -> None:
    file = Path(evaluate("--device", "cpu", "--json").json()["runs"][0]["folder"]) / "run.json"
    stored = json.loads(file.read_text())
    stored["model"]["device"] = "cuda:0"
    stored["hardware"] |= {
        "gpu": {"name": "NVIDIA H100", "memory_bytes": 1, "cuda": "13.0"},
        "cpu": "EPYC",
        "threads": 8,
    }
    file.write_text(json.dumps(stored))
    place = "cuda:0, NVIDIA H100, EPYC, 8 threads"
    err = " ".join(evaluate().err.split())
    assert place in err
    assert "--force" in err
    assert (
        evaluate("--device", "cpu", "--force", "--json").json()["runs"][0]["model"]["device"]
        == "cpu"
    )
