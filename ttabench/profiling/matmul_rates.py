"""How fast a machine multiplies the matrices of a model, measured in a second and kept in the user's cache."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.metadata import version
from itertools import cycle
from pathlib import Path

from pydantic import BaseModel, ConfigDict, PositiveFloat

from ttabench.core.checked_file import json_of
from ttabench.core.environment import cache_folder, cores, cpu_name, use_threads
from ttabench.core.errors import UserError
from ttabench.core.files import write_atomically
from ttabench.core.identity import identity

ROWS, WIDTHS = (1, 32, 512), (128, 512, 1024)
WEIGHTS, WEIGHT_BYTES = 64, 2**26
"""Most weights that take turns, and most bytes of them together: more than caches hold, where a model is large too."""
SECONDS = 0.1
"""How long each size is tried."""


class Rates(BaseModel):
    """Measured rates of a machine."""

    model_config = ConfigDict(frozen=True)

    table: tuple[tuple[PositiveFloat, ...], ...]
    """Operations a second of products of `ROWS` by width, of weights of `WIDTHS`; a multiply and an add are two."""
    call_seconds: PositiveFloat
    """Of an operation on next to no numbers: what a call alone takes."""
    element_seconds: PositiveFloat
    """Of an operation on many numbers, for each: norms, activations and rotations are made of these."""

    def flops(self, rows: float, width: float) -> float:
        """Operations a second of such products: a line in logarithms between the sizes measured, flat beyond them."""
        import numpy as np

        by_rows = [np.interp(np.log(width), np.log(WIDTHS), np.log(row)) for row in self.table]
        return float(np.exp(np.interp(np.log(rows), np.log(ROWS), by_rows)))


def folder() -> Path:
    """Where rates are kept."""
    return cache_folder() / "rates"


def rates_of(device: str, dtype: str, threads: int | None) -> Rates:
    """The rates that are kept of this machine with these options, or else those measured now; found without torch."""
    machine = {"cpu": cpu_name(), "cores": cores(), "torch": version("torch"), "device": device, "dtype": dtype}
    counted = threads or os.environ.get("OMP_NUM_THREADS") or "default"
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    file = folder() / f"{identity({**machine, 'threads': str(counted), 'visible': seen})}.json"
    with suppress(UserError, ValueError):  # there are none, or they are damaged
        return Rates.model_validate(json_of(file))
    use_threads(threads)
    rates = measured(device, dtype)
    with suppress(UserError, OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, rates.model_dump_json())
    return rates


def measured(device_name: str, dtype_name: str) -> Rates:
    """Measure, in about `SECONDS` a size."""
    import torch

    from ttabench.lm.loading.devices import find_device, find_dtype
    from ttabench.profiling.machine import fastest

    device = find_device(device_name)
    dtype = find_dtype(dtype_name, device) or torch.bfloat16
    small = torch.ones(4, device=device, dtype=dtype)
    table: list[list[float]] = [[] for _ in ROWS]
    with torch.no_grad():
        for width in WIDTHS:
            count = min(WEIGHTS, WEIGHT_BYTES // (width * width * dtype.itemsize))
            weights = torch.full((count, width, width), 0.5, device=device, dtype=dtype)
            for row, rows in zip(table, ROWS, strict=True):
                given, turn = torch.full((rows, width), 0.5, device=device, dtype=dtype), cycle(weights.unbind())
                row.append(2 * rows * width**2 / fastest(lambda g=given, t=turn: g @ next(t), device, SECONDS))  # type: ignore[misc]
        call = fastest(lambda: torch.add(small, small), device, SECONDS)
        large = torch.ones(ROWS[-1] * WIDTHS[-1], device=device, dtype=dtype)
        whole = fastest(lambda: torch.add(large, large), device, SECONDS)
    return Rates(table=tuple(map(tuple, table)), call_seconds=call, element_seconds=whole / large.numel())
