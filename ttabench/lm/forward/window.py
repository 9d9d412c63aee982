"""Text window of a batch while it is read: prefix, masks, positions and KV cache.

    window = Window(lm, patch.prefix, rows=32, capacity=16)
    hidden_BTD = window.feed(prompt_ids_BT, mask_BT)      # then feed(one token per row), 16 times
    window.prefix()                                       # everything read so far, as a `Prefix`

Slots are entries of the KV cache, positions are position ids. Padding takes slots but no positions.
An `Eviction` of the prefix removes slots after every feed. A `Layout` places tokens that are not
consecutive, or do not see all earlier tokens. Example: the text c1 COMP c2 COMP q reads compressed
memory in one forward. Tokens of c2 see the first COMP, but not c1.

Shape letters: B rows · T tokens of the forward · P slots of the prefix · S slots, cached and new ·
L layers · H heads · D width of a head, or of hidden states · C width of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import Cache

from ttabench.core.errors import UserError
from ttabench.lm.attention import (
    SharedLayer,
    attention_extras,
    can_merge_partials,
    causal_mask,
    is_observed,
    observe_attention,
)
from ttabench.lm.forward.capabilities import get_capabilities, require_capabilities
from ttabench.lm.forward.model_cache import (
    CacheLayer,
    cache_tensors,
    concatenate_slots,
    fill_cache,
    new_layer,
)
from ttabench.lm.model import LM
from ttabench.lm.patch import Prefix, select_tensor_rows


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Placement of the tokens of one forward. None selects the default."""

    positions_BT: Tensor | None = None
    """int64 [B or 1, T]: position ids; any value for padding. Default: consecutive."""
    visible_BTS: Tensor | None = None
    """Visible slots by token. bool [B or 1, T, T]: of the new tokens; cached slots are visible.
    bool [B or 1, T, S]: of all slots, cached ones first. Padding is never visible. Sliding windows
    are ignored."""
    embeddings_BTC: Tensor | None = None
    """Inputs of the first layer that replace token embeddings, see `LM.embed`."""
    delta_mask_BT: Tensor | None = None
    """bool [B or 1, T]: tokens at which the low-rank deltas of the patch act; None for all."""

    def mask(self, tokens: int, slots: int, real_BS: Tensor | None) -> Tensor:
        """Extend `visible_BTS` to all slots, [B or 1, 1, T, S], and hide padding.

        Args:
            tokens: T, the tokens of the forward.
            slots: S, cached and new slots.
            real_BS: False for padding; None without padding.
        """
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


def keys_and_values(lm: LM, prefix: Prefix) -> list[tuple[Tensor, Tensor]]:
    """Return keys and values of a prefix by layer, on the device and in the format of the model."""
    layers = list(zip(prefix.keys_LBHPD, prefix.values_LBHPD, strict=True))
    assert len(layers) in (0, len(lm.kv_layers)), (
        f"prefix of {len(layers)} layers on a model of {len(lm.kv_layers)}"
    )
    layers_with_device = zip(layers, lm.kv_layers, strict=False)
    return [
        (keys.to(device, lm.dtype), values.to(device, lm.dtype))
        for (keys, values), number in layers_with_device
        for device in [lm.layer_devices[number]]
    ]


def _finite_bias(lm: LM, prefix: Prefix) -> list[Tensor] | None:
    """Return the attention bias of a prefix by layer, in the format of the model.

    -inf is replaced by the lowest finite number. None without a bias or without slots.
    """
    if prefix.bias_LBHP is None or not prefix.keys_LBHPD[0].shape[2]:
        return None
    lowest = torch.finfo(lm.dtype).min
    biases_with_layer = zip(prefix.bias_LBHP, lm.kv_layers, strict=True)
    return [
        bias.to(lm.layer_devices[number], lm.dtype).clamp(min=lowest)
        for bias, number in biases_with_layer
    ]


