"""In which ways a model is run: those that give what transformers' own forward gives, as `probe` finds out.

What no way does right is refused by whoever needs it (`require`), in one line that names the part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass, field

from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.lm.attention import NAME, MaskFunction
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
        unusual: dict[str, tuple[bool, Json]] = {
            "attention": (self.attention != "sdpa", self.attention),
            "head": (not self.linear_head, "transformers"),
            "rows": (not self.rows, "one by one"),
            "local_layers": (bool(self.local), len(self.local)),
        }
        return {name: value for name, (there, value) in unusual.items() if there}


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
