"""Models as they are stored: healthy ones load as they are; what is broken, or makes something run, is refused."""

from __future__ import annotations

import json
import math
import pickle
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.conftest import Command, error_line
from tests.tiny import tiny_gpt2, tiny_llama, tiny_opt
from ttabench.core.errors import UserError
from ttabench.lm.loading import hub
from ttabench.lm.model import LM, load
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
    request = RunRequest(
        method="icl",
        task="streamingqa",
        model="me/mine",
        task_options={"documents": 2},
        source="mini",
    )
    return make_plan(request, 0).config.identity()


def test_another_commit_is_another_run(repository: Path) -> None:
    before = run_id()
    assert hub.model_digest("me/mine") == NEW
    assert run_id() == before
    (repository / "refs" / "main").write_text(OLD)
    assert hub.model_digest("me/mine") == OLD
    assert run_id() != before


Tensors = dict[str, Tensor]
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


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
        (lambda t: t.pop("model.norm.weight"), r"model\.norm\.weight"),
        (lambda t: t.update(extra=torch.ones(2)), r"tensor extra"),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(31)}),
            r"model\.norm\.weight .*\[31\].*\[32\]",
        ),
        (lambda t: t["lm_head.weight"][3].fill_(math.nan), r"lm_head\.weight"),
    ],
    ids=["missing", "superfluous", "misshapen", "nan"],
)
def test_broken_weights_are_named(
    folder: Path, change: Callable[[Tensors], object], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load(changed(folder, change), device="cpu")
    assert "\n" not in str(caught.value)


def change(folder: Path, file: str, values: Mapping[str, Any]) -> None:
    (folder / file).write_text(json.dumps({**json.loads((folder / file).read_text()), **values}))


class Mark:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


CODE = "_implementation|auto_map"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("config.json", {"attn_implementation": "somebody/kernel"}, CODE),
    ("config.json", {"attn_implementation": {"": "eager", "text_config": "somebody/kernel"}}, CODE),
    ("config.json", {"experts_implementation": "somebody/kernel"}, CODE),
    ("config.json", {"text_config": {"auto_map": {"AutoConfig": "own.Own"}}}, CODE),
    ("generation_config.json", {"auto_map": {"AutoModel": "own.Own"}}, CODE),
    ("config.json", {"quantization_config": {"quant_method": "magic"}}, "quantization_config"),
]


@pytest.mark.parametrize(
    ("file", "values", "message"), REFUSED, ids=[f"{f} {next(iter(v))}" for f, v, _ in REFUSED]
)
def test_what_names_code_or_other_files_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, file: str, values: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(
        "transformers.AutoConfig.from_pretrained", lambda *_, **__: pytest.fail("it was read")
    )
    change(folder, file, values)
    with pytest.raises(UserError, match=message) as refused:
        load(str(folder), device="cpu")
    assert f"{folder / file} " in str(refused.value)
    assert "\n" not in str(refused.value)


def shards(folder: Path, names: tuple[str, str]) -> dict[str, Tensor]:
    """Split the weights in two files of these names; returns the second one's."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    half = sorted(tensors)[: len(tensors) // 2]
    where = {name: names[0] if name in half else names[1] for name in tensors}
    save_file({name: tensors[name] for name in half}, folder / names[0], {"format": "pt"})
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return {name: tensor for name, tensor in tensors.items() if name not in half}


def test_shards_are_read_and_are_in_the_digest(folder: Path) -> None:
    expected = load(str(folder), device="cpu").fingerprint
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    second = shards(folder, names)
    save_file(second, folder / names[1], {"format": "pt"})
    assert load(str(folder), device="cpu").fingerprint == expected
    before = hub.model_digest(str(folder))
    next(iter(second.values())).view(-1)[0] += 1
    save_file(second, folder / names[1], {"format": "pt"})
    assert hub.model_digest(str(folder)) != before
    assert load(str(folder), device="cpu").fingerprint != expected


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "../elsewhere.bin", "weights.pkl", "{tmp}/elsewhere.bin"]
)
def test_no_pickle_is_read_for_a_shard(folder: Path, tmp_path: Path, name: str) -> None:
    name = name.format(tmp=tmp_path)
    shards(folder, ("a.safetensors", name))
    (folder / name).write_bytes(pickle.dumps(Mark(tmp_path / "RUN")))
    with pytest.raises(UserError, match="safetensors"):
        load(str(folder), device="cpu")
    assert not (tmp_path / "RUN").exists()


def test_a_token_beyond_the_embeddings_is_refused(folder: Path, ttabench: Command) -> None:
    """Of as many tokens as the model has, one has a larger id: lengths alone would fit."""
    path = folder / "tokenizer.json"
    stored = json.loads(path.read_text())
    stored["model"]["vocab"]["e"] = 400
    path.write_text(json.dumps(stored))
    assert "400" in error_line(ttabench(f"check --model {folder}"))
    assert "400" in error_line(ttabench(f"eval --model {folder} --method none --source mini"))


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    """Of GPT-2's, transformers makes an empty one up."""
    tiny_gpt2().model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="no tokenizer"):
        load(str(tmp_path))
