"""Devices and number formats by name; light, where a process needs no model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from ttabench.core import accelerators
from ttabench.core.errors import UnknownName, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def find_device(name: str) -> torch.device:
    """The device of that name; "auto" is the accelerator that torch says is there (cuda, xpu or mps), else the CPU."""
    try:
        device = torch.device(accelerators.here() if name == "auto" else name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(_missing(name), "Use --device cpu.") from error
    if device.type == "cuda":
        # cuDNN's attention compiles a plan for every length of text, 30 ms each, and keeps all of them in memory
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device


SHARE_OF_ONE = 0.7
"""Of an accelerator's memory that weights may take; the rest is for keys, values and activations."""


def spread(model: PreTrainedModel, parts: Mapping[str, str | int] | None = None) -> None:
    """Lay the parts of a model, layer by layer, onto several devices."""
    from accelerate import dispatch_model, infer_auto_device_map

    if parts is None:
        whole = list(getattr(model, "_no_split_modules", None) or ())
        parts = infer_auto_device_map(model, no_split_module_classes=whole)
        if {"cpu", "disk"} & set(map(str, parts.values())):
            fault = "The weights do not fit into the memory of all accelerators together."
            raise UserError(fault, "Take a smaller --model or --dtype bfloat16, or --device cpu.")
    main = "cpu" if "cpu" in parts.values() else None  # else what lies there would be moved to another at every use
    dispatch_model(model, dict(parts), main_device=main, force_hooks=True)


def needs_several(model: PreTrainedModel, device: torch.device) -> bool:
    """Whether there are several accelerators of this kind, and the weights are too large for one of them."""
    if (accelerators.called(device, "device_count") or 1) < 2:
        return False
    memory = getattr(accelerators.called(device, "get_device_properties", 0), "total_memory", None)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return memory is not None and weights > SHARE_OF_ONE * memory


def _missing(name: str) -> str:
    """The fault of a device that is not there."""
    count = accelerators.called(name, "device_count")
    if count is None:
        return f"Unknown device {name!r}."
    kind = name.partition(":")[0].upper()
    return f"{'Only ' if count else 'No'}{count or ''} {kind} device{'s' * (count > 1)} found (--device {name})."


def find_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """The number format of that name; None, for "auto" on a GPU, stands for the checkpoint's own."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else None
    if name not in DTYPES:
        raise UnknownName("dtype", name, ["auto", *DTYPES])
    return DTYPES[name]
