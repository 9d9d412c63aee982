"""The hypernetwork of Doc-to-LoRA, its parts named as in the released weights (`pytorch_model.bin`).

Latents look at the hidden states of a chunk in one layer, several times; as many more as there are maps and ranks look
at them, and become, by weights of that layer, the factors of its deltas. All layers have the same latents.
Shape letters: L layers · B chunks · T tokens · D width of the base · Q latents · C their width · M maps · R rank ·
    I/O features in and out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from ttabench.methods.doc_to_lora import DocToLoraSettings


def linear(features_in: int, features_out: int) -> nn.Linear:
    """A linear map without a bias."""
    return nn.Linear(features_in, features_out, bias=False)


class Gated(nn.Module):
    """A feed-forward with a gate."""

    def __init__(self, features_in: int, features_out: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(features_in, 4 * features_in), linear(features_in, 4 * features_in)
        self.down_proj = linear(4 * features_in, features_out)

    def forward(self, x: Tensor) -> Tensor:
        """The same of every token."""
        out: Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Looking(nn.Module):
    """Attention of latents to what they look at."""

    def __init__(self, s: DocToLoraSettings) -> None:
        super().__init__()
        wide, narrow = s.heads * s.head_dim, s.kv_heads * s.head_dim
        self.head_dim = s.head_dim
        self.q_proj, self.o_proj = linear(s.latent, wide), linear(wide, s.latent)
        self.k_proj, self.v_proj = linear(s.latent, narrow), linear(s.latent, narrow)

    def forward(self, latents_BQC: Tensor, seen_BTC: Tensor, real_B11T: Tensor | None) -> Tensor:
        """What they take from it."""
        parts = (self.q_proj(latents_BQC), self.k_proj(seen_BTC), self.v_proj(seen_BTC))
        queries, keys, values = (part.unflatten(2, (-1, self.head_dim)).transpose(1, 2) for part in parts)
        out = scaled_dot_product_attention(queries, keys, values, real_B11T, enable_gqa=True)
        taken: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return taken


class Block(nn.Module):
    """Latents look, and a feed-forward follows; norms stand before and behind each."""

    def __init__(self, s: DocToLoraSettings) -> None:
        super().__init__()
        self.input_latents_layernorm, self.input_context_layernorm = _norm(s), _norm(s)
        self.self_attn, self.mlp = Looking(s), Gated(s.latent, s.latent)
        self.post_attention_layernorm, self.pre_ff_layernorm, self.post_ff_layernorm = _norm(s), _norm(s), _norm(s)

    def forward(self, latents_BQC: Tensor, seen_BTC: Tensor, real_B11T: Tensor | None) -> Tensor:
        """The latents after one look."""
        before, seen_BTC = self.input_latents_layernorm(latents_BQC), self.input_context_layernorm(seen_BTC)
        latents_BQC = latents_BQC + self.post_attention_layernorm(self.self_attn(before, seen_BTC, real_B11T))
        more: Tensor = self.post_ff_layernorm(self.mlp(self.pre_ff_layernorm(latents_BQC)))
        return latents_BQC + more


class Resampler(nn.Module):
    """Learned latents that look so many times."""

    def __init__(self, s: DocToLoraSettings, latents: int, blocks: int) -> None:
        super().__init__()
        self.latents_q = nn.Parameter(torch.randn(latents, s.latent))
        self.layers = nn.ModuleList(Block(s) for _ in range(blocks))
        self.layernorm = _norm(s)

    def forward(self, seen_BTC: Tensor, real_B11T: Tensor | None = None) -> Tensor:
        """What they are then [B, Q, C]."""
        latents_BQC = self.latents_q.expand(len(seen_BTC), -1, -1)
        for layer in self.layers:
            latents_BQC = layer(latents_BQC, seen_BTC, real_B11T)
        out: Tensor = self.layernorm(latents_BQC)
        return out


class Perceiver(nn.Module):
    """From hidden states of a layer to a latent for each map and rank."""

    def __init__(self, s: DocToLoraSettings, width: int) -> None:
        super().__init__()
        self.modality_projection = Gated(width, s.latent)
        self.encoder = Resampler(s, s.latents, s.blocks)
        self.decoder = Resampler(s, len(s.targets) * s.rank, 1)

    def forward(self, hidden_BTD: Tensor, real_BT: Tensor) -> Tensor:
        """[B, M R, C]."""
        out: Tensor = self.decoder(self.encoder(self.modality_projection(hidden_BTD), real_BT[:, None, None]))
        return out


class OfLayers(nn.Module):
    """A linear map with weights of each layer."""

    def __init__(self, layers: int, features_in: int, features_out: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(features_in)
        self.weight = nn.Parameter(torch.empty(layers, features_in, features_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(1, layers, 1, 1, features_out))

    def forward(self, x_BLMRI: Tensor) -> Tensor:
        """[B, L, M, R, O]."""
        return torch.einsum("blmri,lio->blmro", x_BLMRI, self.weight) + self.bias


class Residual(nn.Module):
    """A feed-forward with weights of each layer, beside what enters."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        wide, narrow = OfLayers(layers, width, 4 * width), OfLayers(layers, 4 * width, width)
        self.layers = nn.Sequential(nn.LayerNorm(width), wide, nn.SiLU(), narrow, nn.LayerNorm(width))

    def forward(self, x_BLMRC: Tensor) -> Tensor:
        """Of the same shape."""
        more: Tensor = self.layers(x_BLMRC)
        return x_BLMRC + more


