"""The limits of the machine, a roofline (Williams et al., CACM 2009): how fast it multiplies matrices and moves memory.

Rates are the best of several sizes; what stays in a cache can be faster than memory: shares above 1 are possible.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from ttabench.core.accelerators import called
from ttabench.profiling.rows import Limits

SIZES = {"cpu": (256, 512, 1024, 2048), "cuda": (2048, 4096, 8192)}
"""Sides of the square matrices multiplied."""
TRIAD_BYTES = {"cpu": 2**28, "cuda": 2**31}
"""Of the three arrays together, well beyond any cache."""
SECONDS = 0.4
"""How long each size is tried."""


@torch.no_grad()
def machine_limits(device: torch.device, dtype: torch.dtype) -> Limits:
    """Measure the machine; about two seconds."""
    kind = "cpu" if device.type == "cpu" else "cuda"
    rate = 0.0
    for side in SIZES[kind]:
        a, b = (torch.full((side, side), 0.5, device=device, dtype=dtype) for _ in range(2))
        out = torch.empty_like(a)
        rate = max(rate, 2 * side**3 / fastest(lambda a=a, b=b, out=out: torch.mm(a, b, out=out), device))  # type: ignore[misc]
    count = TRIAD_BYTES[kind] // (3 * dtype.itemsize)
    b, c = (torch.ones(count, device=device, dtype=dtype) for _ in range(2))
    a = torch.zeros_like(b)
    moved = 3 * count * dtype.itemsize / fastest(lambda: torch.add(b, c, alpha=0.5, out=a), device)
    name = called(device, "get_device_name", device) or device.type
    format_name = str(dtype).removeprefix("torch.")
    return Limits(flops=rate, bytes=moved, dtype=format_name, device=name, threads=torch.get_num_threads())


def _wait(device: torch.device) -> None:
    """Until what is queued on an accelerator is done."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def fastest(work: Callable[[], object], device: torch.device, seconds: float | None = None) -> float:
    """Seconds of the fastest of as many tries as fit into `seconds` (default: `SECONDS`), three at least."""
    work()
    best, tries, end = float("inf"), 0, time.perf_counter() + (SECONDS if seconds is None else seconds)
    while tries < 3 or time.perf_counter() < end:
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        best, tries = min(best, time.perf_counter() - start), tries + 1
    return best
