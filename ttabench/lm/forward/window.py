"""Text window of a batch while it is read: prefix, masks, positions and KV cache.

    window = Window(lm, patch.prefix, rows=32, capacity=16)
    hidden_BTD = window.feed(prompt_ids_BT, mask_BT)      # then feed(one token per row), 16 times
    window.prefix()                                       # everything read so far, as a `Prefix`

Slots are entries of the cache, positions are position ids: padding takes slots but no positions. An
`Eviction` of the prefix removes slots after every feed. A `Layout` places tokens that do not simply
follow each other. Example: c1 COMP c2 COMP q is compressed memory in one forward, in which tokens
of c2 see the first COMP, but not c1.

Shape letters: B rows · T tokens of the forward · S slots, cached and new · C width of the model.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import Cache, DynamicLayer

from ttabench.lm.attention import (
    SharedLayer,
    attention_extras,
    can_merge_partials,
    causal_mask,
    is_observed,
    observe_attention,
)
from ttabench.lm.forward.capabilities import get_capabilities, require_capabilities
from ttabench.lm.model import LM
from ttabench.lm.patch import Prefix, select_tensor_rows


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Placement of the tokens of one forward. None selects the default."""

    positions_BT: Tensor | None = None
    """int64 [B or 1, T]: position ids; any value for padding. Default: consecutive."""
    visible_BTS: Tensor | None = None
    """bool [B or 1, T, T]: visible tokens among these, besides all cached slots; or [B or 1, T, S]
    of all slots, cached ones first. Padding is never visible. Sliding windows are ignored."""
    embeddings_BTC: Tensor | None = None
    """Inputs of the first layer that replace token embeddings, see `LM.embed`."""
    delta_mask_BT: Tensor | None = None
    """bool [B or 1, T]: tokens at which the low-rank deltas of the patch act; None for all."""

    def mask(self, tokens: int, slots: int, real_BS: Tensor | None) -> Tensor:
        """Extend `visible_BTS` to all slots, [B or 1, 1, T, S]. `real_BS`: False for padding."""
        assert self.visible_BTS is not None
        assert self.visible_BTS.shape[1:] in ((tokens, tokens), (tokens, slots)), (
            f"a mask {tuple(self.visible_BTS.shape)}"
        )
        visible_BTS = pad(
            self.visible_BTS.bool(), (slots - self.visible_BTS.shape[2], 0), value=True
        )
        if real_BS is None:
            return visible_BTS[:, None]
        own_TS = torch.eye(tokens, dtype=torch.bool, device=visible_BTS.device)
        # padding sees itself: a softmax over nothing is undefined
        own_TS = pad(own_TS, (slots - tokens, 0))
        padded_BT1 = ~real_BS[:, slots - tokens :, None]
        return (visible_BTS & real_BS[:, None] | own_TS & padded_BT1)[:, None]


