"""Environment of a run: seeds, versions, commit of the code, hardware and memory limit.

call_device_function("cuda:0", "max_memory_allocated", "cuda:0")   # bytes; None if not provided
limit_process_memory(4 * 2**30)   # allocations of this process beyond 4 GiB fail from now on
"""

from __future__ import annotations

import errno
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttabench.core import __version__
from ttabench.core.amounts import format_bytes
from ttabench.core.errors import MAX_THREADS, UserError
from ttabench.core.types import Json

if TYPE_CHECKING:
    import torch

RECORDED_PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "evaluate",
    "peft",
    "safetensors",
    "numpy",
    "pyarrow",
    "kvpress",
    "gguf",
)


def seed_everything(seed: int) -> None:
    """Seed python, numpy and torch, and enable deterministic kernels.

    Two runs on CPU are then bit-equal. If a kernel has no deterministic form, torch warns.
    """
    import random

    import numpy as np
    import torch

    # cuBLAS reads this when it creates its first handle. Without it, matrix products vary per run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Filling every new tensor costs time and only serves to find bugs. Set through a module class:
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def restore_global_state(threads: int | None = None) -> Iterator[None]:
    """Restore the state that `seed_everything` sets at the end of the block.

    Inside the block, torch and tokenizers use `threads` threads; None keeps the current number.
    """
    import random

    import numpy as np
    import torch

    kind, deterministic, names = (
        accelerator_kind(),
        torch.utils.deterministic,
        ("CUBLAS_WORKSPACE_CONFIG", "RAYON_NUM_THREADS"),
    )
    exact, warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    started = call_device_function(kind, "is_initialized")
    with ExitStack() as stack:
        stack.callback(
            os.environ.update, {name: os.environ[name] for name in names if name in os.environ}
        )
        for name in names:
            stack.callback(os.environ.pop, name, None)
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        stack.callback(torch.use_deterministic_algorithms, exact, warn_only=warns)
        filled = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        stack.callback(setattr, deterministic, "fill_uninitialized_memory", filled)
        if threads is not None:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
        if not started:  # reading the state of its generator would start it
            stack.callback(call_device_function, kind, "manual_seed_all", torch.initial_seed())
        devices = range(call_device_function(kind, "device_count") if started else 0)
        stack.enter_context(torch.random.fork_rng(devices, device_type=kind))
        use_threads(threads)
        yield


def cache_folder() -> Path:
    """Return the cache folder: $TTABENCH_CACHE, else `ttabench` in $XDG_CACHE_HOME or ~/.cache."""
    if folder := os.environ.get("TTABENCH_CACHE"):
        return Path(folder).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path("~/.cache").expanduser()) / "ttabench"


def use_threads(count: int | None) -> None:
    """Set the number of CPU threads of torch and tokenizers. None changes nothing."""
    if count is None:
        return
    if not 1 <= count <= MAX_THREADS:
        raise UserError(
            f"--threads {count} is out of range.",
            f"Use 1 to {MAX_THREADS}, ideally the number of free cores.",
        )
    # tokenizers reads it when it first encodes several texts
    os.environ["RAYON_NUM_THREADS"] = str(count)
    import torch

    torch.set_num_threads(count)


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Silence progress bars and log output of transformers. Errors are still raised."""
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


def package_versions() -> dict[str, str]:
    """Return the versions of ttabench, python and the installed packages that affect results."""
    from importlib.metadata import PackageNotFoundError, version

    installed = {"ttabench": __version__, "python": platform.python_version()}
    for package in RECORDED_PACKAGES:
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


def changed_versions(before: Mapping[str, str]) -> list[str]:
    """List packages whose version changed or that are missing: `torch 2.8.0 (now 2.9.0)`."""
    now = package_versions()
    return [
        f"{name} {was} (now {now.get(name, '-')})"
        for name, was in before.items()
        if now.get(name) != was
    ]


def describe_hardware() -> dict[str, Json]:
    """Describe CPU, cores, threads, memory in bytes, operating system and accelerator, if any."""
    import torch

    parts: dict[str, Json] = {
        "cpu": cpu_name(),
        "cores": available_cores(),
        "threads": torch.get_num_threads(),
        "memory_bytes": memory_bytes(),
        "system": f"{platform.system()} {platform.release()}",
    }
    if (kind := accelerator_kind()) != "cpu":
        properties = call_device_function(kind, "get_device_properties", 0)
        name, memory = getattr(properties, "name", kind), getattr(properties, "total_memory", None)
        parts["gpu"] = {"name": name, "memory_bytes": memory, "cuda": torch.version.cuda}
    return parts


def determinism_flags() -> dict[str, Json]:
    """Return the torch settings that affect bit-exact reproducibility."""
    import torch

    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "matmul_precision": torch.get_float32_matmul_precision(),
    }


def code_version() -> dict[str, Json]:
    """Return the git commit and whether the code changed since; empty outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    git = partial(subprocess.run, capture_output=True, text=True, timeout=10, check=True, cwd=root)
    if (root / ".git").exists():
        with suppress(OSError, subprocess.SubprocessError):
            commit = git(["git", "rev-parse", "HEAD"]).stdout.strip()
            changes = git(
                ["git", "status", "--porcelain", "--", "ttabench", "tasks"]
            ).stdout.strip()
            return {"commit": commit, "changed": bool(changes)}
    return {}


