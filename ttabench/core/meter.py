"""Seconds and peak memory of the phases of a run, and seconds of work that several processes do.

    meter = Meter("cpu")
    with meter.phase("adapt"):
        state = method.adapt(state, chunk)
    meter.seconds["adapt"], meter.cpu_seconds["adapt"], meter.peak_bytes["adapt"]

On a GPU the peak is that of torch's allocator. On a CPU it is the resident set of the whole process: Linux resets its
high-water mark when 5 is written to /proc/self/clear_refs (proc(5)); elsewhere it is that of the process's whole life.
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
    """The largest of these bytes, 0 of none; None where one is not known."""
    known = list(peaks)
    return None if None in known else max(filter(None, known), default=0)


class Meter:
    """Seconds (summed) and peak bytes (largest) by phase."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = str(device)
        self._on_cpu = self._device.startswith("cpu")
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.cpu_seconds: defaultdict[str, float] = defaultdict(float)
        """Of all threads of this process, user and system."""
        self.peak_bytes: defaultdict[str, int | None] = defaultdict(int)
        """None where the device does not tell."""
        self.last_seconds = 0.0
        """How long the phase that ended last took."""
        self.last_cpu_seconds = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the body; work queued on a GPU counts, because the clock is read after it is done."""
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
    """Seconds of a piece of work, over all processes that worked on it; the clock starts at once, or at `begin`."""

    def __init__(self) -> None:
        self.wall_seconds = self.cpu_seconds = 0.0
        self.begin()

    def begin(self) -> None:
        """Work begins here; what passed since it was made was none."""
        self._last_clocks = read_clocks()

    def add(self, wall: float, cpu: float) -> None:
        """Count what another process took, in seconds."""
        self.wall_seconds += wall
        self.cpu_seconds += cpu

    def lap(self) -> tuple[float, float]:
        """(wall seconds, CPU seconds) since the last lap or the beginning; they are counted."""
        before, self._last_clocks = self._last_clocks, read_clocks()
        wall, cpu = self._last_clocks[0] - before[0], self._last_clocks[1] - before[1]
        self.add(wall, cpu)
        return wall, cpu

    def total_seconds(self) -> dict[str, float | None]:
        """For a record: seconds up to now."""
        self.lap()
        return {"wall_seconds": self.wall_seconds, "cpu_seconds": self.cpu_seconds}


def read_clocks() -> tuple[float, float]:
    """Seconds on the wall, and of the processor: this process, all its threads, and its children that have ended."""
    times = os.times()
    return time.perf_counter(), time.process_time() + times.children_user + times.children_system


def _resident_peak() -> int | None:
    with suppress(OSError):
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows has no such figure in the standard library
        return None
    # getrusage counts kilobytes on Linux and bytes on macOS
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
