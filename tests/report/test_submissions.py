"""Runs of others beside ours: exported from one folder, compared from another, and files that are not to be trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from packing import pack

from tests.conftest import Command, error_line
from tests.places import ROOT
from tests.report.test_compare import stored
from ttabench.records.samples import digest_of
from ttabench.records.schema import load_record, save_record

SUBMITTED = sorted((ROOT / "results/submissions").glob("*.parquet"))
VALUES = {"q1": 0.0, "q2": 1.0, "q3": 0.0, "q4": 1.0, "q5": 0.0, "q6": 0.0}
BETTER = {**VALUES, "q1": 1.0, "q3": 1.0}
Row = dict[str, Any]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Ours: floor and ceiling."""
    folder = tmp_path / "ours"
    folder.mkdir()
    stored(folder, "aaaa00000001", VALUES, method="none")
    stored(folder, "aaaa00000002", dict.fromkeys(VALUES, 1.0), method="icl")
    return folder


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """Theirs: two methods, in another folder."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    stored(folder, "bbbb00000001", BETTER, method="mac")
    stored(folder, "bbbb00000002", VALUES, method="lora")
    return folder


@pytest.fixture
def file(lab: Path, ttabench: Command) -> Path:
    """What they export."""
    path = lab.parent / "lab-b.parquet"
    ran = ttabench("export", lab, "-o", path)
    assert ran.code == 0, ran.err
    return path


def rewritten(file: Path, change: Callable[[list[Row]], None]) -> None:
    """The same file with other cells; the first query of a run holds its record."""
    table = parquet.read_table(file)
    change(rows := table.to_pylist())
    parquet.write_table(pa.Table.from_pylist(rows, schema=table.schema), file)


def test_others_stand_next_to_ours_marked_and_paired(
    ttabench: Command, out: Path, file: Path
) -> None:
    ran = ttabench(f"compare {out} {file}")
    assert (ran.code, ran.err) == (0, "")
    assert "mac (theirs: lab-b) − none" in ran.out
    found = ttabench(f"compare {out} {file} --json").json()
    runs = {row["label"]: row for row in found["runs"]}
    assert {label: row["from"] for label, row in runs.items()} == {
        "none": "",
        "icl": "",
        "mac (theirs: lab-b)": "lab-b",
        "lora (theirs: lab-b)": "lab-b",
    }
    apart = {row["right"]: row for row in found["differences"] if row["left"].startswith("mac")}
    assert (apart["none"]["n"], apart["none"]["better"]) == (6, 2)
    assert [apart[end]["family"] for end in ("none", "icl")] == ["none", "icl"], (
        "ours are baselines"
    )


def test_what_is_exported_is_reported_and_holds_no_text(
    ttabench: Command, lab: Path, tmp_path: Path
) -> None:
    path = tmp_path / "sub.parquet"
    assert ttabench("export", lab, "-o", path, "--json").json() == {
        "file": str(path),
        "bytes": path.stat().st_size,
        "runs": 2,
        "without_queries": 0,
        "queries": 12,
    }
    assert ttabench("export", lab, "-o", path, "--quiet").out == f"{path}\n"
    pack(lab)
    assert ttabench("export", lab, "-o", path).code == 0
    table = parquet.read_table(path)
    assert table["run"].to_pylist() == ["bbbb00000001"] * 6 + ["bbbb00000002"] * 6
    assert table["prompt"].to_pylist() == [digest_of("Who?")] * 12
    assert table["f1"].to_pylist()[:6] == list(BETTER.values())
    parquet.write_table(table, tmp_path / "plain", compression="none", use_dictionary=False)
    assert b"Who?" not in (tmp_path / "plain").read_bytes()
    assert ttabench("export", lab, "-o", path, "--method", "mac", "--json").json()["runs"] == 1
    assert "bbbb00000001" in ttabench(f"show {path / 'bbbb00000001'}").out


def test_questions_of_one_file_are_paired_wherever_it_lies(
    ttabench: Command, out: Path, lab: Path
) -> None:
    for run, place in (
        *((run, "/home/ada/my data/dev.json") for run in lab.iterdir()),
        (out / "aaaa00000001", "d/dev.json"),
    ):
        record = load_record(run)
        rows = [row.model_copy(update={"source": f"file:{place}"}) for row in record.rows]
        config = {**record.config, "source": place, "checkpoint": "/home/ada/checkpoints/mac"}
        notes = (f"read {place}", "kept in ~/cache/of/mine, half of it")
        changed = {"source": f"file:{place}", "rows": tuple(rows), "config": config, "notes": notes}
        save_record(record.model_copy(update=changed), run)
    path = lab.parent / "b.parquet"
    assert ttabench("export", lab, "-o", path).code == 0
    (text, _) = parquet.read_table(path)["record"].drop_null().to_pylist()
    assert not re.search(r"/|home|\bada\b|my data", text)
    assert json.loads(text)["notes"] == ["read dev.json", "kept in mine, half of it"]
    assert json.loads(text)["config"]["checkpoint"] == "mac"
    (difference, *_) = ttabench(f"compare {out / 'aaaa00000001'} {path} --json").json()[
        "differences"
    ]
    assert difference["n"] == 6


def test_a_run_of_an_id_that_is_here_counts_once(
    ttabench: Command, out: Path, tmp_path: Path
) -> None:
    same = tmp_path / "same.parquet"
    assert ttabench(f"export {out} -o", same).code == 0
    ran = ttabench(f"compare {out}", same, same, "--json")
    assert [row["label"] for row in ran.json()["runs"]] == ["none", "icl"]


def changed_score(rows: list[Row]) -> None:
    rows[1]["f1"] = 0.5


def record_of_another(rows: list[Row]) -> None:
    rows[0]["record"] = rows[6]["record"]


def cut_record(rows: list[Row]) -> None:
    rows[0]["record"] = rows[0]["record"][:100]


def beyond_all_sums(rows: list[Row]) -> None:
    rows[0]["record"] = json.dumps({**json.loads(rows[0]["record"]), "sample_digests": {}})
    for row in rows[:6]:
        row["f1"] = 1e308


@pytest.mark.parametrize("attack", [changed_score, record_of_another, cut_record, beyond_all_sums])
def test_a_run_that_is_not_whole_is_named_and_the_others_stay(
    ttabench: Command, out: Path, file: Path, attack: Callable[[list[Row]], None]
) -> None:
    rewritten(file, attack)
    ran = ttabench(f"compare {out} {file} --json")
    (line,) = ran.err.splitlines()
    assert line.startswith("Left out: ")
    assert "bbbb00000001" in line
    assert [row["label"] for row in ran.json()["runs"]] == ["none", "icl", "lora (theirs: lab-b)"]


def no_parquet(file: Path) -> None:
    file.write_text("mac,0.9\n")


def other_table(file: Path) -> None:
    parquet.write_table(pa.table({"id": ["a"], "record": ["{}"]}), file)


@pytest.mark.parametrize(
    ("damage", "told"), [(no_parquet, "cannot be read"), (other_table, "it has no column run")]
)
def test_a_file_that_is_no_submission_is_skipped_or_refused(
    ttabench: Command, out: Path, file: Path, damage: Callable[[Path], None], told: str
) -> None:
    damage(file)
    ran = ttabench(f"compare {out} {file} --json")
    assert "Skipped 1 of 2 names" in ran.err
    assert len(ran.json()["runs"]) == 2
    assert told in error_line(ttabench(f"compare {file}"))


@pytest.mark.parametrize("columns", ["f1 none_such", "f1 f1", "\0"])
def test_columns_that_are_not_there_are_named(
    ttabench: Command, out: Path, file: Path, tmp_path: Path, columns: str
) -> None:
    table = parquet.read_table(file)
    parquet.write_table(table.set_column(1, "own_columns", pa.array([columns] * len(table))), file)
    for command in (["compare"], ["export", "-o", tmp_path / "again.parquet"]):
        ran = ttabench(*command, out, file, "--json")
        assert ran.code in (0, 2)
        assert str(file) in ran.err


@pytest.mark.parametrize("changed", ["value", "stderr"])
def test_check_accepts_exported_runs_and_finds_changed_scores(
    ttabench: Command, file: Path, changed: str
) -> None:
    ran = ttabench("check", file)
    assert (ran.code, len(ran.out.splitlines())) == (0, 3)
    assert ttabench("check", file, "--json").json()["runs"] == [
        {"id": "bbbb00000001", "fault": None},
        {"id": "bbbb00000002", "fault": None},
    ]
    assert ttabench("check", file, "--set", "x=1").code == 2

    def better(rows: list[Row]) -> None:
        for row in rows:
            if row["record"] and row["run"] == "bbbb00000002":
                record = json.loads(row["record"])
                record["rows"][0][changed] = 0.9
                row["record"] = json.dumps(record)

    rewritten(file, better)
    ran = ttabench("check", file)
    assert ran.code == 1
    assert [line.split()[0] for line in ran.out.splitlines()[:2]] == ["kept", "BROKEN"]

    def swapped(rows: list[Row]) -> None:
        rows[0]["f1"], rows[4]["f1"] = rows[4]["f1"], rows[0]["f1"]

    rewritten(file, swapped)
    broken = ttabench("check", file)
    assert [line.split()[0] for line in broken.out.splitlines()[:2]] == ["BROKEN", "BROKEN"]
    assert ttabench("check", file.with_name("none.parquet")).code == 2


def test_a_dataset_for_a_hub_is_loaded_with_its_two_tables(
    lab: Path, ttabench: Command, tmp_path: Path
) -> None:
    from datasets import load_dataset

    hub = tmp_path / "hub"
    ran = ttabench("export", lab, "--hub", hub)
    assert ran.code == 0, ran.err
    assert f"hf upload USER/NAME {hub}" in " ".join(ran.out.split())
    figures, queries = (
        load_dataset(str(hub), name, split="train", cache_dir=str(tmp_path / "cache"))
        for name in (None, "queries")
    )
    assert {(row["method"], row["value"]) for row in figures if row["metric"] == "f1"} == {
        (record.config["method"], record.rows[0].value)
        for record in (load_record(lab / f"bbbb0000000{number}") for number in (1, 2))
    }
    assert len(queries) == 2 * len(VALUES)
    assert ttabench("compare", hub / "queries.parquet").code == 0
    (hub / "README.md").write_text("mine")
    assert ttabench("export", lab, "--hub", hub).code == 0
    assert (hub / "README.md").read_text() == "mine"
    parquet.write_table(pa.table({"a": [1]}), hub / "queries.parquet")
    assert "queries.parquet" in error_line(ttabench("export", lab, "--hub", hub))
    assert "--hub" in error_line(ttabench("export", lab, "--hub", hub, "-o", "other.parquet"))


@pytest.mark.parametrize("file", SUBMITTED, ids=lambda file: file.stem)
def test_submitted_files_are_small_and_their_figures_follow(file: Path, ttabench: Command) -> None:
    assert file.stat().st_size < 10**6
    runs = ttabench("check", file, "--json").json()["runs"]
    assert runs
    assert not any(run["fault"] for run in runs)


def test_the_board_of_all_submissions_is_built(ttabench: Command, tmp_path: Path) -> None:
    assert SUBMITTED
    ran = ttabench("report", *SUBMITTED, "--samples", 0, "-o", tmp_path / "board.html")
    assert ran.code == 0, ran.err
    text = (tmp_path / "board.html").read_text(encoding="utf-8")
    assert all(file.stem in text for file in SUBMITTED)
