"""`list runs` caches the cells of a record, and reads changed records again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from packing import pack

from tests.conftest import Command
from tests.records.test_records import record, sample, store_samples
from ttabench.core import digests
from ttabench.records.schema import RECORD_FILE, RUNS_FILE, save_record
from ttabench.report import selection


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Three runs, the newest first by name."""
    for number, run in enumerate(("cccc00000001", "bbbb00000002", "aaaa00000003")):
        (tmp_path / "runs" / run).mkdir(parents=True)
        made = record(run, config={"method": "icl", "task": "streamingqa", "seed": number})
        save_record(
            made.model_copy(update={"created": f"2026-01-0{number + 1}T00:00:00"}),
            tmp_path / "runs" / run,
        )
        store_samples(tmp_path / "runs" / run, [sample("q").to_row()])
    return tmp_path / "runs"


@pytest.mark.parametrize("packed", [False, True])
def test_a_record_is_read_once_while_it_is_what_it_is(
    out: Path, packed: bool, ttabench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTABENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "SETTLED_SECONDS", -60.0)
    read, load = list[str](), selection.load_run
    monkeypatch.setattr(
        selection, "load_run", lambda folder: (read.append(folder.name), load(folder))[1]
    )
    if packed:
        pack(out)
    listed = [ttabench("list", "runs", "--out", out, "--json").json() for _ in range(2)]
    assert listed[0] == listed[1]
    assert [run["run"][0] for run in listed[0]["runs"]] == ["c", "b", "a"], "the oldest first"
    assert [run["path"] for run in listed[0]["runs"]] == [
        str(out / run["run"]) for run in listed[0]["runs"]
    ]
    assert sorted(read) == ["aaaa00000003", "bbbb00000002", "cccc00000001"]
    file = out / (RUNS_FILE if packed else f"bbbb00000002/{RECORD_FILE}")
    file.write_bytes(file.read_bytes()[:-20])
    for _ in range(2):
        ran = ttabench("list", "runs", "--out", out, "--json")
        assert str(file) in ran.err
        assert ran.code == (2 if packed else 0)
    (tmp_path / "cache" / "runs").rename(tmp_path / "cache" / "moved")
    (tmp_path / "cache" / "runs").write_text("no folder")
    assert ttabench("list", "runs", "--out", out, "--json").code == (2 if packed else 0)


def test_a_run_in_a_folder_next_to_the_same_packed_is_listed_once(
    out: Path, ttabench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTABENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "SETTLED_SECONDS", -60.0)
    shutil.copytree(out / "bbbb00000002", tmp_path / "newer")
    pack(out)
    again = record("bbbb00000002", config={"method": "mac", "task": "streamingqa", "seed": 1})
    save_record(again, tmp_path / "newer")

    def methods() -> list[str]:
        return sorted(
            run["method"] for run in ttabench("list", "runs", "--out", out, "--json").json()["runs"]
        )

    assert methods() == ["icl"] * 3
    shutil.move(tmp_path / "newer", out / "bbbb00000002")
    assert methods() == ["icl", "icl", "mac"]
    shutil.rmtree(out / "bbbb00000002")
    assert methods() == ["icl"] * 3


@pytest.mark.parametrize(
    "value", [None, 5, "x", [], {}, [[]], [[], [], []], [[["a"]], []], [[["a", [], {}]], []]]
)
def test_a_damaged_cache_is_made_again(
    out: Path, ttabench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: object
) -> None:
    monkeypatch.setenv("TTABENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "SETTLED_SECONDS", -60.0)
    before = ttabench("list", "runs", "--out", out, "--json").json()
    (cache,) = (tmp_path / "cache" / "runs").glob("*.json")
    stored = json.loads(cache.read_text())
    cache.write_text(
        json.dumps({place: [*method_row[:-1], value] for place, method_row in stored.items()})
    )
    assert ttabench("list", "runs", "--out", out, "--json").json() == before
