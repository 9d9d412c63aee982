"""Released weights of Doc-to-LoRA (SakanaAI/doc-to-lora) as a checkpoint of ours.

    python -m ttabench.methods.released pytorch_model.bin OUT --model google/gemma-2-2b-it
    ttabench eval --method doc_to_lora --checkpoint OUT --model google/gemma-2-2b-it --chat-template ...

The file is a pickle that names classes of its own package. None of them is imported, and nothing in it is run: each
stands for what it was given (`Given`).
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
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from ttabench.core.errors import UserError, printable
from ttabench.core.files import checked_path, reading, remove
from ttabench.lm.loading import safetensors_io
from ttabench.lm.model import LM, load
from ttabench.methods import checkpoints
from ttabench.methods.doc_to_lora import DOC_TO_LORA, DocToLoraSettings
from ttabench.methods.doc_to_lora.method import DocToLora, new_network
from ttabench.methods.settings import restored
from ttabench.methods.states import check_claim

HEAD_DIM = 128
"""Of the networks of the released code, whatever their size; no file says it."""
COMPILED = "_orig_mod."
"""In front of the names of weights that were saved while the network was compiled."""
READ: Mapping[str, tuple[Any, ...]] = {
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
"""What its configuration must say, as the released code's own trainings have it."""


class Given:
    """An object of a class that is not there: what it was made with, and its attributes."""

    def __init__(self, *given: Any) -> None:
        self.given = given


def convert(path: Path, lm: LM, out: Path, *, force: bool = False) -> None:
    """Write the weights of a released file as a checkpoint for this base model.

    Args:
        force: replace a checkpoint that is in `out`.

    Raises:
        UserError: the file is damaged, does not fit the base model, or `out` holds other files.
    """
    check_claim(out, checkpoints.OURS)
    written = [out / name for name in checkpoints.OURS if (out / name).exists()]
    if written and not force:
        raise UserError(f"{out} holds a checkpoint already.", "Replace it with --force, or use another folder.")
    with reading(path, "Use pytorch_model.bin of a released checkpoint."):
        said, weights = _unpacked(path)
        settings = _settings(path, said, weights)
        with torch.device("meta"):  # sizes of a damaged file may fit no memory
            shapes = dict(new_network(lm, settings).named_parameters())
        if not _said(said, "hypernet_config.use_bias", True):
            weights |= {name: torch.zeros_like(held) for name, held in weights.items() if name.startswith("bias_")}
        if odd := safetensors_io.unfit(weights, shapes):
            base = said.get("base_model_name_or_path", "the base that its README names")
            raise UserError(f"{path} does not fit {lm.name}: {odd}.", f"Use --model {base}.")
        method = DocToLora(lm, settings)
        with torch.no_grad():
            for name, parameter in method.network.named_parameters():
                parameter.copy_(weights[name])
    for file in written:
        remove(file)
    checkpoints.save(method, out, {"kind": "released", "file": path.name})


def _unpacked(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a file says by name, and its tensors by the names of parameters."""
    length = path.stat().st_size
    with ZipFile(path) as parts:
        if sum(part.file_size for part in parts.infolist()) > length:
            raise ValueError("it is compressed, which torch.save does not do")
    names = get_unsafe_globals_in_checkpoint(path)
    with safe_globals([(Given, name) for name in names]):
        said = torch.load(path, map_location="cpu", weights_only=True)
    weights = {name.removeprefix(COMPILED): held for name, held in said.items() if isinstance(held, Tensor)}
    for name, held in weights.items():
        if not (held.is_floating_point() and held.layout == torch.strided) or held.is_quantized or held.is_meta:
            raise ValueError(f"its tensor {name} is no plain tensor of floating-point numbers")
    if sum(held.nbytes for held in weights.values()) > length:
        raise ValueError("its tensors are larger than it")
    if broken := safetensors_io.first_not_finite(weights.items()):
        raise ValueError(f"its tensor {broken} holds values that are not finite")
    return said, weights


def _said(said: Mapping[str, Any], where: str, default: Any = None) -> Any:
    """What a file says there; of an enumeration its value."""
    name, _, rest = where.partition(".")
    held: Any = said.get(name)
    for part in rest.split("."):
        held = getattr(held, part, None)
    held = held.given[0] if isinstance(held, Given) and held.given else held
    return default if held is None else held


def _settings(path: Path, said: Mapping[str, Any], weights: Mapping[str, Tensor]) -> DocToLoraSettings:
    for where, known in READ.items():
        if (found := _said(said, where, False if False in known else None)) not in known:
            fault = f"{path} has {where.rpartition('.')[2]}={found}, where {known[0]} is read."
            raise UserError(fault, "Use one of the released checkpoints, or the code that trained it.")
    attention = "aggregator.perceiver.encoder.layers.0.self_attn."
    stored = {
        "rank": _said(said, "hypernet_config.lora_config.r"),
        "alpha": _said(said, "hypernet_config.lora_config.lora_alpha"),
        "targets": sorted(_said(said, "hypernet_config.lora_config.target_modules")),
        "latent": _said(said, "hypernet_config.latent_size"),
        "latents": len(weights["aggregator.perceiver.encoder.latents_q"]),
        "blocks": _said(said, "hypernet_config.aggregator_config.num_blocks"),
        "heads": len(weights[f"{attention}q_proj.weight"]) // HEAD_DIM,
        "kv_heads": len(weights[f"{attention}k_proj.weight"]) // HEAD_DIM,
        "head_dim": HEAD_DIM,
    }
    settings: DocToLoraSettings = restored(DOC_TO_LORA, stored)
    if settings.blocks > len(weights):
        raise ValueError("it says that it has more blocks than tensors")
    return replace(settings, alpha=float(settings.alpha))  # the file may have a whole number


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are those of every command."""

    def error(self, message: str) -> NoReturn:
        """Refuse the words of a command."""
        raise UserError(f"{message}.", "See --help.")


def main(words: Sequence[str] | None = None) -> int:
    """The command; a fault of the user's is one line and exit code 2."""
    parser = _Parser(description="Released weights of Doc-to-LoRA as a checkpoint of ours.")
    parser.add_argument("file", type=checked_path, help="pytorch_model.bin")
    parser.add_argument("out", type=checked_path, help="folder of the checkpoint")
    parser.add_argument("--model", required=True, help="the base model that it was trained for")
    parser.add_argument("--force", action="store_true", help="replace a checkpoint in that folder")
    try:
        typed = parser.parse_args(words)
        convert(typed.file, load(typed.model), typed.out, force=typed.force)
    except UserError as error:
        print(printable(f"Error: {' '.join(str(error).split())}"), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
