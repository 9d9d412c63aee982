"""What the JSON beside a checkpoint's weights says: method, settings, base model, training; of ours and of peft's."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import sqrt
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ttabench.core.errors import UserError
from ttabench.core.files import object_of, reading
from ttabench.core.types import Json
from ttabench.lm.loading.hub import find_source
from ttabench.methods.lora import LoraSettings
from ttabench.methods.settings import restored
from ttabench.methods.spec import MethodSpec

HEADER, CONFIG = "adapter.json", "adapter_config.json"
AGAIN = "Copy it again, or save the adapter anew with peft's save_pretrained."
MERGE = "Merge it in peft: merge_and_unload(), then save_pretrained of model and tokenizer, and give that as --model."
STARTS = (True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base model's weights as they are."""
HARMLESS = frozenset(
    "auto_mapping corda_config ensure_weight_tying eva_config exclude_modules fan_in_fan_out inference_mode "
    "layers_pattern layers_to_transform loftq_config lora_dropout lora_ga_config megatron_core "
    "qalora_group_size runtime_config task_type".split()
)
"""Fields of training, of initialisation, or of what the names of the tensors say."""
Rank = Annotated[int, Field(ge=1, le=2**20)]
Alpha = Annotated[float, Field(allow_inf_nan=False)]


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


class PeftConfig(BaseModel):
    """What `adapter_config.json` says, as peft names it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    peft_type: str = "LORA"
    peft_version: str = ""
    base_model_name_or_path: str | None = None
    revision: str | None = None
    r: Rank = 8
    lora_alpha: Alpha = 8.0
    rank_pattern: dict[str, Rank] | None = None
    alpha_pattern: dict[str, Alpha] | None = None
    use_rslora: bool = False
    bias: str = "none"
    init_lora_weights: bool | str = True
    target_modules: list[str] | str | None = None

    def rank(self, module: str) -> int:
        """Rank of the factors of a module, by its name in the base model."""
        return int(_of_pattern(self.rank_pattern or {}, module, self.r))

    def scale(self, module: str) -> float:
        """Factor that B A of a module is multiplied by."""
        rank, alpha = self.rank(module), _of_pattern(self.alpha_pattern or {}, module, self.lora_alpha)
        return alpha / (sqrt(rank) if self.use_rslora else rank)


def _of_pattern(patterns: Mapping[str, float], module: str, otherwise: float) -> float:
    """The value of the first pattern that the name ends in, as `peft.utils.other.get_pattern_key` finds it."""
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), otherwise)


def config_of(folder: Path) -> PeftConfig:
    """The configuration of a peft folder."""
    path = folder / CONFIG
    with reading(path, AGAIN):
        config = PeftConfig.model_validate(object_of(path, AGAIN))
        for pattern in (*(config.rank_pattern or ()), *(config.alpha_pattern or ())):
            re.compile(f"({pattern})")
    if config.peft_type != "LORA":
        raise UserError(f"{folder} is a peft adapter of type {config.peft_type}, not a LoRA.", MERGE)
    unread = [name for name, value in (config.model_extra or {}).items() if value and name not in HARMLESS]
    unread += [] if config.bias == "none" else [f"bias={config.bias}"]
    unread += [] if config.init_lora_weights in STARTS else [f"init_lora_weights={config.init_lora_weights}"]
    if unread:
        raise UserError(f"{folder} is a LoRA with {min(unread)}, which is not read here.", MERGE)
    return config


def is_peft(folder: Path) -> bool:
    """Whether a folder holds an adapter of peft, and no checkpoint of ours."""
    return (folder / CONFIG).is_file() and not (folder / HEADER).exists()


def standing(model: str) -> tuple[str, str] | None:
    """The base model that a peft folder given as a model names, and the folder; None of anything else."""
    try:
        folder = Path(model).expanduser()
        is_adapter = (folder / CONFIG).is_file() and not (folder / "config.json").is_file()
    except (OSError, RuntimeError):  # a text that is too long for a name; a home folder that nobody knows
        return None
    if not is_adapter:
        return None
    config = config_of(folder)
    hint = f"Give the base model yourself: --model BASE --base-checkpoint {folder}."
    if not (base := config.base_model_name_or_path):
        raise UserError(f"{folder / CONFIG} names no base model (base_model_name_or_path).", hint)
    if config.revision not in (None, "", "main"):
        raise UserError(f"{folder / CONFIG} asks for the revision {config.revision} of its base model.", hint)
    try:
        find_source(base)
    except UserError as error:
        raise UserError(f"{folder / CONFIG} names a base model that is not here. {error.what}", hint) from None
    return base, str(folder)


def header(folder: Path) -> Header:
    """The header of a checkpoint; of a peft folder, what its configuration says in these words."""
    if is_peft(folder):
        return _of_peft(config_of(folder))
    path = folder / HEADER
    if not path.is_file():
        fault = f"{folder} holds no checkpoint: neither {HEADER} nor peft's {CONFIG} is there."
        raise UserError(fault, "Make one with `ttabench train`.")
    with reading(path, "Train the method again."):
        content = json.dumps(object_of(path, "Train the method again."))
        stored = TypeAdapter(Header).validate_json(content, strict=True)
        if stored.stands_on and not {"name", "digest"} <= stored.stands_on.keys():
            raise ValueError("stands_on has no name or digest")
        return stored


def _of_peft(config: PeftConfig) -> Header:
    listed = [] if isinstance(config.target_modules, str) else config.target_modules or []
    targets = () if any("." in name for name in listed) else tuple(sorted(listed))
    alpha = config.lora_alpha * (sqrt(config.r) if config.use_rslora else 1.0)
    return Header(
        method="lora",
        settings=asdict(LoraSettings(rank=config.r, alpha=alpha, targets=targets)),
        base_name=config.base_model_name_or_path or "",
        base_fingerprint="",
        version=f"peft {config.peft_version}".strip(),
        parameters=0,
        training={"kind": "peft", "peft_type": config.peft_type, "peft_version": config.peft_version},
    )


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
    if changes and is_peft(folder):
        raise UserError(f"{folder} is an adapter of peft: {CONFIG} has its settings.", "Leave --set out.")
    try:
        return replace(restored(spec, header.settings), **changes)
    except (TypeError, ValueError) as error:
        fault = f"Settings of the checkpoint {folder} (ttabench {header.version}) do not fit: {error}."
        raise UserError(fault, "Train again with this version.") from None
