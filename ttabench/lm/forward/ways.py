"""In which ways a model is run: those that give what transformers' own forward gives, as `probe` finds out.

What no way does right is refused by whoever needs it (`require`), in one line that names the part.

Rotary position embeddings (arXiv 2104.09864, equation 34) are undone and redone by the base model's own code. Angles
are those of its rotary modules, the rotation is `apply_rotary_pos_emb` of its own source. `learned` tries them on
tokens that were read alone at two places, and takes what turns the keys of one reading into those of the other. Scaled
variants multiply sine and cosine by a factor, so undoing divides by its square.

Shape letters: L layers · B rows · H heads · P positions · D head size · F rotated features.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.lm.attention import NAME, Call, MaskFunction
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

    def __call__(self, x_BHPD: Tensor, positions_BP: Tensor, *, back: bool) -> Tensor:
        """Keys or queries [..., B, H, P, D], rotated to these positions or back from them."""
        cos, sin = self.angles(positions_BP)
        whole = x_BHPD.float()
        given = whole[..., self.part]
        done = self.apply(given, given, cos, -sin if back else sin)[0]
        if back:  # by the square of the factor; a feature that is not rotated keeps its 1
            ones = torch.ones_like(given[(0,) * (given.dim() - 4)][:, :1])
            done = done / self.apply(ones, ones, cos.square() + sin.square(), torch.zeros_like(sin))[0]
        if done.shape != whole.shape:
            before, behind = whole[..., : self.part.start or 0], whole[..., self.part.stop or whole.shape[-1] :]
            done = torch.cat([before, done, behind], dim=-1)
        return done.to(x_BHPD.dtype)


class Rotary:
    """The rotation of a base model: a turn of keys and queries a layer, None of one that knows no positions."""

    def __init__(self, turns: Sequence[Turn | None]) -> None:
        self.turns = turns

    def query_at(self, query_BNTD: Tensor, was_BT: Tensor, now_BT: Tensor, layer: int) -> Tensor:
        """Queries of a layer that stood at one position each, as they are at another."""
        turn = self.turns[layer]
        return query_BNTD if turn is None else turn(turn(query_BNTD, was_BT, back=True), now_BT, back=False)

    def turned(self, keys_LBHPD: Tensor, positions_BP: Tensor, *, back: bool) -> Tensor:
        """Keys of all layers, rotated to these positions ([B, P], or [1, P]) or back from them."""
        first, *others = set(self.turns)
        if first and not others:  # all layers alike: at once
            return first(keys_LBHPD, positions_BP, back=back)
        parts = zip(self.turns, keys_LBHPD, strict=True)
        return torch.stack([turn(keys, positions_BP, back=back) if turn else keys for turn, keys in parts])


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
        for module in lm.decoder.modules():
            if "Rotary" in type(module).__name__:  # as transformers calls what makes angles
                undo.callback(module.register_forward_hook(note, with_kwargs=True).remove)
        found: list[Angles] = []
        yield found
    found += seen.values()


def learned(
    lm: LM, angles: Sequence[Angles], calls: Sequence[tuple[Call, Call]], at_B1: Tensor, shift: int
) -> Rotary | None:
    """How each layer rotates its keys and queries; None where its own code does not do what the model does, or nothing.
    `calls` are of every layer on tokens that stand alone: at `at_B1`, and `shift` positions further."""
    turns: list[Turn | None] = []
    bound = 1e-4 if lm.dtype in (torch.float32, torch.float64) else 0.03  # as a share of the largest number

    def moves(turn: Turn | None, own: Tensor, wanted: Tensor) -> bool:
        try:
            moved = own if turn is None else turn(turn(own, at_B1, back=True), at_B1 + shift, back=False)
        except (RuntimeError, TypeError):  # more angles than features, or other arguments
            return False
        return bool((moved - wanted).abs().max() <= bound * wanted.abs().max())

    for here, there in calls:
        tried = chain(dict.fromkeys(turns), (None,), _candidates(lm, angles, here, here.key.shape[-1]))
        fitting = (turn for turn in tried if moves(turn, here.key, there.key) and moves(turn, here.query, there.query))
        if not (first := [*islice(fitting, 1)]):
            return None
        turns += first
    return Rotary(turns) if any(turns) else None


def _candidates(lm: LM, angles: Sequence[Angles], call: Call, width: int) -> Iterator[Turn]:
    apply: Any = getattr(sys.modules[type(call.module).__module__], "apply_rotary_pos_emb", None)
    for made in angles if apply else ():
        size = made(torch.zeros(1, 1, dtype=torch.int64, device=lm.device))[0].shape[-1]
        for part in (slice(None), slice(size), slice(width - size, None)):
            yield Turn(made, apply, part)


@dataclass(frozen=True, kw_only=True)
class Ways:
    """How a model is run, see the head of the module."""

    attention: str
    linear_head: bool = False
    """Whether logits are the output embeddings of the last hidden states, and nothing else."""
    rows: bool = True
    """Whether rows of unequal length may be read together."""
    positions: bool = True
    """Whether the model takes position ids."""
    gaps: bool = False
    """Whether it heeds gaps in them, as they are left where keys were thrown away."""
    embeddings: bool = False
    """Whether embeddings may stand in for tokens."""
    local: Mapping[int, MaskFunction] = field(default_factory=dict)
    """Layers that hide what is far away (sliding windows, chunks), with the model's own mask function."""
    rotary: Rotary | None = None
    """What moves keys and queries to other positions, where that is possible."""
    shapes: frozenset[tuple[int, int, int]] = frozenset()
    """(key/value heads, head size of keys, of values) that layers have."""

    @property
    def hooked(self) -> bool:
        """Whether attention is ours: it can be watched, and masked slot by slot."""
        return self.attention == "sdpa"

    @property
    def caches(self) -> bool:
        """Whether a text can be read on behind keys and values."""
        return self.attention not in ("again", "none")

    def record(self) -> dict[str, Json]:
        """What a record says: parts that are not run in the usual way; empty for most models."""
        unusual = {
            "attention": "" if self.hooked else self.attention,
            "head": "" if self.linear_head else "transformers",
            "rows": "" if self.rows else "one by one",
            "local_layers": len(self.local),
        }
        return {name: value for name, value in unusual.items() if value}


