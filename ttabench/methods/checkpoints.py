"""Checkpoints of trained methods (safetensors and a JSON header), and LoRA folders of peft.

Importing this module does not import torch, so that headers can be read first.
Shape letters: R rank · I/O features in and out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ttabench.core import __version__
from ttabench.core.architectures import ARCHITECTURES
from ttabench.core.errors import UserError
from ttabench.core.files import (
    INDEX_FILE,
    read_json_object,
    reading_file,
    replace_atomically,
    unwritable_error,
    write_atomically,
)
from ttabench.core.types import Json
from ttabench.methods.lora import LoraSettings
from ttabench.methods.settings import restore_settings
from ttabench.methods.spec import MethodSpec
from ttabench.methods.states import check_writable

if TYPE_CHECKING:
    from torch import Tensor

    from ttabench.lm.model import LM
    from ttabench.lm.patch import Patch, Prefix
    from ttabench.methods.base import Method
    from ttabench.methods.lora.method import Lora

HEADER_FILE, WEIGHTS_FILE = "adapter.json", "adapter.safetensors"
CHECKPOINT_FILES = (HEADER_FILE, WEIGHTS_FILE, "curve.jsonl", "training.safetensors")
"""Files of a checkpoint folder. `training.training_state` writes the last two."""
PEFT_CONFIG_FILE, PEFT_WEIGHTS_FILE, PEFT_PICKLE_FILE = (
    "adapter_config.json",
    "adapter_model.safetensors",
    "adapter_model.bin",
)
PEFT_KEY_PREFIX = "base_model.model."
"""Prefix of the base model's module names in peft's weights."""
COPY_AGAIN_HINT = "Copy it again, or save the adapter again with peft's save_pretrained."
MERGE_HINT = (
    "Use peft to merge it (merge_and_unload), save model and tokenizer (save_pretrained), "
    "and use that folder as --model."
)
NEUTRAL_INITS = (True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that do not change the base model's weights."""
IGNORED_PEFT_FIELDS = frozenset(
    "auto_mapping corda_config ensure_weight_tying eva_config exclude_modules fan_in_fan_out inference_mode "
    "layers_pattern layers_to_transform loftq_config lora_dropout lora_ga_config megatron_core "
    "qalora_group_size rank_pattern revision runtime_config task_type".split()
)
"""Fields that only affect training or initialisation, or follow from tensor names and shapes."""
log = logging.getLogger(__name__)
Alpha: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class CheckpointHeader:
    """The content of `adapter.json`."""

    method: str
    settings: dict[str, Json]
    base_name: str
    base_fingerprint: str
    version: str
    parameters: int
    training: dict[str, Json]
    step: int | None = None
    """Optimiser steps, also stored in the metadata of the weights."""
    stands_on: dict[str, str] = field(default_factory=dict)
    """Name and digest of the base checkpoint used in training, empty for none."""


