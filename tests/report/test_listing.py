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
from ttabench.records.schema import RECORD_FILE, RUNS_FILE, RunRecord, save_record
from ttabench.report import selection

METHODS = ["icl"] * 3


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs, the newest first by name; what is read of them is cached."""
    monkeypatch.setenv("TTABENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "SETTLED_SECONDS", -60.0)
    for number, run in enumerate(("cccc00000001", "bbbb00000002", "aaaa00000003")):
        folder = tmp_path / "runs" / run
        folder.mkdir(parents=True)
        config = {"method": "icl", "task": "streamingqa", "seed": number}
        save_record(record(run, config=config, created=f"2026-01-0{number + 1}T00:00:00"), folder)
        store_samples(folder, [sample("q").to_row()])
    return tmp_path / "runs"


@pytest.mark.parametrize("packed", [False, True])
def test_an_unchanged_record_is_read_once(
    out: Path, packed: bool, ttabench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, load = list[str](), selection.load_run

    def count(folder: Path) -> RunRecord:
        read.append(folder.name)
        return load(folder)

    monkeypatch.setattr(selection, "load_run", count)
    if packed:
        pack(out)
    listed = [ttabench(f"list runs --out {out} --json").json()["runs"] for _ in range(2)]
    assert listed[0] == listed[1]
    assert [run["run"][0] for run in listed[0]] == ["c", "b", "a"], "the oldest first"
    assert [run["path"] for run in listed[0]] == [str(out / run["run"]) for run in listed[0]]
    assert sorted(read) == ["aaaa00000003", "bbbb00000002", "cccc00000001"]
    file = out / (RUNS_FILE if packed else f"bbbb00000002/{RECORD_FILE}")
    file.write_bytes(file.read_bytes()[:-20])
    for _ in range(2):
        ran = ttabench(f"list runs --out {out} --json")
        assert str(file) in ran.err
        assert ran.code == (2 if packed else 0)
    (tmp_path / "cache" / "runs").rename(tmp_path / "cache" / "moved")
    (tmp_path / "cache" / "runs").write_text("no folder")
    assert ttabench(f"list runs --out {out} --json").code == (2 if packed else 0)


def test_a_run_in_a_folder_next_to_the_same_packed_is_listed_once(
    out: Path, ttabench: Command, tmp_path: Path
) -> None:
    def methods() -> list[str]:
        runs = ttabench(f"list runs --out {out} --json").json()["runs"]
        return sorted(run["method"] for run in runs)

    shutil.copytree(out / "bbbb00000002", tmp_path / "newer")
    pack(out)
    config = {"method": "mac", "task": "streamingqa", "seed": 1}
    save_record(record("bbbb00000002", config=config), tmp_path / "newer")
    assert methods() == METHODS
    shutil.move(tmp_path / "newer", out / "bbbb00000002")
    assert methods() == [*METHODS[1:], "mac"]
    shutil.rmtree(out / "bbbb00000002")
    assert methods() == METHODS


@pytest.mark.parametrize(
    "value", [None, 5, "x", [], {}, [[]], [[], [], []], [[["a"]], []], [[["a", [], {}]], []]]
)
def test_a_damaged_cache_is_made_again(
    out: Path, ttabench: Command, tmp_path: Path, value: object
) -> None:
    before = ttabench(f"list runs --out {out} --json").json()
    (cache,) = (tmp_path / "cache" / "runs").glob("*.json")
    stored = json.loads(cache.read_text())
    cache.write_text(json.dumps({place: [*entry[:-1], value] for place, entry in stored.items()}))
    assert ttabench(f"list runs --out {out} --json").json() == before
