"""Cartridges: their initial state, their training, their LoRA form, and their export to peft."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from tests.conftest import Command, error_line
from tests.methods.reading import answer_nll_by_state, prompted, read
from tests.tiny import tiny_gpt2, tiny_llama
from tests.tiny_methods import PROMPTS, TEXTS
from ttabench.core.errors import UserError
from ttabench.lm.forward.patching import encode_patch
from ttabench.lm.patch import Patch
from ttabench.methods.checkpoints import is_exportable, save_peft
from ttabench.methods.distill import CartridgeSettings, DistillSettings
from ttabench.methods.distill.cartridge import Cartridge, from_peft
from ttabench.methods.distill.method import Distill
from ttabench.methods.parts.lora import split_vector

TINY = CartridgeSettings(slots=8, length=24, steps=30, batch=4, questions=2, lr=1e-2)
MAKES = pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])


@MAKES
def test_it_begins_as_the_first_tokens(make: Any) -> None:
    lm = make()
    method = Cartridge(lm, replace(TINY, lr=0.0))
    (first,) = torch.tensor([lm.encode(TEXTS[0])])
    wanted = encode_patch(lm, Patch(tokens_BT=first[None, : TINY.slots - len(lm.start_ids)])).prefix
    found = method.patch(read(method, *TEXTS), []).prefix
    assert found is not None
    assert wanted is not None
    for mine, theirs in zip(found.keys_LBHPD, wanted.keys_LBHPD, strict=True):
        torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(found.next_position_B, wanted.next_position_B)


@pytest.mark.parametrize("seeds", [(), TINY.seeds])
def test_study_brings_it_to_its_teacher(seeds: tuple[str, ...]) -> None:
    lm = tiny_llama()
    method = Cartridge(lm, replace(TINY, seeds=seeds))
    texts = [lm.encode(text) for text in TEXTS[:2]]
    begun = method.student_patch(split_vector(method.start(texts), method.layout))
    studied = method.patch(read(method, *TEXTS[:2]), [])
    examples = method._teacher_examples(Patch(), texts, 0)
    with torch.no_grad():
        assert method.loss(studied, examples) < 0.7 * method.loss(begun, examples)
    assert begun.prefix is not None
    assert studied.prefix is not None
    for mine, theirs in zip(studied.prefix.values_LBHPD, begun.prefix.values_LBHPD, strict=True):
        torch.testing.assert_close(
            mine[:, :, 0], theirs[:, :, 0], msg="the first slot is not trained"
        )


@pytest.mark.parametrize("seeds", [(), TINY.seeds])
def test_training_reduces_the_loss_of_deltas(seeds: tuple[str, ...]) -> None:
    lm = tiny_llama()
    method = Cartridge(lm, replace(TINY, target="deltas", slots=128, seeds=seeds))
    state = read(method, *TEXTS[:2])
    examples = method._teacher_examples(Patch(), [lm.encode(text) for text in TEXTS[:2]], 0)
    patch = method.patch(state, [])
    assert patch.prefix is None
    with torch.no_grad():
        assert method.loss(patch, examples) < 0.8 * method.loss(Patch(), examples)


def test_deltas_without_seeds_equal_distill() -> None:
    settings = {"rank": 2, "length": 24, "steps": 3, "batch": 2, "lr": 1e-2}
    deltas = Cartridge(tiny_llama(), CartridgeSettings(target="deltas", seeds=(), **settings))
    lora = Distill(tiny_llama(), DistillSettings(**settings))
    ours, theirs = (read(method, *TEXTS) for method in (deltas, lora))
    assert torch.equal(ours.tensors["weights"], theirs.tensors["weights"])
    assert ours.meta == theirs.meta


def test_deltas_remember_their_documents(ttabench: Command, tmp_path: Path) -> None:
    """Nano answers better with its own state than with another one, or without."""
    ran = ttabench(
        "eval --method cartridge --set target=deltas --set lr=1e-2 --set steps=16 --task streamingqa",
        *"--split validation --task-set documents=4 --task-set questions=4 --swap-state --json --out".split(),
        tmp_path,
    )
    assert ran.code == 0
    nll = answer_nll_by_state(ran)
    assert nll["own"] < nll["none"] - 0.3
    assert nll["own"] < nll["other"] - 0.3


@pytest.mark.parametrize("budget", ["--keep 0.5", "--keep-tokens 128"])
def test_deltas_have_no_budget(budget: str, ttabench: Command) -> None:
    words = "eval --method cartridge --set target=deltas --task streamingqa --dry-run"
    assert budget.split()[0] in error_line(ttabench(f"{words} {budget}"))


@pytest.mark.parametrize("unused", ["target=deltas slots=64", "rank=4"])
def test_settings_of_the_other_target_are_refused(unused: str, ttabench: Command) -> None:
    words = "eval --method cartridge --task streamingqa --dry-run"
    settings = " ".join(f"--set {each}" for each in unused.split())
    assert unused.split()[-1].split("=")[0] in error_line(ttabench(f"{words} {settings}"))


def test_a_context_as_long_as_the_positions_leaves_room_for_a_seed() -> None:
    lm = tiny_llama()
    text = " ".join(TEXTS * (1 + lm.max_positions // 20))
    assert len(lm.encode(text)) > lm.max_positions
    read(Cartridge(lm, replace(TINY, steps=1, questions=1, window=2**20)), text)


@MAKES
def test_peft_reads_what_leaves(make: Any, tmp_path: Path) -> None:
    lm = make()
    method = Cartridge(lm, TINY)
    patch = method.patch(read(method, *TEXTS), [])
    assert is_exportable(patch)
    save_peft(lm, patch, tmp_path / "peft")
    wanted = prompted(lm, patch)
    theirs = PeftModel.from_pretrained(make().model, tmp_path / "peft")
    with torch.no_grad():
        found = theirs(torch.tensor([lm.encode(PROMPTS[0])])).logits[0]
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_what_left_for_peft_enters_again(tmp_path: Path, ttabench: Command) -> None:
    lm = tiny_llama()
    method = Cartridge(lm, TINY)
    state = read(method, *TEXTS)
    save_peft(lm, method.patch(state, []), tmp_path / "peft")
    entered = from_peft(lm, TINY, tmp_path / "peft")
    torch.testing.assert_close(entered.tensors["weights"], state.tensors["weights"])
    with pytest.raises(UserError, match=r"does not fit .* and slots=9: prompt_embeddings"):
        from_peft(lm, replace(TINY, slots=9), tmp_path / "peft")
    with pytest.raises(UserError, match="target=cache"):
        from_peft(lm, replace(TINY, target="deltas", slots=128), tmp_path / "peft")
    (tmp_path / "notes.txt").write_text("The home of Ada Voss is in Selby.")
    made = "--method cartridge --set slots=8 --set steps=2".split()
    assert (
        ttabench(
            "adapt", *made, "--context", tmp_path / "notes.txt", "--out", tmp_path / "mine"
        ).code
        == 0
    )
    common = (
        "eval",
        *made,
        "--task",
        "streamingqa",
        "--ask-only",
        "--out",
        tmp_path / "runs",
        "--json",
    )
    ran = [ttabench(*common, "--state", tmp_path / place) for place in ("mine", "mine/peft")]
    ours, theirs = ([row["value"] for row in one.json()["runs"][0]["rows"]] for one in ran)
    assert ours == pytest.approx(theirs)