class PeftConfig(BaseModel):
    """The content of peft's `adapter_config.json`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    peft_type: str = "LORA"
    peft_version: str = ""
    base_model_name_or_path: str | None = None
    r: Annotated[int, Field(ge=1, le=2**20)] = 8
    lora_alpha: Alpha = 8.0
    alpha_pattern: dict[str, Alpha] | None = None
    use_rslora: bool = False
    bias: str = "none"
    init_lora_weights: bool | str = True
    target_modules: list[str] | str | None = None

    def to_header(self) -> CheckpointHeader:
        """Convert to a checkpoint header."""
        listed = [] if isinstance(self.target_modules, str) else self.target_modules or []
        targets = () if any("." in name for name in listed) else tuple(sorted(listed))
        # if alpha is 0, the factors contain all scales, see `load_lora`
        alpha = (self.lora_alpha or self.r) * (sqrt(self.r) if self.use_rslora else 1.0)
        return CheckpointHeader(
            method="lora",
            settings=asdict(LoraSettings(rank=self.r, alpha=alpha, targets=targets)),
            base_name=self.base_model_name_or_path or "",
            base_fingerprint="",
            version=f"peft {self.peft_version}".strip(),
            parameters=0,
            training={
                "kind": "peft",
                "peft_type": self.peft_type,
                "peft_version": self.peft_version,
            },
        )


def read_peft_config(folder: Path) -> PeftConfig:
    """Read the configuration of a peft folder.

    Raises:
        UserError: the adapter is not a LoRA, or has unsupported options.
    """
    with reading_file(folder / PEFT_CONFIG_FILE, COPY_AGAIN_HINT):
        config = PeftConfig.model_validate(
            read_json_object(folder / PEFT_CONFIG_FILE, COPY_AGAIN_HINT)
        )
    if config.peft_type != "LORA":
        raise UserError(
            f"{folder} is a peft adapter of type {config.peft_type}, not a LoRA.", MERGE_HINT
        )
    unsupported = [
        name
        for name, value in (config.model_extra or {}).items()
        if value and name not in IGNORED_PEFT_FIELDS
    ]
    if config.bias != "none":
        unsupported.append(f"bias={config.bias}")
    if config.init_lora_weights not in NEUTRAL_INITS:
        unsupported.append(f"init_lora_weights={config.init_lora_weights}")
    if unsupported:
        raise UserError(
            f"{folder} is a LoRA with {min(unsupported)}, which is not supported.", MERGE_HINT
        )
    return config


def is_peft_folder(folder: Path) -> bool:
    """Return True if a folder contains a peft adapter and no ttabench checkpoint."""
    return (folder / PEFT_CONFIG_FILE).is_file() and not (folder / HEADER_FILE).exists()


@cache
def _header_adapter() -> TypeAdapter[CheckpointHeader]:
    return TypeAdapter(CheckpointHeader)


def read_header(folder: Path) -> CheckpointHeader:
    """Read the header of a checkpoint, or convert the configuration of a peft folder."""
    if is_peft_folder(folder):
        return read_peft_config(folder).to_header()
    path = folder / HEADER_FILE
    hint = "Run `ttabench train` again."
    if not path.is_file():
        fault = f"{folder} contains neither {HEADER_FILE} nor peft's {PEFT_CONFIG_FILE}."
        raise UserError(fault, "Use `ttabench train` to train a checkpoint.")
    with reading_file(path, hint):
        stored = _header_adapter().validate_json(
            json.dumps(read_json_object(path, hint)), strict=True
        )
        if stored.stands_on and not {"name", "digest"} <= stored.stands_on.keys():
            raise ValueError("stands_on has no name or digest")
        # these values have no declared type
        trained_tasks(stored.training)
        training_seed(stored.training)
        return stored


def trained_tasks(training: Mapping[str, Any]) -> list[str]:
    """Return the names of the training tasks in order, or [] if they are not recorded."""
    data = training.get("config", {}).get("data", {})
    return [str(task["task"]) for task in (data, *data.get("also", ())) if task.get("task")]


def training_seed(training: Mapping[str, Any]) -> int | None:
    """Return the training seed, or None if it is not recorded."""
    seed = training.get("config", {}).get("seed")
    return None if seed is None else int(seed)


def settings_from_header(
    header: CheckpointHeader, spec: MethodSpec, changes: Mapping[str, Json], folder: Path
) -> Any:
    """Return the settings of a checkpoint with changes.

    Raises:
        UserError: the checkpoint belongs to another method, or the settings do not fit.
    """
    if header.method not in (spec.name, spec.shares_checkpoints_with):
        fault = f"{folder} is a checkpoint of {header.method}, not of {spec.name}."
        raise UserError(fault, f"Use --method {header.method}.")
    if changes and is_peft_folder(folder):
        raise UserError(
            f"{folder} is a peft adapter with its settings in {PEFT_CONFIG_FILE}.", "Remove --set."
        )
    try:
        return replace(restore_settings(spec, header.settings), **changes)
    except (TypeError, ValueError) as error:
        fault = (
            f"Settings of the checkpoint {folder} (ttabench {header.version}) do not fit: {error}."
        )
        raise UserError(fault, "Run `ttabench train` again with this version.") from None


def save(
    method: Method[Any],
    folder: Path,
    training: Mapping[str, Json] | None = None,
    dtype: str = "float32",
    *,
    step: int | None = None,
    stands_on: Mapping[str, Json] | None = None,
) -> None:
    """Write a checkpoint with the header last. Foreign files are not replaced (`check_writable`).

    Args:
        dtype: format of stored parameters (float32, bfloat16, float16); they load as float32.
        stands_on: name and digest of the base checkpoint.
    """
    import torch

    from ttabench.lm.loading import safetensors_io

    parameters = dict(method.modules().named_parameters())
    tensors = {name: p.detach().to("cpu", getattr(torch, dtype)) for name, p in parameters.items()}
    header = CheckpointHeader(
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
    check_writable(folder, CHECKPOINT_FILES)
    try:
        write_atomically(folder / INDEX_FILE, json.dumps({"files": list(CHECKPOINT_FILES)}) + "\n")
        safetensors_io.write_tensors(
            folder / WEIGHTS_FILE, tensors, None if step is None else {"step": str(step)}
        )
    except OSError as error:
        raise unwritable_error(folder, error) from None
    write_atomically(folder / HEADER_FILE, json.dumps(asdict(header), indent=1) + "\n")


def load(cls: type[Method[Any]], lm: LM, folder: Path, settings: Any = None) -> Method[Any]:
    """Load the method of a checkpoint folder on this base model.

    Args:
        settings: settings of the method, see `settings_from_header`; None for the stored ones.

    Raises:
        UserError: the checkpoint is damaged, or belongs to another method or base model.
    """
    import torch

    from ttabench.lm.loading import safetensors_io

    stored = read_header(folder)
    if settings is None:
        settings = settings_from_header(stored, cls.spec, {}, folder)
    if is_peft_folder(folder):
        return load_lora(lm, settings, folder)
    if stored.base_fingerprint != lm.fingerprint:
        base_checkpoint = stored.stands_on.get("name", "")
        options = f"--model {stored.base_name}"
        if base_checkpoint:
            options += f" --base-checkpoint {base_checkpoint}"
        fault = f"{folder} was trained on another base model or base checkpoint ({options})."
        raise UserError(fault, f"Use {options}, or train on {lm.name} as it is used here.")
    path = folder / WEIGHTS_FILE
    tensors, metadata = safetensors_io.read_tensors(
        path, hint="Copy the whole folder again, or run `ttabench train` again."
    )
    if (step := metadata.get("step")) != (None if stored.step is None else str(stored.step)):
        fault = f"{path} is from step {step}, but {HEADER_FILE} is from step {stored.step}."
        raise UserError(fault, "Run the same `ttabench train` again.")
    method = cls(lm, settings)
    parameters = dict(method.modules().named_parameters())
    if mismatch := safetensors_io.describe_mismatch(tensors, parameters):
        fault = f"Checkpoint {folder} does not fit its settings: {mismatch}."
        raise UserError(fault, "Remove --set and --keep of sizes, or use --checkpoint none.")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
    return method


def is_exportable(patch: Patch) -> bool:
    """Return True if peft can represent the whole patch.

    Supported are low-rank deltas (LoRA), or keys and values directly in front of the text
    (CARTRIDGE), shared by all rows.
    """
    from ttabench.lm.patch import LowRank

    prefix = patch.prefix
    deltas = patch.deltas.values()
    if prefix is not None:
        more = (prefix.mask_BP, prefix.bias_LBHP, prefix.positions_LBHP, prefix.eviction)
        plain = not deltas and not prefix.model_cache and all(part is None for part in more)
        return plain and prefix.next_position_B.tolist() == [prefix.keys_LBHPD[0].shape[2]]
    return bool(deltas) and all(
        isinstance(delta, LowRank) and delta.a_BRI.shape[0] == delta.b_BOR.shape[0] == 1
        for delta in deltas
    )


def save_peft(lm: LM, patch: Patch, folder: Path) -> Path:
    """Write `adapter_config.json` and `adapter_model.safetensors` of an `is_exportable` patch."""
    from ttabench.lm.loading import safetensors_io

    config, tensors = (
        _lora_for_peft(lm, patch) if patch.prefix is None else _cartridge_for_peft(lm, patch.prefix)
    )
    config.base_model_name_or_path = _base_model_name(lm)
    config.task_type, config.inference_mode = "CAUSAL_LM", True
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(folder, folder=True) as scratch:
            config.save_pretrained(scratch)
            safetensors_io.write_tensors(scratch / PEFT_WEIGHTS_FILE, tensors)
    except OSError as error:
        raise unwritable_error(folder, error) from None
    return folder


def _base_model_name(lm: LM) -> str:
    """Return the base model's name. With a base checkpoint it is not loadable: weights differ."""
    return f"{lm.name} on {lm.stands_on['name']}" if lm.stands_on else lm.name


