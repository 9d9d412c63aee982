"""An adapted model as a standard artefact: low-rank deltas as a peft LoRA folder, a trained prefix as a CARTRIDGE.

    save_lora(lm, method.patch(state, []), Path("mine/peft"))
    save_cartridge(lm, method.patch(state, []), Path("mine/peft"))
    PeftModel.from_pretrained(base, "mine/peft")                 the same logits, without this package

What a patch holds beside deltas (tokens in the window, a key/value prefix) has no place in a LoRA's folder: load it and
put the tokens in front of the prompt. A text behind a cartridge begins without what begins a text (BOS).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from ttabench.core.errors import UserError
from ttabench.core.files import replacing_folder
from ttabench.lm.loading import safetensors_io as files_of_tensors
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch

if TYPE_CHECKING:
    from peft import PeftConfig

WEIGHTS = "adapter_model.safetensors"


def exportable(patch: Patch) -> bool:
    """Whether a patch has deltas and all of them are low-rank ones that every row shares."""
    return bool(patch.deltas) and all(
        isinstance(delta, LowRank) and delta.a_BRI.shape[0] == delta.b_BOR.shape[0] == 1
        for delta in patch.deltas.values()
    )


def save_lora(lm: LM, patch: Patch, folder: Path) -> Path:
    """Write `adapter_config.json` and `adapter_model.safetensors`.

    Args:
        lm: the base model.
        patch: see `exportable`.
        folder: does not exist, or is empty.

    Raises:
        UserError: the folder cannot be written, or holds something.
    """
    from peft import LoraConfig

    assert exportable(patch), "only low-rank deltas of one row are a LoRA"
    tensors, ranks = {}, {}
    for name, delta in patch.deltas.items():
        assert isinstance(delta, LowRank)
        ranks[name] = delta.a_BRI.shape[1]
        tensors[f"base_model.model.{name}.lora_A.weight"] = delta.a_BRI[0].detach().float().cpu().contiguous()
        tensors[f"base_model.model.{name}.lora_B.weight"] = delta.b_BOR[0].detach().float().cpu().contiguous()
    rank = max(ranks.values())
    others = {name: own_rank for name, own_rank in ranks.items() if own_rank != rank}
    config = LoraConfig(
        r=rank,
        lora_alpha=rank,  # any scale is inside the factors
        rank_pattern=others,
        alpha_pattern=others,
        target_modules=sorted(ranks),
        fan_in_fan_out=isinstance(lm.model.get_submodule(next(iter(ranks))), Conv1D),
        base_model_name_or_path=_base(lm),
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    return _written(folder, config, tensors)


def is_cartridge(patch: Patch) -> bool:
    """Whether a patch is nothing but one row of keys and values, behind which text goes on at the next position."""
    prefix = patch.prefix
    if prefix is None or patch.deltas or patch.tokens_BT is not None or len(prefix.keys_LBHPD[0]) != 1:
        return False
    plain = (prefix.mask_BP, prefix.eviction, prefix.hidden_LBHP, prefix.bias_LBHP) == (None,) * 4
    return plain and int(prefix.next_position_B[0]) == prefix.keys_LBHPD[0].shape[2]


def save_cartridge(lm: LM, patch: Patch, folder: Path) -> Path:
    """Write a prefix as peft's CARTRIDGE (0.19 or later): `prompt_embeddings` [slots, layers x (keys, values) x heads x
    head size].

    Args:
        lm: the base model.
        patch: see `is_cartridge`.
        folder: does not exist, or is empty.

    Raises:
        UserError: the folder cannot be written, or holds something; or the installed peft knows no CARTRIDGE.
    """
    try:
        from peft import CartridgeConfig
    except ImportError:
        raise UserError("The installed peft knows no CARTRIDGE.", "Install a newer one: pip install -U peft.") from None

    assert patch.prefix is not None
    assert is_cartridge(patch), "only keys and values of one row are a cartridge"
    pairs = zip(patch.prefix.keys_LBHPD, patch.prefix.values_LBHPD, strict=True)
    layers = [tensor[0].detach().float().cpu().transpose(0, 1).flatten(1) for pair in pairs for tensor in pair]
    packed = torch.cat(layers, dim=1).contiguous()
    config = CartridgeConfig(
        num_virtual_tokens=len(packed),
        num_frozen_tokens=1,
        num_layers=lm.layers,
        token_dim=lm.kv_heads * lm.head_dim,
        num_attention_heads=lm.kv_heads,
        base_model_name_or_path=_base(lm),
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    return _written(folder, config, {"prompt_embeddings": packed})


def _base(lm: LM) -> str:
    """The name of the base model; of one that stands on a checkpoint no name that loads, as its weights are others."""
    return f"{lm.name} on {lm.stands_on['name']}" if lm.stands_on else lm.name


def _written(folder: Path, config: PeftConfig, tensors: Mapping[str, Tensor]) -> Path:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing_folder(folder) as scratch:
            config.save_pretrained(scratch)
            files_of_tensors.write(scratch / WEIGHTS, dict(tensors))
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}.", "Choose another --out.") from None
    return folder
