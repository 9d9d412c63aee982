"""Devices and number formats by name; light, where a process needs no model."""

from __future__ import annotations

import torch

from ttabench.core import accelerators
from ttabench.core.errors import UnknownName, UserError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def find_device(name: str) -> torch.device:
    """The device of that name; "auto" is the accelerator that torch says is there (cuda, xpu or mps), else the CPU.

    Raises:
        UserError: it is not there.
    """
    if name == "auto":
        return torch.device(accelerators.here())
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(_missing(name), "Use --device cpu.") from error
    return device


def _missing(name: str) -> str:
    """The fault of a device that is not there."""
    count = accelerators.called(name, "device_count")
    if count is None:
        return f"Unknown device {name!r}."
    kind = name.partition(":")[0].upper()
    return f"{'Only ' if count else 'No'}{count or ''} {kind} device{'s' * (count > 1)} found (--device {name})."


def find_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """The number format of that name; None, for "auto" on a GPU, stands for the checkpoint's own.

    Raises:
        UnknownName: no such format.
    """
    if name == "auto":
        return torch.float32 if device.type == "cpu" else None
    if name not in DTYPES:
        raise UnknownName("dtype", name, ["auto", *DTYPES])
    return DTYPES[name]
