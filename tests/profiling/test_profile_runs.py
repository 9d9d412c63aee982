"""`ttabench profile` from end to end: its record, what survives a stop or the death of a process, what people see."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Command
from tests.methods.test_checkpoints import peft_folder
from tests.tiny import tiny_llama
from ttabench.core.child import ProcessDeath
from ttabench.core.errors import UserError
from ttabench.profiling import driver, measure
from ttabench.profiling.driver import Findings, execute
from ttabench.profiling.job import Job, Load, choose_methods
from ttabench.profiling.record import Row, load_profile

LENGTHS = (32, 64, 96)
SMALL = ("--prefill", "32,64", "--generate", 2, "--repeat", 1, "--piece-tokens", 16)
Requests = list[Mapping[str, Any]]


@pytest.fixture
def job(tiny_base: Path) -> Job:
    load = Load(piece_tokens=16, prompt_tokens=8, generate=2, repeat=1)
    chosen = choose_methods("none,icl")
    return Job(
        model=str(tiny_base), lengths=LENGTHS, method_requests=chosen, load=load, device="cpu"
    )


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[Requests]:
    """Processes that run right here, each request noted."""
    asked: Requests = []

    def here(request: Mapping[str, Any]) -> Findings:
        asked.append(request)
        found: list[tuple[str, Any]] = []
        measure.measure_method(request, found.append)
        for kind, value in found:
            yield kind, json.loads(json.dumps(value))

    monkeypatch.setattr(driver, "launch_measurement", here)
    before = torch.are_deterministic_algorithms_enabled()
    yield asked
    torch.use_deterministic_algorithms(before)


def dying(end: ProcessDeath, at: tuple[str, int]) -> Any:
    """Processes that end like this when they come to a method's length; elsewhere all goes well."""

    def process(request: Mapping[str, Any]) -> Findings:
        for length in request["lengths"]:
            yield "at", length
            if (request["method"], length) == at:
                yield end
                return
            yield "row", Row(method=request["method"], prefill=length).model_dump()

    return process


