"""LoRA folders of peft: an adapted model as one, and one that peft trained as a method.

Shape letters: R rank · I/O features in and out.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from ttabench.core.errors import UserError
from ttabench.core.files import replacing_folder, unwritable
from ttabench.lm.loading import safetensors_io as files_of_tensors
from ttabench.lm.loading.finite import first_not_finite
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch
from ttabench.methods.checkpoint_header import AGAIN, MERGE, config_of
from ttabench.methods.lora import LoraSettings
from ttabench.methods.lora.method import Lora

WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""Before the names of the base model's modules."""


def exportable(patch: Patch) -> bool:
    """Whether a patch has deltas and all of them are low-rank ones that every row shares."""
    return bool(patch.deltas) and all(
        isinstance(delta, LowRank) and delta.a_BRI.shape[0] == delta.b_BOR.shape[0] == 1
        for delta in patch.deltas.values()
    )


def save_lora(lm: LM, patch: Patch, folder: Path) -> Path:
    """Write `adapter_config.json` and `adapter_model.safetensors`."""
    from peft import LoraConfig

    tensors, ranks = {}, {}
    for name, delta in patch.deltas.items():
        assert isinstance(delta, LowRank), "only low-rank deltas are a LoRA"
        ranks[name] = delta.a_BRI.shape[1]
        tensors[f"{PREFIX}{name}.lora_A.weight"] = delta.a_BRI[0].float()
        tensors[f"{PREFIX}{name}.lora_B.weight"] = delta.b_BOR[0].float()
    rank = max(ranks.values())
    others = {name: own_rank for name, own_rank in ranks.items() if own_rank != rank}
    config = LoraConfig(
        r=rank,
        lora_alpha=rank,  # any scale is inside the factors
        rank_pattern=others,
        alpha_pattern=others,
        target_modules=sorted(ranks),
        fan_in_fan_out=isinstance(lm.model.get_submodule(next(iter(ranks))), Conv1D),
        # of a base that stands on a checkpoint no name that loads, as its weights are others
        base_model_name_or_path=f"{lm.name} on {lm.stands_on['name']}" if lm.stands_on else lm.name,
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing_folder(folder) as scratch:
            config.save_pretrained(scratch)
            files_of_tensors.write(scratch / WEIGHTS, tensors)
    except OSError as error:
        raise unwritable(folder, error) from None
    return folder


def load_lora(lm: LM, settings: LoraSettings, folder: Path) -> Lora:
    """A LoRA that peft trained on linear maps of the decoder's layers; what its scales differ in is in the factors."""
    config, path = config_of(folder), folder / WEIGHTS
    if not path.exists() and path.with_suffix(".bin").exists():
        raise UserError(f"{path} is missing; adapter_model.bin is a pickle, which is never read here.", AGAIN)
    stored, _ = files_of_tensors.read(path, str(lm.device), AGAIN)
    if broken := first_not_finite(sorted(stored.items())):
        raise UserError(f"{broken} of {path} holds values that are not finite.", "Train the adapter again.")
    tensors = {key.removeprefix(PREFIX): tensor.float() for key, tensor in stored.items()}
    names = [name for name in lm.linear_names() if any(key.startswith(f"{name}.lora_") for key in tensors)]
    wanted = {}
    for name in names:
        (features_in, features_out), rank = lm.linear_shape(name), config.rank(name)
        wanted[f"{name}.lora_A.weight"] = torch.empty(rank, features_in, device="meta")
        wanted[f"{name}.lora_B.weight"] = torch.empty(features_out, rank, device="meta")
    odd = "it changes no linear map of a layer" if not names else files_of_tensors.unfit(tensors, wanted)
    if odd:
        hint = f"Give the base model that it was trained on{config.base and ': '}{config.base}. {MERGE}"
        raise UserError(f"The peft adapter {folder} does not fit {lm.name}: {odd}.", hint)
    method = Lora(lm, settings, names)
    method.a = nn.ParameterList(tensors[f"{name}.lora_A.weight"] for name in names)
    method.b = nn.ParameterList(
        tensors[f"{name}.lora_B.weight"] * (config.scale(name) / settings.scale) for name in names
    )
    return method
