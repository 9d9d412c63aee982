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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from ttabench.core.errors import UserError, printable
from ttabench.core.files import reading
from ttabench.lm.loading import safetensors_io
from ttabench.lm.model import LM, load
from ttabench.methods import checkpoints
from ttabench.methods.doc_to_lora import DocToLoraSettings
from ttabench.methods.doc_to_lora.method import DocToLora

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


def convert(path: Path, lm: LM, out: Path) -> None:
    """Write the weights of a released file as a checkpoint for this base model; a UserError where they do not fit."""
    with reading(path, "Download it again.", most=None):
        names = get_unsafe_globals_in_checkpoint(path)
        with safe_globals([(Given, name) for name in names]):
            said = torch.load(path, map_location="cpu", weights_only=True)
        weights = {name.removeprefix(COMPILED): held for name, held in said.items() if isinstance(held, Tensor)}
        settings = _settings(path, said, weights)
    method = DocToLora(lm, settings)
    parameters = dict(method.network.named_parameters())
    if not _said(said, "hypernet_config.use_bias", True):
        weights |= {name: torch.zeros_like(held) for name, held in weights.items() if name.startswith("bias_")}
    if odd := safetensors_io.unfit(weights, parameters):
        base = said.get("base_model_name_or_path", "the base that its README names")
        raise UserError(f"{path} does not fit {lm.name}: {odd}.", f"Give --model {base}.")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    checkpoints.save(method, out, {"kind": "released", "file": path.name})


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
    return DocToLoraSettings(
        rank=int(_said(said, "hypernet_config.lora_config.r")),
        alpha=float(_said(said, "hypernet_config.lora_config.lora_alpha")),
        targets=tuple(sorted(_said(said, "hypernet_config.lora_config.target_modules"))),
        latent=int(_said(said, "hypernet_config.latent_size")),
        latents=len(weights["aggregator.perceiver.encoder.latents_q"]),
        blocks=int(_said(said, "hypernet_config.aggregator_config.num_blocks")),
        heads=len(weights[f"{attention}q_proj.weight"]) // HEAD_DIM,
        kv_heads=len(weights[f"{attention}k_proj.weight"]) // HEAD_DIM,
        head_dim=HEAD_DIM,
    )


def main(words: Sequence[str] | None = None) -> int:
    """The command; a fault of the user's is one line and exit code 2."""
    parser = argparse.ArgumentParser(description="Released weights of Doc-to-LoRA as a checkpoint of ours.")
    parser.add_argument("file", type=Path, help="pytorch_model.bin")
    parser.add_argument("out", type=Path, help="folder of the checkpoint")
    parser.add_argument("--model", required=True, help="the base model that it was trained for")
    typed = parser.parse_args(words)
    try:
        convert(typed.file, load(typed.model), typed.out)
    except UserError as error:
        print(printable(f"Error: {' '.join(str(error).split())}"), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
