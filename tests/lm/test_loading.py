"""Model folders that are broken: one line that names what is wrong; healthy ones load as they are."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.tiny import tiny_gpt2, tiny_llama, tiny_opt
from ttabench.core.errors import UserError
from ttabench.lm.loading import hub, model_reader
from ttabench.lm.loading.model_reader import Source
from ttabench.lm.model import LM, load
from ttabench.methods import checkpoints
from ttabench.methods.registry import find
from ttabench.run.plan import make_plan
from ttabench.run.request import RunRequest

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub's cache with two commits of a model, the newer one its main branch."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder, lm = tmp_path / "models--me--mine", tiny_llama()
    for commit in (OLD, NEW):
        snapshot = folder / "snapshots" / commit
        lm.model.save_pretrained(snapshot)
        lm.tokenizer.save_pretrained(snapshot)
        with torch.no_grad():
            lm.model.lm_head.weight.add_(1.0)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(NEW)
    return folder


def run_id() -> str:
    words = {"method": "icl", "task": "streamingqa", "task_options": ("documents=2",), "source": "mini"}
    return make_plan(RunRequest(model="me/mine", **words), 0).config.identity()


def test_another_commit_is_another_run(repository: Path) -> None:
    before = run_id()
    assert hub.digest_of("me/mine") == NEW
    assert run_id() == before
    (repository / "refs" / "main").write_text(OLD)
    assert hub.digest_of("me/mine") == OLD
    assert run_id() != before


def test_the_commit_is_what_is_read(repository: Path) -> None:
    """Whatever the main branch is by then."""
    weights = {
        commit: model_reader.read(Source("me/mine", "me/mine", revision=commit), None, torch.device("cpu"))[
            0
        ].lm_head.weight
        for commit in (OLD, NEW)
    }
    assert torch.allclose(weights[OLD] + 1.0, weights[NEW])
    assert torch.equal(hub.pretrained("me/mine", None, torch.device("cpu"))[0].lm_head.weight, weights[NEW])


Tensors = dict[str, Tensor]
WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tiny_base: Path, tmp_path: Path) -> Path:
    """A copy of the tiny base that a test may break."""
    shutil.copytree(tiny_base, tmp_path / "base")
    return tmp_path / "base"


def changed(folder: Path, change: Callable[[Tensors], object]) -> str:
    """The folder's name, its weights changed."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    return str(folder)


def saved(lm: LM, folder: Path, dtype: torch.dtype = torch.float32) -> str:
    lm.model.to(dtype).save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    return str(folder)


def tied() -> LM:
    lm = tiny_llama()
    lm.model.config.tie_word_embeddings = True
    lm.model.tie_weights()
    return lm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("make", [tiny_llama, tied, tiny_gpt2, tiny_opt])
def test_healthy_folders_load(make: Callable[[], LM], dtype: torch.dtype, tmp_path: Path) -> None:
    lm = load(saved(make(), tmp_path, dtype), device="cpu")
    expected = make()
    expected.model.to(dtype)
    assert lm.fingerprint == expected.fingerprint
    assert "weights" not in lm.describe()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), r"lacks the tensor model\.norm\.weight\."),
        (lambda t: t.update(extra=torch.ones(2)), r"holds the tensor extra, which its architecture has no place for"),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(31)}),
            r"Tensor model\.norm\.weight .* is \[31\], its config\.json wants \[32\]",
        ),
        (lambda t: t["lm_head.weight"][3].fill_(math.nan), r"Tensor lm_head\.weight .* not finite"),
    ],
    ids=["missing", "superfluous", "misshapen", "nan"],
)
def test_broken_weights_are_named(folder: Path, change: Callable[[Tensors], object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load(changed(folder, change), device="cpu")
    assert "\n" not in str(caught.value)


def test_a_checkpoint_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    lm = tiny_llama()
    spec = find("lora")
    cls = spec.load()
    checkpoints.save(cls(lm, spec.Settings()), tmp_path)
    assert checkpoints.load(cls, lm, tmp_path).name == "lora"
    tensors = load_file(tmp_path / checkpoints.WEIGHTS)
    first = min(tensors)
    tensors[first].view(-1)[1] = math.nan
    save_file(tensors, tmp_path / checkpoints.WEIGHTS)
    with pytest.raises(UserError, match=rf"{first} of checkpoint .* not finite"):
        checkpoints.load(cls, lm, tmp_path)
