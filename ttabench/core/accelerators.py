"""What torch's module of a device can tell and do: `torch.cuda`, `torch.xpu`, `torch.mps`, or that of another backend.

called("cuda:0", "max_memory_allocated", "cuda:0")      bytes
called("mps", "max_memory_allocated", "mps")            None: it counts no peak
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from ttabench.core.types import Json

if TYPE_CHECKING:
    import torch


def called(device: object, name: str, *arguments: object) -> Any:
    """What a function of the device's module gives; None where it has none of that name, as for a CPU."""
    import torch

    kind = str(device).partition(":")[0]
    function = None if kind == "cpu" else getattr(getattr(torch, kind, None), name, None)
    return None if function is None else function(*arguments)


def here() -> str:
    """The kind of this machine's accelerator; `cpu` where it has none."""
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if accelerator is None else accelerator.type


def described() -> dict[str, Json]:
    """Name and memory of this machine's accelerator, as far as they are known; empty where it has none."""
    import torch

    if (kind := here()) == "cpu":
        return {}
    properties = called(kind, "get_device_properties", 0)
    name, memory = getattr(properties, "name", kind), getattr(properties, "total_memory", None)
    return {"name": name, "memory_bytes": memory, "cuda": torch.version.cuda}


def name_of(hardware: Mapping[str, Json]) -> str:
    """The accelerator's name in the hardware of a record; empty where there was none."""
    return str((hardware.get("gpu") or {}).get("name", ""))


def release() -> None:
    """Hand memory that torch holds and does not use back to the accelerator."""
    called(here(), "empty_cache")


def forked_draws(device: torch.device) -> AbstractContextManager[None]:
    """Random numbers drawn inside, on the CPU or on the device, leave no trace outside."""
    import torch

    devices = [] if device.type == "cpu" else [device]
    return torch.random.fork_rng(devices=devices, device_type=device.type)
