"""What this machine has and spends: its accelerator, memory and a limit to it, seconds and peak memory of a phase.

    called("cuda:0", "max_memory_allocated", "cuda:0")      bytes; None where torch's module has no such function
    limit(4 * 2**30)              from here on, what this process takes beyond 4 GiB fails as if there were no more
    meter = Meter("cpu")
    with meter.phase("adapt"):
        state = method.adapt(state, chunk)
    meter.seconds["adapt"], meter.cpu_seconds["adapt"], meter.peak_bytes["adapt"]

On a GPU the peak is that of torch's allocator. On a CPU it is the resident set of the whole process: Linux resets its
high-water mark when 5 is written to /proc/self/clear_refs (proc(5)); elsewhere it is that of the process's whole life.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttabench.core.amounts import size
from ttabench.core.errors import UserError
from ttabench.core.types import Json

if TYPE_CHECKING:
    import torch


def called(device: object, name: str, *arguments: object) -> Any:
    """What a function of the device's module gives; None where it has none of that name, as for a CPU."""
    import torch

    kind = str(device).partition(":")[0]
    function = None if kind == "cpu" else getattr(getattr(torch, kind, None), name, None)
    return None if function is None else function(*arguments)


def accelerator() -> str:
    """The kind of this machine's accelerator; `cpu` where it has none."""
    import torch

    there = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if there is None else there.type


def accelerator_facts() -> dict[str, Json]:
    """Name and memory of this machine's accelerator, as far as they are known; empty where it has none."""
    import torch

    if (kind := accelerator()) == "cpu":
        return {}
    properties = called(kind, "get_device_properties", 0)
    name, memory = getattr(properties, "name", kind), getattr(properties, "total_memory", None)
    return {"name": name, "memory_bytes": memory, "cuda": torch.version.cuda}


def name_of(hardware: Mapping[str, Json]) -> str:
    """The accelerator's name in the hardware of a record; empty where there was none."""
    return str((hardware.get("gpu") or {}).get("name", ""))


def release() -> None:
    """Hand memory that torch holds and does not use back to the accelerator."""
    called(accelerator(), "empty_cache")


def forked_draws(device: torch.device) -> AbstractContextManager[None]:
    """Random numbers drawn inside, on the CPU or on the device, leave no trace outside."""
    import torch

    devices = [] if device.type == "cpu" else [device]
    return torch.random.fork_rng(devices=devices, device_type=device.type)


SIGNS = ("out of memory", "not enough memory", "t allocate memory", "cannot allocate memory", "unable to allocate",
         "bad_alloc", "memory allocation of", "failed to map segment", "memoryerror",
         "storage size calculation overflowed")  # fmt: skip
"""Messages of torch, CUDA, numpy, the C++ library and the loader of libraries."""
_KINDS = (RuntimeError, OSError, ImportError)


def out_of_memory(error: BaseException) -> bool:
    """Whether this is a GPU or a CPU that ran out of memory."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    known = isinstance(error, _KINDS) or type(error).__name__ == "SafetensorError"
    return known and says_so(str(error))


def says_so(text: str) -> bool:
    """Whether a text tells that memory did not suffice."""
    return any(sign in text.lower() for sign in SIGNS)


def memory_error(hint: str) -> UserError:
    """The user error for a failed allocation; frees the memory that a limit kept back, so that it can be reported."""
    most = lift_limit()
    within = f" within --memory-limit {size(most)}" if most else ""
    return UserError(f"Out of memory{within}.", hint)


_limit: int | None = None


def limit(most: int) -> None:
    """From here on, what this process takes beyond so many bytes fails; libraries that are mapped do not count."""
    global _limit
    try:
        import resource
    except ImportError:
        raise UserError("This system cannot limit memory.", "Leave --memory-limit out.") from None
    # private writable memory: what malloc and torch take
    resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    _limit = most


def is_limited() -> bool:
    """Whether memory is limited."""
    return _limit is not None


def lift_limit() -> int | None:
    """Lift the limit; returns what it was, None where there is none."""
    global _limit
    most, _limit = _limit, None
    if most is not None:
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    return most


STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")


def largest(peaks: Iterable[int | None]) -> int | None:
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
        self._reset_peak()
        cpu, start = time.process_time(), time.perf_counter()
        try:
            yield
        finally:
            self._synchronise()
            self.last_seconds = time.perf_counter() - start
            self.last_cpu_seconds = time.process_time() - cpu
            self.seconds[name] += self.last_seconds
            self.cpu_seconds[name] += self.last_cpu_seconds
            self.peak_bytes[name] = largest([self.peak_bytes[name], self.peak()])

    def peak(self) -> int | None:
        """Peak bytes since the last phase began; None where the device does not tell."""
        if self._on_cpu:
            return _resident_peak()
        peak: int | None = called(self._device, "max_memory_allocated", self._device)
        return peak

    def _synchronise(self) -> None:
        if not self._on_cpu:
            import torch

            torch.accelerator.synchronize(self._device)

    def _reset_peak(self) -> None:
        if not self._on_cpu:
            called(self._device, "reset_peak_memory_stats", self._device)
            return
        try:
            CLEAR_REFS.write_text("5")
        except OSError:
            return


class Spent:
    """Seconds of a piece of work, over all processes that worked on it; the clock starts at once, or at `begin`."""

    def __init__(self) -> None:
        self.wall_seconds = self.cpu_seconds = 0.0
        self.begin()

    def begin(self) -> None:
        """Work begins here; what passed since it was made was none."""
        self._last = clocks()

    def add(self, wall: float, cpu: float) -> None:
        """Count what another process took, in seconds."""
        self.wall_seconds += wall
        self.cpu_seconds += cpu

    def lap(self) -> tuple[float, float]:
        """(wall seconds, CPU seconds) since the last lap or the beginning; they are counted."""
        before, self._last = self._last, clocks()
        wall, cpu = self._last[0] - before[0], self._last[1] - before[1]
        self.add(wall, cpu)
        return wall, cpu

    def told(self) -> dict[str, float]:
        """For a record: seconds up to now."""
        self.lap()
        return {"wall_seconds": self.wall_seconds, "cpu_seconds": self.cpu_seconds}


def clocks() -> tuple[float, float]:
    """Seconds on the wall, and of the processor: this process, all its threads, and its children that have ended."""
    times = os.times()
    return time.perf_counter(), time.process_time() + times.children_user + times.children_system


def _resident_peak() -> int | None:
    try:
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # Windows has no such figure in the standard library
        return None
    # getrusage counts kilobytes on Linux and bytes on macOS
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
