"""What `adapt` does to the folder it is given: it writes its own files and never replaces those of others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import Command, CommandResult, error_line
from ttabench import Session
from ttabench.core.errors import UserError

Adapt = Callable[..., CommandResult]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.fixture
def adapt(ttabench: Command, tiny_base: Path, tmp_path: Path) -> Adapt:
    """`ttabench adapt` into `tmp_path / "out"`, by default with icl."""
    (tmp_path / "notes.txt").write_text("Ada Voss lives in Port Ansel.")

    def call(*more: object, method: str = "icl") -> CommandResult:
        settings = ["--set", "rank=2", "--set", "prefix=0"] if method == "templora" else []
        words = f"--model {tiny_base} --context {tmp_path / 'notes.txt'} --out {tmp_path / 'out'} --json".split()
        return ttabench(f"adapt --method {method}", *settings, *words, *more)

    return call


@pytest.mark.parametrize("force", [(), ("--force",)], ids=["plain", "force"])
@pytest.mark.parametrize("method", ["icl", "templora"])
def test_a_lora_of_the_users_is_never_touched(
    adapt: Adapt, tmp_path: Path, method: str, force: tuple[str]
) -> None:
    peft = tmp_path / "out" / "peft"
    peft.mkdir(parents=True)
    for name in ("adapter_config.json", "adapter_model.safetensors", "README.md"):
        (peft / name).write_text(f"my own {name}")
    before = contents(tmp_path / "out")
    line = error_line(adapt(*force, method=method))
    assert "peft" in line
    assert "--out" in line
    assert contents(tmp_path / "out") == before


def test_an_earlier_state_is_replaced_only_on_demand(adapt: Adapt, tmp_path: Path) -> None:
    assert adapt(method="templora").code == 0
    before = contents(tmp_path / "out")
    assert "--force" in error_line(adapt())
    assert contents(tmp_path / "out") == before
    assert "peft" not in adapt("--force").json()
    after = contents(tmp_path / "out")
    assert after.keys() == {"state.json", "state.safetensors", ".lock", ".ttabench.json"}
    assert json.loads(after["state.json"])["method"] == "icl"


def test_a_lora_without_what_stands_in_the_window_reports_so(adapt: Adapt) -> None:
    assert "peft_without" not in adapt(method="templora").json()
    window = adapt("--force", "--set", "prefix=9", method="templora").json()
    assert "the last 8 tokens" in window["peft_without"]


@pytest.mark.parametrize(
    ("method", "words", "leaves"),
    [("lora", (), True), ("cartridge", ("slots=8", "steps=1", "seeds="), True), ("icl", (), False)],
)
def test_what_does_not_grow_leaves_for_peft(
    adapt: Adapt, method: str, words: Sequence[str], leaves: bool
) -> None:
    written = adapt(*(part for word in words for part in ("--set", word)), method=method).json()
    assert ("peft" in written) == leaves


def test_reading_on_is_reading_both(
    adapt: Adapt, ttabench: Command, tiny_base: Path, tmp_path: Path
) -> None:
    assert adapt().code == 0
    (tmp_path / "more.txt").write_text("Bo Lind collects blue stamps.")
    words = (
        f"adapt --method icl --model {tiny_base} --json --context {tmp_path / 'more.txt'}".split()
    )
    assert ttabench(*words, "--state", tmp_path / "out", "--out", tmp_path / "on").code == 0
    both = f"--context {tmp_path / 'notes.txt'} {tmp_path / 'more.txt'} --out {tmp_path / 'once'}".split()
    assert ttabench(*words[:-2], *both).code == 0
    on, once = (load_file(tmp_path / name / "state.safetensors") for name in ("on", "once"))
    for name, tensor in once.items():
        torch.testing.assert_close(on[name], tensor)
    line = error_line(
        ttabench(
            *words, "--method", "none", "--state", tmp_path / "out", "--out", tmp_path / "other"
        )
    )
    assert "was made with method icl, not none" in line
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["state.json", "state.safetensors", "peft", ".ttabench.json"])
def test_a_session_saves_as_adapt_does(tmp_path: Path, name: str) -> None:
    session = Session("nano", "icl")
    session.read("Ada Voss lives in Port Ansel.")
    (tmp_path / name).write_text("MINE")
    for force in (False, True):
        with pytest.raises(UserError, match=name):
            session.save(tmp_path, force=force)
    assert contents(tmp_path) == {name: b"MINE"}
    before = contents(session.save(tmp_path / "new"))
    with pytest.raises(UserError, match="--force"):
        session.save(tmp_path / "new")
    session.read("Bo Lind collects blue stamps.")
    after = contents(session.save(tmp_path / "new", force=True))
    assert after.keys() == before.keys()
    assert after["state.safetensors"] != before["state.safetensors"]
    assert Session("nano", "icl", tmp_path / "new").ask("Who collects stamps?") == session.ask(
        "Who collects stamps?"
    )


@pytest.mark.parametrize(
    "words",
    [
        ("adapt", "--context", "notes.txt"),
        ("train", "--method", "lora", "--task", "superglue", "--steps", 1),
        ("eval", "--method", "none", "--limit", 1),
        ("new", "method", "mine"),
    ],
)
def test_an_empty_path_is_no_folder_to_write_in(
    ttabench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Sequence[object]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("Ada Voss lives in Port Ansel.")
    assert "--out" in error_line(ttabench(*words, "--out", ""))
    assert contents(tmp_path).keys() == {"notes.txt"}
