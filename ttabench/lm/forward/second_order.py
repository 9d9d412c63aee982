"""Gradients of gradients through the frozen LM under a patch: what training through gradient steps needs.

    with second_order():
        loss = -(weights_N * torch.cat(target_logprobs(lm, Patch(deltas=deltas), items))).sum()
    (slope,) = torch.autograd.grad(loss, [delta], create_graph=True)      differentiable with respect to weights_N

Torch's fused attention kernels and this package's head of a frozen model (`head`) know a first gradient only. Inside,
attention is written out in plain operations, and so is the head; numbers are the same up to float noise. Only forwards
need stand inside, backwards may be anywhere. Dropout of rows (`parts.row_dropout`) and layers that are computed again
(`recompute`) have no second gradient and say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch.nn.attention import SDPBackend, sdpa_kernel

_wanted: ContextVar[bool] = ContextVar("second order", default=False)


@contextmanager
def second_order() -> Iterator[None]:
    """Let what forwards in the block compute be differentiated twice."""
    token = _wanted.set(True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        _wanted.reset(token)


def wants_second_order() -> bool:
    """Whether forwards made now will be differentiated twice."""
    return _wanted.get()
