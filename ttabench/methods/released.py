"""Conversion of released weights to checkpoints: Doc-to-LoRA, KVzap and Fast KVzip.

    python -m ttabench.methods.released pytorch_model.bin OUT --model google/gemma-2-2b-it
    ttabench eval --method doc_to_lora --checkpoint OUT --model google/gemma-2-2b-it ...
    python -m ttabench.methods.released model.safetensors OUT --model Qwen/Qwen3-8B
    ttabench eval --method kvzap --checkpoint OUT --model Qwen/Qwen3-8B ...

Files: `pytorch_model.bin` of SakanaAI/doc-to-lora, `model.safetensors` of nvidia/KVzap-linear-* and
KVzap-mlp-* with `config.json` in the same folder, and `*.pt` of Jang-Hyun/Fast-KVzip. Pickles may
refer to classes of their own packages. No class is imported and no code is run: a `PickledStub`
replaces each class.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from zipfile import ZipFile

import torch
from torch import Tensor, nn
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from ttabench.core.errors import UserError, escape_control_characters
from ttabench.core.files import read_json_object, reading_file, remove_path, validate_path
from ttabench.lm.loading import safetensors_io
from ttabench.lm.model import LM, load
from ttabench.methods import checkpoints
from ttabench.methods.base import Method
from ttabench.methods.doc_to_lora import DOC_TO_LORA, DocToLoraSettings
from ttabench.methods.doc_to_lora.method import DocToLora, build_hypernetwork
from ttabench.methods.eviction.kvzap import KVzapSettings
from ttabench.methods.eviction.kvzap.method import KVzap, build_scorer
from ttabench.methods.settings import restore_settings
from ttabench.methods.states import check_writable

HEAD_DIM = 128
"""Head dimension in the released code for networks of any size; files do not contain it."""
COMPILED_PREFIX = "_orig_mod."
"""Prefix of weight names in files saved from a compiled network."""
SUPPORTED_CONFIG: Mapping[str, tuple[Any, ...]] = {
    "hypernet_config.per_rank_gen": (True,),
    "hypernet_config.per_layer_processing": (True,),
    "hypernet_config.num_pre_head_layers": (1,),
    "hypernet_config.use_token_mixing": (False,),
    "hypernet_config.extra_modules": (None,),
    "hypernet_config.aggregator_config.num_self_attn_per_block": (0,),
    "hypernet_config.aggregator_config.shared_weights": (False, None),
    "ctx_encoder_args.ctx_encoder_type": ("per_layer_activations",),
    "ctx_encoder_args.ctx_encoder_last_layer": (None,),
}
"""Supported values of the configuration, as in the training of the released checkpoints."""


class PickledStub:
    """Replacement for an object of an unavailable class: its arguments and attributes."""

    def __init__(self, *given: Any) -> None:
        self.given = given


def convert(path: Path, lm: LM, out: Path, *, force: bool = False) -> None:
    """Write the weights of a released file as a checkpoint for this base model.

    Args:
        force: replace a checkpoint in `out`.

    Raises:
        UserError: the file is damaged, does not fit the base model, or `out` has foreign files.
    """
    check_writable(out, checkpoints.CHECKPOINT_FILES)
    written = [out / name for name in checkpoints.CHECKPOINT_FILES if (out / name).exists()]
    if written and not force:
        raise UserError(
            f"{out} already contains a checkpoint.", "Use --force, or choose another folder."
        )
    method: Method[Any]
    with reading_file(path, "Use the file of a released checkpoint."):
        if path.suffix == ".safetensors":
            method = _load_kvzap(path, lm)
        else:
            content = _read_pickle(path)
            if isinstance(content.get("module"), list):
                method = _load_gates(path, lm, content["module"])
            else:
                method = _load_doc_to_lora(path, lm, content)
    for file in written:
        remove_path(file)
    checkpoints.save(method, out, {"kind": "released", "file": path.name})


def _load_doc_to_lora(path: Path, lm: LM, config: Mapping[str, Any]) -> DocToLora:
    weights = _plain_tensors(path, config)
    settings = _settings_from_config(path, config, weights)
    if not _config_value(config, "hypernet_config.use_bias", True):
        weights |= {
            name: torch.zeros_like(value)
            for name, value in weights.items()
            if name.startswith("bias_")
        }
    with torch.device("meta"):  # sizes in a damaged file may exceed the memory
        shapes = dict(build_hypernetwork(lm, settings).named_parameters())
    base = config.get("base_model_name_or_path", "NAME of the base model in its README")
    _refuse_mismatch(path, lm, weights, shapes, str(base))
    method = DocToLora(lm, settings)
    _copy_weights(method.network, weights)
    return method


def _load_kvzap(path: Path, lm: LM) -> KVzap:
    hidden = read_json_object(path.parent / "config.json").get("hidden_dim")
    settings = KVzapSettings() if hidden is None else KVzapSettings(scorer="mlp", hidden=hidden)
    weights, _ = safetensors_io.read_tensors(path)
    return _load_scorers(path, lm, settings, weights)


def _load_gates(path: Path, lm: LM, layers: Sequence[Mapping[str, Any]]) -> KVzap:
    weights = {
        f"layers.{layer}.{name}": value
        for layer, gate in enumerate(layers)
        for name, value in _plain_tensors(path, gate).items()
    }
    # the last fiftieth of a text shorter than 32,000 tokens is always kept, as in kvpress
    return _load_scorers(path, lm, KVzapSettings(scorer="gate", recent=0.02), weights)


def _load_scorers(
    path: Path, lm: LM, settings: KVzapSettings, weights: Mapping[str, Tensor]
) -> KVzap:
    with torch.device("meta"):
        layers = nn.ModuleList(build_scorer(lm, settings) for _ in lm.kv_layers)
        shapes = dict(nn.ModuleDict({"layers": layers}).named_parameters())
    _refuse_mismatch(path, lm, weights, shapes, "NAME of the base model that it was trained for")
    method = KVzap(lm, settings)
    _copy_weights(method.modules(), weights)
    return method


def _refuse_mismatch(
    path: Path, lm: LM, weights: Mapping[str, Tensor], shapes: Mapping[str, Tensor], base: str
) -> None:
    if mismatch := safetensors_io.describe_mismatch(weights, shapes):
        raise UserError(f"{path} does not fit {lm.name}: {mismatch}.", f"Use --model {base}.")


@torch.no_grad()
def _copy_weights(modules: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, parameter in modules.named_parameters():
        parameter.copy_(weights[name])


def _read_pickle(path: Path) -> dict[str, Any]:
    """Read the content of a file saved by torch."""
    with ZipFile(path) as parts:
        if sum(part.file_size for part in parts.infolist()) > path.stat().st_size:
            raise ValueError("it is compressed, which torch.save does not do")
    names = get_unsafe_globals_in_checkpoint(path)
    with safe_globals([(PickledStub, name) for name in names]):
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return content


def _plain_tensors(path: Path, content: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a pickle by parameter name."""
    weights = {
        name.removeprefix(COMPILED_PREFIX): value
        for name, value in content.items()
        if isinstance(value, Tensor)
    }
    for name, value in weights.items():
        if (
            not (value.is_floating_point() and value.layout == torch.strided)
            or value.is_quantized
            or value.is_meta
        ):
            raise ValueError(f"its tensor {name} is not a plain floating-point tensor")
    if sum(value.nbytes for value in weights.values()) > path.stat().st_size:
        raise ValueError("its tensors are larger than the file")
    if broken := safetensors_io.first_non_finite_tensor(weights.items()):
        raise ValueError(f"its tensor {broken} has values that are not finite")
    return weights


