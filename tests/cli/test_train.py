"""`ttabench train`: what it says of a short training, and what it leaves where it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.conftest import Command, error_line
from ttabench.methods.checkpoints import read_header


def test_a_training_on_weights_that_changed_since_is_another_one(
    ttabench: Command, tiny_base: Path, tmp_path: Path
) -> None:
    """Also where they did in the middle of a tensor, where no fingerprint looks."""
    base, out = tmp_path / "base", tmp_path / "out"
    shutil.copytree(tiny_base, base)
    words = f"train --method lora --set rank=2 --model {base} --source mini --documents 1 --steps 2 --out {out}".split()
    assert ttabench(*words).code == 0
    stamp = (out / "adapter.safetensors").read_bytes()
    assert ttabench(*words).code == 0, "it is stored"
    tensors = load_file(base / "model.safetensors")
    name = next(name for name in tensors if "q_proj" in name)
    tensors[name][8:16] = 0
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    assert "model (data): " in error_line(ttabench(*words))
    assert (out / "adapter.safetensors").read_bytes() == stamp
    assert ttabench(*words, "--force").code == 0


def test_several_tasks_take_turns(ttabench: Command, tiny_base: Path, tmp_path: Path) -> None:
    """Odd steps are those of the task, even ones of the other; the checkpoint says of what it is."""
    words = [
        "train",
        "--method",
        "ccm",
        "--set",
        "comp_tokens=2",
        "--model",
        tiny_base,
        "--source",
        "mini",
        "--documents",
        1,
        "--questions",
        1,
        "--validate-every",
        0,
        "--lr",
        "1e-9",
    ]

    def losses(out: str, task: str, steps: int, *more: object) -> list[float]:
        ran = ttabench(*words, "--task", task, "--steps", steps, *more, "--out", tmp_path / out)
        assert ran.code == 0, ran.err
        lines = (tmp_path / out / "curve.jsonl").read_text(encoding="utf-8").splitlines()
        return [round(json.loads(line)["loss"], 3) for line in lines]

    one, other = losses("one", "streamingqa", 2), losses("other", "squad_seq", 1)
    both = losses("both", "streamingqa", 3, "--also", "squad_seq")
    assert both == [one[0], other[0], one[1]]
    assert len(set(both)) == len(both)
    (also,) = read_header(tmp_path / "both").training["config"]["data"]["also"]
    assert (also["task"], also["source"]) == ("squad_seq", "mini")
    assert "also" not in read_header(tmp_path / "one").training["config"]["data"]
    mixture = tmp_path / "mixture.yaml"
    mixture.write_text("tasks: [streamingqa, squad_seq prompt=qa]")
    assert losses("mixed", str(mixture), 3)[::2] == both[::2]
    again = ttabench(*words, "--task", mixture, "--steps", 3, "--out", tmp_path / "mixed")
    assert "eval --method ccm --task streamingqa " in again.out + again.err, (
        "a mixture cannot be evaluated"
    )
    data = read_header(tmp_path / "mixed").training["config"]["data"]
    assert (data["task"], data["also"][0]["task"], data["also"][0]["options"]) == (
        "streamingqa",
        "squad_seq",
        ["prompt=qa"],
    )
    mixture.write_text("tasks: [{task: streamingqa}]")
    assert "tasks" in error_line(ttabench(*words, "--task", mixture, "--out", tmp_path / "wrong"))
    again = ttabench(*words, "--task", "streamingqa", "--steps", 3, "--out", tmp_path / "both")
    assert "--force" in error_line(again)


def test_what_a_training_takes_is_reported_on_paper(ttabench: Command, tmp_path: Path) -> None:
    words = "train --method ccm --model llama-3-8b --random-weights --source mini --json".split()
    words += f"--dtype bfloat16 --steps 1000 --out {tmp_path / 'adapter'} --dry-run".split()
    ((plain,), (again,)) = (
        ttabench(*words, *more).json()["training on paper"] for more in ((), ("--recompute",))
    )
    pieces, asked = 16 * 256, 16 * (32 + 16 - 1)
    assert plain["tokens"] == again["tokens"] == 1000 * (pieces + asked)
    assert again["flops"] == 1.5 * plain["flops"] > 1.5 * 4 * 7e9 * 1000 * pieces
    weights = 2 * 8_030_261_248 + 16 * plain["trained_weights"]
    assert weights < again["memory_bytes"] < 1.2 * weights < plain["memory_bytes"]
    assert not (tmp_path / "adapter").exists()
    lora = "train --method lora --dry-run --json".split()
    bare, behind = (
        ttabench(*lora, *more).json()["training on paper"][0]["flops"]
        for more in ((), ("--set", "full_context=true"))
    )
    assert behind > 1.4 * bare, "the documents are read, too"
    assert "compressive" in error_line(ttabench("train --method compressive --dry-run"))
    assert "icl has no parameters to train" in error_line(ttabench("train --method icl --dry-run"))


@pytest.mark.parametrize(
    "words", [["--steps", "9" * 20], ["--batch-documents", "100000"], ["--save-every", "9" * 20]]
)
def test_a_training_without_end_is_refused(
    ttabench: Command, tmp_path: Path, words: list[str]
) -> None:
    ran = ttabench("train --method mac", *words, "--out", tmp_path / "out")
    assert words[0].removeprefix("--").replace("-", "_") in error_line(ran).replace("-", "_")
    assert not (tmp_path / "out" / "adapter.json").exists()
