"""Devices and number formats by name, and memory limits. The module needs no model code."""

from __future__ import annotations

import logging
from functools import cache

import torch
from torch.utils.benchmark import Timer

from ttabench.core import environment
from ttabench.core.errors import UnknownName, UserError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
log = logging.getLogger(__name__)
MAX_WEIGHT_MEMORY_FRACTION = 0.7
"""Share of accelerator memory for weights; the rest is for keys, values and activations."""


def find_device(name: str) -> torch.device:
    """Return the device of that name. "auto" is an accelerator (cuda, xpu, mps), else the CPU."""
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
        # cuDNN attention compiles and keeps a plan for every text length, 30 ms each
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device


def max_memory_per_device(device: torch.device) -> dict[int | str, int] | None:
    """Return the weight budget in bytes of each of several accelerators; None if there is one."""
    if (count := environment.call_device_function(device, "device_count") or 1) < 2:
        return None
    totals = [
        environment.call_device_function(device, "get_device_properties", number).total_memory
        for number in range(count)
    ]
    return {number: int(MAX_WEIGHT_MEMORY_FRACTION * total) for number, total in enumerate(totals)}


def find_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """Return the number format of that name. None ("auto" on a GPU): that of the checkpoint."""
    if name == "fastest":
        name = fastest_dtype(str(device))
    if name == "auto":
        return torch.float32 if device.type == "cpu" else None
    if name not in DTYPES:
        raise UnknownName("dtype", name, ["auto", *DTYPES])
    return DTYPES[name]


@cache
def fastest_dtype(device: str) -> str:
    """Return the fastest number format of the CPU, measured once; "auto" for other devices."""
    if find_device(device).type != "cpu":
        return "auto"
    times = time_dtypes()
    name = min(times, key=times.__getitem__)
    timings = ", ".join(f"{kind} {1e3 * seconds:.1f} ms" for kind, seconds in times.items())
    log.warning("--dtype fastest selects %s here (matrix product: %s).", name, timings)
    return name


def time_dtypes() -> dict[str, float]:
    """Time a product of 512 tokens with layer weights on this CPU by number format; takes 0.4 s."""
    times = {}
    for name in ("float32", "bfloat16"):
        operands = {
            "one": torch.ones(512, 1024, dtype=DTYPES[name]),
            "other": torch.ones(1024, 1024, dtype=DTYPES[name]),
        }
        trial = Timer("one @ other", globals=operands, num_threads=torch.get_num_threads())
        times[name] = trial.blocked_autorange(min_run_time=0.2).median
    return times


def limit_memory(max_bytes: int, device: torch.device) -> None:
    """Let allocations beyond `max_bytes` of GPU memory, or else of main memory, fail."""
    if device.type != "cpu":
        properties = environment.call_device_function(device, "get_device_properties", device)
        bound = getattr(torch.get_device_module(device), "set_per_process_memory_fraction", None)
        if properties is None or bound is None:
            raise UserError(f"torch cannot limit the memory of {device}.", "Remove --memory-limit.")
        bound(min(1.0, max_bytes / properties.total_memory), device)
        return
    # start the threads first: a failure to start one would end the process
    torch.ones(512, 512) @ torch.ones(512, 512)
    environment.limit_process_memory(max_bytes)
