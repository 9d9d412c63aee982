"""Reading and writing of our tensors (checkpoints, states, saves) as safetensors."""

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
    """Write tensors to a file that replaces the old one atomically."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with replace_atomically(path) as scratch:
            save_file(on_cpu, scratch, dict(metadata) if metadata else None)
    except SafetensorError as error:
        raise OSError(str(error)) from None


def read_tensors(
    path: Path, device: str = "cpu", hint: str = CHECK_FILE_HINT
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors by name and the metadata. Raises a UserError for a NaN or infinity."""
    with reading_file(path, hint), safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata() or {})
        # moved by torch: safetensors supports some devices only
        tensors = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118
    if broken := first_non_finite_tensor(sorted(tensors.items())):
        raise UserError(f"{broken} of {path} has values that are not finite.", hint)
    return tensors, metadata


def describe_mismatch(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str | None:
    """Describe the first difference in names or shapes; None if there is none."""
    if missing := sorted(expected.keys() - tensors.keys()):
        return f"{missing[0]} is missing"
    if more := sorted(tensors.keys() - expected.keys()):
        return f"{more[0]} is not expected"
    for name, tensor in sorted(tensors.items()):
        if tensor.shape != expected[name].shape:
            return f"{name} has shape {list(tensor.shape)}, not {list(expected[name].shape)}"
    return None


def first_non_finite_tensor(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """Return the name of the first tensor with a NaN or an infinity; None if there is none.

    One pass per tensor, without a copy: the extremes of a tensor with a NaN are NaN.
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
