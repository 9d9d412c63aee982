"""Inputs of chosen decoder layers and linear maps, shown while the frozen LM reads.

    with observe_inputs(lm, see, rows=2, blocks=[0, 5]):          see(5, hidden_BTC) at every forward of the block
        read(lm, patch, ids_BT)

Hidden states are what enters a layer, in front of its first norm; layer number `lm.layers` is what leaves the last one.
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
        blocks: decoder layers by number; `lm.layers` for what leaves the last one.
        maps: linear maps by name, see `LM.linear_names`.
    """
    ways_of(lm)  # which are found out before anybody looks
    layers = lm.blocks()
    assert all(0 <= number <= lm.layers for number in blocks), f"layers {list(blocks)} of {lm.layers}"
    with ExitStack() as undo:
        for number in dict.fromkeys(blocks):
            if number == lm.layers:
                undo.callback(layers[-1].register_forward_hook(_leaving(see, number)).remove)
            else:
                hook = _entering(see, number, rows)
                undo.callback(layers[number].register_forward_pre_hook(hook, with_kwargs=True).remove)
        for name in dict.fromkeys(maps):
            hook = _entering(see, name, rows)
            undo.callback(lm.model.get_submodule(name).register_forward_pre_hook(hook, with_kwargs=True).remove)
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


def _leaving(see: See, place: Place) -> Callable[..., None]:
    def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        see(place, output if isinstance(output, Tensor) else output[0])

    return hook
