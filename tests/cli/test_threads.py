"""`--threads`: refused where it means nothing, used by all that computes, and no part of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from tests.conftest import Command, one_line
from ttabench.core.bounds import MOST_THREADS
from ttabench.core.environment import hardware, use_threads
from ttabench.core.errors import UserError
from ttabench.harness import AdaptedLM
from ttabench.profiling import machine, worker
from ttabench.profiling.driver import Lines, Manner, execute
from ttabench.profiling.job import Chosen, Job
from ttabench.profiling.rows import Row


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_threads_are_those_asked_for() -> None:
    for count in (3, 1):
        use_threads(count)
        assert torch.get_num_threads() == hardware()["threads"] == count
    use_threads(None)
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("words", ["eval --threads 0", "train --threads -2", "profile --threads many"])
def test_commands_refuse_in_one_line(words: str, ttabench: Command) -> None:
    assert "--threads" in one_line(ttabench(*words.split()))
    with pytest.raises(UserError, match=f"{MOST_THREADS + 1} threads"):
        use_threads(MOST_THREADS + 1)


def test_a_profile_on_paper_has_no_threads(ttabench: Command) -> None:
    assert "--threads has no effect" in one_line(ttabench("profile", "--analytic", "--threads", 2))


def test_threads_are_recorded_and_are_no_part_of_a_run(ttabench: Command, common: list[object]) -> None:
    first = ttabench("eval", "--method", "none", *common, "--threads", 3, "--json").json()["runs"][0]
    assert first["hardware"]["threads"] == 3
    again = ttabench("eval", "--method", "none", *common, "--threads", 1, "--json").json()["runs"][0]
    assert (again["id"], again["how"]) == (first["id"], "stored")
    assert "threads" not in first["config"]


def test_train_and_adapt_use_them(ttabench: Command, tiny_base: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("She sails.")
    base = ["--model", tiny_base, "--threads"]
    assert ttabench("adapt", tmp_path / "notes.txt", *base, 3, "--out", tmp_path / "state").code == 0
    assert torch.get_num_threads() == 3
    ran = ttabench("train", "--method", "lora", "--source", "mini", "--steps", 1, "--documents", 1, *base, 2,
                   "--out", tmp_path / "lora", "--quiet")  # fmt: skip
    assert ran.code == 0, ran.err
    assert torch.get_num_threads() == 2


def test_every_process_of_a_profile_is_told(tmp_path: Path, tiny_base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    def process(request: Mapping[str, object]) -> Lines:
        told.append(request["threads"])
        if request["task"] == "machine":
            yield "machine", {"flops": 1e9, "bytes": 1e9, "dtype": "float32", "device": "cpu", "threads": 3}
        else:
            yield "row", Row(method="icl", prefill=32).model_dump()

    job = Job(model=str(tiny_base), lengths=(32,), chosen=(Chosen(method="icl"),), device="cpu")
    execute(job, tmp_path, Manner(threads=3, launch=process))
    assert told == [3, 3]
    monkeypatch.setattr(machine, "SECONDS", 0.0)
    monkeypatch.setattr(machine, "SIZES", {"cpu": (32,)})
    monkeypatch.setattr(machine, "TRIAD_BYTES", {"cpu": 3 * 2**16})
    worker.work({"task": "machine", "job": Job(model="", lengths=(1,), chosen=job.chosen), "threads": 2},
                lambda *_: None)  # fmt: skip
    assert torch.get_num_threads() == 2


def test_the_harness_takes_them() -> None:
    found = AdaptedLM.create_from_arg_string("method=none,threads=2")
    assert torch.get_num_threads() == found.get_model_info()["threads"] == 2
    for wrong in ("0", "-1", "many", "1.5"):
        with pytest.raises(UserError, match="threads"):
            AdaptedLM.create_from_arg_string(f"method=none,threads={wrong}")