def _config_value(config: Mapping[str, Any], dotted_name: str, default: Any = None) -> Any:
    """Return a value of the configuration, or the value of an enumeration member."""
    name, _, rest = dotted_name.partition(".")
    value: Any = config.get(name)
    for part in rest.split("."):
        value = getattr(value, part, None)
    value = value.given[0] if isinstance(value, PickledStub) and value.given else value
    return default if value is None else value


def _settings_from_config(
    path: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> DocToLoraSettings:
    for dotted_name, supported in SUPPORTED_CONFIG.items():
        found = _config_value(config, dotted_name, False if False in supported else None)
        if found not in supported:
            key = dotted_name.rpartition(".")[2]
            fault = f"{path} has {key}={found}, but only {supported[0]} is supported."
            raise UserError(fault, "Use a released checkpoint, or the code that trained it.")
    attention = "aggregator.perceiver.encoder.layers.0.self_attn."
    stored = {
        "rank": _config_value(config, "hypernet_config.lora_config.r"),
        "alpha": _config_value(config, "hypernet_config.lora_config.lora_alpha"),
        "targets": sorted(_config_value(config, "hypernet_config.lora_config.target_modules")),
        "latent": _config_value(config, "hypernet_config.latent_size"),
        "latents": len(weights["aggregator.perceiver.encoder.latents_q"]),
        "blocks": _config_value(config, "hypernet_config.aggregator_config.num_blocks"),
        "heads": len(weights[f"{attention}q_proj.weight"]) // HEAD_DIM,
        "kv_heads": len(weights[f"{attention}k_proj.weight"]) // HEAD_DIM,
        "head_dim": HEAD_DIM,
    }
    settings: DocToLoraSettings = restore_settings(DOC_TO_LORA, stored)
    if settings.blocks > len(weights):
        raise ValueError("its configuration has more blocks than tensors")
    return replace(settings, alpha=float(settings.alpha))  # the file may have a whole number


class _Parser(argparse.ArgumentParser):
    """Parser that raises UserError."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}.", "See --help.")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command. User errors print one line and return exit code 2."""
    parser = _Parser(description="Convert released weights to a ttabench checkpoint.")
    parser.add_argument("file", type=validate_path, help="file of the released weights")
    parser.add_argument("out", type=validate_path, help="folder of the checkpoint")
    parser.add_argument("--model", required=True, help="base model of the weights")
    parser.add_argument("--force", action="store_true", help="replace a checkpoint in the folder")
    try:
        typed = parser.parse_args(words)
        convert(typed.file, load(typed.model), typed.out, force=typed.force)
    except UserError as error:
        print(escape_control_characters(f"Error: {' '.join(str(error).split())}"), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
