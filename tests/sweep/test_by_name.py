"""A few lines of Python: options are those of the command line, runs are its runs, tables are DataFrames."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ttabench as package
from tests.conftest import Command
from tests.places import ROOT
from ttabench.core.errors import UserError
from ttabench.core.types import Chunk

SMALL: dict[str, Any] = {"task": "streamingqa", "task_set": {"documents": 2}}


def test_a_run_is_the_one_of_the_command_line(ttabench: Command, tmp_path: Path) -> None:
    typed = "eval --method window --set n_sink=2 --task-set documents=2 --limit 1 --seed 3".split()
    (told,) = ttabench(*typed, "--out", tmp_path, "--json").json()["runs"]
    run = package.evaluate(
        "window",
        "streamingqa",
        seed=3,
        set={"n_sink": 2},
        task_set={"documents": 2},
        limit=1,
        preset=None,
        out=tmp_path,
    )
    assert (run.record.id, run.folder) == (told["id"], tmp_path / told["id"])
    assert len(run.table) == len(told["rows"])
    assert run.table["value"].tolist() == [row["value"] for row in told["rows"]]
    assert run.samples["f1"].mean() == run.table.set_index("metric").loc["f1", "value"]
    assert repr(run).startswith("<window on streamingqa, base nano: f1 ")


def test_runs_are_found_and_compared(
    ttabench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTABENCH_OUT", str(tmp_path / "deep/er"))
    runs = [package.evaluate(method, **SMALL) for method in ("none", "icl")]
    assert package.load(tmp_path / "deep" / "er") == package.load(f"{tmp_path}/**") == runs
    assert package.load(*(run.folder for run in runs[::-1])) == runs[::-1]
    below, there = (package.load(ROOT / name) for name in ("results/nine/**", "results/nine"))
    assert {run.record.id for run in below} == {run.record.id for run in there}, "packed ones, too"
    compared = package.compare(runs)
    told = ttabench(f"compare {tmp_path / 'deep/er'} --json").json()
    assert compared.verdict == str(compared) == told.pop("verdict")
    assert list(compared.notes) == told.pop("notes")
    assert compared.tables.keys() == told.keys() == {"runs", "differences"}
    assert compared.tables["differences"]["p"].tolist() == [row["p"] for row in told["differences"]]
    (runs[0].folder / "run.json").write_text("{}")
    with pytest.warns(UserWarning, match="Left out: .*run.json cannot be read"):
        assert package.load(tmp_path / "deep/er") == runs[1:]
    with pytest.raises(UserError, match="nowhere leads to no run"):
        package.load("nowhere")
    with pytest.raises(
        UserError, match=r"^evaluate: limit: Input should be a valid integer, received 'x'\."
    ):
        package.evaluate(limit="x")


LONG = "a" * 5000
BAD_PATHS = (5, b"o", "a\0b", LONG, "", "\ud800")
CALLS: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
    "evaluate": (package.evaluate, {"method": "none", **SMALL, "out": "runs"}),
    "train": (package.train, {"method": "lora", "task": "superglue", "out": "runs", "steps": 1}),
    "Session": (package.Session, {"model": "nano", "method": "mac"}),
    "compare": (package.compare, {}),
}
BAD_VALUES: dict[tuple[str, str], Sequence[Any]] = {
    ("evaluate", "out"): BAD_PATHS,
    ("evaluate", "threads"): ("2", 1.5, True, 0, 10**9),
    ("evaluate", "force"): ("no", 1, None),
    ("evaluate", "method"): (5, LONG, "a\0b", "\ud800"),
    ("evaluate", "source"): (5, LONG, "a\0b", "\ud800"),
    ("evaluate", "set"): (5, {"": 1}, {5: 1}, {"x": object()}),
    ("compare", "runs"): (None, 5, ["x"], "x", [None]),
    ("Session", "model"): (5, LONG, "a\0b", "\ud800"),
    ("Session", "settings"): (5, "x", {5: 1}, {"": 1}),
    ("Session", "state"): BAD_PATHS,
    ("train", "out"): BAD_PATHS,
    ("train", "steps"): ("x", 1.5, 0, True),
    ("train", "lr"): ("x", float("nan")),
    ("train", "options"): (5,),
}


@pytest.mark.parametrize(
    ("call", "name", "value"),
    [(*place, value) for place, values in BAD_VALUES.items() for value in values],
)
def test_bad_arguments_are_user_errors(
    call: str, name: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads(), os.environ.get("RAYON_NUM_THREADS")
    function, arguments = CALLS[call]
    with pytest.raises(UserError):
        function(**{**arguments, name: value})
    assert (torch.get_num_threads(), os.environ.get("RAYON_NUM_THREADS")) == threads
    assert not list(tmp_path.iterdir()), "nothing is written"


@pytest.mark.parametrize("value", BAD_PATHS)
def test_bad_names_of_runs_are_user_errors(value: Any) -> None:
    with pytest.raises(UserError):
        package.load(value)


@pytest.fixture(scope="module")
def session() -> package.Session:
    made = package.Session("nano", "icl")
    made.read("Ada Voss lives in Port Ansel.")
    return made


@pytest.mark.parametrize(
    "pieces",
    [
        None,
        5,
        [None],
        [5],
        [b"a"],
        ["\ud800"],
        [Chunk(text=5)],
        [Chunk(text="a", turns=("a",))],
        ["a" * 2**25],
    ],  # type: ignore[arg-type]
    ids=repr,
)
def test_what_cannot_be_read_leaves_a_session_as_it_was(
    session: package.Session, pieces: Any
) -> None:
    before = session.ask("Where does Ada Voss live?")
    with pytest.raises(UserError):
        session.read(pieces)
    assert session.ask("Where does Ada Voss live?") == before


@pytest.mark.parametrize(
    "words",
    [
        (None,),
        ("\ud800",),
        ("Who?", 0),
        ("Who?", -1),
        ("Who?", 1.5),
        ("Who?", "x"),
        ("Who?", 10**30),
    ],
)
def test_what_cannot_be_asked_is_a_user_error(
    session: package.Session, words: Sequence[Any]
) -> None:
    with pytest.raises(UserError):
        session.ask(*words)


def state_of_process() -> list[Any]:
    """What seeds and threads change, and the next random numbers."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    drawn = [random.random(), np.random.rand(), torch.rand(1).item()]
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])
    names = ("CUBLAS_WORKSPACE_CONFIG", "RAYON_NUM_THREADS")
    modes = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    return [
        *drawn,
        *map(os.environ.get, names),
        *modes,
        torch.get_num_threads(),
        torch.initial_seed(),
    ]


def test_the_process_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setenv("RAYON_NUM_THREADS", "7")
    torch.use_deterministic_algorithms(False)
    before = state_of_process()
    package.evaluate("none", **SMALL, out=tmp_path, threads=2)
    assert state_of_process() == before
    made = package.Session("nano", "mac")
    made.read("Ada Voss lives in Port Ansel.")
    made.ask("Where does Ada Voss live?")
    assert state_of_process() == before
    package.train("lora", "superglue", out=tmp_path / "made", steps=1)
    assert state_of_process() == before
    with pytest.raises(UserError):
        package.evaluate("lora", **SMALL, out=tmp_path, checkpoint=str(tmp_path), threads=2)
    assert state_of_process() == before
