"""Rotary position embeddings (arXiv 2104.09864, equation 34) undone and redone as the base model itself rotates.

Models differ in which features they rotate, what makes a pair, angles, direction, and whether a norm follows. `learned`
tries what there is on tokens that were read alone at two places, and takes what turns the keys of one reading into
those of the other. Scaled variants multiply sine and cosine by a factor, so undoing divides by its square.

Shape letters: L layers · B rows · H heads · P positions · D head size · F rotated features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, islice, product
from itertools import count as counting
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ttabench.lm.model import LM

Angles: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]
"""int64 [B, P] of positions to cosine and sine [B, P, F / 2] of every pair, float32."""


@dataclass(frozen=True, eq=False)
class Turn:
    """How the keys of a layer are rotated."""

    angles: Angles
    neighbours: bool = False
    """Features 2 i and 2 i + 1 make a pair; else i and i + F / 2."""
    last: bool = False
    """The last F features are rotated; else the first."""
    weight_D: Tensor | None = None
    """What a norm behind the rotation multiplies features by."""
    number: int = 0
    """Its place among what was tried, so that it can be remembered."""

    def __call__(self, x_BHPD: Tensor, positions_BP: Tensor, *, back: bool) -> Tensor:
        """Keys or queries [..., B, H, P, D], rotated to these positions or back from them."""
        cos, sin = (part.unsqueeze(1) for part in self.angles(positions_BP))
        size, width = 2 * cos.shape[-1], x_BHPD.shape[-1]
        weight_D = None if self.weight_D is None else self.weight_D.float()
        x = x_BHPD.float() if weight_D is None else x_BHPD.float() / weight_D
        begin = width - size if self.last else 0
        before, part, behind = torch.split(x, [begin, size, width - begin - size], dim=-1)
        first, second = (part[..., ::2], part[..., 1::2]) if self.neighbours else part.chunk(2, dim=-1)
        if back:
            norm = cos.square() + sin.square()
            turned = (first * cos + second * sin) / norm, (second * cos - first * sin) / norm
        else:
            turned = first * cos - second * sin, second * cos + first * sin
        done = torch.stack(turned, -1).flatten(-2) if self.neighbours else torch.cat(turned, -1)
        whole = torch.cat([before, done, behind], dim=-1)
        return (whole if weight_D is None else whole * weight_D).to(x_BHPD.dtype)


class Rotary:
    """The rotation of a base model: turns of keys and of queries, None of a layer that knows no positions."""

    def __init__(self, turns: Sequence[Turn | None], query_turns: Sequence[Turn | None]) -> None:
        self.turns, self.query_turns = turns, query_turns

    def query_at(self, query_BNTD: Tensor, was_BT: Tensor, now_BT: Tensor, layer: int) -> Tensor:
        """Queries of a layer that stood at one position each, as they are at another."""
        turn = self.query_turns[layer]
        return query_BNTD if turn is None else turn(turn(query_BNTD, was_BT, back=True), now_BT, back=False)

    def rotate(self, keys_LBHPD: Tensor, positions_BP: Tensor) -> Tensor:
        """Keys of all layers at these positions ([B, P], or [1, P])."""
        return self._turned(keys_LBHPD, positions_BP, back=False)

    def unrotate(self, keys_LBHPD: Tensor, positions_BP: Tensor) -> Tensor:
        """The inverse of `rotate`."""
        return self._turned(keys_LBHPD, positions_BP, back=True)

    def _turned(self, keys_LBHPD: Tensor, positions_BP: Tensor, *, back: bool) -> Tensor:
        first, *others = set(self.turns)
        if first and not others:  # all layers alike: at once
            return first(keys_LBHPD, positions_BP, back=back)
        parts = zip(self.turns, keys_LBHPD, strict=True)
        return torch.stack([turn(keys, positions_BP, back=back) if turn else keys for turn, keys in parts])


def rotaries(lm: LM) -> list[nn.Module]:
    """The modules that make the model's angles, by the name that transformers gives them."""
    return [module for module in lm.decoder.modules() if "Rotary" in type(module).__name__]


