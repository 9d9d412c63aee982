"""The command line as a user meets it: results, what is stored, what goes on, what is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.conftest import SMALL_MAC_OPTIONS, Command, error_line
from tests.qa_files import write_jsonl
from ttabench.records.samples import read_samples
from ttabench.records.schema import RunRecord, load_record
from ttabench.run import evaluation
from ttabench.run.plan import make_plan
from ttabench.run.request import RunRequest


def test_eval_shows_a_table_and_stores_a_record(
    ttabench: Command, common: str, tmp_path: Path
) -> None:
    ran = ttabench(f"eval --method none {common} --seed 3")
    assert ran.code == 0, ran.err
    for shown in ("f1_max", "±", "adapt s", "ask ms", "peak memory", "mini", "Stored in"):
        assert shown in ran.out
    (folder,) = (tmp_path / "runs").iterdir()
    record = load_record(folder)
    assert record.id == folder.name
    assert record.source == "mini"
    assert record.n > 0
    assert record.config["seed"] == 3
    assert record.versions["torch"]
    assert record.hardware["cores"]
    assert {row.metric for row in record.rows} == {
        "em",
        "em_prefix",
        "f1",
        "f1_max",
        "answer_nll",
        "answer_nll_sum",
    }
    assert len(read_samples(folder)["key"]) == record.n


def test_the_same_eval_again_returns_what_is_stored(
    ttabench: Command, common: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ttabench(f"eval --method none {common} --json").json()["runs"][0]
    assert first["how"] == "new"

    def refuse(*arguments: object) -> None:
        raise AssertionError("a stored run needs no model")

    monkeypatch.setattr(evaluation.ModelCache, "get", refuse)
    again = ttabench(f"eval --method none {common} --json").json()["runs"][0]
    assert again == first | {"how": "stored"}
    assert "--force" in ttabench(f"eval --method none {common}").err
    monkeypatch.undo()
    fresh = ttabench(f"eval --method none {common} --json --force").json()["runs"][0]
    assert fresh["how"] == "new"
    assert fresh["id"] == first["id"]


def test_seeds_quiet_compare_and_list(ttabench: Command, common: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    quiet = ttabench(f"eval --method none {common} --seeds 0,1 --quiet")
    folders = quiet.out.split()
    assert quiet.code == 0
    assert quiet.err == ""
    assert [Path(folder).parent for folder in folders] == [runs, runs]
    told = ttabench(f"eval --method icl {common} --seeds 0,1").out
    assert "Main metric: f1. Others: " in told
    assert told.count("f1_max") == 1, "one figure over both seeds, below the table"
    found = ttabench(f"compare --out {runs} --json").json()
    assert {row["method"] for row in found["runs"]} == {"none", "icl"}
    assert found["differences"][0]["n"] == sum(row["n"] for row in found["runs"]) / 2
    for form in ("table", "markdown", "csv"):
        assert "state" in ttabench("compare", *folders, "--format", form).out
    listed = ttabench(f"list runs --out {runs} --json").json()["runs"]
    assert len(listed) == 4
    assert (
        listed[0]["method"]
        in ttabench("compare", listed[0]["run"][:8], "--out", runs, "--metric", "em").out
    )


def test_dry_run_loads_nothing_and_writes_nothing(
    ttabench: Command, common: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(evaluation.ModelCache, "get")
    for method in ("none", "icl"):
        ran = ttabench(f"eval --method {method} {common} --dry-run")
        assert ran.code == 0
        assert "task_options.documents" in ran.out
    found = ttabench(f"eval --method mac {common} {SMALL_MAC_OPTIONS} --dry-run --json").json()
    assert found["runs"][0]["config"]["settings"]["heads"] == 2
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("method", "settings"), [("icl", ""), ("mac", SMALL_MAC_OPTIONS)], ids=["icl", "mac"]
)
def test_adapt_then_eval_from_the_state(
    ttabench: Command, common: str, tiny_base: Path, tmp_path: Path, method: str, settings: str
) -> None:
    notes, more, state = tmp_path / "notes.txt", tmp_path / "more.txt", tmp_path / "state"
    notes.write_text("Ada Voss lives in Port Ansel.\n\nShe sails.")
    more.write_text("The sea is cold.")
    cut = f"--context {notes} {more} --pieces paragraphs"
    words = f"--method {method} {settings}"
    ran = ttabench(f"adapt {words} --model {tiny_base} {cut} --out {state}")
    assert ran.code == 0, ran.err
    assert f'ttabench ask "..." --state {state}' in ran.out
    header = json.loads((state / "state.json").read_text())
    assert header["method"] == method
    assert (state / "state.safetensors").stat().st_size > 0
    asked = ttabench(f"eval {words} {common} --state {state} --ask-only --json")
    assert asked.code == 0, asked.err
    record = asked.json()["runs"][0]
    assert record["cost"]["pieces"] == 0
    assert record["cost"]["state_bytes"] == header["bytes"]
    same = ttabench(f"eval {common} --state {state} --ask-only --json")
    assert same.code == 0, same.err
    (again,) = same.json()["runs"]
    assert (again["id"], again["how"]) == (record["id"], "stored"), (
        "without --method it is the state's own"
    )
    other = ttabench(f"eval --method none {common} --state {state}")
    assert f"made with method {method}, not none" in error_line(other)


def test_train_then_eval(ttabench: Command, common: str, tiny_base: Path, trained: Path) -> None:
    ran = ttabench(f"eval --method mac {common} --checkpoint {trained} --set hierarchy=2 --json")
    assert ran.code == 0, ran.err
    record = ran.json()["runs"][0]
    assert record["method"]["settings"]["heads"] == 2
    assert record["method"]["settings"]["hierarchy"] == 2
    assert record["method"]["training"]
    assert record["config"]["inputs"]["checkpoint"]
    words = f"train --method mac {SMALL_MAC_OPTIONS} --model {tiny_base} --source mini"
    again = ttabench(f"{words} --out {trained}")
    assert "steps (recipe): 2, not 1200" in error_line(again)
    done = ttabench(f"{words} --steps 2 --documents 2 --out {trained} --json")
    assert done.json()["steps"] == 2
    assert "validation_loss" in done.json()


def test_a_bundled_adapter_can_be_named_for_another_task(ttabench: Command, tmp_path: Path) -> None:
    words = f"--method mac --model nano --task-set documents=2 --limit 2 --out {tmp_path}".split()
    ran = ttabench(
        "eval", *words, "--task", "squad_seq", "--checkpoint", "shipped:mac-streamingqa", "--json"
    )
    assert ran.json()["runs"][0]["config"]["checkpoint"] == "shipped:mac-streamingqa"


def test_rows_left_out_stand_in_the_record_and_not_in_the_id(tmp_path: Path) -> None:
    row = {"text": "t", "question": "q", "answers": "word"}

    def run(name: str, *rows: dict[str, str]) -> RunRecord:
        request = RunRequest(
            method="none",
            task="qa",
            source=str(write_jsonl(tmp_path / f"{name}.jsonl", list(rows))),
        )
        return evaluation.execute(
            make_plan(request, seed=0), evaluation.ModelCache(), tmp_path / name
        ).record

    whole, part = run("whole", row), run("part", row, {**row, "answers": ""})
    (excluded,) = set(part.notes) - set(whole.notes)
    assert str(tmp_path / "part.jsonl") in excluded
    assert "(no answer: 1)" in excluded
    assert part.task["notes"] == [*whole.task["notes"], excluded]
    assert part.id == whole.id


def test_threads_are_recorded_and_are_no_part_of_a_run(
    ttabench: Command, common: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    before = torch.get_num_threads()
    first = ttabench(f"eval --method none {common} --threads 3 --json").json()["runs"][0]
    again = ttabench(f"eval --method none {common} --threads 1 --json").json()["runs"][0]
    torch.set_num_threads(before)
    assert first["hardware"]["threads"] == 3
    assert (again["id"], again["how"]) == (first["id"], "stored")
    assert "threads" not in first["config"]
