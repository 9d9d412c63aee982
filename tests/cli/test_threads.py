"""`--threads`: refused where it means nothing, used by all that computes, and no part of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from tests.conftest import Command
from ttabench.profiling.driver import Lines, execute
from ttabench.profiling.job import Job
from ttabench.profiling.record import Row


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_threads_are_recorded_and_are_no_part_of_a_run(ttabench: Command, common: list[object]) -> None:
    first = ttabench("eval", "--method", "none", *common, "--threads", 3, "--json").json()["runs"][0]
    assert first["hardware"]["threads"] == 3
    again = ttabench("eval", "--method", "none", *common, "--threads", 1, "--json").json()["runs"][0]
    assert (again["id"], again["how"]) == (first["id"], "stored")
    assert "threads" not in first["config"]


def test_every_process_of_a_profile_is_told(tmp_path: Path, tiny_base: Path) -> None:
    told = []

    def process(request: Mapping[str, object]) -> Lines:
        told.append(request["threads"])
        yield "row", Row(method="icl", prefill=32).model_dump()

    job = Job(model=str(tiny_base), lengths=(32,), chosen={"icl": {"method": "icl"}}, device="cpu")
    execute(job, tmp_path, threads=3, launch=process)
    assert told == [3]
