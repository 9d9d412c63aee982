"""In which ways a model is run: those that give what transformers' own forward gives, as `probe` finds out.

What no way does right is refused by whoever needs it (`require`), in one line that names the part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.lm.attention.interface import NAME, OWN, MaskFunction
from ttabench.lm.forward.rotary import Rotary
from ttabench.lm.model import LM


@dataclass(frozen=True, kw_only=True)
class Ways:
    """How a model is run, see the head of the module."""

    attention: str
    linear_head: bool = False
    """Whether logits are the output embeddings of the last hidden states, and nothing else."""
    rows: bool = True
    """Whether rows of unequal length may be read together."""
    lends: bool = True
    """Whether rows may share a prefix, where attention is ours."""
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
    same_angles: int | None = None
    """Most positions of a text whose angles do not depend on its length; None: they never do."""
    angles_grow: bool = False
    """Whether longer texts have angles of their own each (dynamic NTK); else all of them have the same (longrope)."""
    rotaries: Sequence[nn.Module] = ()
    """What makes the angles, where they depend on the length."""

    @property
    def hooked(self) -> bool:
        """Whether attention is ours: it can be watched, and masked slot by slot."""
        return self.attention in ("sdpa", "own")

    @property
    def caches(self) -> bool:
        """Whether a text can be read on behind keys and values."""
        return self.attention not in ("again", "none")

    def angles_of(self, length: int) -> int:
        """Which angles a text of so many tokens has: texts of one number have the same."""
        if self.same_angles is None or length <= self.same_angles:
            return 0
        return length if self.angles_grow else 1

    @contextmanager
    def rotating_as(self, length: int) -> Iterator[None]:
        """Run the block with the angles of a text of so many tokens, however many of them are read at a time."""
        rotaries = self.rotaries if self.angles_of(length) else ()
        for module in rotaries:
            vars(module)["forward"] = _with_last(module.forward, length - 1)
        try:
            yield
        finally:
            for module in rotaries:
                vars(module).pop("forward")

    def record(self, lm: LM) -> dict[str, Json]:
        """What a record says: parts that are not run in the usual way; empty for most models."""
        unusual: dict[str, tuple[bool, Json]] = {
            "attention": (self.attention != "sdpa", lm.attention or self.attention),
            "head": (not self.linear_head, "transformers"),
            "rows": (not self.rows, "one by one"),
            "local_layers": (bool(self.local), len(self.local)),
        }
        return {name: value for name, (there, value) in unusual.items() if there}


NAMES = {"sdpa": NAME, "own": OWN}
"""Attention of transformers by way."""
probes: list[Callable[[LM], Ways]] = []
"""What tries a model: `probe.tried`, which stands above windows."""
REASONS = {
    "hooks": ("it attends in code of its own, which can be neither watched nor masked slot by slot",
              "none, lora and templora need neither; icl and rag do not where it keeps keys and values."),
    "cache": ("it keeps no keys and values that a text could be read on from", "none, lora and templora need none."),
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
    if lm.attention and part in ("hooks", "gaps", "embeddings"):
        why = f"--attention {lm.attention} leaves no way to watch or mask it slot by slot"
        hint = "Leave --attention out."
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
    lm.linear_head, lm.ways = ways.linear_head, ways.record(lm)
    if len(ways.shapes) == 1:
        ((lm.kv_heads, lm.head_dim, _),) = ways.shapes
    lm.attend_by(NAMES.get(ways.attention) or lm.attention or lm.native_attention)


def _with_last(forward: Callable[..., Any], last: int) -> Callable[..., Any]:
    """The angles of a rotary module for its positions and one more, which is then left out."""

    def rotated(x: Tensor, position_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
        more = position_ids.new_full((len(position_ids), 1), last)
        made = forward(x, torch.cat([position_ids, more], dim=1), *args, **kwargs)
        return made[:, :-1] if isinstance(made, Tensor) else tuple(part[:, :-1] for part in made)

    return rotated
