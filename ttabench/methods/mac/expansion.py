"""A latent of T tokens becomes a modulation of the base model: key/value prefixes, or low-rank deltas.

Every token of the modulation starts as a copy of a latent token (consecutive copies, the first A % T tokens once more)
and goes through a residual feed-forward network of its own: y = P x + W_d gelu(W_c LN(x)). P is the identity when the
widths agree and a learned map otherwise (grouped-query attention has narrower keys).
Paper: Tack et al., arXiv 2403.04317, appendix A.1; P-tuning v2: arXiv 2110.07602; LoRA: arXiv 2106.09685.

Shape letters: B rows · T latent tokens · A expanded tokens · D width · H key/value heads · P prefix positions ·
E head size · R rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from ttabench.methods.mac.slots import SlotLinear, SlotNorm


class TokenExpansion(nn.Module):
    """T latent tokens to A tokens, each through its own residual feed-forward network.

    Args:
        tokens: T.
        expanded: A, at least T.
        width: D.
        width_out: width of the expanded tokens.
        hidden: inner width of the feed-forward networks.
    """

    source: Tensor

    def __init__(self, tokens: int, expanded: int, width: int, width_out: int, hidden: int) -> None:
        super().__init__()
        assert expanded >= tokens, (expanded, tokens)
        copies = torch.full((tokens,), expanded // tokens)
        copies[: expanded % tokens] += 1
        self.register_buffer(
            "source", torch.arange(tokens).repeat_interleave(copies, output_size=expanded), persistent=False
        )
        self.norm = SlotNorm(expanded, width)
        self.feed_in = SlotLinear(expanded, width, hidden)
        self.feed_out = SlotLinear(expanded, hidden, width_out)
        self.project = SlotLinear(expanded, width, width_out, bias=False) if width_out != width else None

    def forward(self, latent_BTD: Tensor) -> Tensor:
        """[B, T, D] -> [B, A, width_out]."""
        x_BAD = latent_BTD[:, self.source]
        fed: Tensor = self.feed_out(gelu(self.feed_in(self.norm(x_BAD))))
        return fed + (x_BAD if self.project is None else self.project(x_BAD))


@dataclass(frozen=True)
class PrefixShape:
    """Shape of the base model's cache: layers, key/value heads, head size, and how many positions to fill."""

    layers: int
    kv_heads: int
    head_dim: int
    positions: int


class PrefixExpansion(nn.Module):
    """Latent to keys and values of `positions` slots in every layer (P-tuning v2).

    The token with index v * 2L + 2 * layer + (0 key | 1 value) fills slot v. Keys are raw vectors, not rotated.
    """

    def __init__(self, tokens: int, width: int, shape: PrefixShape, hidden: int = 768) -> None:
        super().__init__()
        self.shape = shape
        expanded = 2 * shape.layers * shape.positions
        self.expand = TokenExpansion(tokens, expanded, width, shape.kv_heads * shape.head_dim, hidden)

    def forward(self, latent_BTD: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Keys and values, one [B, H, P, E] a layer."""
        shape = self.shape
        x_BAO: Tensor = self.expand(latent_BTD)
        x_BPLKHE = x_BAO.view(-1, shape.positions, shape.layers, 2, shape.kv_heads, shape.head_dim)
        x_LKBHPE = x_BPLKHE.permute(2, 3, 0, 4, 1, 5)
        return tuple(layer[0] for layer in x_LKBHPE), tuple(layer[1] for layer in x_LKBHPE)


class LowRankExpansion(nn.Module):
    """Latent to one low-rank delta per named linear layer.

    Each expanded token is one rank of one layer: its first `features_in` numbers are a row of `a`, made through the
    feed-forward network; the column of `b` comes from a map that starts at zero, so training starts at the base model.

    Args:
        tokens: T.
        width: D.
        linears: (features in, features out) by module name of the base model.
        rank: R.
        hidden: inner width of the feed-forward networks.
    """

    def __init__(
        self, tokens: int, width: int, linears: Mapping[str, tuple[int, int]], rank: int = 8, hidden: int = 768
    ) -> None:
        super().__init__()
        self.linears = dict(linears)
        self.rank = rank
        expanded = len(linears) * rank
        self.widest_in = max(into for into, _ in linears.values())
        widest_out = max(out for _, out in linears.values())
        self.expand = TokenExpansion(tokens, expanded, width, self.widest_in, hidden)
        self.to_b = SlotLinear(expanded, self.widest_in, widest_out, bias=False)
        nn.init.zeros_(self.to_b.weight)

    def forward(self, latent_BTD: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """By module name: a [B, R, in] and b [B, out, R], scaled by 1 / R."""
        x_BAI: Tensor = self.expand(latent_BTD)
        b_BAO: Tensor = self.to_b(nn.functional.layer_norm(x_BAI, x_BAI.shape[-1:]))
        deltas = {}
        for index, (name, (into, out)) in enumerate(self.linears.items()):
            ranks = slice(index * self.rank, (index + 1) * self.rank)
            deltas[name] = (x_BAI[:, ranks, :into], b_BAO[:, ranks, :out].transpose(1, 2) / self.rank)
        return deltas
