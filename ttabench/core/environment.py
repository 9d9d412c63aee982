"""The environment of a run: seeds, versions, hardware, the commit of the code."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ttabench.core import __version__, machine
from ttabench.core.errors import MOST_THREADS, UserError
from ttabench.core.types import Json

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
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
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
    if accelerator := machine.accelerator_facts():
        parts["gpu"] = accelerator
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
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory_bytes() -> int | None:
    """Memory of this machine; None where it is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
