"""Model folders that are broken or bring code: one line that names what is wrong; healthy ones load as they are."""

from __future__ import annotations

import io
import json
import math
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.conftest import Command, one_line
from tests.tiny import tiny_gpt2, tiny_llama, tiny_opt
from ttabench.core.digests import digest
from ttabench.core.errors import UserError
from ttabench.lm.model import LM, load
from ttabench.lm.patch import State
from ttabench.methods import checkpoints, states
from ttabench.methods.registry import find
from ttabench.methods.state_header import header_digest

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


def untied() -> LM:
    lm = tiny_llama()
    assert not lm.config.tie_word_embeddings
    return lm


def tied() -> LM:
    lm = tiny_llama()
    lm.model.config.tie_word_embeddings = True
    lm.model.tie_weights()
    return lm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("make", [untied, tied, tiny_gpt2, tiny_opt])
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
        (
            lambda t: [t.pop(name) for name in list(t) if "layers.1" in name],
            r"lacks the tensor model\.layers\.1\.\S+ and 8 more",
        ),
        (lambda t: t.update(extra=torch.ones(2)), r"holds the tensor extra, which its architecture has no place for"),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(31)}),
            r"Tensor model\.norm\.weight .* is \[31\], its config\.json wants \[32\]",
        ),
        (lambda t: t["lm_head.weight"][3].fill_(math.nan), r"Tensor lm_head\.weight .* not finite"),
        (
            lambda t: t["model.layers.1.mlp.up_proj.weight"][0, 0].fill_(-math.inf),
            r"Tensor model\.layers\.1\.mlp\.up_proj\.weight .* not finite",
        ),
    ],
    ids=["missing", "layer missing", "superfluous", "misshapen", "nan", "inf"],
)
def test_broken_weights_are_named(folder: Path, change: Callable[[Tensors], object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load(changed(folder, change), device="cpu")
    assert "\n" not in str(caught.value)


CODE = "raise SystemExit('foreign code ran')\n"


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_of_a_model_is_never_run_nor_asked_about(
    ttabench: Command, folder: Path, file: str, common: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = json.loads((folder / file).read_text())
    said["auto_map"] = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own", "AutoTokenizer": ["own.Own", None]}
    (folder / file).write_text(json.dumps(said))
    (folder / "own.py").write_text(CODE)
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\nyes\nyes\n"))
    common[5] = folder
    line = one_line(ttabench("eval", "--method", "none", *common))
    assert f"{file} names code" in line


def sparse_weights(file: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A safetensors file of zeros that takes no room on the disk."""
    head: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        head[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(head).encode()
    with file.open("wb") as handle:
        handle.write(struct.pack("<Q", len(text)) + text)
        handle.truncate(handle.tell() + end)


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


def test_a_state_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    tensors = {"ids": torch.arange(3), "values": torch.tensor([1.0, math.inf])}
    belongs = {"method": "icl", "fingerprint": "f", "checkpoint": "", "settings": {}}
    with pytest.raises(UserError, match=r"Tensor values of the state is not finite"):
        states.save_state(tmp_path, State(rows=1, tensors=tensors, meta={}), belongs)
    whole = {**tensors, "values": torch.ones(2)}
    states.save_state(tmp_path, State(rows=1, tensors=whole, meta={}), belongs)
    assert torch.equal(states.load_state(tmp_path, belongs).tensors["values"], whole["values"])
    save_file(tensors, tmp_path / states.TENSORS_FILE)
    said = json.loads((tmp_path / "state.json").read_text())
    said["files"][states.TENSORS_FILE] = digest(tmp_path / states.TENSORS_FILE)
    (tmp_path / "state.json").write_text(json.dumps({**said, "digest": header_digest(said)}))
    with pytest.raises(UserError, match=r"Tensor values of the state .* not finite"):
        states.load_state(tmp_path, belongs)