def available_cores() -> int | None:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def cpu_name() -> str:
    """Return the model name of the CPU."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory_bytes() -> int | None:
    """Return the memory of this machine in bytes; None if unknown."""
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def call_device_function(device: object, name: str, *arguments: object) -> Any:
    """Call a function of the torch module of the device; None if it has no such function."""
    import torch

    kind = str(device).partition(":")[0]
    function = None if kind == "cpu" else getattr(getattr(torch, kind, None), name, None)
    return None if function is None else function(*arguments)


def accelerator_kind() -> str:
    """Return the type of the accelerator of this machine; `cpu` without one."""
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if found is None else found.type


def accelerator_name(hardware: Mapping[str, Json]) -> str:
    """Return the accelerator name from the hardware of a record; empty without one."""
    return str((hardware.get("gpu") or {}).get("name", ""))


def isolated_rng(device: torch.device) -> AbstractContextManager[None]:
    """Isolate random numbers drawn inside the block, on CPU and device, from the outside."""
    import torch

    devices = [] if device.type == "cpu" else [device]
    return torch.random.fork_rng(devices=devices, device_type=device.type)


OUT_OF_MEMORY_MESSAGES = (
    "out of memory",
    "not enough memory",
    "t allocate memory",
    "cannot allocate memory",
    "unable to allocate",
    "bad_alloc",
    "memory allocation of",
    "failed to map segment",
    "memoryerror",
    "storage size calculation overflowed",
)
"""Parts of messages of torch, CUDA, numpy, the C++ library and the dynamic loader."""


def is_out_of_memory(error: BaseException) -> bool:
    """True if the error means that GPU or CPU memory ran out."""
    if isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    ):
        return True
    known = (
        isinstance(error, RuntimeError | OSError | ImportError)
        or type(error).__name__ == "SafetensorError"
    )
    return known and mentions_out_of_memory(str(error))


def mentions_out_of_memory(text: str) -> bool:
    """True if a text contains an out-of-memory message."""
    return any(message in text.lower() for message in OUT_OF_MEMORY_MESSAGES)


def out_of_memory_error(hint: str) -> UserError:
    """Create the user error for a failed allocation; lifts the limit so that it can be reported."""
    max_bytes = lift_memory_limit()
    within = f" within --memory-limit {format_bytes(max_bytes)}" if max_bytes else ""
    return UserError(f"Out of memory{within}.", hint)


_memory_limit_bytes: int | None = None


def limit_process_memory(max_bytes: int) -> None:
    """Let allocations beyond `max_bytes` fail from now on. Mapped libraries do not count."""
    global _memory_limit_bytes
    try:
        import resource
    except ImportError:
        raise UserError("This system cannot limit memory.", "Remove --memory-limit.") from None
    # RLIMIT_DATA: private writable memory, as allocated by malloc and torch
    resource.setrlimit(
        resource.RLIMIT_DATA, (max_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1])
    )
    _memory_limit_bytes = max_bytes


def is_memory_limited() -> bool:
    """True if a memory limit is set."""
    return _memory_limit_bytes is not None


def lift_memory_limit() -> int | None:
    """Lift the memory limit. Returns it in bytes; None without one."""
    global _memory_limit_bytes
    max_bytes, _memory_limit_bytes = _memory_limit_bytes, None
    if max_bytes is not None:
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    return max_bytes