class Window:
    """Text window of a batch: everything read so far, and its cache.

    Args:
        prefix: encoded context before the text, with `rows` rows or one shared row.
        rows: batch rows.
        capacity: total tokens to be fed, if known. Without gradients, one buffer is then filled.
        retain: True if later feeds or `prefix()` need the tokens read now. False for scoring.
        evict: False to leave the eviction of the prefix to a later window.
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
        self._retain = retain
        eviction, next_B = prefix.eviction, prefix.next_position_B.to(lm.device)
        if eviction is not None and rows > 1 and len(next_B) == 1:
            eviction = eviction.select(torch.zeros(rows, dtype=torch.int64, device=lm.device))
        self._bias, row_pairs = _finite_bias(lm, prefix), keys_and_values(lm, prefix)
        if row_pairs or prefix.model_cache:
            require_capabilities(lm, "cache")
        if self._bias is not None or is_observed() or eviction is not None:
            require_capabilities(lm, "hooks")
        # local attention windows depend on the positions of all slots
        positions_LBHP = prefix.positions() if self._capabilities.local_masks else None
        mask_BP = None if prefix.mask_BP is None else prefix.mask_BP.to(lm.device).bool()
        bare_prefix = replace(
            prefix, keys_LBHPD=(), values_LBHPD=(), positions_LBHP=positions_LBHP, model_cache={}
        )
        bare_prefix = bare_prefix.map_layers(lambda layer: layer.to(lm.device))
        self._bare_prefix = replace(
            bare_prefix, next_position_B=next_B, mask_BP=mask_BP, eviction=eviction
        )
        """Everything read so far except the cache. Bias and eviction: of the prefix only."""
        self._shared: list[SharedLayer] | None = None
        """Keys and values of a shared prefix, one entry per layer; None if each row has a copy."""
        if self._shares_prefix(prefix):
            is_unmasked, bias = prefix.mask_BP is None, self._bias
            self._shared = [
                SharedLayer(
                    *pair,
                    is_unmasked and layer not in self._capabilities.local_masks,
                    None if bias is None else bias[layer],
                )
                for layer, pair in enumerate(row_pairs)
            ]
            row_pairs, self._bias = [], None
        assert retain or eviction is None, "eviction requires retain=True"
        # a buffer cannot shrink under an eviction
        buffer_capacity = capacity if retain and eviction is None else 0
        shared_slots = self._shared[0].keys.shape[2] if self._shared else 0
        self._has_padding = False
        layers = self._new_layers(
            row_pairs, shared=shared_slots, capacity=buffer_capacity, retain=retain
        )
        self.cache: Any = Cache(layers=layers) if layers else None
        """Cache object of transformers. None: an opaque one, before the model creates it."""
        self._layers = [layer for layer in layers if isinstance(layer, CacheLayer)]
        """Keys and values, in the order of `lm.kv_layers`."""
        if prefix.model_cache:
            self._set_model_cache(prefix.model_cache, torch.arange(rows, device=lm.device))
        self._ids_BS: Tensor | None = None
        """All ids fed, for a model that reads the whole text every time."""

    def _new_layers(self, pairs: Sequence[tuple[Tensor, Tensor]], **options: Any) -> list[Any]:
        """Return a cache layer per decoder layer, with keys and values; none for an opaque cache."""
        if self._capabilities.is_opaque:
            return []
        own, left = self._capabilities.own_layers, iter(pairs)
        return [
            new_layer(
                own.get(number),
                next(left, None) if number in self.lm.kv_layers else None,
                **options,
            )
            for number in range(self.lm.layers)
        ]

    def _shares_prefix(self, prefix: Prefix) -> bool:
        """True if several rows share a prefix of one row, and no row evicts slots."""
        if is_observed() or prefix.eviction is not None or not self._has_plain_attention:
            return False
        if self._capabilities.local_masks and any(
            positions_BHP.shape[1] > 1 for positions_BHP in prefix.positions_LBHP or ()
        ):
            return False  # heads with different positions need different local masks
        first_layer_parts = [part[0] for part in (prefix.keys_LBHPD, prefix.bias_LBHP) if part]
        return (
            self.rows > 1
            and bool(prefix.keys_LBHPD)
            and all(len(part) == 1 for part in first_layer_parts)
        )

    def feed(
        self, ids_BT: Tensor, mask_BT: Tensor | None = None, layout: Layout | None = None
    ) -> Tensor:
        """Read tokens. Returns last hidden states [B, T, D], undefined for padding.

        Args:
            mask_BT: False for padding; None without padding. It may also be None for trailing
                padding, if this is the last feed.
            layout: placement of the tokens; None if they are consecutive. Its `delta_mask_BT` is
                ignored here: callers pass it to `deltas_applied`.
        """
        assert ids_BT.shape[0] == self.rows, (
            f"{ids_BT.shape[0]} rows fed to a window of {self.rows}"
        )
        self._check_padding(mask_BT)
        positions_BT, added_B = self._token_positions(ids_BT, mask_BT)
        mask_BS = self._extended_mask(ids_BT, mask_BT)
        mask = None if self._pads_at_end_only(mask_BT) else mask_BS
        next_B = self._bare_prefix.next_position_B + added_B
        eviction = self._bare_prefix.eviction
        eviction_step = None
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
            next_B = torch.maximum(self._bare_prefix.next_position_B, real_BT.amax(1) + 1)
            if layout.visible_BTS is not None:
                slots = self._cached_slots + ids_BT.shape[1]
                mask = layout.mask(ids_BT.shape[1], slots, mask_BS)
                if layout.visible_BTS.shape[2] == slots and self._shared is not None:
                    self._shared = [
                        replace(shared, is_fully_visible=False) for shared in self._shared
                    ]
        if eviction is not None:
            eviction_step = eviction.step(
                torch.ones_like(ids_BT, dtype=torch.bool) if mask_BT is None else mask_BT
            )
        with observe_attention(eviction_step) if eviction_step is not None else nullcontext():
            hidden_BTD = self._run(ids_BT, mask, positions_BT, embeddings_BTC)
        self._bare_prefix = replace(self._bare_prefix, mask_BP=mask_BS, next_position_B=next_B)
        if eviction_step is not None:
            self._keep_prefix(eviction_step.remaining_prefix(self.prefix(), evict=self._evict))
        return hidden_BTD

    def _check_padding(self, mask_BT: Tensor | None) -> None:
        """Raise a UserError if the model cannot pad, and padding precedes what is read or kept."""
        if self._capabilities.supports_batching:
            return
        if self._has_padding or (mask_BT is not None and not bool(mask_BT[:, 0].all())):
            require_capabilities(self.lm, "rows")
        # padding after the text harms only what is read later
        self._has_padding = mask_BT is not None

    def _pads_at_end_only(self, mask_BT: Tensor | None) -> bool:
        """True if all padding follows the text, so that a causal mask hides it from the text.

        False if an observer needs to know the padding.
        """
        bare = self._bare_prefix
        if (
            mask_BT is None
            or bare.mask_BP is not None
            or bare.eviction is not None
            or is_observed()
        ):
            return False
        return bool((mask_BT[:, 1:] <= mask_BT[:, :-1]).all())

    @property
    def _cached_slots(self) -> int:
        """Slots before the next token, padding included; 0 for an opaque cache."""
        return self._layers[0].get_seq_length() if self._layers else 0

    @property
    def _holds_more(self) -> bool:
        """True if the cache holds more than keys and values."""
        return self._capabilities.started_cache is not None and self.cache is not None

    def _set_model_cache(self, tensors: Mapping[str, Tensor], rows_N: Tensor) -> None:
        """Fill the parts of the cache that are not keys and values."""
        like = self._capabilities.started_cache
        if self.cache is None:
            self.cache = deepcopy(like)
        fill_cache(self.cache, like, tensors, rows_N)

    def _keep_prefix(self, prefix: Prefix) -> None:
        """Replace everything read so far by the slots that remain after an eviction."""
        pairs = keys_and_values(self.lm, prefix)
        for layer, (keys, values) in zip(self._layers, pairs, strict=True):
            layer.keys, layer.values = keys, values
        positions_LBHS = prefix.positions() if self._capabilities.local_masks else None
        self._bare_prefix = replace(
            prefix, keys_LBHPD=(), values_LBHPD=(), positions_LBHP=positions_LBHS, model_cache={}
        )

    @property
    def _has_plain_attention(self) -> bool:
        """True if our attention gets the cached keys and values themselves."""
        return self._capabilities.supports_hooks and not self._capabilities.has_latent_keys

    @property
    def _continues_unmasked(self) -> bool:
        """True if unpadded tokens after cached slots need no mask in memory."""
        uses_own_attention = self._has_plain_attention and self._shared is None
        return uses_own_attention and (
            self.lm.device.type == "cuda" or can_merge_partials(self.lm.device)
        )

    @property
    def needs_no_mask(self) -> bool:
        """True if unpadded text of any length needs no mask in memory."""
        bare = self._bare_prefix
        needing_mask = (bare.mask_BP, bare.bias_LBHP, bare.positions_LBHP)
        is_plain = all(part is None for part in needing_mask)
        return self._continues_unmasked and is_plain

    def _run(
        self,
        ids_BT: Tensor,
        mask: Tensor | None,
        positions_BT: Tensor,
        embeddings_BTC: Tensor | None,
    ) -> Tensor:
        """Run the decoder on new tokens and return their last hidden states.

        Args:
            mask: visible slots, [B, S] for all tokens or [B, 1, T, S] by token.
        """
        if self._capabilities.is_opaque:
            return self._run_opaque(ids_BT, positions_BT)
        cache: dict[str, Any] = {
            "past_key_values": self.cache,
            "use_cache": True,
            "attention_mask": None,
        }
        if self._capabilities.supports_hooks:
            visible = self._visibility_mask(ids_BT.shape[1], mask)
            with attention_extras(
                kv_layers=self._capabilities.kv_layers,
                shared=self._shared,
                bias=self._bias,
                continues_unmasked=self._continues_unmasked,
                masks=self._masks_by_layer(visible, positions_BT),
                local_masks=self._capabilities.local_masks,
            ):
                return self._run_decoder(ids_BT, positions_BT, embeddings_BTC, **cache)
        # the attention code of the model makes its own masks from a mask of slots
        cache["attention_mask"] = None if mask is None else mask.long()
        if self._capabilities.supports_cache:
            return self._run_decoder(ids_BT, positions_BT, embeddings_BTC, **cache)
        # Without a cache, the whole text is read again.
        self._ids_BS = ids_BT if self._ids_BS is None else torch.cat([self._ids_BS, ids_BT], dim=1)
        positions_1S = torch.arange(self._ids_BS.shape[1], device=ids_BT.device)[None]
        cache |= {"past_key_values": None, "use_cache": False}
        return self._run_decoder(self._ids_BS, positions_1S, None, **cache)[:, -ids_BT.shape[1] :]

    def _run_opaque(self, ids_BT: Tensor, positions_BT: Tensor) -> Tensor:
        """Run the decoder on its own cache object."""
        by_token = self._capabilities.continues_by_token and self.cache is not None
        hidden = []
        size = 1 if by_token else ids_BT.shape[1]
        parts = zip(torch.split(ids_BT, size, 1), torch.split(positions_BT, size, 1), strict=True)
        for part_ids, part_positions in parts:
            states = cache_tensors(self.cache).values() if torch.is_grad_enabled() else ()
            if by_token and any(tensor.requires_grad for tensor in states):
                fault = f"{self.lm.name} ({self.lm.config.model_type}) overwrites its cache"
                hint = "Train on texts without a window, or use another model."
                raise UserError(f"{fault}, so gradients cannot pass it.", hint)
            makes_cache = self._retain or self.cache is not None
            cache = {self._capabilities.cache_name: self.cache, "use_cache": makes_cache}
            hidden.append(self._run_decoder(part_ids, part_positions, None, **cache))
        return torch.cat(hidden, dim=1)

    def _run_decoder(
        self, ids_BT: Tensor, positions_BT: Tensor, embeddings_BTC: Tensor | None, **cache: Any
    ) -> Tensor:
        inputs = (
            {"input_ids": ids_BT} if embeddings_BTC is None else {"inputs_embeds": embeddings_BTC}
        )
        if self._capabilities.takes_positions:
            inputs["position_ids"] = positions_BT
        output = self.lm.decoder(**inputs, **cache)
        if self._capabilities.is_opaque:
            self.cache = output.get(self._capabilities.cache_name)
        hidden_BTD: Tensor = output[0]
        # Mamba-2 adds up its layers in float32
        return hidden_BTD.to(positions_BT.device, self.lm.dtype)

    def _visibility_mask(self, tokens: int, mask: Tensor | None) -> Tensor | None:
        """Return the slots that each token sees, bool [B or 1, 1, T, S]; None for a causal mask."""
        if mask is not None and mask.dim() == 4:
            return mask
        cached_slots = self._cached_slots
        if tokens == 1 or (mask is None and (not cached_slots or self._continues_unmasked)):
            return mask if mask is None else mask[:, None, None]
        causal = causal_mask(tokens, cached_slots + tokens, self.lm.device)
        return causal if mask is None else mask[:, None, None] & causal

    def _masks_by_layer(self, visible: Tensor | None, positions_BT: Tensor) -> list[Tensor | None]:
        """Return the slots that each token sees, by layer, bool [B or 1, 1 or H, T, S].

        Layers with local attention see only slots in their window. Adds the positions of the new
        tokens to those of the cached slots.
        """
        masks = [visible] * len(self._layers)
        if self._bare_prefix.positions_LBHP is None:
            return masks
        tokens, query_positions = positions_BT.shape[1], positions_BT[:, None, :, None]
        positions_LBHS = [  # cached slots first, then the new tokens
            torch.cat(
                [
                    positions_BHS.expand(rows, -1, -1),
                    positions_BT[:, None]
                    .expand(rows, positions_BHS.shape[1], -1)
                    .to(positions_BHS),
                ],
                2,
            )
            for positions_BHS in self._bare_prefix.positions_LBHP
            for rows in [max(len(positions_BHS), len(positions_BT))]
        ]
        self._bare_prefix = replace(self._bare_prefix, positions_LBHP=tuple(positions_LBHS))
        mask_by_key: dict[tuple[int, int], Tensor | None] = {}
        for layer, local_mask in self._capabilities.local_masks.items():
            index = layer if len(positions_LBHS) > 1 else 0
            if (key := (id(local_mask), index)) not in mask_by_key:
                positions_BH1S = positions_LBHS[index][:, :, None]
                if bool(local_mask(0, 0, query_positions.max(), positions_BH1S.clamp(min=0).min())):
                    mask_by_key[key] = visible
                    continue
                visible_or_causal = visible
                if visible_or_causal is None and tokens > 1:
                    visible_or_causal = causal_mask(
                        tokens, positions_BH1S.shape[-1], positions_BH1S.device
                    )
                local = local_mask(0, 0, query_positions, positions_BH1S)
                mask_by_key[key] = local if visible_or_causal is None else visible_or_causal & local
            masks[layer] = mask_by_key[key]
        return masks

    def _token_positions(self, ids_BT: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, Tensor]:
        next_B = self._bare_prefix.next_position_B
        if mask_BT is None and ids_BT.shape[1] == 1:
            return next_B[:, None].clamp(max=self.lm.max_positions - 1), torch.ones_like(next_B)
        if mask_BT is None:
            steps_BT = torch.arange(ids_BT.shape[1], device=ids_BT.device).unsqueeze(0)
            added_B = torch.full_like(next_B, ids_BT.shape[1])
        else:
            # padding takes slots but no positions: mask [0, 1, 1] gives positions -1, 0, 1
            counts_BT = mask_BT.long().cumsum(1)
            steps_BT, added_B = counts_BT - 1, counts_BT[:, -1]
        # Only padding can exceed the limit: callers check real tokens with `patching.check_fits`.
        return (next_B[:, None] + steps_BT).clamp(0, self.lm.max_positions - 1), added_B

    def _extended_mask(self, ids_BT: Tensor, mask_BT: Tensor | None) -> Tensor | None:
        cached_BS, cached_slots = self._bare_prefix.mask_BP, self._cached_slots
        if mask_BT is None and cached_BS is None:
            return None
        if cached_BS is None:
            cached_BS = torch.ones(1, cached_slots, dtype=torch.bool, device=ids_BT.device)
        new_BT = torch.ones_like(ids_BT, dtype=torch.bool) if mask_BT is None else mask_BT
        return torch.cat([cached_BS.expand(self.rows, -1), new_BT], dim=1)

    def prefix(self) -> Prefix:
        """Return everything read so far, one row per batch row."""
        self._check_padding(None)
        require_capabilities(self.lm, "cache")
        pairs = [(layer.keys, layer.values) for layer in self._layers]
        if self._shared is not None:
            pairs = [
                (concatenate_slots(shared.keys, keys), concatenate_slots(shared.values, values))
                for shared, (keys, values) in zip(self._shared, pairs, strict=True)
            ]
        keys_LBHSD, values_LBHSD = zip(*pairs, strict=True) if pairs else ((), ())
        slots = self._cached_slots
        bare = self._bare_prefix.map_layers(
            lambda part: pad(part, (0, slots - part.shape[2])).expand(self.rows, -1, -1)
        )
        return replace(
            bare,
            keys_LBHPD=keys_LBHSD,
            values_LBHPD=values_LBHSD,
            next_position_B=bare.next_position_B.expand(self.rows),
            mask_BP=None if bare.mask_BP is None else bare.mask_BP.expand(self.rows, -1),
            model_cache={
                path: tensor.clone()
                for path, tensor in (cache_tensors(self.cache) if self._holds_more else {}).items()
            },
        )

    def select(self, rows_N: Tensor) -> None:
        """Select rows, in this order. Rows may repeat."""
        for layer in self._layers:
            layer.select(rows_N)
        if self._holds_more:
            self._set_model_cache(cache_tensors(self.cache), rows_N)
        self.rows, self._bare_prefix = len(rows_N), self._bare_prefix.select(rows_N)
        if self._bias is not None:
            self._bias = [select_tensor_rows(bias, rows_N) for bias in self._bias]
        if self._ids_BS is not None:
            self._ids_BS = self._ids_BS.index_select(0, rows_N)
