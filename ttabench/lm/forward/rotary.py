"""Rotary position embeddings (arXiv 2104.09864, equation 34) undone and redone by the base model's own code.

Angles are those of its rotary modules, the rotation is `apply_rotary_pos_emb` of its own source. `learned` tries
them on tokens that were read alone at two places, and takes what turns the keys of one reading into those of the other.
Scaled variants multiply sine and cosine by a factor, so undoing divides by its square.

Shape letters: L layers · B rows · H heads · P positions · D head size · F rotated features.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, islice, product
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ttabench.lm.attention.interface import Call
from ttabench.lm.model import LM

Angles: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]
"""int64 [B, P] of positions to cosine and sine [B, P, F] as the model has them, float32."""


@dataclass(frozen=True, eq=False)
class Turn:
    """How the keys of a layer are rotated."""

    angles: Angles
    apply: Callable[..., tuple[Tensor, Tensor]]
    """The model's own rotation of queries and keys by cosine and sine."""
    part: slice
    """The features that it is given."""
    weight_D: Tensor | None = None
    """What a norm behind the rotation multiplies features by."""

    def __call__(self, x_BHPD: Tensor, positions_BP: Tensor, *, back: bool) -> Tensor:
        """Keys or queries [..., B, H, P, D], rotated to these positions or back from them."""
        cos, sin = self.angles(positions_BP)
        weight_D = None if self.weight_D is None else self.weight_D.float()
        whole = x_BHPD.float() if weight_D is None else x_BHPD.float() / weight_D
        given = whole[..., self.part]
        done = self.apply(given, given, cos, -sin if back else sin)[0]
        if back:  # by the square of the factor; a feature that is not rotated keeps its 1
            ones = torch.ones_like(given[(0,) * (given.dim() - 4)][:, :1])
            done = done / self.apply(ones, ones, cos.square() + sin.square(), torch.zeros_like(sin))[0]
        if done.shape != whole.shape:
            before, behind = whole[..., : self.part.start or 0], whole[..., self.part.stop or whole.shape[-1] :]
            done = torch.cat([before, done, behind], dim=-1)
        return (done if weight_D is None else done * weight_D).to(x_BHPD.dtype)


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
    """What makes the model's angles in the forwards of the block: its modules, each as it was called."""
    seen: dict[tuple[Any, ...], Angles] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _out: Any) -> None:
        texts = [value for value in args if isinstance(value, str)]  # which of several sets of angles
        named = {name: value for name, value in kwargs.items() if isinstance(value, str)}

        def angles(positions_BP: Tensor) -> tuple[Tensor, Tensor]:
            like = torch.empty(0, device=positions_BP.device, dtype=torch.float32)
            made = module(like, positions_BP, *texts, **named)
            return (made.real, made.imag) if isinstance(made, Tensor) else made[:2]

        seen.setdefault((module, *texts, *sorted(named.items())), angles)

    with ExitStack() as undo:
        for module in rotaries(lm):
            undo.callback(module.register_forward_hook(note, with_kwargs=True).remove)
        found: list[Angles] = []
        yield found
    found += seen.values()


def learned(
    lm: LM, angles: Sequence[Angles], name: str, calls: Sequence[tuple[Call, Call]], at_B1: Tensor, shift: int
) -> list[Turn | None] | None:
    """How each layer rotates its keys, or queries; None where its own code does not do what the model does.

    Args:
        name: "key" or "query".
        calls: of every layer on tokens that stand alone: at `at_B1`, and `shift` positions further.
    """
    turns: list[Turn | None] = []
    bound = 1e-4 if lm.dtype in (torch.float32, torch.float64) else 0.03  # as a share of the largest number

    def moves(turn: Turn | None, own: Tensor, wanted: Tensor) -> bool:
        try:
            moved = own if turn is None else turn(turn(own, at_B1, back=True), at_B1 + shift, back=False)
        except (RuntimeError, TypeError):  # more angles than features, or other arguments
            return False
        return bool((moved - wanted).abs().max() <= bound * wanted.abs().max())

    for here, there in calls:
        own, wanted = getattr(here, name), getattr(there, name)
        tried = chain(dict.fromkeys(turns), (None,), _candidates(lm, angles, here, own.shape[-1]))
        fitting = [*islice((turn for turn in tried if moves(turn, own, wanted)), 1)]
        if not fitting:
            return None
        turns += fitting
    return turns


def _candidates(lm: LM, angles: Sequence[Angles], call: Call, width: int) -> Iterator[Turn]:
    apply: Any = getattr(sys.modules[type(call.module).__module__], "apply_rotary_pos_emb", None)
    norms = [p for name, p in lm.blocks()[call.layer].named_parameters() if "norm" in name and p.shape == (width,)]
    weights = [None, *chain.from_iterable((norm.detach(), 1 + norm.detach()) for norm in norms)]
    for weight, made in product(weights, angles if apply else ()):
        size = made(torch.zeros(1, 1, dtype=torch.int64, device=lm.device))[0].shape[-1]
        for part in (slice(None), slice(size), slice(width - size, None)):
            yield Turn(made, apply, part, weight)
