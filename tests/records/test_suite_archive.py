"""Packed suites: runs of two files are the runs of the folders they came from, and more may join."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.records.test_records import record, sample, store_samples
from ttabench.core.errors import UserError
from ttabench.core.types import Answer
from ttabench.records.packing import pack, unpack
from ttabench.records.samples import read_samples
from ttabench.records.schema import RECORD_FILE, RUNS_FILE, SAMPLES_FILE, is_stored, load_record, save_record
from ttabench.report.finding import find_runs, runs_in

FILES = (RUNS_FILE, SAMPLES_FILE)
RUNS = ("cc33", "aa11", "bb22")
"""In the order in which they were made."""


def store(suite: Path, run: str) -> None:
    """A run; each has samples of another kind, the last has none."""
    place = RUNS.index(run)
    (suite / run).mkdir(parents=True)
    save_record(record(run, created=f"2025-01-0{place + 1}T00:00:00+00:00", notes=(f"café {run}",)), suite / run)
    texts = [replace(sample(key, value=0.1 + 0.2), episode=run) for key in ("b", "a")]
    if place == 0:
        store_samples(suite / run, [text.flat() for text in texts])
    if place == 1:  # another metric, nothing scored, and a column in which nothing stands
        others = [
            replace(text, metrics={"em": 1.0}, answer=Answer(prediction=""), context_tokens=None) for text in texts
        ]
        store_samples(suite / run, [text.flat() for text in others])


def texts(suite: Path) -> Iterator[tuple[str, str]]:
    """The text of every record in a folder of its own."""
    for file in sorted(suite.glob(f"*/{RECORD_FILE}")):
        yield file.parent.name, file.read_bytes().decode()


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for run in RUNS:
        store(tmp_path / "folders", run)
    return Path(shutil.copytree(tmp_path / "folders", tmp_path / "suite"))


def test_a_packed_run_is_what_it_was_in_its_folder(suite: Path, tmp_path: Path) -> None:
    assert pack(suite) == 3
    assert sorted(file.name for file in suite.glob("[!.]*")) == sorted(FILES)
    for run in RUNS:
        assert load_record(suite / run) == load_record(tmp_path / "folders" / run)
        assert is_stored(suite / run)
    for run in RUNS[:2]:
        for columns in (None, ["key", "em", "context_tokens"], ["f1"]):
            assert read_samples(suite / run, columns) == read_samples(tmp_path / "folders" / run, columns)
    with pytest.raises(UserError, match="holds a record and not its answers"):
        read_samples(suite / "bb22")
    assert unpack(suite, tmp_path / "again") == 3
    assert dict(texts(tmp_path / "again")) == dict(texts(tmp_path / "folders"))
    assert read_samples(tmp_path / "again" / "aa11") == read_samples(tmp_path / "folders" / "aa11")
    assert not (tmp_path / "again" / "bb22" / SAMPLES_FILE).exists()


def test_the_same_runs_give_the_same_bytes(suite: Path, tmp_path: Path) -> None:
    pack(suite)
    for run in reversed(RUNS):  # one after the other, and the newest first
        store(tmp_path / "steps", run)
        assert pack(tmp_path / "steps") == 1
    unpack(suite, tmp_path / "again")
    pack(tmp_path / "again")
    for name in FILES:
        assert (tmp_path / "steps" / name).read_bytes() == (suite / name).read_bytes()
        assert (tmp_path / "again" / name).read_bytes() == (suite / name).read_bytes()


def test_a_run_in_a_folder_stands_for_the_packed_one(suite: Path, tmp_path: Path) -> None:
    pack(suite)
    (suite / "aa11").mkdir()
    newer = record("aa11", created="2026-01-01T00:00:00+00:00")
    save_record(newer, suite / "aa11")
    assert runs_in(suite) == [suite / run for run in ("cc33", "bb22", "aa11")]
    assert load_record(suite / "aa11") == newer
    unpack(suite, suite)
    assert load_record(suite / "aa11") == newer
    assert not (suite / RUNS_FILE).exists()
    assert pack(suite) == 3
    assert load_record(suite / "aa11") == newer
    with pytest.raises(UserError, match="not its answers"):
        read_samples(suite / "aa11")  # its samples were those of the other


def test_packed_runs_are_found_like_folders(suite: Path, tmp_path: Path) -> None:
    def found(*names: str) -> list[str]:
        return [str(run.relative_to(suite)) for run in find_runs(names, suite)]

    names = (str(suite), f"{suite}/*", f"{suite}/bb*", f"{tmp_path}/s*e/aa11", f"{suite}/cc33", "aa")
    before = {name: found(name) for name in names}
    assert [len(runs) for runs in before.values()] == [3, 3, 1, 1, 1, 1]
    pack(suite)
    assert {name: found(name) for name in names} == before
    assert found() == found(f"{suite}/runs.parquet") == list(RUNS)
    with pytest.raises(UserError, match="dd"):
        found("dd")
