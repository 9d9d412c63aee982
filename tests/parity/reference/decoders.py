"""Llama and GPT-2 by their equations; what attention sees is left to the caller.

    logits = llama(weights, config, ids, attend)     attend(layer, query, key, value) -> what each query mixes

Weights and configurations have the names of transformers. Llama: Touvron et al., arXiv 2302.13971, with grouped queries
and rotary positions (Su et al., arXiv 2104.09864). GPT-2: Radford et al., 2019.

Shape letters: B rows · T tokens · N query heads · H key/value heads · D head size · S slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, silu

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
More = Callable[[str, Tensor], Tensor | float]
Weights = dict[str, Tensor]


def rotated(x_BHTD: Tensor, places_T: Tensor, theta: float) -> Tensor:
    """Channel d turns together with channel d + D/2, by place * theta^(-2d/D)."""
    size = x_BHTD.shape[-1]
    speeds = theta ** (-torch.arange(0, size, 2, dtype=x_BHTD.dtype) / size)
    angles = places_T[:, None].to(x_BHTD.dtype) * speeds
    one, other = x_BHTD.chunk(2, dim=-1)
    return torch.cat([one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin()], dim=-1)


def mixed(query_BNTD: Tensor, key_BHSD: Tensor, value_BHSD: Tensor, seen_BTS: Tensor) -> Tensor:
    """Attention of every query to the slots it sees, [B, N, T, D]."""
    group = query_BNTD.shape[1] // key_BHSD.shape[1]
    key_BNSD, value_BNSD = (each.repeat_interleave(group, dim=1) for each in (key_BHSD, value_BHSD))
    scores = query_BNTD @ key_BNSD.transpose(-1, -2) * query_BNTD.shape[-1] ** -0.5
    return scores.masked_fill(~seen_BTS[:, None], -torch.inf).softmax(-1) @ value_BNSD


def heads(x_BTI: Tensor, count: int) -> Tensor:
    return x_BTI.view(*x_BTI.shape[:2], count, -1).transpose(1, 2)


def nothing(name: str, x_BTI: Tensor) -> Tensor | float:
    return 0.0


def llama(
    w: Weights,
    config: dict[str, Any],
    ids_BT: Tensor,
    attend: Attend,
    more: More = nothing,
    entered: list[Tensor] | None = None,
) -> Tensor:
    """Logits [B, T, V].

    Args:
        w: weights.
        config: sizes.
        ids_BT: the tokens.
        attend: gets queries, keys and values before any rotation.
        more: what is added to what a linear map of a layer, by its name, makes of its input.
        entered: takes what enters each layer.
    """

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].T + more(name, x)

    def norm(x: Tensor, name: str) -> Tensor:
        return w[f"{name}.weight"] * x * (x.square().mean(-1, keepdim=True) + config["rms_norm_eps"]).rsqrt()

    x = w["model.embed_tokens.weight"][ids_BT]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        if entered is not None:
            entered.append(x)
        q, k, v = (linear(norm(x, f"{at}.input_layernorm"), f"{at}.self_attn.{part}_proj") for part in "qkv")
        kv_heads = config["num_key_value_heads"]
        out = attend(layer, heads(q, config["num_attention_heads"]), heads(k, kv_heads), heads(v, kv_heads))
        x = x + linear(out.transpose(1, 2).flatten(2), f"{at}.self_attn.o_proj")
        y = norm(x, f"{at}.post_attention_layernorm")
        inner = silu(linear(y, f"{at}.mlp.gate_proj")) * linear(y, f"{at}.mlp.up_proj")
        x = x + linear(inner, f"{at}.mlp.down_proj")
    return norm(x, "model.norm") @ w["lm_head.weight"].T


def causal(tokens: int, before: int = 0) -> Tensor:
    """bool [1, T, S]: every token sees the slots before all of them, and itself and the tokens before it."""
    return torch.ones(1, tokens, before + tokens, dtype=torch.bool).tril(before)


def gpt2(w: Weights, config: dict[str, Any], ids_BT: Tensor, places_T: Tensor, attend: Attend) -> Tensor:
    """Logits [B, T, V] of tokens at these places."""
    return gpt2_states(w, config, ids_BT, places_T, attend) @ w["transformer.wte.weight"].T


def gpt2_states(w: Weights, config: dict[str, Any], ids_BT: Tensor, places_T: Tensor, attend: Attend) -> Tensor:
    """What the head reads, [B, T, C]."""

    def norm(x: Tensor, name: str) -> Tensor:
        return layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["transformer.wte.weight"][ids_BT] + w["transformer.wpe.weight"][places_T]
    for layer in range(config["n_layer"]):
        at = f"transformer.h.{layer}"
        q, k, v = linear(norm(x, f"{at}.ln_1"), f"{at}.attn.c_attn").chunk(3, dim=-1)
        out = attend(layer, *(heads(each, config["n_head"]) for each in (q, k, v)))
        x = x + linear(out.transpose(1, 2).flatten(2), f"{at}.attn.c_proj")
        inner = gelu(linear(norm(x, f"{at}.ln_2"), f"{at}.mlp.c_fc"), approximate="tanh")
        x = x + linear(inner, f"{at}.mlp.c_proj")
    return norm(x, "transformer.ln_f")
