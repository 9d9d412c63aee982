"""A trained method on disk: parameters as safetensors, and in JSON what they belong to; and deltas as a LoRA for peft.

Importing this imports no torch: headers are read before anything else is.
Shape letters: R rank · I/O features in and out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import TypeAdapter

from ttabench.core.checked_file import object_of, reading
from ttabench.core.errors import UserError
from ttabench.core.files import replacing_folder, unwritable, write_atomically
from ttabench.core.types import Json
from ttabench.core.version import __version__
from ttabench.methods.settings import restored
from ttabench.methods.spec import MethodSpec

if TYPE_CHECKING:
    from ttabench.lm.model import LM
    from ttabench.lm.patch import Patch
    from ttabench.methods.base import BaseMethod

HEADER, WEIGHTS = "adapter.json", "adapter.safetensors"
PEFT_CONFIG, PEFT_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
"""Before the names of the base model's modules in peft's weights."""
Stored: TypeAlias = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class Header:
    """The content of `adapter.json`."""

    method: str
    settings: dict[str, Json]
    base_name: str
    base_fingerprint: str
    version: str
    parameters: int
    training: dict[str, Json]
    step: int | None = None
    """Optimiser steps; the weights say the same."""
    stands_on: dict[str, str] = field(default_factory=dict)
    """The checkpoint that the base model carried in training: its name and digest; empty for none."""


def header(folder: Path) -> Header:
    """The header of a checkpoint."""
    path, hint = folder / HEADER, "Train the method again."
    if not path.is_file():
        if (folder / PEFT_CONFIG).is_file():
            hint = "Merge it in peft (merge_and_unload), save_pretrained model and tokenizer, and give that as --model."
            raise UserError(f"{folder} holds an adapter of peft, which is not read here.", hint)
        raise UserError(f"{folder} holds no checkpoint: {HEADER} is not there.", "Make one with `ttabench train`.")
    with reading(path, hint):
        stored = TypeAdapter(Header).validate_json(json.dumps(object_of(path, hint)), strict=True)
        if stored.stands_on and not {"name", "digest"} <= stored.stands_on.keys():
            raise ValueError("stands_on has no name or digest")
        return stored


def trained_tasks(training: Mapping[str, Any]) -> list[str]:
    """Names of the tasks that a checkpoint was trained on, the first one first; none where it does not say."""
    data = training.get("config", {}).get("data", {})
    return [str(task["task"]) for task in (data, *data.get("also", ())) if task.get("task")]


def training_seed(training: Mapping[str, Any]) -> int | None:
    """The seed that a checkpoint was trained with; None where nothing was trained, or it does not say."""
    seed = training.get("config", {}).get("seed")
    return None if seed is None else int(seed)


def settings_in(header: Header, spec: MethodSpec, changes: Mapping[str, Json], folder: Path) -> Any:
    """The settings of a checkpoint, with changes."""
    try:
        return replace(restored(spec, header.settings), **changes)
    except (TypeError, ValueError) as error:
        fault = f"Settings of the checkpoint {folder} (ttabench {header.version}) do not fit: {error}."
        raise UserError(fault, "Train again with this version.") from None


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
    import torch

    from ttabench.lm.loading import safetensors_io

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
        safetensors_io.write(folder / WEIGHTS, tensors, None if step is None else {"step": str(step)})
    except OSError as error:
        raise unwritable(folder, error) from None
    write_atomically(folder / HEADER, json.dumps(asdict(header), indent=1) + "\n")


def load(
    cls: type[BaseMethod[Any]], lm: LM, folder: Path, settings: Mapping[str, Json] | None = None
) -> BaseMethod[Any]:
    """The method stored in a folder, on this base model. `settings`: settings to change, those that do not change the
    parameters (hierarchy, bank_cap ...)."""
    import torch

    from ttabench.lm.loading import safetensors_io
    from ttabench.lm.loading.finite import first_not_finite

    stored = header(folder)
    if stored.method not in (cls.spec.name, cls.spec.trained_as):
        raise UserError(
            f"{folder} is a checkpoint of {stored.method}, not of {cls.spec.name}.", f"Use --method {stored.method}."
        )
    chosen = settings_in(stored, cls.spec, settings or {}, folder)
    if stored.base_fingerprint != lm.fingerprint:
        under = stored.stands_on.get("name", "")
        theirs = f"--model {stored.base_name}" + (f" --base-checkpoint {under}" if under else "")
        fault = f"{folder} was trained on another base model ({theirs}) than {lm.name}, or than it stands on here."
        raise UserError(fault, f"Use {theirs}, or train on this one.")
    path = folder / WEIGHTS
    tensors, metadata = safetensors_io.read(path, hint="Copy the whole folder again, or train again.")
    if (step := metadata.get("step")) != (None if stored.step is None else str(stored.step)):
        fault = f"{path} is of step {step}, {HEADER} of step {stored.step}: a save was cut off between them."
        raise UserError(fault, "Run the same `ttabench train` again.")
    method = cls(lm, chosen)
    parameters = dict(method.modules().named_parameters())
    if odd := safetensors_io.unfit(tensors, parameters):
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
    from ttabench.lm.patch import LowRank

    return bool(patch.deltas) and all(
        isinstance(delta, LowRank) and delta.a_BRI.shape[0] == delta.b_BOR.shape[0] == 1
        for delta in patch.deltas.values()
    )


def save_lora(lm: LM, patch: Patch, folder: Path) -> Path:
    """Write `adapter_config.json` and `adapter_model.safetensors` of an `exportable` patch."""
    from peft import LoraConfig
    from transformers.pytorch_utils import Conv1D

    from ttabench.lm.loading import safetensors_io

    tensors, ranks, deltas = {}, {}, dict[str, Any](patch.deltas)
    for name, delta in deltas.items():
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
            safetensors_io.write(scratch / PEFT_WEIGHTS, tensors)
    except OSError as error:
        raise unwritable(folder, error) from None
    return folder
