"""Hypernetwork of Doc-to-LoRA, with the parameter names of the released weights.

In each layer, latents attend several times to the hidden states of a chunk. One query per map and
rank attends to these latents. Weights of that layer map the result to the factors of its deltas.
All layers share the latents.

Shape letters: L layers · B chunks · T tokens · D width of the base model · Q latents · C their
width · M maps · R rank · I/O features in and out.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from ttabench.methods.doc_to_lora import DocToLoraSettings

bias_free_linear = partial(nn.Linear, bias=False)


class GatedFeedForward(nn.Module):
    """Gated feed-forward network."""

    def __init__(self, features_in: int, features_out: int) -> None:
        super().__init__()
        self.gate_proj = bias_free_linear(features_in, 4 * features_in)
        self.up_proj = bias_free_linear(features_in, 4 * features_in)
        self.down_proj = bias_free_linear(4 * features_in, features_out)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to every token."""
        out: Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class PerceiverBlock(nn.Module):
    """Cross-attention and a feed-forward network, with norms before and after each."""

    def __init__(self, s: DocToLoraSettings) -> None:
        super().__init__()
        self.head_dim = s.head_dim
        norm = partial(nn.RMSNorm, s.latent, eps=1e-6)
        self.input_latents_layernorm, self.input_context_layernorm = norm(), norm()
        query_size, kv_size = s.heads * s.head_dim, s.kv_heads * s.head_dim
        maps = {
            "q_proj": bias_free_linear(s.latent, query_size),
            "k_proj": bias_free_linear(s.latent, kv_size),
            "v_proj": bias_free_linear(s.latent, kv_size),
            "o_proj": bias_free_linear(query_size, s.latent),
        }
        self.self_attn = nn.ModuleDict(maps)
        self.mlp = GatedFeedForward(s.latent, s.latent)
        self.post_attention_layernorm = norm()
        self.pre_ff_layernorm = norm()
        self.post_ff_layernorm = norm()

    def forward(self, latents_BQC: Tensor, context_BTC: Tensor, real_B11T: Tensor | None) -> Tensor:
        """Return the latents after one block."""
        normed_BQC = self.input_latents_layernorm(latents_BQC)
        context_BTC = self.input_context_layernorm(context_BTC)
        queries, keys, values = (
            self.self_attn[name](x).unflatten(2, (-1, self.head_dim)).transpose(1, 2)
            for name, x in (
                ("q_proj", normed_BQC),
                ("k_proj", context_BTC),
                ("v_proj", context_BTC),
            )
        )
        attended = scaled_dot_product_attention(queries, keys, values, real_B11T, enable_gqa=True)
        out = self.self_attn["o_proj"](attended.transpose(1, 2).flatten(2))
        latents_BQC = latents_BQC + self.post_attention_layernorm(out)
        fed_BQC: Tensor = self.post_ff_layernorm(self.mlp(self.pre_ff_layernorm(latents_BQC)))
        return latents_BQC + fed_BQC


class Resampler(nn.Module):
    """Learned latents with a stack of cross-attention blocks."""

    def __init__(self, s: DocToLoraSettings, latents: int, blocks: int) -> None:
        super().__init__()
        self.latents_q = nn.Parameter(torch.randn(latents, s.latent))
        self.layers = nn.ModuleList(PerceiverBlock(s) for _ in range(blocks))
        self.layernorm = nn.RMSNorm(s.latent, eps=1e-6)

    def forward(self, context_BTC: Tensor, real_B11T: Tensor | None = None) -> Tensor:
        """Return the latents [B, Q, C] after all blocks."""
        latents_BQC = self.latents_q.expand(len(context_BTC), -1, -1)
        for layer in self.layers:
            latents_BQC = layer(latents_BQC, context_BTC, real_B11T)
        out: Tensor = self.layernorm(latents_BQC)
        return out