class CacheLayer(DynamicLayer):  # type: ignore[misc]  # transformers is not typed
    """Keys and values of one layer: own prefix of each row, then new tokens.

    A shared prefix is counted, but not stored. Without `retain`, new keys and values are not kept,
    so one layer exists at a time. With `capacity` and no gradients, one buffer is filled in place:
    a decoding step copies one slot, not the window.
    """

    def __init__(
        self, prefix: tuple[Tensor, Tensor] | None, *, shared: int, capacity: int, retain: bool
    ) -> None:
        super().__init__()
        self.shared, self.capacity, self.retain = shared, capacity, retain
        self.buffers: list[Tensor] | None = None
        if prefix is not None:
            self.keys, self.values = prefix

    def get_seq_length(self) -> int:
        """Return the number of slots before the next token."""
        return self.shared + self.own_length()

    def own_length(self) -> int:
        """Return the number of slots without a shared prefix."""
        return 0 if self.keys is None else int(self.keys.shape[2])

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add T tokens. Returns the keys and values [B, H, P + T, D] that they attend to."""
        if self.capacity and not torch.is_grad_enabled():
            both = self._write(key_states, value_states)
        else:
            both = (
                concatenate_slots(self.keys, key_states),
                concatenate_slots(self.values, value_states),
            )
        if self.retain:
            self.keys, self.values = both
        return both

    def _write(self, keys_BHTD: Tensor, values_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        # The buffer is [B, H, P + capacity, D]. New slots follow old ones; the result is a view.
        start = self.own_length()
        end = start + keys_BHTD.shape[2]
        if self.buffers is None:
            (rows, heads), slots = keys_BHTD.shape[:2], start + self.capacity
            self.buffers = [
                new.new_empty(rows, heads, slots, new.shape[3]) for new in (keys_BHTD, values_BHTD)
            ]
            for buffer_BHSD, old_BHPD in zip(self.buffers, (self.keys, self.values), strict=True):
                if old_BHPD is not None:
                    buffer_BHSD[:, :, :start] = old_BHPD
        for buffer_BHSD, new_BHTD in zip(self.buffers, (keys_BHTD, values_BHTD), strict=True):
            buffer_BHSD.narrow(2, start, end - start).copy_(new_BHTD)
        keys_BHSD, values_BHSD = (buffer_BHSD.narrow(2, 0, end) for buffer_BHSD in self.buffers)
        return keys_BHSD, values_BHSD

    def select(self, rows: Tensor) -> None:
        """Select batch rows, in this order."""
        rows = rows if self.keys is None else rows.to(self.keys.device)
        length = self.own_length()
        if self.buffers is not None:
            self.buffers = [buffer.index_select(0, rows) for buffer in self.buffers]
            self.keys, self.values = (buffer[:, :, :length] for buffer in self.buffers)
        elif length:
            self.keys, self.values = (
                self.keys.index_select(0, rows),
                self.values.index_select(0, rows),
            )


def concatenate_slots(old_BHPD: Tensor | None, new_BHTD: Tensor) -> Tensor:
    """Concatenate old and new slots. A single old row is shared by all new rows."""
    if old_BHPD is None:
        return new_BHTD
    return torch.cat([old_BHPD.expand(new_BHTD.shape[0], -1, -1, -1), new_BHTD], dim=2)


def keys_and_values(lm: LM, prefix: Prefix) -> list[tuple[Tensor, Tensor]]:
    """Return keys and values of a prefix by layer, on the device and in the format of the model."""
    layers = list(zip(prefix.keys_LBHPD, prefix.values_LBHPD, strict=True))
    assert len(layers) in (0, lm.layers), (
        f"prefix of {len(layers)} layers on a model of {lm.layers}"
    )
    places = zip(layers, lm.layer_devices, strict=False)
    return [
        (keys.to(device, lm.dtype), values.to(device, lm.dtype))
        for (keys, values), device in places
    ]


def _finite_bias(lm: LM, prefix: Prefix) -> list[Tensor] | None:
    """Return the score bias of a prefix in the model's format, with the lowest number for -inf."""
    if prefix.bias_LBHP is None or not prefix.keys_LBHPD[0].shape[2]:
        return None
    lowest = torch.finfo(lm.dtype).min
    places = zip(prefix.bias_LBHP, lm.layer_devices, strict=True)
    return [bias.to(device, lm.dtype).clamp(min=lowest) for bias, device in places]


