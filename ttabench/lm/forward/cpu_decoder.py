"""The decoder of Llama-likes written out, for reading without gradients on a CPU in float32.

    lean = CpuDecoder.of(lm)                                    None where the architecture is another one
    text = lean.text(ids_BT, positions_BT, filled_BT)
    hidden_BTC = lean.run(text, slots, Attending(text, lean.scaling))

It computes what `transformers.models.llama` computes, from the same modules and weights, without what a decoding step
of a small model spends most of its time on (masks made anew, cache objects, hooks of output capturing, keyword
dictionaries, rotations in ten operations), and without products for padding. Low-rank deltas (hooks on linear maps) and
dense ones (swapped parameters) act as they do there. Any other hook, and whatever else is not known here, is left to
transformers.

Shape letters: B rows · T tokens · N query heads · H key/value heads · D head size · C width of the model ·
    X tokens of all rows, padding left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn.functional import embedding, linear

from ttabench.lm.attention.cache_layer import CacheLayer
from ttabench.lm.attention.fused import in_two_parts
from ttabench.lm.attention.unpadded import Text
from ttabench.lm.forward.ways import ways_of
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch

STATIC = {"default", "linear", "llama3", "yarn"}
"""Kinds of rotary frequencies that do not change with the length of what is read."""

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries [X, N, D], keys and values [B, H, S, D]) to what they attend to [X, N, D] or [X, H, G, D]."""


@dataclass(frozen=True)
class _Block:
    """The modules of one layer."""

    before: Any
    query: nn.Module
    key: nn.Module
    value: nn.Module
    out: nn.Module
    after: Any
    gate: nn.Module
    up: nn.Module
    down: nn.Module
    act: nn.Module

    @classmethod
    def of(cls, layer: Any) -> _Block:
        own, mlp = layer.self_attn, layer.mlp
        maps = own.q_proj, own.k_proj, own.v_proj, own.o_proj
        return cls(
            layer.input_layernorm, *maps, layer.post_attention_layernorm,
            mlp.gate_proj, mlp.up_proj, mlp.down_proj, mlp.act_fn,
        )  # fmt: skip

    @property
    def maps(self) -> tuple[nn.Module, ...]:
        """Its linear maps."""
        return self.query, self.key, self.value, self.out, self.gate, self.up, self.down


