"""How fast a machine multiplies the matrices of a model, measured in a second and kept in the user's cache."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import cycle
from pathlib import Path

from ttabench.core.checked_file import json_of
from ttabench.core.environment import cache_folder, cores, cpu_name, use_threads
from ttabench.core.errors import UserError
from ttabench.core.files import write_atomically
from ttabench.core.meter import load_average
from ttabench.core.types import Json

SCHEMA = 1
ROWS, WIDTHS = (1, 32, 512), (128, 512, 1024)
WEIGHTS, WEIGHT_BYTES = 64, 2**26
"""Most weights that take turns, and most bytes of them together: more than caches hold, where a model is large too."""
SECONDS = 0.1
"""How long each size is tried."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Options that rates depend on beside the machine, as typed."""

    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    """None: what torch chooses."""

    def key(self) -> dict[str, Json]:
        """All that rates depend on; found without torch."""
        threads = self.threads or os.environ.get("OMP_NUM_THREADS") or "default"
        machine = {"cpu": cpu_name(), "cores": cores(), "threads": str(threads), "torch": version("torch")}
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return {**machine, "device": self.device, "dtype": self.dtype, "visible": seen, "schema": SCHEMA}


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Measured rates of a machine."""

    table: tuple[tuple[float, ...], ...]
    """Operations a second of products of `ROWS` by width, of weights of `WIDTHS`; a multiply and an add are two."""
    call_seconds: float
    """Of an operation on next to no numbers: what a call alone takes."""
    element_seconds: float
    """Of an operation on many numbers, for each: norms, activations and rotations are made of these."""
    load: float | None = None
    """The machine's load average before they were measured; None where the system counts none."""

    @property
    def busy(self) -> bool:
        """Whether more processes than the machine has cores wanted to run when they were measured."""
        return self.load is not None and self.load > (os.cpu_count() or 1)

    def flops(self, rows: float, width: float) -> float:
        """Operations a second of such products, between the sizes measured; beyond them, that of the nearest."""
        by_rows = [_between(width, WIDTHS, row) for row in self.table]
        return _between(rows, ROWS, by_rows)


def _between(at: float, sizes: Sequence[int], values: Sequence[float]) -> float:
    """The value at a size, on a straight line between its neighbours in logarithms."""
    if at <= sizes[0] or at >= sizes[-1]:
        return values[0] if at <= sizes[0] else values[-1]
    place = next(index for index, size in enumerate(sizes) if size > at)
    low, high = sizes[place - 1], sizes[place]
    share = math.log(at / low) / math.log(high / low)
    return math.exp(math.log(values[place - 1]) * (1 - share) + math.log(values[place]) * share)


def folder() -> Path:
    """Where rates are kept."""
    return cache_folder() / "rates"


def rates_of(setting: Setting) -> Rates:
    """The rates that are kept of this machine, or else those measured now; where nothing can be kept, every time."""
    key = setting.key()
    text = json.dumps(key, sort_keys=True)
    file = folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    kept, load = _kept(file, key), load_average()
    if kept is not None and not (kept.busy and load is not None and kept.load is not None and load < kept.load / 2):
        return kept
    use_threads(setting.threads)
    rates = replace(measured(setting), load=load)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps({"key": key, "rates": asdict(rates)}, indent=1) + "\n")
    except (OSError, UserError):
        return rates
    return rates


def _kept(file: Path, key: Json) -> Rates | None:
    """None where there are none, of another machine, or damaged."""
    try:
        content = json_of(file)
        table = tuple(tuple(float(value) for value in row) for row in content["rates"]["table"])
        load, call, element = (content["rates"][name] for name in ("load", "call_seconds", "element_seconds"))
        times = {"call_seconds": float(call), "element_seconds": float(element)}
        rates = Rates(table=table, load=None if load is None else float(load), **times)
        same = content["key"] == key and [len(row) for row in table] == [len(WIDTHS)] * len(ROWS)
    except (UserError, ValueError, KeyError, TypeError):
        return None
    values = [*(value for row in table for value in row), rates.call_seconds, rates.element_seconds]
    return rates if same and all(math.isfinite(value) and value > 0 for value in values) else None


def measured(setting: Setting) -> Rates:
    """Measure, in about `SECONDS` a size."""
    import torch

    from ttabench.lm.loading.devices import find_device, find_dtype
    from ttabench.profiling.machine import fastest

    device = find_device(setting.device)
    dtype = find_dtype(setting.dtype, device) or torch.bfloat16
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
