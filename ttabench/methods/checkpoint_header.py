"""What the JSON beside a checkpoint's weights says: method, settings, base model, training.

FOLDER/adapter.json             header(FOLDER).method      "mac"
FOLDER/adapter_config.json      header(FOLDER).method      "lora", of a folder that peft wrote
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ttabench.core.checked_file import json_of
from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.methods.peft_config import CONFIG, header_fields
from ttabench.methods.settings import restored
from ttabench.methods.spec import MethodSpec

HEADER = "adapter.json"


def is_peft(folder: Path) -> bool:
    """Whether a folder holds an adapter of peft, and no checkpoint of ours."""
    return (folder / CONFIG).is_file() and not (folder / HEADER).exists()


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
    stands_on: dict[str, Json] = field(default_factory=dict)
    """The checkpoint that the base model carried in training: its name and digest; empty for none."""


def trained_tasks(training: Mapping[str, Any]) -> list[str]:
    """Names of the tasks that a checkpoint was trained on, the first one first; none where it does not say."""
    data = training.get("config", {}).get("data", {})
    return [str(task["task"]) for task in (data, *data.get("also", ())) if task.get("task")]


def training_seed(training: Mapping[str, Any]) -> int | None:
    """The seed that a checkpoint was trained with; None where nothing was trained, or it does not say."""
    seed = training.get("config", {}).get("seed")
    return None if seed is None else int(seed)


def header(folder: Path) -> Header:
    """The header of a checkpoint; of a peft folder, what its configuration says in these words.

    Raises:
        UserError: no checkpoint there, a damaged header, or an adapter of peft that is not read here.
    """
    if is_peft(folder):
        return Header(**header_fields(folder))
    path = folder / HEADER
    try:
        stored = Header(**json_of(path))
    except OSError:
        raise UserError(
            f"{folder} holds no checkpoint: neither {HEADER} nor peft's {CONFIG} is there.",
            "Make one with `ttabench train`.",
        ) from None
    except (ValueError, TypeError):
        raise UserError(f"{path} is damaged.", "Train the method again.") from None
    texts = (stored.method, stored.base_name, stored.base_fingerprint, stored.version)
    objects = (stored.settings, stored.training, stored.stands_on)
    step = stored.step is None or isinstance(stored.step, int)
    typed = all(isinstance(text, str) for text in texts) and all(isinstance(value, dict) for value in objects)
    below = [stored.stands_on.get(key) for key in ("name", "digest")] if typed and stored.stands_on else []
    if not (typed and step and all(isinstance(value, str) for value in below)):
        raise UserError(f"{path} is damaged.", "Train the method again.")
    return stored


def settings_in(header: Header, spec: MethodSpec, changes: Mapping[str, Json], folder: Path) -> Any:
    """The settings of a checkpoint, with changes.

    Args:
        header: its header.
        spec: of its method.
        changes: settings of another value.
        folder: for the message.

    Raises:
        UserError: the method has no such setting, or refuses a value.
    """
    if changes and is_peft(folder):
        raise UserError(f"{folder} is an adapter of peft: {CONFIG} has its settings.", "Leave --set out.")
    try:
        return replace(restored(spec, header.settings), **changes)
    except (TypeError, ValueError) as error:
        fault = f"Settings of the checkpoint {folder} (ttabench {header.version}) do not fit: {error}."
        raise UserError(fault, "Train again with this version.") from None