class Head(nn.Module):
    """What makes both factors of a latent, one behind the other."""

    def __init__(self, layers: int, maps: int, width: int, ends: int, rank: int) -> None:
        super().__init__()
        shape = (layers, width, ends) if maps == 1 else (layers, maps, width, ends)
        self.weight = nn.Parameter(torch.randn(shape) * 0.5 / math.sqrt(width + ends * rank))

    def forward(self, x_BLMRC: Tensor) -> Tensor:
        """[B, L, M, R, I + O]."""
        weight = self.weight if self.weight.dim() == 4 else self.weight[:, None]
        return torch.einsum("blmrc,lmce->blmre", x_BLMRC, weight)


class Hypernetwork(nn.Module):
    """Factors of the deltas of all layers. `sizes`: features in and out of each map, by the last part of its name."""

    def __init__(self, s: DocToLoraSettings, layers: int, width: int, sizes: dict[str, tuple[int, int]]) -> None:
        super().__init__()
        self.sizes, self.rank = sizes, s.rank
        self.aggregator = nn.ModuleDict({"perceiver": Perceiver(s, width)})
        self.layers = nn.Sequential(*(Residual(layers, s.latent) for _ in range(s.depth)))
        self.head = Head(layers, len(sizes), s.latent, max(map(sum, sizes.values())), s.rank)
        drawn = {m: torch.randn(layers, s.rank, i) * 0.2 / math.sqrt(i * s.rank) for m, (i, _) in sizes.items()}
        self.bias_A = nn.ParameterDict(drawn)
        self.bias_B = nn.ParameterDict({m: torch.zeros(layers, s.rank, o) for m, (_, o) in sizes.items()})
        self.scaler_A = nn.ParameterDict({m: torch.ones(1, layers, s.rank, 1) for m in sizes})
        self.scaler_B = nn.ParameterDict({m: torch.zeros(1, layers, s.rank, 1) for m in sizes})

    def forward(self, hidden_LBTD: list[Tensor], real_BT: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Factors [B, L, R, I] and [B, L, R, O] of each map. `hidden_LBTD`: what enters each layer."""
        looked = [self.aggregator["perceiver"](hidden_BTD, real_BT) for hidden_BTD in hidden_LBTD]
        latents_BLQC = torch.stack(looked, 1)
        latents_BLMRC = self.layers(latents_BLQC.view(*latents_BLQC.shape[:2], len(self.sizes), self.rank, -1))
        factors_BLMRE = self.head(latents_BLMRC / latents_BLMRC.norm(dim=-1, keepdim=True))
        made = {}
        for (name, (features_in, features_out)), both in zip(self.sizes.items(), factors_BLMRE.unbind(2), strict=True):
            a_BLRI, b_BLRO = both[..., : features_in + features_out].split([features_in, features_out], -1)
            made[name] = a_BLRI * self.scaler_A[name], b_BLRO * self.scaler_B[name]
        return made


def _norm(s: DocToLoraSettings) -> nn.RMSNorm:
    return nn.RMSNorm(s.latent, eps=1e-6)
