"""In which ways a model is run: those that give what transformers' own forward gives, as `capability_probe` finds out.

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
from ttabench.lm.attention import ATTENTION_NAME, AttentionCall, MaskFunction
from ttabench.lm.model import LM

Angles: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]
"""int64 [B, P] of positions to cosine and sine [B, P, F] as the model has them, float32."""


@dataclass(frozen=True, eq=False)
class Rotation:
    """How the keys of a layer are rotated."""

    angles: Angles
    apply: Callable[..., tuple[Tensor, Tensor]]
    """The model's own rotation of queries and keys by cosine and sine."""
    features: slice
    """The features that it is given."""

    def __call__(self, x_BHPD: Tensor, positions_BP: Tensor, *, inverse: bool) -> Tensor:
        """Keys or queries [..., B, H, P, D], rotated to these positions or back from them."""
        cos, sin = self.angles(positions_BP)
        whole = x_BHPD.float()
        given = whole[..., self.features]
        rotated = self.apply(given, given, cos, -sin if inverse else sin)[0]
        if inverse:  # by the square of the factor; a feature that is not rotated keeps its 1
            ones = torch.ones_like(given[(0,) * (given.dim() - 4)][:, :1])
            rotated = (
                rotated
                / self.apply(ones, ones, cos.square() + sin.square(), torch.zeros_like(sin))[0]
            )
        if rotated.shape != whole.shape:
            before, behind = (
                whole[..., : self.features.start or 0],
                whole[..., self.features.stop or whole.shape[-1] :],
            )
            rotated = torch.cat([before, rotated, behind], dim=-1)
        return rotated.to(x_BHPD.dtype)


class Rotary:
    """The rotation of a base model: a turn of keys and queries a layer, None of one that knows no positions."""

    def __init__(self, rotations: Sequence[Rotation | None]) -> None:
        self.rotations = rotations

    def move_query(
        self, query_BNTD: Tensor, old_positions_BT: Tensor, new_positions_BT: Tensor, layer: int
    ) -> Tensor:
        """Queries of a layer that stood at one position each, as they are at another."""
        rotation = self.rotations[layer]
        return (
            query_BNTD
            if rotation is None
            else rotation(
                rotation(query_BNTD, old_positions_BT, inverse=True),
                new_positions_BT,
                inverse=False,
            )
        )

    def rotate(self, keys_LBHPD: Tensor, positions_BP: Tensor, *, inverse: bool) -> Tensor:
        """Keys of all layers, rotated to these positions ([B, P], or [1, P]) or back from them."""
        first, *others = set(self.rotations)
        if first and not others:  # all layers alike: at once
            return first(keys_LBHPD, positions_BP, inverse=inverse)
        parts = zip(self.rotations, keys_LBHPD, strict=True)
        return torch.stack(
            [
                rotation(keys, positions_BP, inverse=inverse) if rotation else keys
                for rotation, keys in parts
            ]
        )


@contextmanager
def record_angles(lm: LM) -> Iterator[list[Angles]]:
    """What makes the model's angles in the forwards of the block: its modules, each as it was called."""
    seen: dict[tuple[Any, ...], Angles] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _out: Any) -> None:
        texts = [
            value for value in args if isinstance(value, str)
        ]  # which of several sets of angles
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


def learn_rotary(
    lm: LM,
    angles: Sequence[Angles],
    calls: Sequence[tuple[AttentionCall, AttentionCall]],
    at_B1: Tensor,
    shift: int,
) -> Rotary | None:
    """How each layer rotates its keys and queries; None where its own code does not do what the model does, or nothing.
    `calls` are of every layer on tokens that stand alone: at `at_B1`, and `shift` positions further."""
    rotations: list[Rotation | None] = []
    bound = (
        1e-4 if lm.dtype in (torch.float32, torch.float64) else 0.03
    )  # as a share of the largest number

    def moves(rotation: Rotation | None, own: Tensor, expected: Tensor) -> bool:
        try:
            moved = (
                own
                if rotation is None
                else rotation(rotation(own, at_B1, inverse=True), at_B1 + shift, inverse=False)
            )
        except (RuntimeError, TypeError):  # more angles than features, or other arguments
            return False
        return bool((moved - expected).abs().max() <= bound * expected.abs().max())

    for here, there in calls:
        tried = chain(
            dict.fromkeys(rotations),
            (None,),
            _candidate_rotations(lm, angles, here, here.key.shape[-1]),
        )
        fitting = (
            rotation
            for rotation in tried
            if moves(rotation, here.key, there.key) and moves(rotation, here.query, there.query)
        )
        if not (first := [*islice(fitting, 1)]):
            return None
        rotations += first
    return Rotary(rotations) if any(rotations) else None


