"""How running out of memory shows."""

from __future__ import annotations

import torch

SIGNS = ("out of memory", "not enough memory", "can't allocate memory")


def out_of_memory(error: BaseException) -> bool:
    """Whether this is a GPU or a CPU that ran out of memory."""
    known = isinstance(error, MemoryError | torch.cuda.OutOfMemoryError)
    return known or (isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS))
