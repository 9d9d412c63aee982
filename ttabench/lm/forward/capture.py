"""Inputs of chosen decoder layers and linear maps, shown while the frozen LM reads.

    with observe_inputs(lm, see, rows=2, blocks=[0, 5]):          see(5, hidden_BTC) at every forward of the block
        read(lm, patch, ids_BT)

Hidden states are what enters a layer, in front of its first norm.
Shape letters: B rows · T tokens · C width of the model · I features in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

from torch import Tensor, nn

from ttabench.lm.forward.ways import ways_of
from ttabench.lm.model import LM

Place: TypeAlias = int | str
"""A decoder layer by number, or a linear map by name."""
See: TypeAlias = Callable[[Place, Tensor], object]
"""Called with a place and what entered there: [B, T, C] of a layer, [B, T, I] of a map."""


@contextmanager
def observe_inputs(
    lm: LM, see: See, rows: int, *, blocks: Sequence[int] = (), maps: Sequence[str] = ()
) -> Iterator[None]:
    """Show what enters these places to `see` in all forwards of the block; undone when it ends, exceptions included.

    Args:
        see: told at every forward, in the order of the model; the entries of padded tokens mean nothing.
        rows: batch rows of the forwards.
        blocks: decoder layers by number.
        maps: linear maps by name, see `LM.linear_names`.
    """
    ways_of(lm)  # which are found out before anybody looks
    layers = lm.blocks()
    places = [(number, layers[number]) for number in blocks] + [(name, lm.model.get_submodule(name)) for name in maps]
    with ExitStack() as undo:
        for place, module in places:
            undo.callback(module.register_forward_pre_hook(_entering(see, place, rows), with_kwargs=True).remove)
        yield


@contextmanager
def inputs_kept(
    lm: LM, rows: int, *, blocks: Sequence[int] = (), maps: Sequence[str] = ()
) -> Iterator[dict[Place, list[Tensor]]]:
    """Keep what enters these places, see `observe_inputs`: by place one tensor for every forward of the block."""
    places: list[Place] = [*blocks, *maps]
    kept: dict[Place, list[Tensor]] = {place: [] for place in places}
    with observe_inputs(lm, lambda place, x_BTI: kept[place].append(x_BTI), rows, blocks=blocks, maps=maps):
        yield kept


def _entering(see: See, place: Place, rows: int) -> Callable[..., None]:
    def hook(_module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        entered: Tensor = args[0] if args else named["hidden_states"]
        see(place, entered.reshape(rows, -1, entered.shape[-1]))  # some models flatten rows and tokens

    return hook
