"""What StreamAdapter trains: the mappers of all decoder layers, and the state they carry through a text.

    tensors = networks.empty(rows)
    tensors = networks.absorbed(tensors, keys, values, valid_BS)     whole chunks into h, the rest waits in the tail
    networks.deltas(networks.flushed(tensors))                       the tail as a short last chunk, then weight deltas

`mapping=recurrent` maps a few chunks at a time, so memory does not grow with the text; `parallel` maps all at once.
Both are one formula, cut differently.

Shape letters: L layers · B rows · H key/value heads · S slots · C chunk · D head size · M linear maps · R queries ·
    E state channels of a query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank
from ttabench.methods.parts.lora import by_layer, target_names
from ttabench.methods.streamadapter.chunk_state import ChunkMapper, absorbed
from ttabench.methods.streamadapter.settings import StreamAdapterSettings

CHUNKS_AT_ONCE = 8


class StreamAdapterNetworks(nn.Module):
    """One `ChunkMapper` a layer, with weights drawn from `settings.seed`. Everything is differentiable.

    Args:
        lm: the base model.
        settings: sizes.

    Attributes:
        names: names of the adapted linear maps, by layer.

    Raises:
        UserError: the base has none of the linear maps that `targets` names.
    """

    def __init__(self, lm: LM, settings: StreamAdapterSettings) -> None:
        super().__init__()
        self.lm, self.settings = lm, settings
        self.names = by_layer(lm, target_names(lm, settings.targets))
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            layers = [
                ChunkMapper(
                    [lm.linear_shape(name) for name in names],
                    heads=lm.kv_heads,
                    head_dim=lm.head_dim,
                    queries=settings.queries,
                    down=settings.down,
                    temperature=settings.temperature,
                    share_heads=settings.share_heads,
                    query_std=settings.query_std,
                    gate_bias=_gate_biases(settings, layer, len(names)),
                    scale=settings.scale,
                )
                for layer, names in enumerate(self.names)
            ]
        self.mappers = nn.ModuleList(layers).to(lm.device)
        self._layers = layers
        self.eval()

    def empty(self, rows: int) -> dict[str, Tensor]:
        """`h` [L, B, M, R, E] of a text of which nothing was read."""
        return {"h": torch.zeros(len(self.mappers), rows, *self._layers[0].shape, device=self.lm.device)}

    def advanced(self, h_LBMRE: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], full_B: Tensor) -> Tensor:
        """The state after more whole chunks of keys and values [B, H, S, D], one tensor a layer; a row has `full_B`."""
        chunk = self.settings.chunk
        layers = []
        for mapper, h_BMRE, keys_BHSD, values_BHSD in zip(self._layers, h_LBMRE, keys, values, strict=True):
            whole = keys_BHSD.shape[2]
            step = chunk * (CHUNKS_AT_ONCE if self.settings.mapping == "recurrent" else max(1, whole))
            for begin in range(0, whole, step):
                part = slice(begin, begin + step)
                summary, log_gate = mapper.summaries(keys_BHSD[:, :, part], values_BHSD[:, :, part], chunk)
                number_N = begin // chunk + torch.arange(summary.shape[1], device=full_B.device)
                absent_BN11 = (number_N >= full_B[:, None])[:, :, None, None]
                h_BMRE = absorbed(
                    h_BMRE,
                    summary.masked_fill(absent_BN11[..., None], 0.0),
                    log_gate.masked_fill(absent_BN11, 0.0),
                )
            layers.append(h_BMRE)
        return torch.stack(layers)

    def absorbed(
        self, tensors: Mapping[str, Tensor], keys: Sequence[Tensor], values: Sequence[Tensor], valid_BS: Tensor
    ) -> dict[str, Tensor]:
        """The state after more keys and values of the text; what fills no chunk waits in the tail.

        Args:
            tensors: what this or `empty` returned.
            keys: [B, H, S, D], one tensor a layer.
            values: the same.
            valid_BS: bool, false where a row is padded.
        """
        chunk, held = self.settings.chunk, tensors.get("tail")
        if held is not None:
            held_BS = torch.arange(chunk - 1, device=held.device) < held[:, None]
            valid_BS = torch.cat([held_BS, valid_BS], dim=1)
            keys = [torch.cat(pair, dim=2) for pair in zip(tensors["tail_keys"], keys, strict=True)]
            values = [torch.cat(pair, dim=2) for pair in zip(tensors["tail_values"], values, strict=True)]
        order_BS = (~valid_BS).long().argsort(dim=1, stable=True)
        count_B = valid_BS.sum(1)
        full_B = count_B // chunk
        whole_BS = order_BS[:, : int(full_B.max()) * chunk]
        rest_BS = full_B[:, None] * chunk + torch.arange(chunk - 1, device=count_B.device)
        left_B = count_B - full_B * chunk
        tail_BS = order_BS.gather(1, rest_BS.clamp(max=order_BS.shape[1] - 1))
        tail_BS = tail_BS.masked_fill(torch.arange(chunk - 1, device=count_B.device) >= left_B[:, None], -1)
        h = self.advanced(
            tensors["h"],
            [_taken(tensor, whole_BS) for tensor in keys],
            [_taken(tensor, whole_BS) for tensor in values],
            full_B,
        )
        kept = {"tail_keys": keys, "tail_values": values}
        return {
            "h": h,
            "tail": left_B,
            **{name: torch.stack([_taken(layer, tail_BS) for layer in layers]) for name, layers in kept.items()},
        }

    def flushed(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """h [L, B, M, R, E] with the tail as a short last chunk; the state itself stays as it is."""
        if "tail" not in tensors or not bool(tensors["tail"].any()):
            return tensors["h"]
        left_B, width = tensors["tail"], self.settings.chunk - 1
        held_BS = torch.arange(width, device=left_B.device) < left_B[:, None]
        none_B = left_B == 0
        held_BS = held_BS | none_B[:, None]  # a softmax over nothing is not a number; what it gives is not used
        layers = []
        for mapper, h_BMRE, keys_BHSD, values_BHSD in zip(
            self._layers, tensors["h"], tensors["tail_keys"], tensors["tail_values"], strict=True
        ):
            summary, log_gate = mapper.remainder(keys_BHSD, values_BHSD, held_BS)
            none_B111 = none_B[:, None, None, None]
            layers.append(
                absorbed(h_BMRE, summary.masked_fill(none_B111[..., None], 0.0), log_gate.masked_fill(none_B111, 0.0))
            )
        return torch.stack(layers)

    def deltas(self, h_LBMRE: Tensor) -> dict[str, LowRank]:
        """Deltas of all adapted linear maps, by name."""
        by_name: dict[str, LowRank] = {}
        for mapper, names, h_BMRE in zip(self._layers, self.names, h_LBMRE, strict=True):
            by_name |= dict(zip(names, mapper.deltas(h_BMRE), strict=True))
        return by_name


def _taken(source_BHSD: Tensor, slots_BS: Tensor) -> Tensor:
    """These slots of every row; zeros where a slot is -1."""
    rows, heads, _, size = source_BHSD.shape
    index_BHSD = slots_BS.clamp(min=0)[:, None, :, None].expand(rows, heads, -1, size)
    return source_BHSD.gather(2, index_BHSD).masked_fill((slots_BS < 0)[:, None, :, None], 0.0)


def _gate_biases(settings: StreamAdapterSettings, layer: int, maps: int) -> list[float]:
    """Evenly spread over the maps of a layer, in turn from short to long memory and from long to short."""
    turn = 1 if layer % 2 else -1
    places = torch.linspace(-1.0, 1.0, maps) if maps > 1 else torch.zeros(maps)
    return (settings.gate_bias - turn * settings.gate_spread * places).tolist()
