"""Damaged runs are named in a message and left out of the comparison."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from packing import pack

from tests.conftest import Command, error_line
from tests.report.test_compare import stored
from ttabench.records.schema import RECORD_FILE, RUNS_FILE, SAMPLES_FILE

VALUES = {"q1": 0.0, "q2": 1.0, "q3": 0.0, "q4": 1.0, "q5": 0.0, "q6": 1.0, "q7": 0.25, "q8": 0.75}
BETTER = dict.fromkeys(VALUES, 1.0)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    stored(tmp_path, "aaaa00000001", VALUES, method="none")
    stored(tmp_path, "bbbb00000002", BETTER)
    stored(tmp_path, "cccc00000003", {**VALUES, "q1": 1.0}, method="mac")
    return tmp_path


def cut_record(run: Path) -> None:
    file = run / RECORD_FILE
    file.write_bytes(file.read_bytes()[:200])


def no_numbers(run: Path) -> None:
    columns = parquet.read_table(run / SAMPLES_FILE).to_pydict()
    parquet.write_table(
        pa.table({**columns, "f1": [float("nan")] * len(VALUES)}), run / SAMPLES_FILE
    )


@pytest.mark.parametrize("damage", [cut_record, no_numbers])
def test_a_damaged_run_is_named_and_the_others_are_compared(
    ttabench: Command, out: Path, damage: Callable[[Path], None]
) -> None:
    whole = ttabench(f"compare {out}")
    assert (whole.code, whole.err) == (0, "")
    expected = ttabench(f"compare {out / 'aaaa00000001'} {out / 'bbbb00000002'} --format csv").out
    damage(out / "cccc00000003")
    ran = ttabench(f"compare {out} --format csv")
    assert (ran.code, ran.out) == (0, expected)
    (line,) = ran.err.splitlines()
    assert line.startswith("Left out: ")
    assert "cccc00000003" in line
    assert "--force" in line


def cut_pack(suite: Path) -> None:
    file = suite / RUNS_FILE
    file.write_bytes(file.read_bytes()[:-40])


def test_a_damaged_file_of_runs_is_named_and_other_folders_are_compared(
    ttabench: Command, out: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    suite = tmp_path_factory.mktemp("packed")
    stored(suite, "dddd00000004", BETTER, method="snapkv")
    stored(suite, "eeee00000005", VALUES, method="h2o")
    pack(suite)
    expected = ttabench(f"compare {out} --format csv").out
    cut_pack(suite)
    for name in (suite, suite / RUNS_FILE, suite / "dddd00000004"):
        ran = ttabench("compare", name, out, "--format", "csv")
        assert (ran.code, ran.out) == (0, expected)
        (line,) = ran.err.splitlines()
        assert line.startswith(f"Left out: {suite / RUNS_FILE} cannot be read: ")
    assert str(suite / RUNS_FILE) in error_line(ttabench(f"compare {suite}"))
    assert str(suite / RUNS_FILE) in error_line(ttabench(f"show dddd00000004 --out {suite}"))
