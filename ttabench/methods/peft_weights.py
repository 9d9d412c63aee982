"""LoRA and CARTRIDGE folders of peft: an adapted model as one, and one that peft trained as a method.

Shape letters: R rank · I/O features in and out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ttabench.core.errors import UserError
from ttabench.core.files import replacing_folder
from ttabench.core.types import Ask, Observe
from ttabench.lm.loading import safetensors_io as files_of_tensors
from ttabench.lm.loading.finite import first_not_finite
from ttabench.lm.model import LM
from ttabench.lm.patch import Delta, Dense, LowRank, Patch, State
from ttabench.methods.base import BaseMethod
from ttabench.methods.checkpoint_header import AGAIN, PeftConfig, config_of
from ttabench.methods.lora import LORA, LoraSettings

WEIGHTS = "adapter_model.safetensors"


def exportable(patch: Patch) -> bool:
    """Whether a patch has deltas and all of them are low-rank ones that every row shares."""
    return bool(patch.deltas) and all(
        isinstance(delta, LowRank) and delta.a_BRI.shape[0] == delta.b_BOR.shape[0] == 1
        for delta in patch.deltas.values()
    )


def save_lora(lm: LM, patch: Patch, folder: Path) -> Path:
    """Write `adapter_config.json` and `adapter_model.safetensors`."""
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
    head size]."""
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


def _written(folder: Path, config: Any, tensors: Mapping[str, Tensor]) -> Path:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing_folder(folder) as scratch:
            config.save_pretrained(scratch)
            files_of_tensors.write(scratch / WEIGHTS, dict(tensors))
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}.", "Choose another --out.") from None
    return folder


PREFIX = "base_model.model."
"""Before the names of the base model's modules."""
MAGNITUDE = "lora_magnitude_vector"
"""DoRA's factor m."""


class PeftLora(BaseMethod[LoraSettings]):
    """Deltas that peft trained. State: empty."""

    spec = LORA

    def __init__(self, lm: LM, settings: LoraSettings, folder: Path) -> None:
        super().__init__(lm, settings)
        tensors = _read(folder, str(lm.device))
        self.tensors = nn.ParameterList([nn.Parameter(tensor, requires_grad=False) for tensor in tensors.values()])
        self.deltas = deltas_of(lm, folder, tensors)

    def modules(self) -> nn.ModuleDict:
        """The tensors of the file."""
        return nn.ModuleDict({"tensors": self.tensors})

    def adapt(self, state: State, pieces: Sequence[Sequence[Observe]]) -> State:  # noqa: ARG002  # the contract's
        """Nothing: what it knows it learned before."""
        return state

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The deltas."""
        return Patch(deltas=self.deltas)


def deltas_of(lm: LM, folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, Delta]:
    """The deltas of an adapter, by name. `tensors`: float32 by name in the base model (`model.norm.weight`), factors
    behind the name of their module (`model.layers.0.mlp.up_proj.lora_A.weight`)."""
    config, places = config_of(folder), dict(lm.model.named_parameters(remove_duplicate=False))
    modules = sorted({name for name, factor, _ in (key.partition(".lora_") for key in tensors) if factor})
    wanted: dict[str, Tensor] = {name: places[name] for name in tensors if name in places}
    for name in modules:
        wanted |= _factors(lm, config, name)
    if odd := files_of_tensors.unfit(tensors, wanted):
        hint = f"Give the base model that it was trained on{config.base and ': '}{config.base}."
        raise UserError(f"The peft adapter {folder} does not fit {lm.name}: {odd}.", hint)
    values = {name: tensor for name, tensor in tensors.items() if name in places}  # trained whole
    low: dict[str, Delta] = {}
    for name in modules:
        module, scale = lm.model.get_submodule(name), config.scale(name)
        a_RI, b_OR = (tensors[f"{name}.{factor}"] for factor in _names(module))
        if (b_bias_O := tensors.get(f"{name}.lora_B.bias")) is not None:
            bias = f"{name}.bias"
            values[bias] = values.get(bias, places[bias].float()) + scale * b_bias_O
        if config.use_dora or isinstance(module, nn.Embedding):
            weight, magnitude_O = f"{name}.weight", tensors.get(f"{name}.{MAGNITUDE}")
            held = values.get(weight, places[weight].float())
            values[weight] = _changed(module, held, scale * (b_OR @ a_RI), magnitude_O)
        else:
            low[name] = LowRank(a_RI[None], scale * b_OR[None])
    changes = {name: value - places[name].float() for name, value in values.items()}
    dense = {name: Dense(change[None]) for name, change in changes.items() if bool(change.any())}
    for name in (*dense, *(f"{name}.weight" for name in low)):
        if sum(place is places[name] for place in places.values()) > 1:
            fault = f"The peft adapter {folder} changes {name}, which stands in two places of {lm.name} (tied weights)."
            raise UserError(fault, "Give a base model whose head is its own (tie_word_embeddings=false).")
    return {**low, **dense}


def _changed(module: nn.Module, weight: Tensor, change_OI: Tensor, magnitude_O: Tensor | None) -> Tensor:
    """A weight with its change, in the module's layout; under DoRA each output's row at the length of its magnitude."""
    sum_OI = _turned(module, weight) + change_OI
    if magnitude_O is not None:
        sum_OI = sum_OI * (magnitude_O / torch.linalg.norm(sum_OI, dim=1))[:, None]
    return _turned(module, sum_OI)


def _turned(module: nn.Module, weight: Tensor) -> Tensor:
    """A weight [O, I] in the module's layout, or back: Conv1D and embeddings hold [I, O]."""
    return weight if isinstance(module, nn.Linear) else weight.T


def _names(module: nn.Module) -> tuple[str, str]:
    """Names of the two factors of a module."""
    embeds = isinstance(module, nn.Embedding)
    return ("lora_embedding_A", "lora_embedding_B") if embeds else ("lora_A.weight", "lora_B.weight")


def _factors(lm: LM, config: PeftConfig, name: str) -> dict[str, Tensor]:
    """The tensors that an adapted module has, without data; none where the base has no such linear map or embedding."""
    module = dict(lm.model.named_modules()).get(name)
    if not isinstance(module, nn.Linear | Conv1D | nn.Embedding):
        return {}
    (features_out, features_in), rank = _turned(module, module.weight).shape, config.rank(name)
    a, b = _names(module)
    shapes: dict[str, tuple[int, ...]] = {a: (rank, features_in), b: (features_out, rank)}
    if config.lora_bias and getattr(module, "bias", None) is not None:
        shapes["lora_B.bias"] = (features_out,)
    if config.use_dora:
        shapes[MAGNITUDE] = (features_out,)
    return {f"{name}.{factor}": torch.empty(shape, device="meta") for factor, shape in shapes.items()}


def _read(folder: Path, device: str) -> dict[str, Tensor]:
    """The tensors of an adapter, float32, by name in the base model."""
    path = folder / WEIGHTS
    if not path.exists() and path.with_suffix(".bin").exists():
        raise UserError(f"{path} is missing; adapter_model.bin is a pickle, which is never read here.", AGAIN)
    stored, _ = files_of_tensors.read(path, device, AGAIN)
    if not stored:
        raise UserError(f"{path} holds no tensors.", AGAIN)
    if broken := first_not_finite(sorted(stored.items())):
        raise UserError(f"{broken} of {path} holds values that are not finite.", "Train the adapter again.")
    # What peft wraps it calls base_layer.
    return {key.removeprefix(PREFIX).replace(".base_layer.", "."): tensor.float() for key, tensor in stored.items()}
