"""What the attacks found, each with the smallest input that showed it."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.conftest import MAC, Command, one_line
from tests.readers.test_bad_sources import put, refusal
from ttabench.core import memory
from ttabench.core.checked_file import Unreadable, json_of, plain
from ttabench.core.files import PART
from ttabench.lm.loading import safetensors_io
from ttabench.methods.state_header import header_digest as _digest

fifos = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="refused: no pipes with names here")


@fifos
def test_a_pipe_is_not_waited_for(ttabench: Command, common: list[object], tiny_base: Path, tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.csv.gz", "a.parquet", "a.json"):
        os.mkfifo(tmp_path / name)
        assert "it is no plain file" in refusal("streamingqa", tmp_path / name)
    for read in (json_of, plain, safetensors_io.read):
        with pytest.raises(Unreadable):
            read(tmp_path / "a.json")
    for name in ("run/run.json", "state/state.json", "model/tokenizer.json"):
        (tmp_path / name).parent.mkdir()
        os.mkfifo(tmp_path / name)
    (tmp_path / "model" / "config.json").write_bytes((tiny_base / "config.json").read_bytes())
    one_line(ttabench("compare", tmp_path / "run"))
    assert "it is no plain file" in one_line(ttabench("eval", *common, "--state", tmp_path / "state"))
    words = ("--model", tmp_path / "model", "--source", "mini", "--method", "none")
    assert "is no file" in one_line(ttabench("eval", *words))


@fifos
def test_no_file_of_a_user_is_waited_for(ttabench: Command, tiny_base: Path, tmp_path: Path) -> None:
    """A pipe that nobody writes, and a device that never ends."""
    for name in ("notes.txt", "model.gguf"):
        os.mkfifo(tmp_path / name)
    for file in (tmp_path / "notes.txt", Path("/dev/zero")):
        words = ("--context", file, "--model", tiny_base)
        assert "it is no plain file" in one_line(ttabench("adapt", *words, "--out", tmp_path / "state"))
        assert "it is no plain file" in one_line(ttabench("ask", "Who?", *words))
    assert "it is no plain file" in one_line(ttabench("eval", "--model", tmp_path / "model.gguf", "--method", "none"))


def test_what_is_too_long_or_too_deep_is_not_read(tmp_path: Path) -> None:
    path = put(tmp_path, "a.json", '{"a": 1}')
    assert json_of(path, 8) == {"a": 1}
    with pytest.raises(Unreadable, match="too long"):
        json_of(path, 7)
    with pytest.raises(Unreadable, match="nested too deep"):
        json_of(put(tmp_path, "a.json", "[" * 100_000))


def test_a_broken_archive_of_bytes_that_are_no_text(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b"text,question,answers\n" + b"\xff" * 20, mtime=0))
    packed[-8] ^= 1  # its checksum
    assert "a.csv.gz" in refusal("streamingqa", put(tmp_path, "a.csv.gz", bytes(packed)))


@pytest.mark.parametrize(
    "change",
    [
        {"method": 1},
        {"base_name": None},
        {"step": "2"},
        {"stands_on": ["a"]},
        {"stands_on": {"name": 1}},
        {"settings": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("flag", ["--checkpoint", "--base-checkpoint"])
def test_a_header_of_wrong_types(
    ttabench: Command, common: list[object], trained: Path, change: dict[str, Any], flag: str
) -> None:
    said = json.loads((trained / "adapter.json").read_text())
    (trained / "adapter.json").write_text(json.dumps({**said, **change}))
    method = "mac" if flag == "--checkpoint" else "none"
    assert "adapter.json is damaged" in one_line(ttabench("eval", "--method", method, *common, flag, trained))


ODD_SETTINGS = [
    ({"hierarchy": float("inf")}, "hierarchy is Infinity"),
    ({"hierarchy": 10**18}, "hierarchy is larger than any model"),
    ({"retrieval_aux": float("nan")}, "retrieval_aux must be a finite number, got nan"),
    ({"embeddings_from_base": [None]}, r"embeddings_from_base is \[null\]"),
    ({"amortiser": 3}, "amortiser is 3"),
    ({"nope": 3}, "unexpected keyword argument 'nope'"),
]


@pytest.mark.parametrize(("change", "told"), ODD_SETTINGS, ids=[str(change) for change, _ in ODD_SETTINGS])
def test_settings_of_a_checkpoint_are_of_their_types(
    ttabench: Command, common: list[object], trained: Path, change: dict[str, Any], told: str
) -> None:
    said = json.loads((trained / "adapter.json").read_text())
    (trained / "adapter.json").write_text(json.dumps({**said, "settings": {**said["settings"], **change}}))
    line = one_line(ttabench("eval", "--method", "mac", *common, "--checkpoint", trained))
    assert re.search(f"Settings of the checkpoint .* do not fit: .*{told}", line), line
    one_line(ttabench("eval", "--method", "none", *common, "--base-checkpoint", trained))


@pytest.mark.parametrize("field", ["settings", "training"])
def test_a_header_nested_deep_is_damaged(ttabench: Command, common: list[object], trained: Path, field: str) -> None:
    """It is parsed, and whatever walks through it would call itself until Python ends."""
    said = json.dumps({**json.loads((trained / "adapter.json").read_text()), field: "@"})
    (trained / "adapter.json").write_text(said.replace('"@"', '{"a": ' + "[" * 900 + "1" + "]" * 900 + "}"))
    for flag, method in (("--base-checkpoint", "none"), ("--checkpoint", "mac")):
        assert "adapter.json is damaged" in one_line(ttabench("eval", "--method", method, *common, flag, trained))


def test_depth_is_that_of_lists_and_objects(tmp_path: Path) -> None:
    for depth, text in ((100, "[" * 100 + "]" * 100), (100, '{"a":' * 100 + "1" + "}" * 100)):
        assert json_of(put(tmp_path, "a.json", text)), depth
        with pytest.raises(Unreadable, match="nested too deep"):
            json_of(put(tmp_path, "a.json", f"[{text}]"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--lr", "nan"], "lr and clip must be positive, got nan"),
        (["--lr", "inf"], "lr and clip must be positive, got inf"),
        (["--clip", "nan"], "lr and clip must be positive"), (["--decay", "nan"], "decay must be at least 0, got nan"),
        (["--decay", "inf"], "decay must be at least 0, got inf"),
        (["--set", "rank=922337203685477580"], "rank is larger than any model, 922337203685477580"),
        (["--set", "alpha=nan"], "alpha must be a finite number, got nan"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)  # fmt: skip
def test_numbers_with_which_nothing_is_computed(
    ttabench: Command, tiny_base: Path, tmp_path: Path, words: list[str], told: str
) -> None:
    small = ("--model", tiny_base, "--source", "mini", "--steps", 1, "--documents", 1, "--questions", 1)
    assert told in one_line(ttabench("train", "--method", "lora", *small, *words, "--out", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_size_that_overflows_is_too_large(tiny_base: Path) -> None:
    """Within the bounds of every setting, and beyond those of any product."""
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**40, 2**40)
    assert memory.out_of_memory(refused.value)
    assert not memory.out_of_memory(RuntimeError("sizes do not fit each other"))


Tensors = dict[str, Tensor]
DAMAGE: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "a moment is missing": (lambda found: found.pop("moment.0.exp_avg"), "0.exp_avg is missing"),
    "a parameter is missing": (lambda found: found.pop(min(n for n in found if n[0] == "p")), "is missing"),
    "one has no place": (lambda found: found.update({"parameter.x": torch.ones(1)}), "x has no place"),
    "one is of no kind": (lambda found: found.update({"x.y": torch.ones(1)}), "KeyError: 'x'"),
    "one is longer": (lambda found: found.update({"moment.0.exp_avg": torch.ones(1)}), "0.exp_avg is [1], not"),
    "one is not finite": (lambda found: found["moment.0.exp_avg"].fill_(float("nan")), "not finite"),
}


@pytest.mark.parametrize("name", list(DAMAGE))
def test_a_save_that_does_not_fit(
    ttabench: Command, common: list[object], trained: Path, tmp_path: Path, name: str
) -> None:
    damage, told = DAMAGE[name]
    (file,) = trained.glob("training/*/state.safetensors")
    found = load_file(file)
    damage(found)
    save_file(found, file, {"step": "2"})
    line = one_line(ttabench("train", "--method", "mac", *MAC, "--model", common[5], "--source", "mini", "--steps", 2,
                             "--documents", 2, "--out", trained))  # fmt: skip
    assert "The training state in" in line
    assert told in line
    assert "--force" in line


@pytest.mark.parametrize("record", [{"steps": "2"}, {"losses": [1.0]}, {"losses": None}, {"more": 1}], ids=str)
def test_a_record_of_a_training_of_wrong_types(
    ttabench: Command, common: list[object], trained: Path, record: dict[str, Any]
) -> None:
    (file,) = trained.glob("training/*/training.json")
    said = json.loads(file.read_text())
    file.write_text(json.dumps({**said, "record": {**said["record"], **record}}))
    line = one_line(ttabench("train", "--method", "mac", *MAC, "--model", common[5], "--source", "mini", "--steps", 2,
                             "--documents", 2, "--out", trained))  # fmt: skip
    assert "The training state in" in line


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"meta": None}, "is of another version, or corrupted|was changed"), ({"rows": "1"}, "was changed"),
        ({"read": [{"a": 1}]}, "was changed"), ({"read": 3}, "was changed"),
        ({"read": [{"file": 1, "digest": "a", "pieces": "file"}]}, "was changed"),
        ({"meta": {"tokens_read": [[1]]}}, "was changed"), ({"meta": {}}, "does not fit icl"),
    ],
    ids=str,
)  # fmt: skip
def test_a_state_made_up_by_somebody(
    ttabench: Command, common: list[object], tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    """Its digests fit; what it holds does not."""
    (tmp_path / "notes.txt").write_text("Ada Voss lives in Port Ansel.")
    out = tmp_path / "state"
    assert ttabench("adapt", "--model", common[5], "--context", tmp_path / "notes.txt", "--out", out).code == 0
    said = {**json.loads((out / "state.json").read_text()), **change}
    (out / "state.json").write_text(json.dumps({**said, "digest": _digest(said)}))
    more = ["adapt", "--model", common[5], "--context", tmp_path / "notes.txt", "--out", tmp_path / "more"]
    line = one_line(ttabench(*more, "--state", out))
    assert any(part in line for part in told.split("|")), line


def test_what_is_typed_too_long_is_cut_in_the_middle(ttabench: Command) -> None:
    line = one_line(ttabench("compare", "--format", "9" * 5000))
    assert len(line) < 1100
    assert "Known: " in line


def test_what_a_kill_left_of_a_stored_run_goes(ttabench: Command, common: list[object]) -> None:
    ran = ttabench("eval", "--method", "none", *common, "--json").json()["runs"][0]
    partial, part = Path(ran["folder"]) / "partial.jsonl", Path(ran["folder"]) / f".run.json.abc{PART}"
    for path in (partial, part):
        path.write_text("{}\n")
    assert ttabench("eval", "--method", "none", *common, "--json").json()["runs"][0]["how"] == "stored"
    assert not partial.exists()
    assert not part.exists()
