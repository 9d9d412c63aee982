"""Trained networks of StreamAdapter: the mappers of all decoder layers, and their recurrent state.

Shape letters: L layers · B rows · H key/value heads · S slots · C chunk · D head size · M linear
maps · R queries · E state channels of a query.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, scaled_dot_product_attention

from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank
from ttabench.methods.parts.lora import group_by_layer, target_names
from ttabench.methods.streamadapter import StreamAdapterSettings

CHUNK_BATCH_SIZE = 8


class StreamAdapterNetworks(nn.Module):
    """One `ChunkMapper` per layer, with weights drawn from `settings.seed`; all differentiable."""

    def __init__(self, lm: LM, settings: StreamAdapterSettings) -> None:
        super().__init__()
        self.lm, self.settings = lm, settings
        self.names = group_by_layer(lm, target_names(lm, settings.targets))
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            layers = [
                ChunkMapper(
                    [lm.linear_shape(name) for name in names], lm.kv_heads, lm.head_dim, settings
                )
                for names in self.names
            ]
        self.mappers = nn.ModuleList(layers).to(lm.device)
        self._layers = layers
        self.eval()

    def empty_state(self, rows: int) -> dict[str, Tensor]:
        """Return the state before anything was read, `h` [L, B, M, R, E]."""
        return {
            "h": torch.zeros(len(self.mappers), rows, *self._layers[0].shape, device=self.lm.device)
        }

    def advance(
        self, h_LBMRE: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], full_B: Tensor
    ) -> Tensor:
        """Advance the state by `full_B` chunks of keys and values [B, H, S, D] per layer."""
        chunk, slots = self.settings.chunk, keys[0].shape[2]
        is_present_BN = torch.arange(slots // chunk, device=full_B.device) < full_B[:, None]
        layers = []
        for mapper, h_BMRE, keys_BHSD, values_BHSD in zip(
            self._layers, h_LBMRE, keys, values, strict=True
        ):
            for begin in range(0, slots // chunk, CHUNK_BATCH_SIZE):
                batch_slots = slice(begin * chunk, (begin + CHUNK_BATCH_SIZE) * chunk)
                batch_present_BN = is_present_BN[:, begin : begin + CHUNK_BATCH_SIZE]
                h_BMRE = mapper(
                    h_BMRE,
                    keys_BHSD[:, :, batch_slots],
                    values_BHSD[:, :, batch_slots],
                    batch_present_BN,
                )
            layers.append(h_BMRE)
        return torch.stack(layers)

    def absorb(
        self,
        tensors: Mapping[str, Tensor],
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        valid_BS: Tensor,
    ) -> dict[str, Tensor]:
        """Absorb further keys and values; an unfinished chunk is kept in the tail.

        `keys`: [B, H, S, D], one tensor a layer. `valid_BS`: bool, false where a row is padded.
        """
        chunk, tail_B = self.settings.chunk, tensors.get("tail")
        if tail_B is not None:
            tail_valid_BS = torch.arange(chunk - 1, device=tail_B.device) < tail_B[:, None]
            valid_BS = torch.cat([tail_valid_BS, valid_BS], dim=1)
            keys = [torch.cat(pair, dim=2) for pair in zip(tensors["tail_keys"], keys, strict=True)]
            values = [
                torch.cat(pair, dim=2) for pair in zip(tensors["tail_values"], values, strict=True)
            ]
        order_BS, count_B = (~valid_BS).long().argsort(dim=1, stable=True), valid_BS.sum(1)
        full_B, left_B = count_B // chunk, count_B % chunk
        whole_BS = order_BS[:, : int(full_B.max()) * chunk]
        index_N = torch.arange(chunk - 1, device=count_B.device)
        rest_BN = (full_B[:, None] * chunk + index_N).clamp(max=order_BS.shape[1] - 1)
        tail_BN = order_BS.gather(1, rest_BN).masked_fill(index_N >= left_B[:, None], -1)
        full_keys, full_values = (
            [_gather_slots(layer, whole_BS) for layer in layers] for layers in (keys, values)
        )
        tails = (
            torch.stack([_gather_slots(layer, tail_BN) for layer in layers])
            for layers in (keys, values)
        )
        h = self.advance(tensors["h"], full_keys, full_values, full_B)
        return {
            "h": h,
            "tail": left_B,
            **dict(zip(("tail_keys", "tail_values"), tails, strict=True)),
        }

    def flush_tail(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return h [L, B, M, R, E] with the tail as a short last chunk; the state is unchanged."""
        if "tail" not in tensors or not bool(tensors["tail"].any()):
            return tensors["h"]
        left_B = tensors["tail"]
        tail_valid_BS = (
            torch.arange(self.settings.chunk - 1, device=left_B.device) < left_B[:, None]
        )
        is_present_B1 = left_B[:, None] > 0
        # a softmax over nothing is NaN; these rows are masked
        tail_valid_BS = tail_valid_BS | ~is_present_B1
        each = zip(
            self._layers, tensors["h"], tensors["tail_keys"], tensors["tail_values"], strict=True
        )
        return torch.stack(
            [
                mapper(h, keys, values, is_present_B1, tail_valid_BS)
                for mapper, h, keys, values in each
            ]
        )

    def deltas(self, h_LBMRE: Tensor) -> dict[str, LowRank]:
        """Return deltas of all adapted linear maps by name."""
        each = zip(self._layers, self.names, h_LBMRE, strict=True)
        pairs = (zip(names, mapper.deltas(h_BMRE), strict=True) for mapper, names, h_BMRE in each)
        return dict(chain.from_iterable(pairs))


