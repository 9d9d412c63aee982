"""A limit to the memory of this process, on the device where the model will be."""

from __future__ import annotations

import torch

from ttabench.core import memory


def limit(most: int, device: torch.device) -> None:
    """From here on, allocations beyond so many bytes fail: of a GPU's memory, or else of the machine's.

    Raises:
        UserError: the system knows no such limit.
    """
    if device.type == "cuda":
        whole = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, most / whole), device)
        return
    torch.ones(512, 512) @ torch.ones(512, 512)  # starts the threads: a failure to start one ends the process
    memory.limit(most)


def hold(most: int, device: torch.device) -> None:
    """Like `limit`, where a model that was loaded already may take more than that.

    Raises:
        UserError: the system knows no such limit.
        MemoryError: the model and the libraries take more as it is.
    """
    limit(most, device)
    taken = memory.in_use()
    if device.type != "cuda" and taken is not None and taken >= most:
        raise MemoryError(f"the model and the libraries take {memory.shown(taken)}")