def _lora_for_peft(lm: LM, patch: Patch) -> tuple[Any, dict[str, Tensor]]:
    from peft import LoraConfig
    from transformers.pytorch_utils import Conv1D

    tensors, ranks, deltas = {}, {}, dict[str, Any](patch.deltas)
    for name, delta in deltas.items():
        ranks[name] = delta.a_BRI.shape[1]
        tensors[f"{PEFT_KEY_PREFIX}{name}.lora_A.weight"] = delta.a_BRI[0].float()
        tensors[f"{PEFT_KEY_PREFIX}{name}.lora_B.weight"] = delta.b_BOR[0].float()
    rank = max(ranks.values())
    others = {name: own_rank for name, own_rank in ranks.items() if own_rank != rank}
    config = LoraConfig(
        r=rank,
        lora_alpha=rank,  # the factors contain any scale
        rank_pattern=others,
        alpha_pattern=others,
        target_modules=sorted(ranks),
        fan_in_fan_out=isinstance(lm.model.get_submodule(next(iter(ranks))), Conv1D),
    )
    return config, tensors


def _cartridge_for_peft(lm: LM, prefix: Prefix) -> tuple[Any, dict[str, Tensor]]:
    import torch
    from peft import CartridgeConfig

    layers = zip(prefix.keys_LBHPD, prefix.values_LBHPD, strict=True)
    flat = [
        part[0].transpose(0, 1).flatten(1) for layer in layers for part in layer
    ]  # [P, H D] each
    slots = len(flat[0])
    config = CartridgeConfig(
        num_virtual_tokens=slots,
        num_layers=lm.layers,
        token_dim=flat[0].shape[1],
        num_attention_heads=prefix.keys_LBHPD[0].shape[1],
    )
    return config, {"prompt_embeddings": torch.cat(flat, 1).float()}


