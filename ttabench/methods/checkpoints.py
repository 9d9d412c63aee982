"""A trained method on disk: its parameters as safetensors, and in JSON what they belong to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from ttabench.core.errors import UserError
from ttabench.core.files import unwritable, write_atomically
from ttabench.core.types import Json
from ttabench.core.version import __version__
from ttabench.lm.loading import safetensors_io as files_of_tensors
from ttabench.lm.loading.finite import first_not_finite
from ttabench.lm.model import LM
from ttabench.methods.base import BaseMethod
from ttabench.methods.checkpoint_header import HEADER, Header, header, is_peft, settings_in
from ttabench.methods.peft_weights import load_lora

WEIGHTS = "adapter.safetensors"
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
    """Write a checkpoint; each file is replaced at once, the header last. `dtype`: number format of the stored
    parameters; they are float32 again once loaded; `stands_on`: name and digest of the checkpoint that the base model
    carries."""
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
    if stored.base_fingerprint != lm.fingerprint and not cls.serves_other_bases(chosen):
        under = str(stored.stands_on.get("name", ""))
        theirs = f"{stored.base_name} on {under}" if under else stored.base_name
        ours = f"{lm.name} on {lm.stands_on['name']}" if lm.stands_on else lm.name
        words = f"--model {stored.base_name}" + (f" --base-checkpoint {under}" if under else "")
        raise UserError(
            f"{folder} was trained on another base model ({theirs}) than {ours}.", f"Use {words}, or train on {ours}."
        )
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
