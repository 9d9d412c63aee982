"""Gradient steps that hold little: what enters each decoder layer is kept, the rest is computed again on the way back.

    with deltas_applied(lm, deltas, rows=1), layers_recomputed(lm):
        (summed / count).backward()          the way back runs inside, under the same deltas

One more forward buys memory that hardly grows with the number of layers (Chen et al., arXiv 1604.06174). What is random
in a layer must draw the same again by itself (`parts.lora`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch.utils.checkpoint import checkpoint

from ttabench.lm.model import LM


@contextmanager
def layers_recomputed(lm: LM) -> Iterator[None]:
    """Inside, gradient steps compute every decoder layer again on the way back; undone when the block ends."""
    blocks = list(lm.blocks())
    try:
        for block in blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
        yield
    finally:
        for block in blocks:
            vars(block).pop("forward", None)


def step_bytes(lm: LM, tokens: int) -> int:
    """About how much a gradient step through all adapted maps holds between its two ways, if all is kept.

    Twice what enters and leaves the linear maps: norms, rotations, gates and dropout's zeros come on top of these.
    """
    ends = sum(sum(lm.linear_shape(name)) for name in lm.linear_names())
    return 2 * ends * tokens * lm.dtype.itemsize
