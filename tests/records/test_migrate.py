"""Results of earlier versions get their ids of today, whatever stops it, and lose nothing."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.records.test_records import record, sample
from ttabench.core.errors import UserError
from ttabench.records import migrate as migration
from ttabench.records.migrate import Wanted, adopt, migrate, where_stored
from ttabench.records.packing import pack
from ttabench.records.sample_files import read_samples, write_samples
from ttabench.records.schema import SAMPLES_FILE, load_record
from ttabench.records.store import RUNS, RunFolder


def old_run(out: Path, run: str, seed: int, **changes: Any) -> Path:
    """A run as schema 1 stored it, killed while it was made again."""
    folder = out / run
    folder.mkdir(parents=True)
    content = record(run, config={"seed": seed}, **changes).model_dump(mode="json")
    del content["formerly"]
    (folder / "run.json").write_text(json.dumps({**content, "schema_version": 1}, indent=1))
    write_samples(folder / SAMPLES_FILE, [sample("a").flat()])
    RunFolder(out, run).append([sample("a"), sample("b")])
    return folder


def name_of(content: Mapping[str, Any]) -> str | None:
    """The ids of today; of methods that are not known there is none."""
    seed = content["config"]["seed"]
    return None if seed < 0 else f"new{seed}"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    for seed in (1, 2):
        old_run(tmp_path, f"old{seed}", seed)
    return tmp_path


def names(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir() if path.is_dir())


def assert_moved(out: Path) -> None:
    assert names(out) == ["new1", "new2"]
    for seed in (1, 2):
        found = load_record(out / f"new{seed}")
        assert (found.id, found.formerly, found.schema_version) == (f"new{seed}", f"old{seed}", RUNS.schema)
        assert {row.run for row in found.rows} == {found.id}
        assert found == record(found.id, config={"seed": seed}, formerly=found.formerly, rows=found.rows)
        assert read_samples(out / found.id, ["key"]) == {"key": ["a"]}
        unfinished = RunFolder(out, found.id)
        assert (unfinished.resume(), unfinished.left_out) == (2, 0)


def test_folders_records_samples_and_partial_results_go_along(out: Path) -> None:
    before = load_record(out / "old1")
    assert (before.id, before.schema_version) == ("old1", 1), "a record of the old schema is read as it is"
    assert migrate(out, RUNS, name_of) == {}
    assert_moved(out)
    assert migration.outdated(out, RUNS) == []


def test_a_packed_run_is_not_replaced_by_an_older_one(out: Path) -> None:
    newer = record("new1", config={"seed": 1}, notes=("newer",))
    RunFolder(out, "new1").finish(newer)
    left = [shutil.move(out / name, out.parent / name) for name in ("old1", "old2")]
    pack(out)
    for folder in left:
        shutil.move(folder, out / Path(folder).name)
    wanted = Wanted(name="new1", before="old1")
    assert where_stored(out, RUNS, wanted, name_of) == out / "new1"
    migrate(out, RUNS, name_of)
    assert load_record(out / "new1") == newer
    assert names(out) == ["new2", "old1"]


def test_a_store_of_today_is_not_touched(tmp_path: Path) -> None:
    RunFolder(tmp_path, "r").finish(record("r"))

    def never(_: object) -> str:
        raise AssertionError("nothing is outdated")

    assert migrate(tmp_path, RUNS, never) == {}
    assert not (tmp_path / ".lock").exists()


class Killed(BaseException):
    """Nobody catches it, as nobody catches a kill."""


def killing(monkeypatch: pytest.MonkeyPatch, at: int, *, after: bool) -> list[str]:
    """Kill at the `at`-th write, before or after it is done; returns the names of the writes so far."""
    seen: list[str] = []

    def wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            seen.append(name)
            if len(seen) == at and not after:
                raise Killed
            number, result = len(seen), original(*arguments, **named)
            if number == at and after:
                raise Killed
            return result

        return call

    for name in ("rename", "replace", "write_bytes", "unlink"):
        monkeypatch.setattr(Path, name, wrapped(name, getattr(Path, name)))
    return seen


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_write_is_made_good_the_next_time(tmp_path: Path, after: bool) -> None:
    def store(name: str) -> Path:
        for seed in (1, 2):
            old_run(tmp_path / name, f"old{seed}", seed)
        return tmp_path / name

    whole = store("whole")
    with pytest.MonkeyPatch.context() as patch:
        seen = killing(patch, 0, after=False)
        migrate(whole, RUNS, name_of)
    assert {"write_bytes", "replace"} <= set(seen)
    for at in range(1, len(seen) + 1):
        out = store(f"{at}")
        with pytest.MonkeyPatch.context() as patch:
            killing(patch, at, after=after)
            with pytest.raises(Killed):
                migrate(out, RUNS, name_of)
        for folder in (path for path in out.iterdir() if path.is_dir()):
            assert load_record(folder).value("f1"), "in between all can be read"
        migrate(out, RUNS, name_of)
        assert_moved(out)


def test_two_processes_at_once(out: Path) -> None:
    barrier, faults = threading.Barrier(4), []

    def one() -> None:
        barrier.wait(10)
        try:
            assert migrate(out, RUNS, name_of) == {}
            assert names(out) == ["new1", "new2"]
        except BaseException as fault:  # told below, in the test's own thread
            faults.append(fault)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not faults
    assert_moved(out)


def test_of_two_runs_of_one_id_the_newest_takes_it(tmp_path: Path) -> None:
    old_run(tmp_path, "early", 1, created="2025-01-01")
    old_run(tmp_path, "late", 1, created="2025-01-02")
    assert migrate(tmp_path, RUNS, name_of) == {}
    assert names(tmp_path) == ["early", "new1"]
    assert load_record(tmp_path / "new1").formerly == "late"
    kept = load_record(tmp_path / "early")
    assert (kept.id, kept.formerly, kept.schema_version) == ("early", "", RUNS.schema)


def test_a_run_that_somebody_works_on_is_used_where_it_lies(out: Path) -> None:
    with FileLock(out / "old1" / ".lock"):
        assert migrate(out, RUNS, name_of) == {"new1": out / "old1"}
    assert names(out) == ["new2", "old1"]
    assert migrate(out, RUNS, name_of) == {}
    assert_moved(out)


def test_a_store_that_can_only_be_read_is_used_as_it_is(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise UserError("Read-only file system.", "")

    monkeypatch.setattr(migration, "locked", refuse)
    assert migrate(out, RUNS, name_of) == {f"new{seed}": out / f"old{seed}" for seed in (1, 2)}
    assert names(out) == ["old1", "old2"]


def test_what_is_not_known_or_damaged_or_has_a_name_of_its_own_stays(tmp_path: Path) -> None:
    old_run(tmp_path, "unknown", -1)
    old_run(tmp_path, "baseline", 1, id="old1")
    damaged = json.loads((old_run(tmp_path, "damaged", 2) / "run.json").read_text())
    (tmp_path / "damaged" / "run.json").write_text(json.dumps({**damaged, "rows": [{}]}))
    (old_run(tmp_path, "cut", 3) / "run.json").write_text('{"schema_version": 1, "id')
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    migrate(tmp_path, RUNS, name_of)
    assert {path: path.read_bytes() for path in before} == before
    assert names(tmp_path) == ["baseline", "cut", "damaged", "unknown"]


def test_the_folder_of_a_run_is_the_best_there_is(tmp_path: Path) -> None:
    for run, created in (("damaged", "2025-01-01"), ("whole", "2025-01-02")):
        old_run(tmp_path, run, 1, created=created)
    file = tmp_path / "damaged" / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "rows": [{}]}))
    wanted = Wanted(name="new1", before="elsewhere")
    assert where_stored(tmp_path, RUNS, wanted, name_of) == tmp_path / "new1"
    assert load_record(tmp_path / "new1").formerly == "whole"
    assert where_stored(tmp_path, RUNS, replace(wanted, name="new2"), name_of) == tmp_path / "new2"
    held = old_run(tmp_path, "held", 3)
    with FileLock(held / ".lock"):
        assert where_stored(tmp_path, RUNS, replace(wanted, name="new3"), name_of) == held
        assert where_stored(tmp_path, RUNS, replace(wanted, name="new3", force=True), name_of) == tmp_path / "new3"


def test_an_unfinished_run_goes_along(tmp_path: Path) -> None:
    RunFolder(tmp_path, "old").append([sample("a"), sample("b")])
    adopt(tmp_path, RUNS, "nobody's", "new")
    assert names(tmp_path) == ["old"]
    with FileLock(tmp_path / "old" / ".lock"):
        adopt(tmp_path, RUNS, "old", "new")
    assert names(tmp_path) == ["old"], "somebody works on it"
    adopt(tmp_path, RUNS, "old", "new")
    assert names(tmp_path) == ["new"]
    folder = RunFolder(tmp_path, "new")
    assert (folder.resume(), folder.left_out) == (2, 0)


def test_an_unfinished_run_that_began_anew_stays_what_it_is(tmp_path: Path) -> None:
    RunFolder(tmp_path, "old").append([sample("a"), sample("b")])
    RunFolder(tmp_path, "new").append([sample("c")])
    adopt(tmp_path, RUNS, "old", "new")
    assert names(tmp_path) == ["new", "old"]
    assert RunFolder(tmp_path, "new").resume() == 1
