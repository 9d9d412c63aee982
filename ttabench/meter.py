"""Measuring: seconds and peak memory of a phase, without touching what is measured.

    meter = Meter("cpu")
    with meter.phase("adapt"):
        state = method.adapt(state, chunk)
    meter.seconds["adapt"], meter.peak_bytes["adapt"]

On a GPU the peak is that of torch's allocator. On a CPU it is the resident set of the whole process: Linux keeps the
high-water mark in /proc/self/status and resets it when 5 is written to /proc/self/clear_refs (proc(5)). Where it cannot
be reset, the mark of the process's whole life is reported, which is never too low.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")


class Meter:
    """Seconds (summed) and peak bytes (largest) by phase.

    Args:
        device: the torch device type the model runs on, "cpu" or "cuda".
    """

    def __init__(self, device: str) -> None:
        self._cuda = device.startswith("cuda")
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.peak_bytes: defaultdict[str, int] = defaultdict(int)
        self.last_seconds = 0.0
        """How long the phase that ended last took."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the body; work queued on a GPU counts, because the clock is read after it is done."""
        self._synchronise()
        self._reset_peak()
        start = time.perf_counter()
        try:
            yield
        finally:
            self._synchronise()
            self.last_seconds = time.perf_counter() - start
            self.seconds[name] += self.last_seconds
            self.peak_bytes[name] = max(self.peak_bytes[name], self.peak())

    def peak(self) -> int:
        """Peak bytes since the last phase began."""
        if self._cuda:
            import torch

            return int(torch.cuda.max_memory_allocated())
        return _resident_peak()

    def _synchronise(self) -> None:
        if self._cuda:
            import torch

            torch.cuda.synchronize()

    def _reset_peak(self) -> None:
        if self._cuda:
            import torch

            torch.cuda.reset_peak_memory_stats()
            return
        try:
            CLEAR_REFS.write_text("5")
        except OSError:
            return


def _resident_peak() -> int:
    try:
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # Windows has no such figure in the standard library
        return 0
    # getrusage counts kilobytes on Linux and bytes on macOS
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