@contextmanager
def angles_seen(lm: LM) -> Iterator[list[Angles]]:
    """The modules that make the model's angles in the forwards of the block, each as it was called."""
    seen: dict[tuple[Any, ...], Angles] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _out: Any) -> None:
        named = {name: value for name, value in kwargs.items() if isinstance(value, str)}
        texts = tuple(value for value in args if isinstance(value, str))
        seen.setdefault((module, texts, *sorted(named.items())), _angles_of(module, texts, named))

    with ExitStack() as undo:
        for module in rotaries(lm):
            undo.callback(module.register_forward_hook(note, with_kwargs=True).remove)
        angles: list[Angles] = []
        yield angles
    angles += seen.values()


def _angles_of(module: nn.Module, texts: tuple[str, ...], named: dict[str, str]) -> Angles:
    def angles(positions_BP: Tensor) -> tuple[Tensor, Tensor]:
        like = torch.empty(0, device=positions_BP.device, dtype=torch.float32)
        made = module(like, positions_BP, *texts, **named)
        cos, sin = (made.real, made.imag) if isinstance(made, Tensor) else made[:2]
        return cos, sin

    return angles


def plain_angles(size: int) -> Angles:
    """Those of RoFormer, for models whose angles no module makes (GPT-J)."""

    def angles(positions_BP: Tensor) -> tuple[Tensor, Tensor]:
        steps = torch.arange(0, size, 2, device=positions_BP.device, dtype=torch.float32)
        turns_BPF = positions_BP[..., None].float() * 10_000.0 ** (-steps / size)
        return turns_BPF.cos(), turns_BPF.sin()

    return angles


PICKS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda made: made[..., : made.shape[-1] // 2],
    lambda made: made[..., ::2],
    lambda made: made,
)
"""What makes one angle a pair of what a module gives: half of it, every second, or all."""


def _picked(angles: Angles, pick: Callable[[Tensor], Tensor], direction: int) -> Angles:
    def pairs(positions_BP: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = angles(positions_BP)
        return pick(cos), direction * pick(sin)

    return pairs


def learned(
    lm: LM, angles: Sequence[Angles], here: Sequence[Tensor], there: Sequence[Tensor], at_B1: Tensor, shift: int,
    bound: float,
) -> list[Turn | None] | None:  # fmt: skip
    """How each layer rotates its keys, or queries; None where nothing known does what the model does.

    Keys of tokens that stand alone, one [B, H, 1, D] a layer, are at `at_B1` here and `shift` positions further there;
    `bound` is the largest difference, as a share of the largest key.
    """
    turns: list[Turn | None] = []

    def moves(turn: Turn | None, own: Tensor, wanted: Tensor) -> bool:
        try:
            moved = own if turn is None else turn(turn(own, at_B1, back=True), at_B1 + shift, back=False)
        except RuntimeError:  # more angles than features
            return False
        return bool((moved - wanted).abs().max() <= bound * wanted.abs().max())

    for layer, (own, wanted) in enumerate(zip(here, there, strict=True)):
        tried = chain(dict.fromkeys(turns), (None,), _candidates(lm, angles, layer, own.shape[-1]))
        fitting = [*islice((turn for turn in tried if moves(turn, own, wanted)), 1)]
        if not fitting:
            return None
        turns += fitting
    return turns


def _candidates(lm: LM, angles: Sequence[Angles], layer: int, size: int) -> Iterator[Turn]:
    sizes = {size, getattr(lm.config, "rotary_dim", None) or size}
    sources = [*product(angles, PICKS), *((plain_angles(features), PICKS[-1]) for features in sizes)]
    pairs = [_picked(*source, direction) for direction in (1, -1) for source in sources]
    count = counting(1)
    for made, neighbours, last in product(pairs, (False, True), (False, True)):
        yield Turn(made, neighbours, last, number=next(count))
    norms = [p for name, p in lm.blocks()[layer].named_parameters() if "norm" in name and p.shape == (size,)]
    for made, neighbours, norm in product(pairs, (False, True), norms):
        for weight in (norm, 1 + norm):
            yield Turn(made, neighbours, weight_D=weight.detach(), number=next(count))


def numbered(lm: LM, angles: Sequence[Angles], numbers: Sequence[int], size: int) -> list[Turn | None]:
    """The turns of these numbers, one a layer; 0 stands for none."""
    turns: list[Turn | None] = []
    for layer, number in enumerate(numbers):
        known = next((turn for turn in turns if turn and turn.number == number and turn.weight_D is None), None)
        made = _candidates(lm, angles, layer, size) if number and known is None else ()
        turns.append(known or next((turn for turn in made if turn.number == number), None))
    return turns
