"""Trained networks of StreamAdapter: one mapper per decoder layer, and its recurrent state.

A mapper reads the KV cache in chunks of `settings.chunk` slots. It updates its state h once per
chunk. The tail is the slots of an unfinished chunk.

Shape letters: L layers · B rows · H key/value heads · S slots · C slots of a chunk · D head size ·
M linear maps of a layer · R learned queries of a map · E state channels of a query · N chunks, or
rows times chunks · Q = M * R · V channels of a head after `down`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, scaled_dot_product_attention

from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank
from ttabench.methods.parts.lora import group_by_layer, target_names
from ttabench.methods.streamadapter import StreamAdapterSettings

CHUNK_BATCH_SIZE = 8
"""Chunks of a row that a mapper processes at once, which affects only memory."""


class StreamAdapterNetworks(nn.Module):
    """One `ChunkMapper` per layer, with initial weights drawn from `settings.seed`.

    All methods are differentiable.
    """

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
        """Update the state with whole chunks; row b has `full_B[b]` of them, from the front.

        `keys`, `values`: one tensor [B, H, S, D] per layer.
        """
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
        """Return the state after further keys and values.

        Whole chunks update h. The rest becomes the new tail.

        Args:
            tensors: the state so far.
            keys: one tensor [B, H, S, D] per layer.
            values: like `keys`.
            valid_BS: bool, False for padding.
        """
        chunk, old_tail_count_B = self.settings.chunk, tensors.get("tail")
        if old_tail_count_B is not None:
            old_tail_valid_BS = (
                torch.arange(chunk - 1, device=old_tail_count_B.device) < old_tail_count_B[:, None]
            )
            valid_BS = torch.cat([old_tail_valid_BS, valid_BS], dim=1)
            keys = [torch.cat(pair, dim=2) for pair in zip(tensors["tail_keys"], keys, strict=True)]
            values = [
                torch.cat(pair, dim=2) for pair in zip(tensors["tail_values"], values, strict=True)
            ]
        valid_first_BS, count_B = (~valid_BS).long().argsort(dim=1, stable=True), valid_BS.sum(1)
        whole_chunks_B, tail_count_B = count_B // chunk, count_B % chunk
        whole_chunk_slots_BS = valid_first_BS[:, : int(whole_chunks_B.max()) * chunk]
        tail_index_S = torch.arange(chunk - 1, device=count_B.device)
        after_chunks_BS = (whole_chunks_B[:, None] * chunk + tail_index_S).clamp(
            max=valid_first_BS.shape[1] - 1
        )
        tail_slots_BS = valid_first_BS.gather(1, after_chunks_BS).masked_fill(
            tail_index_S >= tail_count_B[:, None], -1
        )
        h = self.advance(
            tensors["h"],
            _gather_slots(keys, whole_chunk_slots_BS),
            _gather_slots(values, whole_chunk_slots_BS),
            whole_chunks_B,
        )
        return {
            "h": h,
            "tail": tail_count_B,
            "tail_keys": torch.stack(_gather_slots(keys, tail_slots_BS)),
            "tail_values": torch.stack(_gather_slots(values, tail_slots_BS)),
        }

    def flush_tail(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return h [L, B, M, R, E] as if the tail were a last chunk. The state does not change."""
        if "tail" not in tensors or not bool(tensors["tail"].any()):
            return tensors["h"]
        tail_count_B = tensors["tail"]
        tail_valid_BS = (
            torch.arange(self.settings.chunk - 1, device=tail_count_B.device)
            < tail_count_B[:, None]
        )
        is_present_B1 = tail_count_B[:, None] > 0
        # A softmax over no slot is NaN, so rows without a tail see all slots. `is_present_B1`
        # excludes them from the result.
        tail_valid_BS = tail_valid_BS | ~is_present_B1
        layers = zip(
            self._layers, tensors["h"], tensors["tail_keys"], tensors["tail_values"], strict=True
        )
        return torch.stack(
            [
                mapper(h, keys, values, is_present_B1, tail_valid_BS)
                for mapper, h, keys, values in layers
            ]
        )

    def deltas(self, h_LBMRE: Tensor) -> dict[str, LowRank]:
        """Return deltas of all adapted linear maps by name."""
        return {
            name: delta
            for mapper, names, h_BMRE in zip(self._layers, self.names, h_LBMRE, strict=True)
            for name, delta in zip(names, mapper.deltas(h_BMRE), strict=True)
        }


def _gather_slots(layers: Sequence[Tensor], slots_BS: Tensor) -> list[Tensor]:
    """Gather slots of every layer and row, [B, H, slots, D]; an index of -1 gives zeros."""
    slots_B1S1 = slots_BS[:, None, :, None]
    rows, heads, _, size = layers[0].shape
    index_BHSD = slots_B1S1.clamp(min=0).expand(rows, heads, -1, size)
    return [layer.gather(2, index_BHSD).masked_fill(slots_B1S1 < 0, 0.0) for layer in layers]


class ChunkMapper(nn.Module):
    """Network that maps the KV cache of one decoder layer to deltas of its linear maps.

    `sizes`: (features in, features out) of each map.
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
        self.inputs = nn.ParameterList(
            nn.Linear(state_width, features, bias=False).weight for features, _ in sizes
        )
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
        """Return the state after N chunks of C = S / N slots each.

        The recurrence h_i = alpha_i h_{i-1} + summary_i, with gate alpha, is computed as one
        weighted sum.

        Args:
            is_present_BN: False for chunks that a row does not have. They leave h unchanged.
            tail_valid_BS: False for masked slots, if the only chunk is a tail.
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
        # log of the product of this gate and all later ones; gates are at most 1: no overflow
        log_decay_BNMR = log_gate_BNMR.flip(1).cumsum(1).flip(1)
        weights_BNMR = torch.cat(
            [log_decay_BNMR[:, 1:], torch.zeros_like(log_decay_BNMR[:, :1])], dim=1
        ).exp()
        added_BMRE = torch.einsum("bnmr,bnmre->bmre", weights_BNMR, summary_BNMRE)
        return h_BMRE * log_decay_BNMR[:, 0].exp()[..., None] + added_BMRE

    def deltas(self, state_BMRE: Tensor) -> list[LowRank]:
        """Return the weight delta of each linear map as factors of rank R."""
        return [
            LowRank(state_BMRE[:, index] * self.scale @ inner.T, outer.T[None])
            for index, (inner, outer) in enumerate(zip(self.inputs, self.outputs, strict=True))
        ]
