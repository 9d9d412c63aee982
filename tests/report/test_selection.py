"""Selection of runs by method, task, model and nested folders; names without runs are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
from packing import pack

from tests.conftest import Command, error_line
from tests.report.test_compare import stored
from ttabench.core.errors import UnknownName, UserError
from ttabench.report import selection
from ttabench.report.selection import LoadedRuns, RunFilters, load_run, select_runs

VALUES = {"a": 1.0, "b": 0.0}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Two methods on two tasks, and a third on one of them."""
    folder = tmp_path / "runs"
    folder.mkdir()
    for task in ("one", "two"):
        for method in ("icl", "mac"):
            stored(folder, f"{task}{method}", VALUES, task=task, method=method)
    stored(folder, "onepress", VALUES, task="one", method="kvpress:SnapKVPress")
    return folder


def ids(found: LoadedRuns) -> list[str]:
    return sorted(record.id for _, record in found.runs)


@pytest.mark.parametrize(
    ("names", "filters", "expected"),
    [
        ([], {}, "oneicl onemac onepress twoicl twomac"),
        (["mac"], {}, "onemac twomac"),
        (["mac", "icl"], {"task": ("two",)}, "twoicl twomac"),
        (["kvpress"], {}, "onepress"),
        (["onemac"], {}, "onemac"),  # an id
        ([], {"method": ("kvpress, mac",), "task": ("one",)}, "onemac onepress"),
    ],
)
def test_methods_tasks_families_and_ids(
    out: Path, names: list[str], filters: RunFilters, expected: str
) -> None:
    assert ids(select_runs(names, out, filters)) == expected.split()


def test_methods_choose_among_the_folders_given(out: Path, tmp_path: Path) -> None:
    other = tmp_path / "suites" / "first"
    other.mkdir(parents=True)
    stored(other, "elsewhere", VALUES, method="mac")
    stored(other, "not", VALUES, method="icl")
    pack(other)
    assert ids(select_runs(["mac", str(other)], out, {})) == ["elsewhere"]
    suites = str(tmp_path / "suites")
    assert ids(select_runs([suites], out, {})) == ["elsewhere", "not"]


def test_for_six_digits_of_an_id_no_other_record_is_read(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(out, "own", VALUES, method="onem")
    stored(out, "abcdef01", VALUES, method="mac")
    read: list[Path] = []
    monkeypatch.setattr(
        selection, "load_run", lambda folder: (read.append(folder), load_run(folder))[1]
    )
    assert ids(select_runs(["abcdef"], out, {})) == ["abcdef01"]
    assert read == [out / "abcdef01"]
    assert ids(select_runs(["onem"], out, {})) == ["own"], (
        "a method of one's own, though an id begins like it"
    )
    assert len(read) > 6
    pack(out)
    assert ids(select_runs(["onepre"], out, {})) == ["onepress"]
    with pytest.raises(UserError, match="There is no file or folder"):
        select_runs([str(out / "onepres")], out, {})


def test_what_no_run_has_is_refused(out: Path) -> None:
    for names, wanted, told in (
        ([], {"task": ("twoo",)}, "'two'"),
        (["templora"], {}, "icl"),
        ([], {"model": ("gpt2",)}, "nano"),
        (["mca"], {}, "mac"),
    ):
        with pytest.raises(UnknownName) as raised:
            select_runs(names, out, wanted)
        assert told in str(raised.value)
    with pytest.raises(UserError, match=r"None of 5 runs .*two, kvpress"):
        select_runs([], out, {"task": ("two",), "method": ("kvpress",)})


def test_what_holds_no_runs_is_skipped_and_counted(
    out: Path, tmp_path: Path, ttabench: Command
) -> None:
    table, empty = tmp_path / "table.md", tmp_path / "empty"
    table.write_text("# a table")
    empty.mkdir()
    ran = ttabench("compare", table, out, empty)
    assert ran.code == 0
    assert all(word in ran.err for word in ("2 of 3", str(table), str(empty)))
    for path in (table, empty):
        assert str(path) in error_line(ttabench("compare", path))