probes: list[Callable[[LM], Ways]] = []
"""What tries a model: `probe.tried`, which stands above windows."""
REASONS = {
    "hooks": ("it attends in code of its own, which can be neither watched nor masked slot by slot",
              "none, lora and templora need neither; icl and rag do not where it keeps keys and values."),
    "cache": ("its layers do not each keep keys and values, so no text can be read on from them",
              "none, lora and templora need none."),
    "gaps": ("distances in its attention are counted in slots, so none may be thrown away", "Use icl or rag."),
    "embeddings": ("it does not take embeddings in place of tokens", "Use icl, window, snapkv or h2o."),
    "shape": ("its layers keep keys and values of unequal shapes", "Use icl, rag or templora."),
    "none": ("no way to run it gives the logits of its own forward", "Give a causal LM like Llama, Qwen or Gemma."),
}  # fmt: skip
"""Why a model cannot do what a method needs, and what does not need it."""


def require(lm: LM, *parts: str) -> None:
    """Refuse a model that lacks one of these parts of `REASONS`."""
    ways = ways_of(lm)
    there = {"hooks": ways.hooked, "cache": ways.caches, "gaps": ways.gaps, "embeddings": ways.embeddings}
    for part in parts:
        if not there.get(part, len(ways.shapes) < 2):
            raise _refusal(lm, part)


def _refusal(lm: LM, part: str) -> UserError:
    why, hint = REASONS[part]
    return UserError(f"{lm.name} ({lm.config.model_type}) cannot be used here: {why}.", hint)


def ways_of(lm: LM) -> Ways:
    """How this model is run: tried at the first call."""
    known: Ways | None = vars(lm).get("_ways")
    if known is None:
        known = Context().run(probes[0], lm)  # whoever watches, and whatever is counted, has no part in it
        take(lm, known)
    if known.attention == "none":
        raise _refusal(lm, "none")
    return known


def rotary_of(lm: LM) -> Rotary:
    """What moves the keys of this model."""
    rotary = ways_of(lm).rotary
    if rotary is None:
        fault = f"positions=cache moves rotated keys, but {lm.name} has no rotary position embeddings that are known"
        raise UserError(f"{fault}.", "Use --set positions=original.")
    return rotary


def take(lm: LM, ways: Ways) -> None:
    """Run the model in these ways from here on."""
    vars(lm)["_ways"] = ways
    lm.linear_head, lm.ways = ways.linear_head, ways.record()
    if len(ways.shapes) == 1:
        ((lm.kv_heads, lm.head_dim, _),) = ways.shapes
    lm.attend_by(NAME if ways.hooked else lm.native_attention)