def read_peft_tensors(folder: Path, lm: LM) -> dict[str, Tensor]:
    """Read the tensors of a peft folder to the model's device."""
    from ttabench.lm.loading import safetensors_io

    if (pickle := folder / PEFT_PICKLE_FILE).is_file() and not (
        folder / PEFT_WEIGHTS_FILE
    ).exists():
        fault = f"{pickle} is a pickle, which can run code. Only {PEFT_WEIGHTS_FILE} is supported."
        hint = "If you trust it, load it in peft and use save_pretrained, which writes safetensors."
        raise UserError(fault, hint)
    path = folder / PEFT_WEIGHTS_FILE
    tensors, _ = safetensors_io.read_tensors(path, str(lm.device), COPY_AGAIN_HINT)
    return tensors


def is_target(config: PeftConfig, name: str) -> bool:
    """Return True if a configuration names this linear map; False if peft chooses."""
    from peft.tuners.tuners_utils import check_target_module_exists

    targets = config.target_modules
    return targets == "all-linear" or (
        targets is not None and bool(check_target_module_exists(config, name))
    )


def load_lora(lm: LM, settings: LoraSettings, folder: Path) -> Lora:
    """Load a LoRA of peft on linear maps of the decoder layers.

    Scales that differ between maps are multiplied into the factors.
    """
    import torch
    from peft.utils.other import get_pattern_key
    from torch import nn

    from ttabench.lm.loading import safetensors_io
    from ttabench.methods.lora.method import Lora

    config = read_peft_config(folder)
    tensors = {
        key.removeprefix(PEFT_KEY_PREFIX): tensor.float()
        for key, tensor in read_peft_tensors(folder, lm).items()
    }
    with reading_file(folder / PEFT_CONFIG_FILE, COPY_AGAIN_HINT):
        stored = {key.partition(".lora_")[0] for key in tensors}
        names = [name for name in lm.linear_names() if name in stored or is_target(config, name)]
    expected, scales, alphas = {}, {}, config.alpha_pattern or {}
    for name in names:
        features_in, features_out = lm.linear_shape(name)
        factor = tensors.get(f"{name}.lora_A.weight")
        rank = 1 if factor is None or not factor.dim() else len(factor)
        expected[f"{name}.lora_A.weight"] = torch.empty(rank, features_in, device="meta")
        expected[f"{name}.lora_B.weight"] = torch.empty(features_out, rank, device="meta")
        with reading_file(folder / PEFT_CONFIG_FILE, COPY_AGAIN_HINT):
            alpha = alphas.get(get_pattern_key(alphas, name), config.lora_alpha)
        scales[name] = alpha / (sqrt(rank) if config.use_rslora else max(1, rank))
    mismatch = safetensors_io.describe_mismatch(tensors, expected)
    if not names:
        mismatch = "it does not change any linear map of a layer"
    trained_on = config.base_model_name_or_path
    if mismatch:
        hint = f"Use its base model as --model: {trained_on or 'see its README'}. {MERGE_HINT}"
        raise UserError(f"The peft adapter {folder} does not fit {lm.name}: {mismatch}.", hint)
    used_on = _base_model_name(lm)
    hub = ARCHITECTURES[lm.name].hub if lm.name in ARCHITECTURES else used_on
    known_names = Path(used_on).name.lower(), Path(hub).name.lower()
    if trained_on and Path(trained_on).name.lower() not in known_names:
        log.warning(
            "The peft adapter %s was trained on %s, but is used on %s. Use its base model.",
            folder,
            trained_on,
            used_on,
        )
    method = Lora(lm, settings, names)
    method.a = nn.ParameterList(tensors[f"{name}.lora_A.weight"] for name in names)
    method.b = nn.ParameterList(
        tensors[f"{name}.lora_B.weight"] * (scales[name] / settings.scale) for name in names
    )
    return method
