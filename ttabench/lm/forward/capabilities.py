"""Capabilities of a base model: the ways to run it that match transformers' own forward.

`capability_probe` determines them. `require_capabilities` raises a one-line error that names a
missing one.

Rotary position embeddings (arXiv 2104.09864, equation 34) are undone and redone with the model's
own code: the angles of its rotary modules and its `apply_rotary_pos_emb`. `learn_rotary` tests
candidates on single tokens read at two positions. It takes the one that turns the keys of one
reading into those of the other. Scaled variants multiply sine and cosine by a factor, so undoing
divides by its square.

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
from transformers.pytorch_utils import Conv1D

from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.lm.attention import ATTENTION_NAME, AttentionCall, MaskFunction
from ttabench.lm.model import LM, NO_WEIGHTS_REASON, TEXT_METHODS_HINT

Angles: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Function from positions int64 [B, P] to the model's cosine and sine, float32 [B, P, F]."""


@dataclass(frozen=True, eq=False)
class Rotation:
    """Rotation of the keys of a layer."""

    angles: Angles
    apply: Callable[..., tuple[Tensor, Tensor]]
    """Rotation function of the model: (queries, keys, cosine, sine)."""
    features: slice
    """Features that it rotates."""

    def __call__(self, x_BHPD: Tensor, positions_BP: Tensor, *, inverse: bool) -> Tensor:
        """Rotate keys or queries [..., B, H, P, D] to these positions, or back (`inverse`)."""
        cos, sin = self.angles(positions_BP)
        whole = x_BHPD.float()
        given = whole[..., self.features]
        rotated = self.apply(given, given, cos, -sin if inverse else sin)[0]
        if inverse:  # divide by the square of the scale; features that are not rotated keep 1
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

    def move(self, x_BHPD: Tensor, old_positions_BP: Tensor, new_positions_BP: Tensor) -> Tensor:
        """Move keys or queries from old to new positions."""
        bare = self(x_BHPD, old_positions_BP, inverse=True)
        return self(bare, new_positions_BP, inverse=False)


