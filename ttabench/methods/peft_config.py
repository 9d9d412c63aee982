"""The configuration of a peft folder: which adapter it is, of which base, at which rank and scale. Needs no torch.

    FOLDER/adapter_config.json           config_of(FOLDER).peft_type      "LORA"
    FOLDER/adapter_model.safetensors     its tensors, see `peft_import`

LoRA is read (and DoRA, biases, embeddings, whole modules beside it). Other adapters are refused, and options that
change what the tensors mean, too: a field that is not known here must be false or empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from math import sqrt
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ttabench.core.checked_file import json_of
from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.lm.loading.hub import find_source
from ttabench.methods.lora.settings import LoraSettings

CONFIG = "adapter_config.json"
AGAIN = "Copy it again, or save the adapter anew with peft's save_pretrained."
MERGE = "Merge it in peft: merge_and_unload(), then save_pretrained of model and tokenizer, and give that as --model."
WITHOUT_WEIGHTS = (
    "PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "CARTRIDGE", "ADAPTION_PROMPT", "CPT",
)  # fmt: skip
"""Types of peft that put a prompt or a prefix before the text; none can be merged into weights."""
STARTS = (True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base model's weights as they are."""
HARMLESS = frozenset(
    "auto_mapping bias corda_config ensure_weight_tying eva_config exclude_modules fan_in_fan_out inference_mode "
    "layers_pattern layers_to_transform loftq_config lora_dropout lora_ga_config megatron_core modules_to_save "
    "qalora_group_size runtime_config task_type".split()
)
"""Fields of training, of initialisation, or of what the names of the tensors say."""
Rank = Annotated[int, Field(ge=1, le=2**20)]
Alpha = Annotated[float, Field(allow_inf_nan=False)]


class PeftConfig(BaseModel):
    """What `adapter_config.json` says, as peft names it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    peft_type: str
    peft_version: str = ""
    base_model_name_or_path: str | None = None
    revision: str | None = None
    r: Rank = 8
    lora_alpha: Alpha = 8.0
    rank_pattern: dict[str, Rank] | None = None
    alpha_pattern: dict[str, Alpha] | None = None
    use_rslora: bool = False
    use_dora: bool = False
    lora_bias: bool = False
    init_lora_weights: bool | str = True
    target_modules: list[str] | str | None = None

    @property
    def base(self) -> str:
        """The base model that it was trained on, as it was called there; empty where that is not said."""
        return self.base_model_name_or_path or ""

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
    """The configuration of a peft folder.

    Raises:
        UserError: missing or damaged; an adapter or an option that is not read here.
    """
    path = folder / CONFIG
    try:
        stored = json_of(path)
        kind = stored.get("peft_type", "LORA") if isinstance(stored, dict) else "LORA"
        if kind in WITHOUT_WEIGHTS:
            fault = f"{folder} is a peft adapter of type {kind}: a prompt or prefix, which is not read here."
            raise UserError(fault, "Give a LoRA; of a state of ttabench, give its own folder as --state.")
        if kind != "LORA":
            raise UserError(f"{folder} is a peft adapter of type {kind}, which is not read here.", MERGE)
        config = PeftConfig.model_validate(stored)
        for pattern in (*(config.rank_pattern or ()), *(config.alpha_pattern or ())):
            re.compile(f"({pattern})")
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in first["loc"][:1])
        raise UserError(f"{path} is damaged: {where}{first['msg']}.", AGAIN) from None
    except (OSError, ValueError, re.error) as error:
        raise UserError(f"{path} cannot be read: {error}.", AGAIN) from None
    unread = [name for name, value in (config.model_extra or {}).items() if value and name not in HARMLESS]
    if config.init_lora_weights not in STARTS:
        unread.append(f"init_lora_weights={config.init_lora_weights}")
    if unread:
        raise UserError(f"{folder} is a LoRA with {min(unread)}, which is not read here.", MERGE)
    return config


def header_fields(folder: Path) -> dict[str, Json]:
    """What a header of a checkpoint of `lora` says (see `checkpoint_header`), of a peft folder.

    Raises:
        UserError: see `config_of`.
    """
    config = config_of(folder)
    listed = [] if isinstance(config.target_modules, str) else config.target_modules or []
    targets = () if any("." in name for name in listed) else tuple(sorted(listed))
    alpha = config.lora_alpha * (sqrt(config.r) if config.use_rslora else 1.0)
    settings = LoraSettings(rank=config.r, alpha=alpha, targets=targets)
    return {
        "method": "lora",
        "settings": asdict(settings),
        "base_name": config.base,
        "base_fingerprint": "",
        "version": f"peft {config.peft_version}".strip(),
        "parameters": 0,
        "training": {"kind": "peft", "peft_type": config.peft_type, "peft_version": config.peft_version},
    }


def standing(model: str) -> tuple[str, str] | None:
    """The base model that a peft folder given as a model names, and the folder; None of anything else.

    Raises:
        UserError: it names none, one that is not here, or a revision of it; see `config_of`.
    """
    with suppress(OSError, RuntimeError):  # a text that is too long for a name; a home folder that nobody knows
        folder = Path(model).expanduser()
        if (folder / CONFIG).is_file() and not (folder / "config.json").is_file():
            return _base_of(folder), str(folder)
    return None


def _base_of(folder: Path) -> str:
    """The base model that a peft folder names."""
    config = config_of(folder)
    hint = f"Give the base model yourself: --model BASE --base-checkpoint {folder}."
    if not config.base:
        raise UserError(f"{folder / CONFIG} names no base model (base_model_name_or_path).", hint)
    if config.revision not in (None, "", "main"):
        raise UserError(f"{folder / CONFIG} asks for the revision {config.revision} of its base model.", hint)
    try:
        find_source(config.base)
    except UserError as error:
        raise UserError(f"{folder / CONFIG} names a base model that is not here. {error.what}", hint) from None
    return config.base
