"""LoRAs on the base model: a base as methods and records see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from tests.tiny import tiny_gpt2, tiny_llama
from tests.tiny_methods import tiny_method
from ttabench.core.errors import UserError
from ttabench.lm.forward.patching import forward
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.methods import checkpoints
from ttabench.methods.checkpoints import PEFT_CONFIG
from ttabench.methods.lora import LoraSettings
from ttabench.methods.lora.method import Lora
from ttabench.run.evaluation import merge_checkpoint

MAKES: Mapping[str, Callable[[], LM]] = {"llama": tiny_llama, "gpt2": tiny_gpt2}


def trained(lm: LM, folder: Path) -> Lora:
    """A LoRA that changes every linear map."""
    method = Lora(lm, LoraSettings(rank=2, alpha=4.0))
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(3)
        for b in method.b:
            b.normal_(std=0.2)
    checkpoints.save(method, folder, {"steps": 7})
    return method


@pytest.mark.parametrize("make", MAKES)
def test_a_base_on_a_checkpoint_is_the_base_under_its_patch(make: str, tmp_path: Path) -> None:
    lm, other = MAKES[make](), MAKES[make]()
    method = trained(lm, tmp_path / "tuned")
    ids = torch.tensor([[65, 66, 67, 68]])
    with torch.no_grad():
        expected = forward(lm, method.patch(method.begin(1), []), ids)[0]
        plain = forward(other, Patch(), ids)[0]
        before = other.fingerprint
        found = forward(merge_checkpoint(other, tmp_path / "tuned", "tuned"), Patch(), ids)[0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert (found - plain).abs().max() > 0.1
    assert other.fingerprint not in (before, lm.fingerprint)
    told = other.describe()["stands_on"]
    assert (told["name"], told["training"]) == ("tuned", {"steps": 7})
    with pytest.raises(UserError, match="another base model"):
        checkpoints.load(Lora, other, tmp_path / "tuned")


def test_a_method_that_reads_first_is_no_base(tmp_path: Path) -> None:
    lm = tiny_llama()
    checkpoints.save(tiny_method("mac", lm), tmp_path / "mac")
    with pytest.raises(UserError, match="Give --base-checkpoint a checkpoint of lora"):
        merge_checkpoint(lm, tmp_path / "mac", "mac")


def test_an_adapter_of_peft_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / PEFT_CONFIG).write_text("{}")
    with pytest.raises(UserError, match="Merge it in peft"):
        merge_checkpoint(tiny_llama(), tmp_path, "mine")