class PerLayerLinear(nn.Module):
    """Linear map with separate weights for each layer, and for each of several maps."""

    def __init__(
        self, layers: int, features_in: int, features_out: int, maps: int = 1, *, bias: bool = True
    ) -> None:
        super().__init__()
        bound, map_dims = 1 / math.sqrt(features_in), (maps,) if maps > 1 else ()
        weight = torch.empty(layers, *map_dims, features_in, features_out).uniform_(-bound, bound)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(1, layers, 1, 1, features_out)) if bias else None

    def forward(self, x_BLMRI: Tensor) -> Tensor:
        """Return outputs [B, L, M, R, O]."""
        weight = (
            self.weight
            if self.weight.dim() == 4
            else self.weight[:, None].expand(-1, x_BLMRI.shape[2], -1, -1)
        )
        out = torch.einsum("blmri,lmio->blmro", x_BLMRI, weight)
        return out if self.bias is None else out + self.bias


class Hypernetwork(nn.Module):
    """Hypernetwork for the factors of the deltas of all layers.

    `sizes`: features in and out of each map, by the last part of its name.
    """

    def __init__(
        self, s: DocToLoraSettings, layers: int, width: int, sizes: dict[str, tuple[int, int]]
    ) -> None:
        super().__init__()
        self.sizes, self.rank = sizes, s.rank
        perceiver = {
            "modality_projection": GatedFeedForward(width, s.latent),
            "encoder": Resampler(s, s.latents, s.blocks),
            "decoder": Resampler(s, len(sizes) * s.rank, 1),
        }
        self.aggregator = nn.ModuleDict({"perceiver": nn.ModuleDict(perceiver)})
        self.layers = nn.ModuleList([nn.ModuleDict({"layers": _feed_forward(layers, s.latent)})])
        wide = max(map(sum, sizes.values()))
        self.head = PerLayerLinear(layers, s.latent, wide, len(sizes), bias=False)
        nn.init.normal_(self.head.weight, std=0.5 / math.sqrt(s.latent + wide * s.rank))
        initial_A = {
            m: torch.randn(layers, s.rank, i) * 0.2 / math.sqrt(i * s.rank)
            for m, (i, _) in sizes.items()
        }
        self.bias_A = nn.ParameterDict(initial_A)
        self.bias_B = nn.ParameterDict(
            {m: torch.zeros(layers, s.rank, o) for m, (_, o) in sizes.items()}
        )
        self.scaler_A = nn.ParameterDict({m: torch.ones(1, layers, s.rank, 1) for m in sizes})
        self.scaler_B = nn.ParameterDict({m: torch.zeros(1, layers, s.rank, 1) for m in sizes})

    def forward(
        self, hidden_LBTD: list[Tensor], real_BT: Tensor
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Return factors [B, L, R, I] and [B, L, R, O] of each map.

        `hidden_LBTD`: inputs of each layer.
        """
        project, encoder, decoder = self.aggregator["perceiver"].children()
        layer_latents = [
            decoder(encoder(project(hidden_BTD), real_BT[:, None, None]))
            for hidden_BTD in hidden_LBTD
        ]
        latents_BLQC = torch.stack(layer_latents, 1)
        latents_BLMRC = latents_BLQC.view(*latents_BLQC.shape[:2], len(self.sizes), self.rank, -1)
        latents_BLMRC = latents_BLMRC + self.layers[0]["layers"](latents_BLMRC)  # type: ignore[index]
        factors_BLMRE = self.head(latents_BLMRC / latents_BLMRC.norm(dim=-1, keepdim=True))
        factors = {}
        for (name, (features_in, features_out)), both_BLRE in zip(
            self.sizes.items(), factors_BLMRE.unbind(2), strict=True
        ):
            a_BLRI, b_BLRO = both_BLRE[..., : features_in + features_out].split(
                [features_in, features_out], -1
            )
            factors[name] = a_BLRI * self.scaler_A[name], b_BLRO * self.scaler_B[name]
        return factors


def _feed_forward(layers: int, width: int) -> nn.Sequential:
    """Build a residual feed-forward network with separate weights for each layer."""
    wide = PerLayerLinear(layers, width, 4 * width)
    narrow = PerLayerLinear(layers, 4 * width, width)
    return nn.Sequential(nn.LayerNorm(width), wide, nn.SiLU(), narrow, nn.LayerNorm(width))
