"""What enters layers and linear maps, shown while the frozen LM reads; and layers that are computed again.

    with observe_inputs(lm, see, [0, 5], rows=2):                 see(5, hidden_BTC) at every forward of the block
        read(lm, patch, ids_BT)
    with deltas_applied(lm, deltas, rows=1), layers_recomputed(lm):
        (summed / count).backward()                               the way back runs inside, under the same deltas

Shape letters: B rows · T tokens · C width of the model · I features in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ttabench.lm.forward.ways import ways_of
from ttabench.lm.model import LM

Place: TypeAlias = int | str
"""A decoder layer by number (what enters it, in front of its first norm), or a linear map by name."""
See: TypeAlias = Callable[[Place, Tensor], object]
"""Called with a place and what entered there: [B, T, C] of a layer, [B, T, I] of a map; padding means nothing."""


@contextmanager
def observe_inputs(lm: LM, see: See, places: Sequence[Place], rows: int) -> Iterator[None]:
    """Show what enters these places in forwards of so many rows to `see`, in the order of the model."""
    ways_of(lm)  # which are found out before anybody looks
    layers = lm.blocks()

    def entering(place: Place, _module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        entered: Tensor = args[0] if args else named["hidden_states"]
        see(place, entered.reshape(rows, -1, entered.shape[-1]))  # some models flatten rows and tokens

    with ExitStack() as undo:
        for place in places:
            module = layers[place] if isinstance(place, int) else lm.model.get_submodule(place)
            undo.callback(module.register_forward_pre_hook(partial(entering, place), with_kwargs=True).remove)
        yield


@contextmanager
def layers_recomputed(lm: LM) -> Iterator[None]:
    """Inside, gradient steps keep what enters each decoder layer and compute it again on the way back.

    One more forward buys memory that hardly grows with the number of layers (Chen et al., arXiv 1604.06174). What a
    layer draws from torch's randomness it draws again.
    """
    blocks = list(lm.blocks())
    try:
        for block in blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
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
