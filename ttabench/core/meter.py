"""Seconds and peak memory of run phases, and total work of several processes.

    meter = Meter("cpu")
    with meter.phase("adapt"):
        state = method.adapt(state, chunk)
    meter.seconds["adapt"], meter.cpu_seconds["adapt"], meter.peak_bytes["adapt"]

On a GPU, the peak is that of torch's allocator. On a CPU, it is the resident set of the process:
Linux resets it when 5 is written to /proc/self/clear_refs (proc(5)). On other systems it covers the
lifetime of the process.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ttabench.core.environment import call_device_function

if TYPE_CHECKING:
    import torch

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")


def largest_peak(peaks: Iterable[int | None]) -> int | None:
    """Return the largest value in bytes; 0 for an empty list, None if one is unknown."""
    known = list(peaks)
    return None if None in known else max(filter(None, known), default=0)


class Meter:
    """Stopwatch with seconds (summed) and peak bytes (largest) by phase."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = str(device)
        self._on_cpu = self._device.startswith("cpu")
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.cpu_seconds: defaultdict[str, float] = defaultdict(float)
        """User and system time of all threads of this process."""
        self.peak_bytes: defaultdict[str, int | None] = defaultdict(int)
        """None if the device does not report it."""
        self.last_seconds = 0.0
        """Duration of the last phase."""
        self.last_cpu_seconds = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the block. Work queued on a GPU is waited for."""
        self._synchronise()
        call_device_function(self._device, "reset_peak_memory_stats", self._device)
        if self._on_cpu:
            with suppress(OSError):
                CLEAR_REFS.write_text("5")
        cpu, start = time.process_time(), time.perf_counter()
        try:
            yield
        finally:
            self._synchronise()
            self.last_seconds = time.perf_counter() - start
            self.last_cpu_seconds = time.process_time() - cpu
            self.seconds[name] += self.last_seconds
            self.cpu_seconds[name] += self.last_cpu_seconds
            device = self._device
            peak: int | None = (
                _resident_peak()
                if self._on_cpu
                else call_device_function(device, "max_memory_allocated", device)
            )
            self.peak_bytes[name] = largest_peak([self.peak_bytes[name], peak])

    def _synchronise(self) -> None:
        if not self._on_cpu:
            import torch

            torch.accelerator.synchronize(self._device)


class WorkTimer:
    """Wall and CPU seconds of work over several processes. The clock starts at creation."""

    def __init__(self) -> None:
        self.wall_seconds = self.cpu_seconds = 0.0
        self.begin()

    def begin(self) -> None:
        """Restart the clock; earlier time does not count."""
        self._last_clocks = read_clocks()

    def add(self, wall: float, cpu: float) -> None:
        """Add seconds of another process."""
        self.wall_seconds += wall
        self.cpu_seconds += cpu

    def lap(self) -> tuple[float, float]:
        """Add and return (wall seconds, CPU seconds) since the last lap or start."""
        before, self._last_clocks = self._last_clocks, read_clocks()
        wall, cpu = self._last_clocks[0] - before[0], self._last_clocks[1] - before[1]
        self.add(wall, cpu)
        return wall, cpu

    def total_seconds(self) -> dict[str, float | None]:
        """Return the seconds up to now, for a record."""
        self.lap()
        return {"wall_seconds": self.wall_seconds, "cpu_seconds": self.cpu_seconds}


def read_clocks() -> tuple[float, float]:
    """Return wall seconds, and CPU seconds of this process and its finished children."""
    times = os.times()
    return time.perf_counter(), time.process_time() + times.children_user + times.children_system


def _resident_peak() -> int | None:
    with suppress(OSError):
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    # getrusage counts kilobytes on Linux and bytes on macOS
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
