"""Samples without texts: nothing can be read from them, and everything can be compared."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from tests.conftest import Command
from tests.places import ROOT
from tests.records.test_records import record, sample, store_samples
from ttabench.core.types import Answer, Choose, Generate, Score
from ttabench.records.packing import pack
from ttabench.records.samples import MODES, SCORES_FILE, digest_of, name_of
from ttabench.records.schema import RUNS_FILE, SAMPLES_FILE, load_record, save_record

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
    wants = (Generate(answers=(f"{MARK} a", "b")), Choose(options=(MARK, "no")), Score(continuation=MARK))
    samples = []
    for want in wants:
        plain = sample(f"key of {text}", f"episode of {text}")
        ask = replace(plain.ask, prompt=text, want=want, source_key=text, subtask=text)
        samples.append(replace(plain, ask=ask, answer=Answer(prediction=text, logprobs=(-1.5,), tokens=(2,))).flat())
    folder.mkdir(parents=True)
    save_record(record(folder.name), folder)
    store_samples(folder, [{**each, "a_new_column": text} for each in samples])


def test_no_text_is_in_the_file_whatever_the_samples_hold(tmp_path: Path) -> None:
    marked(tmp_path / "suite" / "aa11")
    pack(tmp_path / "suite", scores=True)
    assert any(MARK in text for _, text in texts_in(parquet.read_table(tmp_path / "suite" / SAMPLES_FILE)))
    check_no_text(tmp_path / "suite")
    table = parquet.read_table(tmp_path / "suite" / SCORES_FILE)
    parquet.write_table(table, tmp_path / "plain", compression="none", use_dictionary=False)
    for content in ((tmp_path / "plain").read_bytes(), (tmp_path / "suite" / SCORES_FILE).read_bytes()):
        assert MARK.encode() not in content
    assert table["f1"].to_pylist() == [1.0] * 3
    assert table["logprobs"].to_pylist() == [[-1.5]] * 3


def test_digests_tell_texts_apart_and_stay_themselves() -> None:
    assert digest_of("Paris") == digest_of("Paris") == digest_of(digest_of("Paris"))
    assert len({digest_of(text) for text in ("Paris", "paris", "Paris ", "")}) == 4
    assert digest_of("") == ""
    for key in ("56be4db0acb8001400a502ec", "squad_seq/test/seed0", "10@16", "Mercury_7175875", ""):
        assert name_of(key) == key
    for key in ("Who wrote it?", "a" * 81, "où", "a\n"):
        assert DIGEST.fullmatch(name_of(key))
        assert name_of(name_of(key)) == name_of(key)


def test_committed_scores_hold_no_text() -> None:
    for scores in (ROOT / "results" / "english").glob(f"*/{SCORES_FILE}"):
        check_no_text(scores.parent)


@pytest.fixture
def suites(ttabench: Command, tmp_path: Path) -> tuple[Path, Path]:
    """The same two runs with their texts, and packed without."""
    common = ("--task", "streamingqa", "--task-set", "documents=8", "--limit", "8", "--out", tmp_path / "runs")
    for method in ("none", "icl"):
        ran = ttabench("eval", "--method", method, *common)
        assert ran.code == 0, ran.err
    for place in ("whole", "bare"):
        shutil.copytree(tmp_path / "runs", tmp_path / place / "s")
    pack(tmp_path / "bare" / "s", scores=True)
    (tmp_path / "bare" / "s" / SAMPLES_FILE).unlink()
    return tmp_path / "whole" / "s", tmp_path / "bare" / "s"


def test_what_is_compared_is_what_the_texts_would_give(suites: tuple[Path, Path], ttabench: Command) -> None:
    told = []
    for suite in suites:
        ran = ttabench("compare", suite, "--json")
        assert ran.code == 0, ran.err
        told.append(ran.out.replace(str(suite), ""))
    assert told[0] == told[1]
    (difference,) = json.loads(told[1])["differences"]
    assert difference["n"] == 8
    assert difference["p"] is not None


def test_a_run_with_texts_is_paired_with_one_without(suites: tuple[Path, Path], ttabench: Command) -> None:
    whole, bare = suites
    ids = {load_record(path.parent).config["method"]: path.parent.name for path in whole.glob("*/run.json")}
    (difference,) = ttabench("compare", whole / ids["none"], bare / ids["icl"], "--json").json()["differences"]
    (expected,) = ttabench("compare", whole, "--json").json()["differences"]
    assert difference == expected
    one = ttabench("show", bare / ids["icl"], "--differs", whole / ids["none"], "--json").json()["samples"]
    both = ttabench("show", whole / ids["icl"], "--differs", whole / ids["none"], "--json").json()["samples"]
    assert [each["key"] for each in one] == [each["key"] for each in both]
    assert ttabench("show", bare / ids["icl"], "--differs", whole / ids["icl"], "--json").json()["samples"] == []
