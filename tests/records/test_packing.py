"""Packed suites are the runs of the folders they came from; without texts nothing can be read and all be compared; and
what may be passed on of a run: no path of the machine, no text, and what tells runs apart stays."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from packing import UNREAD_COLUMNS, drop_unread_columns, pack

from tests.conftest import Command
from tests.places import ROOT
from tests.records.test_records import record, sample, store_samples
from ttabench.core.errors import UserError
from ttabench.core.types import Answer, Choose, Generate, Score
from ttabench.records.local_paths import remove_paths
from ttabench.records.samples import MODES, SCORES_FILE, digest_of, read_samples
from ttabench.records.schema import RUNS_FILE, SAMPLES_FILE, is_stored, load_record, save_record
from ttabench.records.submissions import export_run, write_submission
from ttabench.report.selection import list_runs, select_runs

FILES = (RUNS_FILE, SAMPLES_FILE)
RUNS = ("cc33", "aa11", "bb22")
"""In the order in which they were made."""


def store(suite: Path, run: str) -> None:
    """A run; each has samples of another kind, the last has none."""
    place = RUNS.index(run)
    (suite / run).mkdir(parents=True)
    save_record(
        record(run, created=f"2025-01-0{place + 1}T00:00:00+00:00", notes=(f"café {run}",)),
        suite / run,
    )
    texts = [replace(sample(key, value=0.1 + 0.2), episode=run) for key in ("b", "a")]
    if place == 0:
        store_samples(suite / run, [text.to_row() for text in texts])
    if place == 1:  # another metric, nothing scored, and a column in which nothing stands
        others = [
            replace(text, metrics={"em": 1.0}, answer=Answer(prediction=""), context_tokens=None)
            for text in texts
        ]
        store_samples(suite / run, [text.to_row() for text in others])


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
            stored = read_samples(tmp_path / "folders" / run, columns)
            kept = {name: cells for name, cells in stored.items() if name not in UNREAD_COLUMNS}
            assert read_samples(suite / run, columns) == kept
    with pytest.raises(UserError, match="bb22"):
        read_samples(suite / "bb22")


@pytest.mark.parametrize(("mode", "has_logprobs"), [("choose", False), ("generate", True)])
def test_packed_samples_have_only_the_likelihoods_that_metrics_use(
    mode: str, has_logprobs: bool
) -> None:
    table = pa.table({"mode": [mode] * 2, "logprobs": [[-1.0], [-2.0, -3.0]], "f1": [0.0, 1.0]})
    kept = ["mode", *(["logprobs"] if has_logprobs else []), "f1"]
    assert drop_unread_columns(table).column_names == kept


def test_a_run_in_a_folder_stands_for_the_packed_one(suite: Path, tmp_path: Path) -> None:
    pack(suite)
    (suite / "aa11").mkdir()
    newer = record("aa11", created="2026-01-01T00:00:00+00:00")
    save_record(newer, suite / "aa11")
    assert list_runs(suite) == [suite / run for run in ("cc33", "bb22", "aa11")]
    assert load_record(suite / "aa11") == newer
    assert pack(suite) == 1
    assert load_record(suite / "aa11") == newer
    with pytest.raises(UserError, match="aa11"):
        read_samples(suite / "aa11")  # its samples were those of the other


def test_packed_runs_are_found_like_folders(suite: Path, tmp_path: Path) -> None:
    def found(*names: str) -> list[str]:
        return [str(run.relative_to(suite)) for run, _ in select_runs(names, suite, {}).runs]

    names = (
        str(suite),
        f"{suite}/*",
        f"{suite}/bb*",
        f"{tmp_path}/s*e/aa11",
        f"{suite}/cc33",
        "aa",
    )
    before = {name: found(name) for name in names}
    assert [len(runs) for runs in before.values()] == [3, 3, 1, 1, 1, 1]
    pack(suite)
    assert {name: found(name) for name in names} == before
    assert found() == found(f"{suite}/runs.parquet") == list(RUNS)
    with pytest.raises(UserError, match="dd"):
        found("dd")


MARK = "MARKER-of-a-text"
DIGEST = re.compile(r"(sha256:[0-9a-f]{16})?")
KEY = re.compile(r"[\w.@/:+#-]*", re.ASCII)


def texts_in(table: Any) -> Iterator[tuple[str, str]]:
    """(column, text) of every string of a table, those of lists too."""
    for name in table.column_names:
        for cell in table[name].to_pylist():
            cells = cell if isinstance(cell, list) else [cell]
            yield from ((name, each) for each in cells if isinstance(each, str))


def check_no_text(suite: Path) -> None:
    """Every string is a digest, a name without a blank, or one of few known words."""
    columns = set(parquet.ParquetFile(suite / SCORES_FILE).schema_arrow.names)
    subtasks: dict[str, set[str | None]] = {}
    for name, text in texts_in(parquet.read_table(suite / RUNS_FILE, columns=["record"])):
        content = json.loads(text)
        subtasks[content["id"]] = {row["subtask"] for row in content["rows"]}
        assert name == "record"
    for name, text in texts_in(parquet.read_table(suite / SCORES_FILE)):
        if name == "own_columns":
            assert set(text.split()) <= columns
        elif name == "mode":
            assert text in MODES
        elif name in ("run", "episode", "key", "source_key"):
            assert DIGEST.fullmatch(text) or (KEY.fullmatch(text) and len(text) <= 80), (name, text)
        elif name == "subtask":
            assert any(text in known for known in subtasks.values()) or KEY.fullmatch(text), text
        else:
            assert DIGEST.fullmatch(text), (name, text)


def marked(folder: Path) -> None:
    """A run whose every text has a mark, of all three kinds of queries."""
    text = f"{MARK} of others"
    wants = (
        Generate(answers=(f"{MARK} a", "b")),
        Choose(options=(MARK, "no")),
        Score(continuation=MARK),
    )
    samples = []
    for want in wants:
        plain = sample(f"key of {text}", f"episode of {text}")
        ask = replace(plain.ask, prompt=text, want=want, source_key=text, subtask=text)
        samples.append(
            replace(
                plain, ask=ask, answer=Answer(prediction=text, logprobs=(-1.5,), tokens=(2,))
            ).to_row()
        )
    folder.mkdir(parents=True)
    save_record(record(folder.name), folder)
    store_samples(folder, [{**each, "a_new_column": text} for each in samples])


def test_committed_scores_hold_no_text() -> None:
    for scores in (ROOT / "results" / "english").glob(f"*/{SCORES_FILE}"):
        check_no_text(scores.parent)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("file:/home/ada/data/dev.json", "file:dev.json"),
        ("folder:results/data/pg19/", "folder:pg19"),
        ("read /home/ada/x.json, then ~/y/z.txt", "read x.json, then z.txt"),
        ("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("<s>/x</s>", "<s>/x</s>"),
    ],
)
def test_of_a_path_its_last_part_stays_and_all_else_does(text: str, told: str) -> None:
    assert remove_paths({"notes": [text], text: 1}) == {"notes": [told], told: 1}


def test_paths_that_the_configuration_names_or_that_are_here_are_found_in_every_text(
    tmp_path: Path,
) -> None:
    (tmp_path / "models" / "my model").mkdir(parents=True)
    config = {
        "source": "data/of mine/dev.json",
        "checkpoint": "runs/a/mac",
        "settings": {"encoder": str(tmp_path)},
    }
    found = remove_paths(
        {"config": config, "notes": ["data/of mine/dev.json is short"], "model": {"name": "x/y"}}
    )
    assert found["config"] == {
        "source": "dev.json",
        "checkpoint": "mac",
        "settings": {"encoder": tmp_path.name},
    }
    assert found["notes"] == ["dev.json is short"]
    assert found["model"] == {"name": "x/y"}


def test_no_text_of_samples_and_no_words_of_the_chat_are_in_the_file(tmp_path: Path) -> None:
    marked(tmp_path / "aa11")
    words = {"start": f"{MARK}: be helpful", "chat_end": "", "name": "nano"}
    found = load_record(tmp_path / "aa11").model_copy(update={"model": words})
    save_record(found, tmp_path / "aa11")
    write_submission(tmp_path / "b.parquet", [export_run(tmp_path / "aa11", found)])
    table = parquet.read_table(tmp_path / "b.parquet")
    parquet.write_table(table, tmp_path / "plain", compression="none", use_dictionary=False)
    assert MARK.encode() not in (tmp_path / "plain").read_bytes()
    run = tmp_path / "b.parquet" / "aa11"
    again = load_record(run)
    assert again.model == {"start": digest_of(words["start"]), "chat_end": "", "name": "nano"}
    columns = read_samples(run, record=again)  # digests of texts are those of their digests
    assert set(columns) == set(again.sample_digests)
    assert columns["f1"] == [1.0] * 3


def test_committed_runs_lose_no_score_and_keep_no_path(ttabench: Command, tmp_path: Path) -> None:
    suite = ROOT / "results" / "english" / "msc"
    assert ttabench("export", suite, "-o", tmp_path / "b.parquet").code == 0
    found = ttabench(
        "compare", tmp_path / "none", "--out", tmp_path, tmp_path / "b.parquet", "--json"
    )
    assert found.code == 2, "a name that leads nowhere is still refused"
    theirs = ttabench("compare", tmp_path / "b.parquet", "--json").json()
    ours = ttabench("compare", suite, "--json").json()
    figures = ("value", "stderr", "n")  # labels name the source, and rows are in their order
    for table, columns in (("runs", figures), ("differences", ("p",))):
        shown = [
            sorted(tuple(row[name] for name in columns) for row in rows[table])
            for rows in (theirs, ours)
        ]
        assert shown[0] == shown[1]
    texts = [
        text for _, text in texts_in(parquet.read_table(suite / RUNS_FILE, columns=["record"]))
    ]
    assert any("results/" in text for text in texts)
    for text in parquet.read_table(tmp_path / "b.parquet")["record"].drop_null().to_pylist():
        assert "results/" not in text
        assert json.loads(text)["code"]["commit"]