def test_a_profile_is_stored_and_returned(job: Job, requests: Requests, tmp_path: Path) -> None:
    first = execute(job, tmp_path)
    assert first.status == "new"
    assert [request["method"] for request in requests] == ["none", "icl"]
    assert [(row.method, row.prefill, row.status) for row in first.record.rows] == [
        (method, length, "ok") for method in ("none", "icl") for length in LENGTHS
    ]
    assert first.record.methods["icl"]["growth"] == "linear"
    assert first.record.model["architecture"] == "llama"
    again = execute(job, tmp_path)
    assert (again.status, again.record, len(requests)) == ("stored", first.record, 2)
    assert execute(job, tmp_path, force=True).status == "new"
    assert len(requests) == 4


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        (ProcessDeath(code=-signal.SIGKILL), "oom", "was killed"),
        (
            ProcessDeath(
                code=1, last_line="RuntimeError: DefaultCPUAllocator: can't allocate memory: ..."
            ),
            "oom",
            "DefaultCPU",
        ),
        (ProcessDeath(code=1, last_line="RuntimeError: shapes differ"), "failed", "shapes differ"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_death_of_a_process_is_a_row(
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    end: ProcessDeath,
    status: str,
    said: str,
) -> None:
    monkeypatch.setattr(driver, "launch_measurement", dying(end, ("icl", 64)))
    done = execute(job, tmp_path)
    found = {(row.method, row.prefill): row for row in done.record.rows}
    assert found["icl", 64].status == status
    assert said in found["icl", 64].detail
    assert all(row.status == "ok" for at, row in found.items() if at != ("icl", 64)), (
        "a fresh process goes on"
    )
    # what failed is tried again, what ran out of memory is an answer
    monkeypatch.setattr(driver, "launch_measurement", dying(end, ("none", 1)))
    again = execute(job, tmp_path)
    assert again.status == ("stored" if status == "oom" else "continued")
    assert {row.status for row in again.record.rows} == (
        {"ok", "oom"} if status == "oom" else {"ok"}
    )


def test_an_interrupted_profile_keeps_its_rows_and_goes_on(
    job: Job, requests: Requests, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = driver.launch_measurement

    def interrupted(request: Mapping[str, Any]) -> Findings:
        for line in whole(request):
            yield line
            if line == ("at", 64) and request["method"] == "icl":
                raise KeyboardInterrupt

    monkeypatch.setattr(driver, "launch_measurement", interrupted)
    with pytest.raises(KeyboardInterrupt):
        execute(job, tmp_path)
    monkeypatch.setattr(driver, "launch_measurement", whole)
    (folder,) = tmp_path.iterdir()
    assert len(load_profile(folder).rows) == 4
    before = len(requests)
    done = execute(job, tmp_path)
    (request,) = requests[before:]
    assert (done.status, request["method"], request["lengths"]) == ("continued", "icl", [64, 96])
    assert len(done.record.rows) == 6


def test_a_fault_of_the_user_leaves_nothing_after(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refusing(request: Mapping[str, Any]) -> Findings:
        yield "fault", ("Model 'x' could not be loaded.", "Give another.")

    monkeypatch.setattr(driver, "launch_measurement", refusing)
    with pytest.raises(UserError, match="could not be loaded"):
        execute(job, tmp_path)
    assert not list(tmp_path.iterdir())


def test_settings_find_their_methods() -> None:
    chosen = choose_methods("all", settings=("chunk=64", "h2o.heavy=8"))
    assert chosen["snapkv"] == {"method": "snapkv", "preset": "stream", "settings": {"chunk": "64"}}
    assert chosen["h2o"]["settings"] == {"chunk": "64", "heavy": "8"}
    assert chosen["icl"]["settings"] == {}
    assert choose_methods("snapkv", preset="streamadapter")["snapkv"]["preset"] == "streamadapter"


def test_the_command_shows_stores_and_draws(
    ttabench: Command, requests: Requests, tiny_base: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "profile.png"
    common = [
        "profile",
        "--methods",
        "icl,mac",
        *SMALL,
        "--model",
        tiny_base,
        "--out",
        tmp_path / "runs",
        "--set",
        "mac.amortiser=scratch:16,1,2,32",
        "--set",
        "mac.input_encoder=scratch:16,1,2,32",
        "--set",
        "num_virtual_tokens=4",
    ]
    ran = ttabench(*common, "--plot", picture)
    assert ran.code == 0, ran.err
    for shown in ("token ms", "tokens/s", "peak memory", "mac is untrained"):
        assert shown in ran.out
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert str(picture) in ran.err
    stored = ttabench(*common, "--json")
    (title,) = [key for key in stored.json() if key.startswith("latency of")]
    assert [row["method"] for row in stored.json()[title]] == ["icl", "icl", "mac", "mac"]
    assert len(requests) == 2
    where = ttabench(*common, "--quiet").out.strip()
    assert (Path(where) / "profile.json").exists()
    assert "| icl | 32 |" in ttabench(*common, "--format", "markdown").out


@pytest.mark.parametrize(
    ("flags", "shown"),
    [(["--training"], "document s"), (["--throughput", "--memory-limit", "1t"], "largest batch")],
)
def test_other_profiles(
    ttabench: Command,
    requests: Requests,
    tiny_base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    shown: str,
) -> None:
    # this process has other things to do yet
    monkeypatch.setattr("ttabench.lm.loading.devices.limit_memory", lambda *_: None)
    monkeypatch.setattr("ttabench.profiling.measure.MAX_BATCH_SIZE", 2)
    picture = tmp_path / "picture.svg"
    out = ["--model", tiny_base, "--out", tmp_path / "runs", "--plot", picture, "--device", "cpu"]
    ran = ttabench("profile", "--methods", "icl", *SMALL, *flags, *out)
    assert ran.code == 0, ran.err
    assert shown in ran.out
    assert picture.exists()


def test_a_base_checkpoint_is_added_and_named(
    ttabench: Command, requests: Requests, tiny_base: Path, tmp_path: Path
) -> None:
    lora = peft_folder(
        tiny_llama(), tmp_path / "mine", str(tiny_base), r=4, target_modules=["q_proj"]
    )
    common = ["profile", "--methods", "none", *SMALL, "--model", tiny_base, "--out", tmp_path, "-q"]
    plain, under = (
        load_profile(Path(ttabench(*common, *more).out.strip()))
        for more in ([], ["--base-checkpoint", lora])
    )
    assert plain.id != under.id
    assert "base_checkpoint" not in plain.config
    assert under.model["stands_on"]["name"] == str(lora)
    assert under.base == f"{plain.base}-mine"
    missing = ttabench(*common, "--base-checkpoint", tmp_path / "absent")
    assert (missing.code, len(requests)) == (2, 2)
