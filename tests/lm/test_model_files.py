"""A model's files make nothing run, and nothing outside its folder is read; whatever says otherwise is refused."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import T5Config, T5Model

from tests.tiny import tiny_llama
from ttabench.core.errors import UserError
from ttabench.lm.loading.hub import digest_of
from ttabench.lm.model import load
from ttabench.methods.mac.t5 import config_of, pretrained_weights

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


def test_what_every_model_may_say_is_taken(folder: Path) -> None:
    """What exporters write, and what no fault is."""
    expected = load(str(folder), device="cpu").fingerprint
    change(folder, "config.json", {"auto_map": {}, "quantization_config": None, "tokenizer_class": "LlamaTokenizer"})
    change(folder, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "vocab": None})
    change(folder, "generation_config.json", {"cache_implementation": "static"})
    assert load(str(folder), device="cpu").fingerprint == expected


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


def test_a_t5_that_a_setting_names_is_checked_the_same(tmp_path: Path) -> None:
    T5Model(T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=16)).save_pretrained(tmp_path)
    name = str(tmp_path)
    assert config_of(name, 0).d_model == 8
    assert pretrained_weights(name)
    change(tmp_path, "config.json", {"attn_implementation": "somebody/kernel"})
    for read in (lambda: config_of(name, 0), lambda: pretrained_weights(name)):
        with pytest.raises(UserError, match=CODE):
            read()


LOADED = """
import sys
from ttabench.core.errors import UserError
from ttabench.lm.model import load
try:
    print(load("somebody/tiny", device="cpu").fingerprint)
except UserError as error:
    print(error)
"""


def test_a_model_of_the_hub_is_checked_the_same(tiny_base: Path, tmp_path: Path) -> None:
    hub = tmp_path / "hub" / "models--somebody--tiny"
    (hub / "refs").mkdir(parents=True)
    (hub / "refs" / "main").write_text("a" * 40)
    folder = hub / "snapshots" / ("a" * 40)
    shutil.copytree(tiny_base, folder)
    variables = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}

    def printed() -> str:
        words = [sys.executable, "-c", LOADED]
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=variables, timeout=120)
        return done.stdout.strip()

    assert printed() == tiny_llama().fingerprint
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "nobody/none"}')
    assert "holds an adapter of peft" in printed()
    (folder / "adapter_config.json").unlink()
    change(folder, "config.json", {"attn_implementation": "somebody/kernel"})
    assert CODE in printed()
