"""The one place where tensors of our own (checkpoints, states, saves) are written and read, as safetensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ttabench.core.errors import UserError
from ttabench.core.files import CHECK_FILE_HINT, reading_file, replace_atomically


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors so that a reader sees the old file or the new one."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with replace_atomically(path) as scratch:
            save_file(on_cpu, scratch, dict(metadata) if metadata else None)
    except SafetensorError as error:
        raise OSError(str(error)) from None


def read_tensors(
    path: Path, device: str = "cpu", hint: str = CHECK_FILE_HINT
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file by name, and its metadata; a UserError where one holds a NaN or an infinity."""
    with reading_file(path, hint), safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata() or {})
        # moved by torch: safetensors knows some devices only
        tensors = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118  # no mapping
    if broken := first_non_finite_tensor(sorted(tensors.items())):
        raise UserError(f"{broken} of {path} holds values that are not finite.", hint)
    return tensors, metadata


def describe_mismatch(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str | None:
    """How tensors differ from those that are wanted, naming the first; None where names and shapes are the same."""
    if missing := sorted(expected.keys() - tensors.keys()):
        return f"{missing[0]} is missing"
    if more := sorted(tensors.keys() - expected.keys()):
        return f"{more[0]} has no place"
    for name, tensor in sorted(tensors.items()):
        if tensor.shape != expected[name].shape:
            return f"{name} is {list(tensor.shape)}, not {list(expected[name].shape)}"
    return None


def first_non_finite_tensor(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """Name of the first tensor that holds a NaN or an infinity; None where all are finite.

    One pass over each tensor, without a copy: the extremes of a tensor are NaN where it holds one.
    """
    for name, tensor in tensors:
        if (
            not tensor.is_floating_point()
            or tensor.itemsize < 2
            or tensor.is_meta
            or not tensor.numel()
        ):
            continue
        extremes = torch.stack(torch.aminmax(tensor.detach()))
        if not bool(torch.isfinite(extremes).all()):
            return name
    return None
