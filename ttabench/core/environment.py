"""The environment of a run: seeds, versions, commit of the code; the machine, a limit to its memory, and what is spent.

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
import platform
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttabench.core import __version__
from ttabench.core.amounts import size
from ttabench.core.errors import MOST_THREADS, UserError
from ttabench.core.types import Json

if TYPE_CHECKING:
    import torch

PACKAGES = (
    "torch", "transformers", "tokenizers", "datasets", "evaluate", "peft", "safetensors", "numpy", "pyarrow", "kvpress",
    "gguf",
)  # fmt: skip


def seed_everything(seed: int) -> None:
    """Seed python, numpy and torch, and ask torch for deterministic kernels (two runs on CPU are then bit-equal).

    Where a kernel has no deterministic form, torch warns rather than fails.
    """
    import random

    import numpy as np
    import torch

    # cuBLAS reads this when its first handle is made; without it its matrix products vary from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # By default that also fills every fresh tensor, which costs time and serves only to find bugs in torch programs.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # set through a module class


def cache_folder() -> Path:
    """Where ttabench keeps what it can make again: $TTABENCH_CACHE, or `ttabench` in $XDG_CACHE_HOME or ~/.cache."""
    if own := os.environ.get("TTABENCH_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path("~/.cache").expanduser()) / "ttabench"


def use_threads(count: int | None) -> None:
    """Let torch, and tokenizers, work with so many threads of the processor from here on; None changes nothing."""
    if count is None:
        return
    if not 1 <= count <= MOST_THREADS:
        raise UserError(
            f"{count} threads are asked for.", f"Give 1 to {MOST_THREADS}, at best the cores that are free."
        )
    os.environ["RAYON_NUM_THREADS"] = str(count)  # tokenizers reads it when it first encodes several texts
    import torch

    torch.set_num_threads(count)


def quiet_libraries() -> None:
    """Turn off the progress bars of transformers, and of datasets if not imported yet: ttabench shows its own."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


@contextmanager
def quiet_loading() -> Iterator[None]:
    """No progress bars, tables or advice of the libraries while they load a model; faults still raise."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def versions() -> dict[str, str]:
    """Versions of ttabench, python and the packages that decide the numbers; those not installed are left out."""
    from importlib.metadata import PackageNotFoundError, version

    installed = {"ttabench": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


def other_versions(before: Mapping[str, str]) -> list[str]:
    """Libraries of a result that have another version now, or are gone: `torch 2.8.0 (now 2.9.0)`."""
    now = versions()
    return [f"{name} {was} (now {now.get(name, '-')})" for name, was in before.items() if now.get(name) != was]


def hardware() -> dict[str, Json]:
    """Processor, cores, threads in use, memory in bytes, operating system, and the accelerator where there is one."""
    import torch

    parts: dict[str, Json] = {
        "cpu": cpu_name(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "memory_bytes": memory_bytes(),
        "system": f"{platform.system()} {platform.release()}",
    }
    if (kind := accelerator()) != "cpu":
        properties = called(kind, "get_device_properties", 0)
        name, memory = getattr(properties, "name", kind), getattr(properties, "total_memory", None)
        parts["gpu"] = {"name": name, "memory_bytes": memory, "cuda": torch.version.cuda}
    return parts


def determinism() -> dict[str, Json]:
    """The flags that decide whether a run can be repeated bit by bit."""
    import torch

    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "matmul_precision": torch.get_float32_matmul_precision(),
    }


def code() -> dict[str, Json]:
    """The git commit of the code and whether it was changed since; empty outside a checkout of ttabench."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return {}
    commit = _git(root, "rev-parse", "HEAD")
    if not commit:
        return {}
    return {"commit": commit, "changed": bool(_git(root, "status", "--porcelain", "--", "ttabench", "tasks"))}


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def cores() -> int | None:
    """Cores of the processor that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def cpu_name() -> str:
    """The name of the processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory_bytes() -> int | None:
    """Memory of this machine; None where it is not known."""
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


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
        with suppress(OSError):
            CLEAR_REFS.write_text("5")


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

    def told(self) -> dict[str, float | None]:
        """For a record: seconds up to now."""
        self.lap()
        return {"wall_seconds": self.wall_seconds, "cpu_seconds": self.cpu_seconds}


def clocks() -> tuple[float, float]:
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
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
