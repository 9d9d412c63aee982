"""A model's files make nothing run, and nothing outside its folder is read; whatever says otherwise is refused."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from ttabench.core.errors import UserError
from ttabench.lm.loading.hub import digest_of
from ttabench.lm.model import load

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def folder(tiny_base: Path, tmp_path: Path) -> Path:
    """A copy of the tiny base that a test may change."""
    shutil.copytree(tiny_base, tmp_path / "base")
    return tmp_path / "base"


def change(folder: Path, file: str, values: Mapping[str, Any]) -> None:
    (folder / file).write_text(json.dumps({**json.loads((folder / file).read_text()), **values}))


class Mark:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


CODE = "no such code is run here"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("config.json", {"attn_implementation": "somebody/kernel"}, CODE),
    ("config.json", {"attn_implementation": {"": "eager", "text_config": "somebody/kernel"}}, CODE),
    ("config.json", {"experts_implementation": "somebody/kernel"}, CODE),
    ("config.json", {"text_config": {"auto_map": {"AutoConfig": "own.Own"}}}, CODE),
    ("generation_config.json", {"auto_map": {"AutoModel": "own.Own"}}, CODE),
    ("config.json", {"quantization_config": {"quant_method": "magic"}}, "says that the weights are quantised"),
]


@pytest.mark.parametrize(("file", "values", "message"), REFUSED, ids=[f"{f} {next(iter(v))}" for f, v, _ in REFUSED])
def test_what_names_code_or_other_files_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, file: str, values: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", lambda *_, **__: pytest.fail("it was read"))
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
    before = digest_of(str(folder))
    next(iter(second.values())).view(-1)[0] += 1
    save_file(second, folder / names[1], {"format": "pt"})
    assert digest_of(str(folder)) != before
    assert load(str(folder), device="cpu").fingerprint != expected


@pytest.mark.parametrize("name", ["pytorch_model.bin", "../elsewhere.bin", "weights.pkl", "{tmp}/elsewhere.bin"])
def test_no_pickle_is_read_for_a_shard(folder: Path, tmp_path: Path, name: str) -> None:
    name = name.format(tmp=tmp_path)
    shards(folder, ("a.safetensors", name))
    (folder / name).write_bytes(pickle.dumps(Mark(tmp_path / "RUN")))
    with pytest.raises(UserError, match="only safetensors files beside it are read"):
        load(str(folder), device="cpu")
    assert not (tmp_path / "RUN").exists()
