"""Keys and values of a text, chunk by chunk, as a state of fixed size that becomes weight deltas (StreamAdapter).

    mapper = ChunkMapper(sizes, heads=4, head_dim=16, ...)         the linear maps of one decoder layer
    S, log_a = mapper.summaries(keys_BHSD, values_BHSD, chunk=128)  learned queries attend to each chunk
    h = absorbed(h, S, log_a)                                       h_i = alpha_i h_{i-1} + S_i, gate from S_i
    deltas = mapper.deltas(h)                                       y += x W1 h^T W2

Muhtar et al., arXiv 2411.09289, equations 4 to 8. The queries of all linear maps of a layer attend in one call. They
attend before values are projected down: fewer operations as long as a map has fewer queries than a head has channels.

Shape letters: B rows · H key/value heads · S slots · C slots of a chunk · N chunks · D head size · M linear maps ·
    R queries · V channels a head is projected to · E = H V · I/O features in and out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, scaled_dot_product_attention

from ttabench.lm.patch import LowRank


class ChunkMapper(nn.Module):
    """The network that maps the cache of one decoder layer to deltas of its linear maps.

    Args:
        sizes: (features in, features out) of each linear map.
        heads: key/value heads of the layer.
        head_dim: size of each.
        queries: R, learned queries of each linear map.
        down: V, channels a head's values are projected to.
        temperature: tau; the gate is sigmoid(S Wa + b) ** (1 / tau).
        share_heads: one down-projection for all heads of a map.
        query_std: standard deviation of the queries at the start.
        gate_bias: b of the gates at the start, one number a linear map.
        scale: factor of every delta: with it, steps of one size suit states of another.
    """

    def __init__(
        self,
        sizes: Sequence[tuple[int, int]],
        *,
        heads: int,
        head_dim: int,
        queries: int,
        down: int,
        temperature: float,
        share_heads: bool = True,
        query_std: float = 0.02,
        gate_bias: Sequence[float] = (),
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        maps, wide = len(sizes), heads * down
        self.temperature, self.scale = temperature, scale
        self.queries = nn.Parameter(torch.randn(maps, heads, queries, head_dim) * query_std)
        self.down = nn.Parameter(torch.empty(maps, 1 if share_heads else heads, head_dim, down))
        for matrix in self.down.data.flatten(0, 1):
            nn.init.orthogonal_(matrix)
        self.gate = nn.Parameter(torch.zeros(maps, wide))
        self.gate_bias = nn.Parameter(torch.tensor(gate_bias or [0.0] * maps))
        self.inputs = nn.ParameterList(_kaiming(wide, features) for features, _ in sizes)
        self.outputs = nn.ParameterList(torch.zeros(queries, features) for _, features in sizes)

    @torch.no_grad()
    def centre(self, values_BHSD: Tensor) -> None:
        """Turn the down-projections away from the mean value of every head, and leave them orthogonal.

        Args:
            values_BHSD: values of a few texts.
        """
        mean_HD = values_BHSD.float().mean((0, 2))
        groups = self.down.shape[1]  # one matrix for all heads, or one each
        for matrices_GDV in self.down:
            for matrix_DV, means_KD in zip(matrices_GDV, mean_HD.view(groups, -1, mean_HD.shape[-1]), strict=True):
                common_DK = torch.linalg.qr(means_KD.T)[0]
                matrix_DV.copy_(torch.linalg.qr(matrix_DV - common_DK @ (common_DK.T @ matrix_DV))[0])

    @property
    def shape(self) -> tuple[int, int, int]:
        """(M, R, E) of the state of a row."""
        maps, heads, queries, _ = self.queries.shape
        return maps, queries, heads * self.down.shape[-1]

    def summaries(self, keys_BHSD: Tensor, values_BHSD: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
        """S [B, N, M, R, E] and log alpha [B, N, M, R] of whole chunks: S slots are N times `chunk`."""
        rows, heads, slots, size = keys_BHSD.shape
        assert slots % chunk == 0, f"{slots} slots are no whole chunks of {chunk}"
        pairs = (
            tensor.float().view(rows, heads, -1, chunk, size).transpose(1, 2) for tensor in (keys_BHSD, values_BHSD)
        )
        keys_NHCD, values_NHCD = (pair.flatten(0, 1) for pair in pairs)
        summary_NMRE, log_gate_NMR = self._attend(keys_NHCD, values_NHCD, None)
        return summary_NMRE.view(rows, -1, *self.shape), log_gate_NMR.view(rows, -1, *self.shape[:2])

    def remainder(self, keys_BHSD: Tensor, values_BHSD: Tensor, held_BS: Tensor) -> tuple[Tensor, Tensor]:
        """The same of one short chunk a row, [B, 1, ...]; slots that `held_BS` leaves out are never attended to."""
        mask_B11S = held_BS[:, None, None]
        summary_BMRE, log_gate_BMR = self._attend(keys_BHSD.float(), values_BHSD.float(), mask_B11S)
        return summary_BMRE[:, None], log_gate_BMR[:, None]

    def _attend(self, keys_BHCD: Tensor, values_BHCD: Tensor, mask_B11C: Tensor | None) -> tuple[Tensor, Tensor]:
        maps, heads, queries, size = self.queries.shape
        query_HQD = self.queries.transpose(0, 1).reshape(heads, maps * queries, size)
        query_BHQD = query_HQD.expand(keys_BHCD.shape[0], -1, -1, -1)
        seen_BHQD = scaled_dot_product_attention(query_BHQD, keys_BHCD, values_BHCD, attn_mask=mask_B11C)
        seen_BHMRD = seen_BHQD.reshape(-1, heads, maps, queries, size)
        down_MHDV = self.down.expand(-1, heads, -1, -1)
        summary_BMRE = torch.einsum("bhmrd,mhdv->bmrhv", seen_BHMRD, down_MHDV).flatten(-2)
        logits_BMR = torch.einsum("bmre,me->bmr", summary_BMRE, self.gate) + self.gate_bias[:, None]
        return summary_BMRE, logsigmoid(logits_BMR) / self.temperature

    def deltas(self, state_BMRE: Tensor) -> list[LowRank]:
        """The weight delta of each linear map, of rank R."""
        return [
            LowRank(state_BMRE[:, index] * self.scale @ inner.transpose(0, 1), outer.transpose(0, 1)[None])
            for index, (inner, outer) in enumerate(zip(self.inputs, self.outputs, strict=True))
        ]


def absorbed(state_BMRE: Tensor, summary_BNMRE: Tensor, log_gate_BNMR: Tensor) -> Tensor:
    """The state [B, M, R, E] after N more chunks: h_i = alpha_i h_{i-1} + S_i, in one sum.

    Gates are at most 1, so the products of later gates, taken as sums of logarithms, never overflow. A chunk that a row
    does not have is S = 0 with log alpha = 0.
    """
    later_BNMR = log_gate_BNMR.flip(1).cumsum(1).flip(1)
    weights_BNMR = torch.cat([later_BNMR[:, 1:], torch.zeros_like(later_BNMR[:, :1])], dim=1).exp()
    added_BMRE = torch.einsum("bnmr,bnmre->bmre", weights_BNMR, summary_BNMRE)
    return state_BMRE * later_BNMR[:, 0].exp()[..., None] + added_BMRE


def _kaiming(wide: int, features: int) -> nn.Parameter:
    """W1 [I, E], as a linear map from E to I starts."""
    weight = torch.empty(features, wide)
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    return nn.Parameter(weight)
