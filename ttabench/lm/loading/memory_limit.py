"""A limit to the memory of this process, on the device where the model will be."""

from __future__ import annotations

import torch

from ttabench.core import memory
from ttabench.core.accelerators import called
from ttabench.core.amounts import size
from ttabench.core.errors import UserError


def limit(most: int, device: torch.device) -> None:
    """From here on, allocations beyond so many bytes fail: of a GPU's memory, or else of the machine's."""
    if device.type != "cpu":
        properties = called(device, "get_device_properties", device)
        bound = getattr(torch.get_device_module(device), "set_per_process_memory_fraction", None)
        if properties is None or bound is None:
            raise UserError(f"torch cannot limit the memory of {device}.", "Leave --memory-limit out.")
        bound(min(1.0, most / properties.total_memory), device)
        return
    torch.ones(512, 512) @ torch.ones(512, 512)  # starts the threads: a failure to start one ends the process
    memory.limit(most)


def hold(most: int, device: torch.device) -> None:
    """Like `limit`, where a model that was loaded already may take more than that."""
    limit(most, device)
    taken = memory.in_use()
    if device.type == "cpu" and taken is not None and taken >= most:
        raise MemoryError(f"the model and the libraries take {size(taken)}")
