"""Devices and number formats by name, and a limit to the memory there; light, where a process needs no model."""

from __future__ import annotations

import torch
from torch.utils.benchmark import Timer

from ttabench.core import environment
from ttabench.core.errors import UnknownName, UserError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MAX_WEIGHT_MEMORY_FRACTION = 0.7
"""Of an accelerator's memory that weights may take; the rest is for keys, values and activations."""


def find_device(name: str) -> torch.device:
    """The device of that name; "auto" is the accelerator that torch says is there (cuda, xpu or mps), else the CPU."""
    try:
        device = torch.device(environment.accelerator_kind() if name == "auto" else name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        known = hasattr(getattr(torch, name.partition(":")[0], None), "device_count")
        fault = (
            f"No {name.upper()} device found (--device {name})."
            if known
            else f"Unknown device {name!r}."
        )
        raise UserError(fault, "Use --device cpu.") from error
    if device.type == "cuda":
        # cuDNN's attention compiles a plan for every length of text, 30 ms each, and keeps all of them in memory
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device


def max_memory_per_device(device: torch.device) -> dict[int | str, int] | None:
    """Bytes that weights may take on each of several accelerators of a kind; None where there is one."""
    if (count := environment.call_device_function(device, "device_count") or 1) < 2:
        return None
    totals = [
        environment.call_device_function(device, "get_device_properties", number).total_memory
        for number in range(count)
    ]
    return {number: int(MAX_WEIGHT_MEMORY_FRACTION * total) for number, total in enumerate(totals)}


def find_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """The number format of that name; None, for "auto" on a GPU, stands for the checkpoint's own."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else None
    if name not in DTYPES:
        raise UnknownName("dtype", name, ["auto", *DTYPES])
    return DTYPES[name]


def time_dtypes() -> dict[str, float]:
    """Seconds of a product of 512 tokens with the weights of a layer on this CPU, by number format; 0.4 s in all."""
    times = {}
    for name in ("float32", "bfloat16"):
        given = {
            "one": torch.ones(512, 1024, dtype=DTYPES[name]),
            "other": torch.ones(1024, 1024, dtype=DTYPES[name]),
        }
        trial = Timer("one @ other", globals=given, num_threads=torch.get_num_threads())
        times[name] = trial.blocked_autorange(min_run_time=0.2).median
    return times


def limit_memory(max_bytes: int, device: torch.device) -> None:
    """From here on, allocations beyond so many bytes fail: of a GPU's memory, or else of the machine's."""
    if device.type != "cpu":
        properties = environment.call_device_function(device, "get_device_properties", device)
        bound = getattr(torch.get_device_module(device), "set_per_process_memory_fraction", None)
        if properties is None or bound is None:
            raise UserError(
                f"torch cannot limit the memory of {device}.", "Leave --memory-limit out."
            )
        bound(min(1.0, max_bytes / properties.total_memory), device)
        return
    torch.ones(512, 512) @ torch.ones(
        512, 512
    )  # starts the threads: a failure to start one ends the process
    environment.limit_process_memory(max_bytes)