class Rotary:
    """Rotations of a base model, one per layer; None for a layer without positions."""

    def __init__(self, rotations: Sequence[Rotation | None]) -> None:
        self.rotations = rotations

    def move_query(
        self, query_BNTD: Tensor, old_positions_BT: Tensor, new_positions_BT: Tensor, layer: int
    ) -> Tensor:
        """Move the queries of a layer from old to new positions."""
        rotation = self.rotations[layer]
        if rotation is None:
            return query_BNTD
        return rotation.move(query_BNTD, old_positions_BT, new_positions_BT)

    def rotate(self, keys_LBHPD: Tensor, positions_BP: Tensor, *, inverse: bool) -> Tensor:
        """Rotate the keys of all layers to positions [B, P] or [1, P], or back (`inverse`)."""
        first, *others = set(self.rotations)
        if first and not others:  # equal layers are rotated together
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
    """Record the modules that compute angles in forwards of the block, with their arguments."""
    seen: dict[tuple[Any, ...], Angles] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _out: Any) -> None:
        # names that select one of several sets of angles
        texts = [value for value in args if isinstance(value, str)]
        named = {name: value for name, value in kwargs.items() if isinstance(value, str)}

        def angles(positions_BP: Tensor) -> tuple[Tensor, Tensor]:
            like = torch.empty(0, device=positions_BP.device, dtype=torch.float32)
            made = module(like, positions_BP, *texts, **named)
            return (made.real, made.imag) if isinstance(made, Tensor) else made[:2]

        seen.setdefault((module, *texts, *sorted(named.items())), angles)

    with ExitStack() as undo:
        for module in lm.decoder.modules():
            if "Rotary" in type(module).__name__:  # naming convention of transformers
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
    """Find the rotation of each layer; None if there is none, or no candidate matches the model.

    `calls` are attention calls on single tokens, by layer: at `at_B1`, and `shift` positions later.
    """
    rotations: list[Rotation | None] = []
    # relative to the largest number
    bound = 1e-4 if lm.dtype in (torch.float32, torch.float64) else 0.03

    def moves(rotation: Rotation | None, own: Tensor, expected: Tensor) -> bool:
        try:
            moved = own if rotation is None else rotation.move(own, at_B1, at_B1 + shift)
        except (RuntimeError, TypeError):  # more angles than features, or other arguments
            return False
        return bool((moved - expected).abs().max() <= bound * expected.abs().max())

    for first_call, shifted_call in calls:
        tried = chain(
            dict.fromkeys(rotations),
            (None,),
            _candidate_rotations(lm, angles, first_call, first_call.key.shape[-1]),
        )
        fitting = (
            rotation
            for rotation in tried
            if moves(rotation, first_call.key, shifted_call.key)
            and moves(rotation, first_call.query, shifted_call.query)
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
    """Capabilities of a model, see the module docstring."""

    attention: str
    """ "sdpa": our attention. "transformers": the model's own, with a KV cache of ours. "opaque": the
    model's own, with its own cache object. "again": without a cache. "none": none is correct.
    "server": a server reads texts, which prefixes hold (`patching.TEXT`)."""
    no_hooks_because: str = ""
    """Why our attention does not work, if that is known."""
    has_linear_head: bool = False
    """True if logits depend only on output embeddings and last hidden states."""
    supports_batching: bool = True
    """True if rows of unequal length may share a batch."""
    takes_positions: bool = True
    """True if the model accepts position ids."""
    supports_gaps: bool = False
    """True if attention respects gaps in positions, which evicted keys leave."""
    supports_embeddings: bool = False
    """True if embeddings can replace tokens."""
    local_masks: Mapping[int, MaskFunction] = field(default_factory=dict)
    """Mask functions of layers with local windows (sliding or chunked)."""
    rotary: Rotary | None = None
    """Rotations that move keys and queries to other positions; None if not possible."""
    kv_shapes: Sequence[tuple[int, int, int]] = ()
    """(key/value heads, head size of keys, head size of values) of each layer that has them."""
    kv_layers: Mapping[int, int] = field(default_factory=dict)
    """Index of the keys and values that each attention layer reads; empty if all have their own."""
    has_latent_keys: bool = False
    """True if the cache holds latents, from which attention computes keys and values (MLA)."""
    own_layers: Mapping[int, Any] = field(default_factory=dict)
    """Empty cache layers that hold more or less than keys and values, by decoder layer."""
    cache_name: str = "past_key_values"
    """Argument and output of the decoder that is its cache."""
    continues_by_token: bool = False
    """True if an opaque cache is continued correctly by single tokens alone (Mamba)."""
    started_cache: Any = None
    """Cache after one token, if caches hold more than keys and values."""

    @property
    def supports_hooks(self) -> bool:
        """True if our attention is used, which can be observed and masked by slot."""
        return self.attention == "sdpa"

    @property
    def supports_cache(self) -> bool:
        """True if reading can continue from keys and values."""
        return self.attention not in ("again", "none")

    @property
    def is_opaque(self) -> bool:
        """True if the model's own cache object is kept as a whole."""
        return self.attention == "opaque"

    @property
    def has_only_keys(self) -> bool:
        """True if the context is in keys and values of every layer, and nowhere else."""
        is_plain = self.started_cache is None and not self.own_layers
        is_latent = any(key_size != value_size for _, key_size, value_size in self.kv_shapes)
        return self.supports_cache and is_plain and not (is_latent or self.has_latent_keys)

    def record(self) -> dict[str, Json]:
        """Return deviations from the usual way of running for a record; empty for most models."""
        unusual = {
            "attention": "" if self.supports_hooks else self.attention,
            "head": "" if self.has_linear_head else "transformers",
            "rows": "" if self.supports_batching else "one by one",
            "local_layers": len(self.local_masks),
            "kv_layers": len(set(self.kv_layers.values())),
        }
        return {name: value for name, value in unusual.items() if value}


capability_probes: list[Callable[[LM], Capabilities]] = []
"""Probe function, set by `capability_probe`, which imports windows."""
MISSING_CAPABILITY_REASONS = {
    "hooks": (
        "its own attention code can be neither observed nor masked by slot",
        "Use none, lora or templora; with a KV cache also icl or rag.",
    ),
    "cache": (
        "its cache cannot be continued, so every query would read the context again",
        "Use none, lora or templora.",
    ),
    "keys": (
        "keys and values of every layer do not hold its context alone: it has recurrent, "
        "convolution, shared or latent layers",
        "Use icl, rag or templora, or an eviction method such as snapkv.",
    ),
    "plain_keys": (
        "its cache holds latents, from which attention computes the keys",
        "Use snapkv, h2o, window or kvzip.",
    ),
    "rows": (
        "texts of unequal length cannot share a batch: padding would change its states",
        "Read one context at a time.",
    ),
    "gaps": ("its attention counts distances in slots, so none may be evicted", "Use icl or rag."),
    "embeddings": (
        "it does not accept embeddings instead of tokens",
        "Use icl, window, snapkv or h2o.",
    ),
    "gradients": (
        "gradients of its output do not reach changed weights",
        "Use none, or a method that takes no gradient steps.",
    ),
    "shape": ("its layers have keys and values of different shapes", "Use icl, rag or templora."),
    "weights": (NO_WEIGHTS_REASON, TEXT_METHODS_HINT),
    "none": (
        "no supported way to run it reproduces the logits of its own forward",
        "Use a causal LM such as Llama, Qwen or Gemma.",
    ),
}
"""Reason and hint for each missing capability."""
SERVER_CAPABILITIES = ("cache", "rows")
"""Capabilities of a model on a server. All others need weights."""


def require_capabilities(lm: LM, *parts: str) -> None:
    """Raise a UserError if the model lacks one of these keys of `MISSING_CAPABILITY_REASONS`."""
    capabilities = get_capabilities(lm)
    if lm.server is not None:
        if not set(parts) <= set(SERVER_CAPABILITIES):
            raise _missing_capability_error(lm, "weights")
        return
    available = {
        "hooks": capabilities.supports_hooks,
        "cache": capabilities.supports_cache,
        "keys": capabilities.has_only_keys,
        "rows": capabilities.supports_batching,
        "plain_keys": not capabilities.has_latent_keys,
        "gaps": capabilities.supports_gaps,
        "embeddings": capabilities.supports_embeddings,
        "gradients": "gradients" in parts and passes_gradients(lm),
        "weights": True,
    }
    for part in parts:
        if part == "keys" and not capabilities.supports_cache:
            raise _missing_capability_error(lm, "cache")
        if not available.get(part, len(set(capabilities.kv_shapes)) < 2):
            raise _missing_capability_error(lm, part)


def passes_gradients(lm: LM) -> bool:
    """Return True if gradients of the logits reach the outputs of linear maps."""
    added = torch.zeros((), device=lm.device, requires_grad=True)
    ids_1T = torch.full((1, 2), min(16, lm.vocab_size - 1), device=lm.device)

    def add(_module: nn.Module, _args: Any, out: Any) -> Tensor | None:
        # expert routers return more than a tensor
        return out + added.to(out) if isinstance(out, Tensor) else None

    with ExitStack() as undo, torch.enable_grad(), torch.random.fork_rng():
        for module in lm.decoder.modules():
            if isinstance(module, nn.Linear | Conv1D):
                undo.callback(module.register_forward_hook(add).remove)
        return bool(lm.model(input_ids=ids_1T, use_cache=False).logits.requires_grad)


def _missing_capability_error(lm: LM, part: str) -> UserError:
    why, hint = MISSING_CAPABILITY_REASONS[part]
    known: Capabilities | None = vars(lm).get("_capabilities")
    if part == "hooks" and known is not None and known.no_hooks_because:
        why = f"{why} ({known.no_hooks_because})"
    return UserError(f"{lm.name} ({lm.config.model_type}) cannot be used here: {why}.", hint)


def get_capabilities(lm: LM) -> Capabilities:
    """Return the capabilities of a model. The first call probes it."""
    known: Capabilities | None = vars(lm).get("_capabilities")
    if known is None:
        # an empty context: observers and counters do not see the probe
        known = Context().run(capability_probes[0], lm)
        apply_capabilities(lm, known)
    if known.attention == "none":
        raise _missing_capability_error(lm, "none")
    return known


def get_rotary(lm: LM) -> Rotary:
    """Return the rotations of the model. Raises a UserError if they are unknown."""
    rotary = get_capabilities(lm).rotary
    if rotary is None:
        fault = (
            f"positions=cache needs rotary position embeddings, and {lm.name} has no known ones."
        )
        raise UserError(fault, "Use --set positions=original.")
    return rotary


def apply_capabilities(lm: LM, capabilities: Capabilities) -> None:
    """Use these capabilities from now on."""
    vars(lm)["_capabilities"] = capabilities
    lm.has_linear_head, lm.capabilities = capabilities.has_linear_head, capabilities.record()
    owners = dict[int, int]()
    for layer, index in capabilities.kv_layers.items():
        owners.setdefault(index, layer)
    lm.kv_layers = list(owners.values()) or range(lm.layers)
    if len(set(capabilities.kv_shapes)) == 1:
        lm.kv_heads, lm.head_dim, _ = capabilities.kv_shapes[0]
    if capabilities.kv_shapes:
        lm.slot_floats = sum(
            heads * (key_size + value_size)
            for heads, key_size, value_size in capabilities.kv_shapes
        )
    lm.set_attention(ATTENTION_NAME if capabilities.supports_hooks else lm.native_attention)
