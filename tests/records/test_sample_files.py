"""Samples belong to their record: those of another run, fewer of them or changed ones are refused in one line."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from packing import pack

from tests.places import ROOT
from tests.records.test_records import record, sample, store_samples
from ttabench.core.errors import UserError
from ttabench.records.samples import has_samples, read_samples
from ttabench.records.schema import SAMPLES_FILE, load_record, save_record
from ttabench.report.selection import list_runs

COLUMNS = ("key", "f1", "logprobs", "answers")
ROWS = [sample(key, value=value).to_row() for key, value in (("a", 0.1 + 0.2), ("b", 1.0))]
Columns: TypeAlias = dict[str, list[Any]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "0123456789ab"
    folder.mkdir()
    save_record(record(), folder)
    store_samples(folder, ROWS)
    return folder


def changed(run: Path, change: Callable[[Columns], object]) -> None:
    columns = parquet.read_table(run / SAMPLES_FILE).to_pydict()
    change(columns)
    parquet.write_table(pa.table(columns), run / SAMPLES_FILE)


def test_a_run_reads_its_own_samples_in_a_folder_and_packed(run: Path) -> None:
    own = read_samples(run, COLUMNS, load_record(run))
    assert own == {name: [row[name] for row in ROWS] for name in COLUMNS}
    pack(run.parent)
    assert not run.exists()
    assert read_samples(run, COLUMNS, load_record(run)) == own


def test_samples_of_another_run_are_refused_even_where_they_are_as_many(run: Path) -> None:
    other = run.with_name("ba9876543210")
    other.mkdir()
    save_record(record(other.name), other)
    store_samples(other, [{**row, "f1": 1.0} for row in ROWS])
    (run / SAMPLES_FILE).write_bytes((other / SAMPLES_FILE).read_bytes())
    with pytest.raises(UserError, match=r"run 0123456789ab .* f1"):
        read_samples(run, COLUMNS, load_record(run))
    assert read_samples(run, ("key",), load_record(run)) == {"key": ["a", "b"]}, (
        "that column is what it was"
    )
    assert read_samples(other, COLUMNS, load_record(other))["f1"] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda c: [values.pop() for values in c.values()], "1 rows for 2 queries"),
        (lambda c: c.update(f1=[math.nan, 1.0]), "f1 has other values"),
        (lambda c: c.update(logprobs=[-1.0, -1.0]), "logprobs has other values"),
        (lambda c: c.update(more=[1.0, 1.0]), "more has other values"),
        (lambda c: c.pop("f1"), "f1 is missing"),
    ],
)
def test_damage_is_seen(run: Path, change: Callable[[Columns], object], wrong: str) -> None:
    changed(run, change)
    with pytest.raises(UserError, match=wrong):
        read_samples(run, record=load_record(run))


def test_committed_runs_read_their_own_samples() -> None:
    suites = sorted((ROOT / "results").glob(f"*/{SAMPLES_FILE}"))
    assert suites
    for suite in suites:
        runs = [run for run in list_runs(suite.parent) if has_samples(run)]
        assert runs
        for run in runs:
            read_samples(run, ("episode", "key", "logprobs"), load_record(run))