def _candidate_rotations(
    lm: LM, angles: Sequence[Angles], call: AttentionCall, width: int
) -> Iterator[Rotation]:
    apply: Any = getattr(sys.modules[type(call.module).__module__], "apply_rotary_pos_emb", None)
    for made in angles if apply else ():
        size = made(torch.zeros(1, 1, dtype=torch.int64, device=lm.device))[0].shape[-1]
        for part in (slice(None), slice(size), slice(width - size, None)):
            yield Rotation(made, apply, part)


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """How a model is run, see the head of the module."""

    attention: str
    has_linear_head: bool = False
    """Whether logits are the output embeddings of the last hidden states, and nothing else."""
    supports_batching: bool = True
    """Whether rows of unequal length may be read together."""
    takes_positions: bool = True
    """Whether the model takes position ids."""
    supports_gaps: bool = False
    """Whether it heeds gaps in them, as they are left where keys were thrown away."""
    supports_embeddings: bool = False
    """Whether embeddings may stand in for tokens."""
    local_masks: Mapping[int, MaskFunction] = field(default_factory=dict)
    """Layers that hide what is far away (sliding windows, chunks), with the model's own mask function."""
    rotary: Rotary | None = None
    """What moves keys and queries to other positions, where that is possible."""
    kv_shapes: frozenset[tuple[int, int, int]] = frozenset()
    """(key/value heads, head size of keys, of values) that layers have."""

    @property
    def supports_hooks(self) -> bool:
        """Whether attention is ours: it can be watched, and masked slot by slot."""
        return self.attention == "sdpa"

    @property
    def supports_cache(self) -> bool:
        """Whether a text can be read on behind keys and values."""
        return self.attention not in ("again", "none")

    def record(self) -> dict[str, Json]:
        """What a record says: parts that are not run in the usual way; empty for most models."""
        unusual = {
            "attention": "" if self.supports_hooks else self.attention,
            "head": "" if self.has_linear_head else "transformers",
            "rows": "" if self.supports_batching else "one by one",
            "local_layers": len(self.local_masks),
        }
        return {name: value for name, value in unusual.items() if value}


capability_probes: list[Callable[[LM], Capabilities]] = []
"""What tries a model: `capability_probe.tried`, which stands above windows."""
MISSING_CAPABILITY_REASONS = {
    "hooks": (
        "it attends in code of its own, which can be neither watched nor masked slot by slot",
        "none, lora and templora need neither; icl and rag do not where it keeps keys and values.",
    ),
    "cache": (
        "its layers do not each keep keys and values, so no text can be read on from them",
        "none, lora and templora need none.",
    ),
    "gaps": (
        "distances in its attention are counted in slots, so none may be thrown away",
        "Use icl or rag.",
    ),
    "embeddings": (
        "it does not take embeddings in place of tokens",
        "Use icl, window, snapkv or h2o.",
    ),
    "shape": ("its layers keep keys and values of unequal shapes", "Use icl, rag or templora."),
    "none": (
        "no way to run it gives the logits of its own forward",
        "Give a causal LM like Llama, Qwen or Gemma.",
    ),
}
"""Why a model cannot do what a method needs, and what does not need it."""


def require_capabilities(lm: LM, *parts: str) -> None:
    """Refuse a model that lacks one of these parts of `REASONS`."""
    capabilities = get_capabilities(lm)
    available = {
        "hooks": capabilities.supports_hooks,
        "cache": capabilities.supports_cache,
        "gaps": capabilities.supports_gaps,
        "embeddings": capabilities.supports_embeddings,
    }
    for part in parts:
        if not available.get(part, len(capabilities.kv_shapes) < 2):
            raise _missing_capability_error(lm, part)


def _missing_capability_error(lm: LM, part: str) -> UserError:
    why, hint = MISSING_CAPABILITY_REASONS[part]
    return UserError(f"{lm.name} ({lm.config.model_type}) cannot be used here: {why}.", hint)


def get_capabilities(lm: LM) -> Capabilities:
    """How this model is run: tried at the first call."""
    known: Capabilities | None = vars(lm).get("_capabilities")
    if known is None:
        known = Context().run(
            capability_probes[0], lm
        )  # whoever watches, and whatever is counted, has no part in it
        apply_capabilities(lm, known)
    if known.attention == "none":
        raise _missing_capability_error(lm, "none")
    return known


def get_rotary(lm: LM) -> Rotary:
    """What moves the keys of this model."""
    rotary = get_capabilities(lm).rotary
    if rotary is None:
        fault = f"positions=cache moves rotated keys, but {lm.name} has no rotary position embeddings that are known"
        raise UserError(f"{fault}.", "Use --set positions=original.")
    return rotary


def apply_capabilities(lm: LM, capabilities: Capabilities) -> None:
    """Run the model in these ways from here on."""
    vars(lm)["_capabilities"] = capabilities
    lm.has_linear_head, lm.capabilities = capabilities.has_linear_head, capabilities.record()
    if len(capabilities.kv_shapes) == 1:
        ((lm.kv_heads, lm.head_dim, _),) = capabilities.kv_shapes
    lm.set_attention(ATTENTION_NAME if capabilities.supports_hooks else lm.native_attention)
