"""`list runs` caches the cells of a record, and reads changed records again; stale and removed runs."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from filelock import FileLock
from packing import pack

from tests.conftest import Command, error_line
from tests.records.test_records import record, sample, store_samples
from ttabench.core import digests
from ttabench.core.files import LOCK_FILE
from ttabench.records.schema import RECORD_FILE, RUNS_FILE, TRASH_FOLDER, RunRecord, save_record
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


def test_removed_runs_are_in_the_trash_until_they_are_moved_back(
    out: Path, ttabench: Command
) -> None:
    def listed() -> list[str]:
        runs = ttabench(f"list runs --out {out.parent} --json").json()["runs"]
        return [run["run"][0] for run in runs]

    ran = ttabench(f"rm cccc00 {out / 'bbbb00000002'} --out {out}")
    assert ran.code == 0, ran.err
    assert listed() == ["a"]
    trash = out / TRASH_FOLDER
    assert sorted(folder.name[0] for folder in trash.iterdir()) == ["b", "c"]
    assert ttabench(f"rm aaaa00000003 --out {out}").code == 0
    assert listed() == []
    (trash / "cccc00000001").rename(out / "cccc00000001")
    assert listed() == ["c"]
    shutil.copytree(out / "cccc00000001", trash / "cccc00000001")
    assert TRASH_FOLDER in error_line(ttabench(f"rm cccc00000001 --out {out}"))


@pytest.mark.parametrize("kind", ["unknown", "folder of runs", "foreign", "packed", "locked"])
def test_only_stored_runs_in_folders_are_removed(
    out: Path, ttabench: Command, tmp_path: Path, kind: str
) -> None:
    name = "bbbb00000002"
    if kind == "unknown":
        name = "dddd00000004"
    if kind == "folder of runs":
        name = str(out)
    if kind == "foreign":
        (out / name).rename(out / "mine")
        name = str(out / "mine")
    if kind == "packed":
        pack(out)
    before = sorted(out.iterdir())
    with FileLock(out / name / LOCK_FILE) if kind == "locked" else nullcontext():
        assert Path(name).name in error_line(ttabench(f"rm {name} --out {out}"))
    assert [path for path in sorted(out.iterdir()) if path.name != TRASH_FOLDER] == before


def test_stale_runs_name_the_changed_input(ttabench: Command, tmp_path: Path) -> None:
    questions = tmp_path / "own.jsonl"
    questions.write_text('{"context": "Ada is here.", "question": "Who?", "answers": ["Ada"]}\n')

    def stale() -> dict[str, str]:
        runs = ttabench(f"list runs --stale --out {tmp_path / 'runs'} --json").json()["runs"]
        return {run["method"]: run["changed"] for run in runs}

    for arguments in ("none --task streamingqa --limit 4", f"icl --task {questions}"):
        ran = ttabench(f"eval --method {arguments} --out {tmp_path / 'runs'}")
        assert ran.code == 0, ran.err
    assert stale() == {}
    questions.write_text('{"context": "Eve is here.", "question": "Who?", "answers": ["Eve"]}\n')
    assert stale() == {"icl": "rows"}
    questions.unlink()
    assert str(questions) in stale()["icl"]
    assert "--stale" in error_line(ttabench("list methods --stale"))
