"""The command line as a user meets it: results, continuing, and one line with exit code 2 for every bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command, Ran
from ttabench import cli, evaluation
from ttabench.records import load_record, read_samples
from ttabench.store import RunFolder, Sample

MAC = ("--preset", "nano", "--set", "heads=2", "--set", "head_dim=8", "--set", "blocks=1",
       "--set", "expansion_hidden=16",
       "--set", "amortiser=scratch:16,1,2,32", "--set", "input_encoder=scratch:16,1,2,32",
       "--set", "embeddings_from_base=false")  # fmt: skip


@pytest.fixture
def common(tiny_base: Path, tmp_path: Path) -> list[object]:
    """A small evaluation on the tiny base."""
    return ["--task", "streamingqa", "--source", "mini", "--model", tiny_base, "--out", tmp_path / "runs",
            "--task-set", "documents=1", "--task-set", "max_new_tokens=4"]  # fmt: skip


def one_line(ran: Ran) -> str:
    """The complaint of a command that refused its input."""
    assert ran.code == 2, ran
    lines = [line for line in ran.err.splitlines() if line.strip()]
    assert len(lines) == 1, ran.err
    assert lines[0].startswith("Error: ")
    assert ran.out == ""
    return lines[0]


def test_eval_shows_a_table_and_stores_a_record(ttabench: Command, common: list[object], tmp_path: Path) -> None:
    ran = ttabench("eval", "--method", "none", *common, "--seed", 3)
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
    assert {row.metric for row in record.rows} == {"em", "em_prefix", "f1", "f1_max"}
    assert len(read_samples(folder)["key"]) == record.n


def test_the_same_eval_again_returns_what_is_stored(
    ttabench: Command, common: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ttabench("eval", "--method", "none", *common, "--json").json()["runs"][0]
    assert first["how"] == "new"

    def refuse(*arguments: object) -> None:
        raise AssertionError("a stored run needs no model")

    monkeypatch.setattr(evaluation.Bases, "get", refuse)
    again = ttabench("eval", "--method", "none", *common, "--json").json()["runs"][0]
    assert again == first | {"how": "stored"}
    shown = ttabench("eval", "--method", "none", *common)
    assert "stored already" in shown.err
    assert "f1" in shown.out
    monkeypatch.undo()
    fresh = ttabench("eval", "--method", "none", *common, "--json", "--force").json()["runs"][0]
    assert fresh["how"] == "new"
    assert fresh["id"] == first["id"]


def test_a_killed_eval_continues(
    ttabench: Command, common: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ["--task-set", "documents=3", "--task-set", "questions=2", "--batch-size", 2, "--method", "icl",
            "--set", "truncate=right"]  # fmt: skip
    whole = ttabench("eval", *common, *more, "--json", "--out", tmp_path / "other").json()["runs"][0]
    append = RunFolder.append

    def die(self: RunFolder, samples: Sequence[Sample]) -> None:
        append(self, samples)
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "append", die)
    killed = ttabench("eval", *common, *more)
    assert killed.code == 130
    assert "goes on" in killed.err
    monkeypatch.setattr(RunFolder, "append", append)
    shown = ttabench("eval", *common, *more)
    assert shown.code == 0
    assert "2 queries are answered already" in shown.err
    runs = tmp_path / "runs"
    again = json.loads((runs / whole["id"] / "run.json").read_text())
    assert [row["value"] for row in again["rows"]] == [row["value"] for row in whole["rows"]]
    columns = ["key", "prediction", "f1"]
    assert read_samples(runs / whole["id"], columns) == read_samples(tmp_path / "other" / whole["id"], columns)


def test_seeds_quiet_compare_and_list(ttabench: Command, common: list[object], tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    quiet = ttabench("eval", "--method", "none", *common, "--seeds", "0,1", "--quiet")
    folders = quiet.out.split()
    assert quiet.code == 0
    assert quiet.err == ""
    assert [Path(folder).parent for folder in folders] == [runs, runs]
    assert ttabench("eval", "--method", "icl", *common, "--seeds", "0,1").out.count("f1_max") >= 2
    found = ttabench("compare", "--out", runs, "--json").json()
    assert {row["method"] for row in found["runs"]} == {"none", "icl"}
    assert found["differences"][0]["n"] == sum(row["n"] for row in found["runs"]) / 2
    for form in ("table", "markdown", "csv"):
        assert "peak" in ttabench("compare", *folders, "--format", form).out
    listed = ttabench("list", "runs", "--out", runs, "--json").json()["runs"]
    assert len(listed) == 4
    assert listed[0]["method"] in ttabench("compare", listed[0]["run"][:8], "--out", runs, "--metric", "em").out


def test_dry_run_loads_nothing_and_writes_nothing(
    ttabench: Command, common: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(evaluation.Bases, "get")
    for method in ("none", "icl"):
        ran = ttabench("eval", "--method", method, *common, "--dry-run")
        assert ran.code == 0
        assert "task_options.documents" in ran.out
        assert "analytic cost" in ran.out
    found = ttabench("eval", "--method", "mac", *common, *MAC, "--dry-run", "--json").json()
    assert found["cost"]["adapt_flops"] > 0
    assert found["runs"][0]["config"]["settings"]["heads"] == 2
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("method", "settings"), [("icl", ()), ("mac", MAC)], ids=["icl", "mac"])
def test_adapt_then_eval_from_the_state(
    ttabench: Command, common: list[object], tmp_path: Path, method: str, settings: tuple[str, ...]
) -> None:
    notes, more, state = tmp_path / "notes.txt", tmp_path / "more.txt", tmp_path / "state"
    notes.write_text("Ada Voss lives in Port Ansel.\n\nShe sails.")
    more.write_text("The sea is cold.")
    base = [*settings, "--model", common[5]]
    cut = ["--context", notes, more, "--pieces", "paragraphs"]
    ran = ttabench("adapt", "--method", method, *base, *cut, "--out", state)
    assert ran.code == 0, ran.err
    assert "--ask-only" in ran.out
    header = json.loads((state / "state.json").read_text())
    assert header["method"] == method
    assert (state / "state.safetensors").stat().st_size > 0
    asked = ttabench("eval", "--method", method, *settings, *common, "--state", state, "--ask-only", "--json")
    assert asked.code == 0, asked.err
    record = asked.json()["runs"][0]
    assert record["cost"]["pieces"] == 0
    assert record["cost"]["state_bytes"] == header["bytes"]
    other = ttabench("eval", "--method", "none", *common, "--state", state)
    assert "of another method" in one_line(other)


@pytest.fixture
def trained(ttabench: Command, common: list[object], tmp_path: Path) -> Path:
    out = tmp_path / "mac"
    ran = ttabench("train", "--method", "mac", *MAC, "--model", common[5], "--source", "mini", "--steps", 2,
                   "--documents", 2, "--out", out, "--json")  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.json()["steps"] == 2
    return out


def test_train_then_eval(ttabench: Command, common: list[object], trained: Path) -> None:
    ran = ttabench("eval", "--method", "mac", *common, "--checkpoint", trained, "--set", "hierarchy=2", "--json")
    assert ran.code == 0, ran.err
    record = ran.json()["runs"][0]
    assert record["method"]["settings"]["heads"] == 2
    assert record["method"]["settings"]["hierarchy"] == 2
    assert record["method"]["training"]
    assert record["config"]["inputs"]["checkpoint"]
    again = ttabench("train", "--method", "mac", *MAC, "--model", common[5], "--source", "mini", "--out", trained)
    assert "--resume" in one_line(again)


def test_a_checkpoint_of_another_base_is_refused(
    ttabench: Command, common: list[object], trained: Path, tmp_path: Path
) -> None:
    from tests.tiny import tiny_llama

    lm, other = tiny_llama(seed=5), tmp_path / "other"
    lm.model.save_pretrained(other)
    lm.tokenizer.save_pretrained(other)
    ran = ttabench("eval", "--method", "mac", *common, "--checkpoint", trained, "--model", other)
    assert "another base model" in one_line(ran)
    (trained / "adapter.safetensors").write_bytes(b"damaged")
    assert "damaged" in one_line(ttabench("eval", "--method", "mac", *common, "--checkpoint", trained))


BAD: dict[str, tuple[list[Any], str]] = {
    "unknown method": (["--method", "makc"], "Did you mean 'mac'?"),
    "unknown task": (["--task", "streaminqa"], "Did you mean 'streamingqa'?"),
    "unknown model": (["--model", "tinylama-1.1b"], "Did you mean 'tinyllama-1.1b'?"),
    "unknown setting": (["--set", "truncat=left"], "Did you mean 'truncate'?"),
    "setting of another type": (["--set", "max_tokens=many"], "int or None"),
    "setting out of its choices": (["--set", "truncate=middle"], "'left'"),
    "setting out of range": (["--set", "max_tokens=0"], "max_tokens must be positive"),
    "no assignment": (["--set", "truncate"], "--set key=value"),
    "unknown task setting": (["--task-set", "document=3"], "Did you mean 'documents'?"),
    "task setting of another type": (["--task-set", "documents=many"], "documents"),
    "unknown split": (["--split", "tset"], "Did you mean 'test'?"),
    "missing source": (["--source", "no/such/file.csv"], "no/such/file.csv"),
    "missing checkpoint": (["--method", "mac", "--checkpoint", "no/such"], "no/such"),
    "missing state": (["--state", "no/such"], "no/such"),
    "checkpoint of nothing": (["--checkpoint", "somewhere"], "nothing trained"),
    "unknown preset": (["--method", "mac", "--preset", "nanno"], "Did you mean 'nano'?"),
    "preset of nothing": (["--preset", "nano"], "no presets"),
    "limit 0": (["--limit", "0"], "limit"),
    "batch size 0": (["--batch-size", "0"], "--batch-size"),
    "seeds": (["--seeds", "1,x"], "--seeds 0,1,2"),
    "device": (["--device", "cuda:77"], "cuda:77"),
    "dtype": (["--dtype", "float23"], "Did you mean 'float32'?"),
    "unknown option": (["--methd", "none"], "--methd"),
    "option of another type": (["--seed", "one"], "--seed"),
    "context too long": (["--task-set", "documents=40"], "truncate=left"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(ttabench: Command, common: list[object], tmp_path: Path, name: str) -> None:
    arguments, hint = BAD[name]
    assert hint in one_line(ttabench("eval", *common, *arguments))
    assert not list((tmp_path / "runs").glob("*")), "a refused run leaves no folder"


def test_bad_files_are_one_line(ttabench: Command, common: list[object], tmp_path: Path) -> None:
    source = tmp_path / "test.csv"
    for content in ("", "text,question\na,b\n", "text,question,answers\n"):
        source.write_text(content)
        assert "test.csv" in one_line(ttabench("eval", "--method", "none", *common, "--source", source))


def test_bad_output_folders_and_records(ttabench: Command, common: list[object], tmp_path: Path) -> None:
    ran = ttabench("eval", "--method", "none", *common, "--out", "/proc/nowhere")
    assert "Cannot write" in one_line(ran)
    assert "--out" in ran.err
    (folder,) = ttabench("eval", "--method", "none", *common, "--quiet").out.split()
    record = Path(folder) / "run.json"
    record.write_text(record.read_text()[:-100])
    for arguments in (
        ["eval", "--method", "none", *common],
        ["compare", folder],
        ["list", "runs", "--out", tmp_path / "runs"],
    ):
        assert "run.json cannot be read" in one_line(ttabench(*arguments))
    shutil.rmtree(folder)
    assert "no runs" in one_line(ttabench("compare", "--out", tmp_path / "runs"))
    assert "holds no runs" in one_line(ttabench("compare", "abc", "--out", tmp_path / "runs"))


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["list", "method"], "Did you mean 'methods'?"),
        (["list", "tasks", "x"], "takes no name"),
        (["list", "methods", "icll"], "Did you mean 'icl'?"),
        (["list", "runs", "--out", "no/such"], "no/such"),
        (["compare", "--format", "cvs"], "Did you mean 'csv'?"),
        (["adapt"], "--context FILE"),
        (["adapt", "--context", "no/such.txt"], "no/such.txt"),
        (["profile", "--repeat", "0"], "repeat"),
        (["train", "--method", "icl", "--source", "mini"], "no parameters"),
        (["train", "--schedule", "cosin", "--source", "mini"], "Did you mean 'cosine'?"),
        (["train", "--lr", "-1", "--source", "mini"], "lr and clip must be positive"),
        (["evl"], "evl"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_other_commands_refuse_in_one_line(
    ttabench: Command, tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if arguments[0] in ("adapt", "profile", "train"):
        arguments = [*arguments, "--model", str(tiny_base)]
    assert hint in one_line(ttabench(*arguments))


@pytest.mark.parametrize("what", ["methods", "tasks", "models"])
def test_lists(ttabench: Command, what: str) -> None:
    expected = {"methods": "mac", "tasks": "streamingqa", "models": "llama-2-7b"}[what]
    assert expected in ttabench("list", what).out
    assert any(expected in row.values() for row in ttabench("list", what, "--json").json()[what])


def test_settings_of_a_method_are_explained(ttabench: Command) -> None:
    shown = ttabench("list", "methods", "mac").out
    assert "hierarchy" in shown
    assert "Algorithm 3" in shown
    assert "int or None" in shown


def test_profile(ttabench: Command, tiny_base: Path) -> None:
    sizes = ["--context-tokens", 100, "--piece-tokens", 50, "--asks", 2, "--repeat", 1, "--model", tiny_base]
    found = ttabench("profile", "--method", "icl", *sizes, "--json").json()
    assert found["pieces"] == 2
    assert found["state_bytes"] > 0
    assert found["ask_ms"] > 0
    assert "adapt peak memory" in ttabench("profile", "--method", "none", *sizes).out


def test_help_and_version(ttabench: Command) -> None:
    assert ttabench("--version").out.startswith("ttabench ")
    for command in ("eval", "train", "adapt", "compare", "list", "profile"):
        assert command in ttabench("--help").out
        assert ttabench(command, "--help").code == 0


def test_an_error_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise AssertionError("our own bug")

    monkeypatch.setattr("ttabench.listing.show", broken)
    with pytest.raises(AssertionError, match="our own bug"):
        cli.run(["list", "models"])