class CpuDecoder:
    """A decoder of Llama's kind (pre-norm blocks, rotated queries and keys, gated MLP) without transformers' forward.

    Any model whose modules have the names of Llama's; that nothing else happens in it is found out by `ways`.

    Args:
        lm: the base model.
    """

    def __init__(self, lm: LM) -> None:
        decoder: Any = lm.decoder
        self._embedding, self._rotary, self._norm = decoder.embed_tokens, decoder.rotary_emb, decoder.norm
        self._blocks = [_Block.of(layer) for layer in decoder.layers]
        self._heads, self._size = lm.heads, lm.head_dim
        self.scaling = float(decoder.layers[0].self_attn.scaling)
        self._epsilon = torch.tensor(float(self._norm.variance_epsilon))
        half = self._rotary.inv_freq
        self._frequencies = torch.cat([half, half])
        # turned by half its width, [a, b] becomes [b, a]: the sign of -b goes to the sine
        self._signs = torch.cat([-torch.ones_like(half), torch.ones_like(half)])
        self._maps = [linear_map for block in self._blocks for linear_map in block.maps]
        parts = [(layer, layer.self_attn, layer.mlp) for layer in decoder.layers]
        inside = [(block.before, block.after, block.act) for block in self._blocks]
        around = decoder, decoder.layers, self._embedding, self._rotary, self._norm
        self._whole: list[nn.Module] = [*around, *chain.from_iterable(parts), *chain.from_iterable(inside)]

    @classmethod
    def of(cls, lm: LM) -> CpuDecoder | None:
        """The lean form of the model's decoder; None where its modules are not those of Llama."""
        decoder: Any = lm.decoder
        try:
            known = lm.dtype == torch.float32 and decoder.rotary_emb.rope_type in STATIC
            return cls(lm) if known else None
        except (AttributeError, TypeError, ValueError):
            return None

    def serves(self, device: torch.device) -> bool:
        """Whether it may stand in for the decoder now: no gradients, on a CPU, and nothing hooked but linear maps."""
        return in_two_parts(device) and not any(map(_altered, self._whole))

    def text(
        self, ids_BT: Tensor, positions_BT: Tensor, filled_BT: Tensor | None, embeddings_BTC: Tensor | None = None
    ) -> Text:
        """The tokens of a forward, without padding (`filled_BT` false) where nothing hooked tells rows apart."""
        if ids_BT.shape[1] == 1 or filled_BT is None or bool(filled_BT.all()) or not self._packs():
            return Text(ids_BT, positions_BT, None, embeddings_BTC)
        return Text(ids_BT, positions_BT, filled_BT.flatten().nonzero()[:, 0], embeddings_BTC)

    def _packs(self) -> bool:
        """Whether padding may be left out of the linear maps: nothing is hooked to them that tells rows apart."""
        hooked = [linear_map for linear_map in self._maps if type(linear_map) is not nn.Linear or _altered(linear_map)]
        return all(
            type(place) is nn.Linear
            and not place._forward_pre_hooks
            and all(getattr(hook, "rows_alike", False) for hook in place._forward_hooks.values())
            for place in hooked
        )

    def run(self, text: Text, slots: Sequence[CacheLayer], attend: Attend) -> Tensor:
        """Last hidden states [B, T, C] of a text; keys and values go into the slots, one entry a layer."""
        # X tokens of all rows, padding left out, go through every linear map together; only attention needs rows.
        turns = self._turns(text.packed(text.positions_BT.expand(text.ids_BT.shape)))
        x_XC = self._entering(text)
        for number, (block, held) in enumerate(zip(self._blocks, slots, strict=True)):
            y_XC = _normed(x_XC, block.before, self._epsilon)
            # queries and keys are turned alike, so they are turned at once: [X, (N + H) D] as [X, N + H, D]
            both = torch.cat([_mapped(y_XC, block.query), _mapped(y_XC, block.key)], dim=1)
            turned_XND = _turned(both.view(len(both), -1, self._size), *turns)
            key_XHD = turned_XND[:, self._heads :]
            value_XHD = _mapped(y_XC, block.value).view(key_XHD.shape)
            # new ones as [B, H, T, D]; all that this layer holds for them to attend to comes back as [B, H, S, D]
            keys, values = held.update(text.heads_first(key_XHD), text.heads_first(value_XHD))
            seen_XND = attend(number, turned_XND[:, : self._heads], keys, values)
            x_XC = x_XC + _mapped(seen_XND.flatten(1), block.out)  # [X, N D] to [X, C]
            y_XC = _normed(x_XC, block.after, self._epsilon)
            x_XC = x_XC + _mapped(block.act(_mapped(y_XC, block.gate)) * _mapped(y_XC, block.up), block.down)
        return text.in_rows(_normed(x_XC, self._norm, self._epsilon))

    def _entering(self, text: Text) -> Tensor:
        """The inputs of the first layer, [X, C]."""
        if text.embeddings_BTC is not None:
            return text.packed(text.embeddings_BTC)
        return embedding(text.packed(text.ids_BT), self._embedding._parameters["weight"])

    def _turns(self, positions_X: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine [X, 1, D] of the rotary angles at these positions."""
        angles_X1D = positions_X[:, None, None].float() * self._frequencies
        cos, sin = angles_X1D.cos(), angles_X1D.sin() * self._signs
        if self._rotary.attention_scaling != 1.0:
            cos, sin = cos * self._rotary.attention_scaling, sin * self._rotary.attention_scaling
        return cos, sin


def packs(lm: LM, patch: Patch) -> bool:
    """Whether rows under this patch are read without their padding: no weight delta differs from row to row."""
    parts = [
        (delta.a_BRI, delta.b_BOR) if isinstance(delta, LowRank) else (delta.delta,) for delta in patch.deltas.values()
    ]
    alike = all(len(tensor) == 1 for part in parts for tensor in part)
    return alike and in_two_parts(lm.device) and ways_of(lm).lean


def _turned(x_XND: Tensor, cos_X1D: Tensor, signed_sin_X1D: Tensor) -> Tensor:
    """Rotary positions, bit for bit as `apply_rotary_pos_emb` applies them."""
    # [a, b] cos + [b, a] signed sin = [a cos - b sin, b cos + a sin]: a roll in place of two slices and a negation
    half = x_XND.shape[-1] // 2
    return (x_XND * cos_X1D).add_(x_XND.roll(half, -1).mul_(signed_sin_X1D))


def _normed(x_XC: Tensor, norm: Any, epsilon: Tensor) -> Tensor:
    """Root-mean-square norm; without a copy of the squares, in half the time of `rms_norm`."""
    # the mean of squares is length^2 / C, so 1 / sqrt(epsilon + length^2 / C) scales the row
    length_X1 = vector_norm(x_XC, 2, -1, True)
    scale_X1 = torch.addcmul(epsilon, length_X1, length_X1, value=1 / x_XC.shape[-1]).rsqrt_()
    return (x_XC * scale_X1).mul_(norm._parameters["weight"])


def _mapped(x_XI: Tensor, module: nn.Module) -> Tensor:
    """A linear map, with whatever is hooked to it."""
    if type(module) is not nn.Linear or _altered(module):
        mapped_XO: Tensor = module(x_XI)
        return mapped_XO
    weight = module._parameters["weight"]
    assert weight is not None, "linear maps have weights"
    return linear(x_XI, weight, module._parameters["bias"])


def _altered(module: nn.Module) -> bool:
    """Whether calling it does more than its class says."""
    return bool(module._forward_hooks or module._forward_pre_hooks) or "forward" in module.__dict__