class Window:
    """Text window of a batch: everything read so far, and its cache.

    Args:
        prefix: encoded context before the text, with `rows` rows or one shared row.
        rows: batch rows.
        capacity: total tokens to be fed, if known. Without gradients, one buffer is then filled.
        retain: True if later feeds or `prefix()` need what is read now. Scoring does not.
        evict: False postpones the eviction of the prefix to a later window.
    """

    def __init__(
        self,
        lm: LM,
        prefix: Prefix | None,
        rows: int,
        *,
        capacity: int = 0,
        retain: bool = True,
        evict: bool = True,
    ) -> None:
        prefix = prefix or Prefix((), (), torch.zeros(1, dtype=torch.int64))
        self.lm, self.rows, self._evict, self._capabilities = lm, rows, evict, get_capabilities(lm)
        eviction, next_B = prefix.eviction, prefix.next_position_B.to(lm.device)
        if eviction is not None and rows > 1 and len(next_B) == 1:
            eviction = eviction.select(torch.zeros(rows, dtype=torch.int64, device=lm.device))
        self._bias, own = _finite_bias(lm, prefix), keys_and_values(lm, prefix)
        if own:
            require_capabilities(lm, "cache")
        if self._bias is not None or is_observed() or eviction is not None:
            require_capabilities(lm, "hooks")
        # local windows depend on the positions of all slots
        places = prefix.positions() if self._capabilities.local_masks else None
        mask_BP = None if prefix.mask_BP is None else prefix.mask_BP.to(lm.device).bool()
        held = replace(prefix, keys_LBHPD=(), values_LBHPD=(), positions_LBHP=places)
        held = held.map_layers(lambda layer: layer.to(lm.device))
        self._held = replace(held, next_position_B=next_B, mask_BP=mask_BP, eviction=eviction)
        """Everything read so far except keys and values. Bias and eviction: of the prefix only."""
        self._shared: list[SharedLayer] | None = None
        """Keys and values of a shared prefix, one entry per layer; None if each row has a copy."""
        if self._shares_prefix(prefix):
            whole, bias = prefix.mask_BP is None, self._bias
            self._shared = [
                SharedLayer(
                    *pair,
                    whole and layer not in self._capabilities.local_masks,
                    None if bias is None else bias[layer],
                )
                for layer, pair in enumerate(own)
            ]
            own, self._bias = [], None
        assert retain or eviction is None, "eviction requires retain=True"
        # a buffer cannot shrink under an eviction
        buffer = capacity if retain and eviction is None else 0
        slots = self._shared[0].keys.shape[2] if self._shared else 0
        pairs = list(own) or [None] * lm.layers  # type: ignore[list-item]
        self._layers = [
            CacheLayer(pair, shared=slots, capacity=buffer, retain=retain) for pair in pairs
        ]
        self._cache = Cache(layers=list(self._layers))
        self._ids_BS: Tensor | None = None
        """All ids fed, for a model that reads the whole text every time."""

    def _shares_prefix(self, prefix: Prefix) -> bool:
        """True if several rows share the prefix, and no row evicts slots of its own."""
        if is_observed() or prefix.eviction is not None or not self._capabilities.supports_hooks:
            return False
        if self._capabilities.local_masks and any(
            place.shape[1] > 1 for place in prefix.positions_LBHP or ()
        ):
            return False  # heads with different slots have different windows
        parts = [part[0] for part in (prefix.keys_LBHPD, prefix.bias_LBHP) if part]
        return self.rows > 1 and bool(prefix.keys_LBHPD) and all(len(part) == 1 for part in parts)

    def feed(
        self, ids_BT: Tensor, mask_BT: Tensor | None = None, layout: Layout | None = None
    ) -> Tensor:
        """Read tokens. Returns last hidden states [B, T, D], undefined where `mask_BT` is False.

        No mask is needed for trailing padding if reading stops here. Without a layout, tokens are
        consecutive. `layout.delta_mask_BT` is for `deltas_applied`.
        """
        assert ids_BT.shape[0] == self.rows, (
            f"{ids_BT.shape[0]} rows fed to a window of {self.rows}"
        )
        positions_BT, total_B = self._positions(ids_BT, mask_BT)
        mask = mask_BS = self._extended_mask(ids_BT, mask_BT)
        next_B, step, eviction = self._held.next_position_B + total_B, None, self._held.eviction
        embeddings_BTC = None if layout is None else layout.embeddings_BTC
        if layout is not None:
            assert eviction is None, "a layout does not support eviction"
            require_capabilities(self.lm, "hooks")
            if embeddings_BTC is not None:
                require_capabilities(self.lm, "embeddings")
            if layout.positions_BT is not None:  # padding may have any position
                positions_BT = layout.positions_BT.to(positions_BT).clamp(
                    0, self.lm.max_positions - 1
                )
            real_BT = positions_BT if mask_BT is None else positions_BT.masked_fill(~mask_BT, -1)
            next_B = torch.maximum(self._held.next_position_B, real_BT.amax(1) + 1)
            if layout.visible_BTS is not None:
                slots = self._cache.get_seq_length() + ids_BT.shape[1]
                mask = layout.mask(ids_BT.shape[1], slots, mask_BS)
                if layout.visible_BTS.shape[2] == slots and self._shared is not None:
                    self._shared = [
                        replace(tensor, is_fully_visible=False) for tensor in self._shared
                    ]
        if eviction is not None:
            step = eviction.step(
                torch.ones_like(ids_BT, dtype=torch.bool) if mask_BT is None else mask_BT
            )
        with observe_attention(step) if step is not None else nullcontext():
            hidden_BTD = self._run(ids_BT, mask, positions_BT, embeddings_BTC)
        self._held = replace(self._held, mask_BP=mask_BS, next_position_B=next_B)
        if step is not None:
            remaining_prefix = step.remaining_prefix(self.prefix(), evict=self._evict)
            for layer, (keys, values) in zip(
                self._layers, keys_and_values(self.lm, remaining_prefix), strict=True
            ):
                layer.keys, layer.values = keys, values
            places = remaining_prefix.positions() if self._capabilities.local_masks else None
            self._held = replace(
                remaining_prefix, keys_LBHPD=(), values_LBHPD=(), positions_LBHP=places
            )
        return hidden_BTD

    @property
    def _continues_unmasked(self) -> bool:
        """True if a continuation of several tokens without padding needs no stored mask."""
        ours = self._capabilities.supports_hooks and self._shared is None
        return ours and (self.lm.device.type == "cuda" or can_merge_partials(self.lm.device))

    @property
    def needs_no_mask(self) -> bool:
        """True if unpadded text of any length needs no stored mask."""
        held = self._held
        needing_mask = (held.mask_BP, held.bias_LBHP, held.positions_LBHP)
        is_plain = all(part is None for part in needing_mask)
        return self._continues_unmasked and is_plain and not is_observed()

    def _run(
        self,
        ids_BT: Tensor,
        mask: Tensor | None,
        positions_BT: Tensor,
        embeddings_BTC: Tensor | None,
    ) -> Tensor:
        """Run the decoder. The mask is of slots [B, S], or of slots by token [B, 1, T, S]."""
        cache: dict[str, Any] = {
            "past_key_values": self._cache,
            "use_cache": True,
            "attention_mask": None,
        }
        if self._capabilities.supports_hooks:
            masks, continues_unmasked = (
                self._local(self._seen(ids_BT.shape[1], mask), positions_BT),
                self._continues_unmasked,
            )
            with attention_extras(
                shared=self._shared,
                bias=self._bias,
                continues_unmasked=continues_unmasked,
                masks=masks,
                local_masks=self._capabilities.local_masks,
            ):
                return self._decoded(ids_BT, positions_BT, embeddings_BTC, **cache)
        # the model attends with its own code, and makes its masks from a mask of slots
        cache["attention_mask"] = None if mask is None else mask.long()
        if self._capabilities.supports_cache:
            return self._decoded(ids_BT, positions_BT, embeddings_BTC, **cache)
        # Without a cache, the whole text is read again.
        self._ids_BS = ids_BT if self._ids_BS is None else torch.cat([self._ids_BS, ids_BT], dim=1)
        steps_1S = torch.arange(self._ids_BS.shape[1], device=ids_BT.device)[None]
        cache |= {"past_key_values": None, "use_cache": False}
        return self._decoded(self._ids_BS, steps_1S, None, **cache)[:, -ids_BT.shape[1] :]

    def _decoded(
        self, ids_BT: Tensor, positions_BT: Tensor, embeddings_BTC: Tensor | None, **cache: Any
    ) -> Tensor:
        inputs = (
            {"input_ids": ids_BT} if embeddings_BTC is None else {"inputs_embeds": embeddings_BTC}
        )
        if self._capabilities.takes_positions:
            inputs["position_ids"] = positions_BT
        hidden_BTD: Tensor = self.lm.decoder(**inputs, **cache)[0]
        return hidden_BTD.to(positions_BT.device)

    def _seen(self, tokens: int, mask: Tensor | None) -> Tensor | None:
        """Return visible slots by token, bool [B or 1, 1, T, S]. None: all up to the own slot."""
        if mask is not None and mask.dim() == 4:
            return mask
        held = self._layers[0].get_seq_length()
        if tokens == 1 or (mask is None and (not held or self._continues_unmasked)):
            return mask if mask is None else mask[:, None, None]
        causal = causal_mask(tokens, held + tokens, self.lm.device)
        return causal if mask is None else mask[:, None, None] & causal

    def _local(self, seen: Tensor | None, positions_BT: Tensor) -> list[Tensor | None]:
        """Return visible slots by layer [B or 1, 1 or H, T, S]; local windows hide some."""
        masks = [seen] * self.lm.layers
        if self._held.positions_LBHP is None:
            return masks
        tokens, query = positions_BT.shape[1], positions_BT[:, None, :, None]
        places = [  # positions of cached slots, then of these tokens, by row and head
            torch.cat(
                [
                    place.expand(rows, -1, -1),
                    positions_BT[:, None].expand(rows, place.shape[1], -1).to(place),
                ],
                2,
            )
            for place in self._held.positions_LBHP
            for rows in [max(len(place), len(positions_BT))]
        ]
        self._held = replace(self._held, positions_LBHP=tuple(places))
        made: dict[tuple[int, int], Tensor | None] = {}
        for layer, local_mask in self._capabilities.local_masks.items():
            number = layer if len(places) > 1 else 0
            if (key := (id(local_mask), number)) not in made:
                place = places[number][:, :, None]  # [B, H, 1, S]
                if bool(local_mask(0, 0, query.max(), place.clamp(min=0).min())):
                    made[key] = seen
                    continue
                base = seen
                if base is None and tokens > 1:
                    base = causal_mask(tokens, place.shape[-1], place.device)
                local = local_mask(0, 0, query, place)
                made[key] = local if base is None else base & local
            masks[layer] = made[key]
        return masks

    def _positions(self, ids_BT: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, Tensor]:
        next_B = self._held.next_position_B
        if mask_BT is None and ids_BT.shape[1] == 1:
            return next_B[:, None].clamp(max=self.lm.max_positions - 1), torch.ones_like(next_B)
        if mask_BT is None:
            steps_BT = torch.arange(ids_BT.shape[1], device=ids_BT.device).unsqueeze(0)
            total_B = torch.full_like(next_B, ids_BT.shape[1])
        else:
            # padding takes slots but no positions: mask [0, 1, 1] gives positions -1, 0, 1
            counts_BT = mask_BT.long().cumsum(1)
            steps_BT, total_B = counts_BT - 1, counts_BT[:, -1]
        # Only padding can exceed the limit: callers check real tokens with `patching.check_fits`.
        return (next_B[:, None] + steps_BT).clamp(0, self.lm.max_positions - 1), total_B

    def _extended_mask(self, ids_BT: Tensor, mask_BT: Tensor | None) -> Tensor | None:
        held_BS, slots = self._held.mask_BP, self._cache.get_seq_length()
        if mask_BT is None and held_BS is None:
            return None
        if held_BS is None:
            held_BS = torch.ones(1, slots, dtype=torch.bool, device=ids_BT.device)
        new_BT = torch.ones_like(ids_BT, dtype=torch.bool) if mask_BT is None else mask_BT
        return torch.cat([held_BS.expand(self.rows, -1), new_BT], dim=1)

    def prefix(self) -> Prefix:
        """Return everything read so far, one row per batch row."""
        require_capabilities(self.lm, "cache")
        keys, values = (
            [layer.keys for layer in self._layers],
            [layer.values for layer in self._layers],
        )
        if self._shared is not None:
            keys = [
                concatenate_slots(shared.keys, own)
                for shared, own in zip(self._shared, keys, strict=True)
            ]
            values = [
                concatenate_slots(shared.values, own)
                for shared, own in zip(self._shared, values, strict=True)
            ]
        slots = keys[0].shape[2]
        held = self._held.map_layers(
            lambda part: pad(part, (0, slots - part.shape[2])).expand(self.rows, -1, -1)
        )
        return replace(
            held,
            keys_LBHPD=tuple(keys),
            values_LBHPD=tuple(values),
            next_position_B=held.next_position_B.expand(self.rows),
            mask_BP=None if held.mask_BP is None else held.mask_BP.expand(self.rows, -1),
        )

    def select(self, rows_N: Tensor) -> None:
        """Select rows, in this order. Rows may repeat."""
        for layer in self._layers:
            layer.select(rows_N)
        eviction = None if self._held.eviction is None else self._held.eviction.select(rows_N)
        self.rows, self._held = len(rows_N), replace(self._held, eviction=None).select(rows_N)
        self._held = replace(self._held, eviction=eviction)
        if self._bias is not None:
            self._bias = [select_tensor_rows(bias, rows_N) for bias in self._bias]
        if self._ids_BS is not None:
            self._ids_BS = self._ids_BS.index_select(0, rows_N)
