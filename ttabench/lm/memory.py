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
