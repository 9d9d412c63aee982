"""The one place where tensors of our own (checkpoints, states, saves) are written and read, as safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ttabench.core.checked_file import MEND, reading
from ttabench.core.files import replacing


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors so that a reader sees the old file or the new one."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with replacing(path) as scratch:
            save_file(on_cpu, scratch, dict(metadata) if metadata else None)
    except SafetensorError as error:
        raise OSError(str(error)) from None


def read(path: Path, device: str = "cpu", hint: str = MEND) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file by name, and its metadata."""
    with reading(path, hint), safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata() or {})
        # moved by torch: safetensors knows some devices only
        tensors = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118  # no mapping
        return tensors, metadata


def unfit(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str | None:
    """How tensors differ from those that are wanted, naming the first; None where names and shapes are the same."""
    if missing := sorted(wanted.keys() - tensors.keys()):
        return f"{missing[0]} is missing"
    if more := sorted(tensors.keys() - wanted.keys()):
        return f"{more[0]} has no place"
    for name, tensor in sorted(tensors.items()):
        if tensor.shape != wanted[name].shape:
            return f"{name} is {list(tensor.shape)}, not {list(wanted[name].shape)}"
    return None