def _gather_slots(source_BHSD: Tensor, slots_BS: Tensor) -> Tensor:
    """Gather slots of every row; an index of -1 gives zeros."""
    rows, heads, _, size = source_BHSD.shape
    index_BHSD = slots_BS.clamp(min=0)[:, None, :, None].expand(rows, heads, -1, size)
    return source_BHSD.gather(2, index_BHSD).masked_fill((slots_BS < 0)[:, None, :, None], 0.0)


class ChunkMapper(nn.Module):
    """Network that maps the cache of one decoder layer to deltas of its linear maps.

    `sizes`: features in and out.
    """

    def __init__(
        self,
        sizes: Sequence[tuple[int, int]],
        heads: int,
        head_dim: int,
        settings: StreamAdapterSettings,
    ) -> None:
        super().__init__()
        s, maps, state_width = settings, len(sizes), heads * settings.down
        self.temperature, self.scale = s.temperature, s.scale
        self.queries = nn.Parameter(torch.randn(maps, heads, s.queries, head_dim) * s.query_std)
        self.down = nn.Parameter(torch.empty(maps, 1, head_dim, s.down))
        for matrix in self.down.data.flatten(0, 1):
            nn.init.orthogonal_(matrix)
        self.gate = nn.Parameter(torch.zeros(maps, state_width))
        self.gate_bias = nn.Parameter(torch.full((maps,), s.gate_bias))
        self.inputs = nn.ParameterList(_kaiming(state_width, features) for features, _ in sizes)
        self.outputs = nn.ParameterList(torch.zeros(s.queries, features) for _, features in sizes)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (M, R, E) of the state of a row."""
        maps, heads, queries, _ = self.queries.shape
        return maps, queries, heads * self.down.shape[-1]

    def forward(
        self,
        h_BMRE: Tensor,
        keys_BHSD: Tensor,
        values_BHSD: Tensor,
        is_present_BN: Tensor,
        tail_valid_BS: Tensor | None = None,
    ) -> Tensor:
        """Return the state after N chunks of S / N slots: h_i = alpha_i h_{i-1} + S_i, as one sum.

        `is_present_BN`: false if a row has fewer chunks; then S = 0 and alpha = 1. `tail_valid_BS`:
        false at masked slots of a single chunk.
        """
        (rows, heads, _, size), absent_BN = keys_BHSD.shape, ~is_present_BN
        keys_NHCD, values_NHCD = (
            tensor.float()
            .view(rows, heads, is_present_BN.shape[1], -1, size)
            .transpose(1, 2)
            .flatten(0, 1)
            for tensor in (keys_BHSD, values_BHSD)
        )
        maps, _, queries, _ = self.queries.shape
        query_HQD = self.queries.transpose(0, 1).reshape(heads, maps * queries, size)
        query_NHQD = query_HQD.expand(len(keys_NHCD), -1, -1, -1)
        mask_B11S = None if tail_valid_BS is None else tail_valid_BS[:, None, None]
        attended_NHQD = scaled_dot_product_attention(
            query_NHQD, keys_NHCD, values_NHCD, attn_mask=mask_B11S
        )
        attended_NHMRD = attended_NHQD.reshape(-1, heads, maps, queries, size)
        down_MHDV = self.down.expand(-1, heads, -1, -1)
        summary_NMRE = torch.einsum("bhmrd,mhdv->bmrhv", attended_NHMRD, down_MHDV).flatten(-2)
        logits_NMR = torch.einsum("bmre,me->bmr", summary_NMRE, self.gate) + self.gate_bias[:, None]
        log_gate_BNMR = (logsigmoid(logits_NMR) / self.temperature).view(rows, -1, maps, queries)
        log_gate_BNMR = log_gate_BNMR.masked_fill(absent_BN[..., None, None], 0.0)
        summary_BNMRE = summary_NMRE.view(rows, -1, *self.shape).masked_fill(
            absent_BN[..., None, None, None], 0.0
        )
        # gates are at most 1, so products of later gates, as sums of logarithms, never overflow
        later_BNMR = log_gate_BNMR.flip(1).cumsum(1).flip(1)
        weights_BNMR = torch.cat(
            [later_BNMR[:, 1:], torch.zeros_like(later_BNMR[:, :1])], dim=1
        ).exp()
        added_BMRE = torch.einsum("bnmr,bnmre->bmre", weights_BNMR, summary_BNMRE)
        return h_BMRE * later_BNMR[:, 0].exp()[..., None] + added_BMRE

    def deltas(self, state_BMRE: Tensor) -> list[LowRank]:
        """Return the weight delta of each linear map, of rank R."""
        return [
            LowRank(
                state_BMRE[:, index] * self.scale @ inner.transpose(0, 1),
                outer.transpose(0, 1)[None],
            )
            for index, (inner, outer) in enumerate(zip(self.inputs, self.outputs, strict=True))
        ]


def _kaiming(state_width: int, features: int) -> nn.Parameter:
    """Initialise W1 [I, E] like a linear map from E to I."""
    weight = torch.empty(features, state_width)
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    return nn.Parameter(weight)
