"""`show`: the command that repeats a run, its scores, and its samples by filter and page."""

from __future__ import annotations

import csv
import io
import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from packing import pack

from tests.conftest import Command, error_line
from tests.records.test_records import record, sample, store_samples
from ttabench.core.types import Answer
from ttabench.records.schema import SAMPLES_FILE, load_record, save_record
from ttabench.report.tables import command_of

OURS, THEIRS = "aaaa00000001", "bbbb00000002"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Two runs of five queries: the second answers one otherwise; both have one wrong."""
    for run, name, given in (
        (OURS, "icl", ["Ada"] * 4 + ["Bob"]),
        (THEIRS, "mac", ["Ada"] * 3 + ["Bob"] * 2),
    ):
        config = {
            "method": name,
            "task": "streamingqa",
            "model": "nano",
            "source": "mini",
            "seed": 0,
        }
        texts = [
            replace(
                sample(f"q{number}", value=float(text == "Ada")),
                answer=Answer(prediction=text, logprobs=(-1.5,), tokens=(2,)),
            ).to_row()
            for number, text in enumerate(given)
        ]
        texts[0]["prompt"] = "a\x1b[2Jb: who?"
        (tmp_path / run).mkdir()
        save_record(record(run, config=config, notes=("a note",)), tmp_path / run)
        store_samples(tmp_path / run, texts)
    return tmp_path


@pytest.mark.parametrize(
    "options",
    [
        "--method icl --limit 3 --seed 2 --batch-size auto",
        "--method mac --set hierarchy=16 --task-set documents=8",
        "--method mac --checkpoint none --preset distilgpt2",
        "--method mac --checkpoint none",
        "--method snapkv --preset streamadapter --set budget=0.5 --task superglue",
        "--method window --preset book --task pg19 --task-set tokens=16k,32k",
        "--method streamadapter --task arc_easy --checkpoint shipped:streamadapter-superglue",
        "--method icl --task metaicl --task-set steps=1,2",
        "--method none --model smollm2-135m-qa --source mini --task squad_seq",
        "--method none --model gpt2 --random-weights --source mini --dtype float32",
        "--method templora --task pg19 --task-set books=1 --bos no",
    ],
)
def test_the_command_gives_the_run_again(ttabench: Command, options: str) -> None:
    def planned(typed: list[str]) -> dict[str, object]:
        ran = ttabench("eval", *typed, "--dry-run", "--json")
        assert ran.code == 0, ran.err
        found: dict[str, object] = ran.json()["runs"][0]
        return found

    words = options.split()
    first = planned(words)
    command, notes = command_of(record(str(first["id"]), config=first["config"]))
    again = planned(shlex.split(command)[2:])
    assert again["id"] == first["id"], command
    assert not notes
    assert len(shlex.split(command)) <= 2 + len(words) + 4, "defaults are left out"


def test_a_run_whose_method_or_checkpoint_is_gone_is_shown_as_it_was(
    ttabench: Command, out: Path
) -> None:
    config = {
        "method": "gone",
        "task": "streamingqa",
        "model": "nano",
        "source": "mini",
        "settings": {"size": 3},
    }
    config |= {"checkpoint": "away", "inputs": {"method": "theirs==1.0"}}
    digests = load_record(out / OURS).sample_digests
    save_record(record("cccc00000003", config=config, n=5, sample_digests=digests), out / OURS)
    ran = ttabench("show", out / OURS)
    assert ran.code == 0, ran.err
    assert "--checkpoint away --set size=3" in ran.out
    assert "theirs==1.0" in ran.out
    assert "checkpoint away is missing" in ran.out


def test_what_a_run_is_stands_above_its_samples(ttabench: Command, out: Path) -> None:
    shown = ttabench(f"show aaaa --out {out}").out
    for words in ("ttabench eval --method icl", "* f1", "ask ms 1.5", "a note", "(2 tokens)"):
        assert words in shown, shown
    assert shown.index("* f1") < shown.index("sample 1: q0") < shown.index("--page 2")
    assert "batch_size" not in shown
    everything = ttabench(f"show aaaa --out {out} --all").out
    assert "batch_size" in everything
    assert "ask ms" in everything


def test_samples_alone_where_some_are_asked_for(ttabench: Command, out: Path) -> None:
    def numbers(*words: str) -> list[str]:
        ran = ttabench("show", OURS, "--out", out, *words)
        assert ran.code == 0, ran.err
        assert "command" not in ran.out
        return [
            line.split()[1].rstrip(":")
            for line in ran.out.splitlines()
            if line.startswith("sample ")
        ]

    assert numbers("--page", "2") == ["5"]
    assert numbers("--page", "2", "--per-page", "2") == ["3", "4"]
    assert numbers("--wrong") == ["5"]
    assert numbers("--grep", "BOB") == ["5"]
    assert numbers("--grep", "nothing of it") == []


def test_other_programs_get_all_samples(ttabench: Command, out: Path) -> None:
    found = ttabench("show", OURS, "--out", out, "--json").json()
    assert found["run"]["command"] == "ttabench eval --method icl --task streamingqa"
    assert [each["prediction"] for each in found["samples"]] == ["Ada"] * 4 + ["Bob"]
    rows = list(
        csv.DictReader(io.StringIO(ttabench("show", OURS, "--out", out, "--format", "csv").out))
    )
    assert [row["sample"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert json.loads(rows[0]["answers"]) == ["Ada"]


def test_a_suite_without_samples_reports_so(ttabench: Command, out: Path) -> None:
    for run in (OURS, THEIRS):
        (out / run / SAMPLES_FILE).unlink()
    pack(out)
    ran = ttabench("show", f"{out}/{OURS}")
    assert ran.code == 0
    assert ran.out.count(f"record of run {OURS}") == 1
    assert OURS in error_line(ttabench("show", f"{out}/{OURS}", "--wrong"))
    assert ttabench("show", f"{out}/{OURS}", "--json").json()["samples"] == []
