"""A trained method on disk: its parameters as safetensors, and in JSON what they belong to; and LoRA folders of peft.

Shape letters: R rank · I/O features in and out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from ttabench.core import __version__
from ttabench.core.errors import UserError
from ttabench.core.files import replacing_folder, unwritable, write_atomically
from ttabench.core.types import Json
from ttabench.lm.loading import safetensors_io as files_of_tensors
from ttabench.lm.loading.safetensors_io import first_not_finite
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch
from ttabench.methods.base import BaseMethod
from ttabench.methods.checkpoint_header import AGAIN, HEADER, MERGE, Header, config_of, header, is_peft, settings_in
from ttabench.methods.lora import LoraSettings
from ttabench.methods.lora.method import Lora

WEIGHTS, PEFT_WEIGHTS = "adapter.safetensors", "adapter_model.safetensors"
PREFIX = "base_model.model."
"""Before the names of the base model's modules in peft's weights."""
Stored: TypeAlias = Literal["float32", "bfloat16", "float16"]


def save(
    method: BaseMethod[Any],
    folder: Path,
    training: Mapping[str, Json] | None = None,
    dtype: Stored = "float32",
    *,
    step: int | None = None,
    stands_on: Mapping[str, Json] | None = None,
) -> None:
    """Write a checkpoint, the header last. `dtype`: number format of stored parameters, which are float32 again once
    loaded; `stands_on`: name and digest of the checkpoint that the base model carries."""
    parameters = dict(method.modules().named_parameters())
    tensors = {name: p.detach().to("cpu", getattr(torch, dtype)) for name, p in parameters.items()}
    header = Header(
        method=method.name,
        settings=asdict(method.settings),
        base_name=method.lm.name,
        base_fingerprint=method.lm.fingerprint,
        version=__version__,
        parameters=sum(p.numel() for p in parameters.values()),
        training=dict(training or {}),
        step=step,
        stands_on=dict(stands_on or {}),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files_of_tensors.write(folder / WEIGHTS, tensors, None if step is None else {"step": str(step)})
    except OSError as error:
        raise unwritable(folder, error) from None
    write_atomically(folder / HEADER, json.dumps(asdict(header), indent=1) + "\n")


def load(
    cls: type[BaseMethod[Any]], lm: LM, folder: Path, settings: Mapping[str, Json] | None = None
) -> BaseMethod[Any]:
    """The method stored in a folder, on this base model. `settings`: settings to change, those that do not change the
    parameters (hierarchy, bank_cap ...)."""
    stored = header(folder)
    if stored.method not in (cls.spec.name, cls.spec.trained_as):
        raise UserError(
            f"{folder} is a checkpoint of {stored.method}, not of {cls.spec.name}.", f"Use --method {stored.method}."
        )
    chosen = settings_in(stored, cls.spec, settings or {}, folder)
    if is_peft(folder):
        return load_lora(lm, chosen, folder)
    if stored.base_fingerprint != lm.fingerprint:
        under = stored.stands_on.get("name", "")
        theirs = f"--model {stored.base_name}" + (f" --base-checkpoint {under}" if under else "")
        fault = f"{folder} was trained on another base model ({theirs}) than {lm.name}, or than it stands on here."
        raise UserError(fault, f"Use {theirs}, or train on this one.")
    path = folder / WEIGHTS
    tensors, metadata = files_of_tensors.read(path, hint="Copy the whole folder again, or train again.")
    if (step := metadata.get("step")) != (None if stored.step is None else str(stored.step)):
        fault = f"{path} is of step {step}, {HEADER} of step {stored.step}: a save was cut off between them."
        raise UserError(fault, "Run the same `ttabench train` again.")
    method = cls(lm, chosen)
    parameters = dict(method.modules().named_parameters())
    if odd := files_of_tensors.unfit(tensors, parameters):
        fault = f"Checkpoint {folder} does not fit its settings: {odd}."
        raise UserError(fault, "Leave out --set and --keep of sizes, or give --checkpoint none.")
    if broken := first_not_finite(sorted(tensors.items())):
        raise UserError(f"{broken} of checkpoint {folder} holds values that are not finite.", "Train the method again.")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
    return method


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
            files_of_tensors.write(scratch / PEFT_WEIGHTS, tensors)
    except OSError as error:
        raise unwritable(folder, error) from None
    return folder


def load_lora(lm: LM, settings: LoraSettings, folder: Path) -> Lora:
    """A LoRA that peft trained on linear maps of the decoder's layers; what its scales differ in is in the factors."""
    config, path = config_of(folder), folder / PEFT_WEIGHTS
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
        base = config.base_model_name_or_path or "see its README"
        hint = f"Give the base model that it was trained on: {base}. {MERGE}"
        raise UserError(f"The peft adapter {folder} does not fit {lm.name}: {odd}.", hint)
    method = Lora(lm, settings, names)
    method.a = nn.ParameterList(tensors[f"{name}.lora_A.weight"] for name in names)
    method.b = nn.ParameterList(
        tensors[f"{name}.lora_B.weight"] * (config.scale(name) / settings.scale) for name in names
    )
    return method
