"""Cache objects of transformers, with more than the keys and values of a `Window`.

    tensors = cache_tensors(cache)              # {"layers.2.recurrent_states.0": [B, ...], ...}
    fill_cache(new, cache, tensors, rows_N)     # a copy of these tensors, with rows selected

Recurrent and convolution layers of hybrid models, and whole caches of models with a class of their
own, are known only by their attributes. Numbers and flags (tokens seen, "has a state") are stored
as tensors of one element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.cache_utils import (
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
)

from ttabench.lm.model import LM


class CacheLayer(DynamicLayer):  # type: ignore[misc]  # transformers is not typed
    """Keys and values of one layer: own prefix of each row, then new tokens.

    Args:
        prefix: keys and values of the prefix; None if there is none, or if all rows share it.
        shared: slots of a shared prefix. They are counted here, and stored in a `SharedLayer`.
        capacity: slots to reserve for new tokens. Without gradients, one buffer is then filled in
            place: a decoding step copies one slot instead of the window.
        retain: False to discard new keys and values after the layer used them, to save memory.
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
        """Return the number of slots in this layer, without those of a shared prefix."""
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


class RecurrentLayer(LinearAttentionLayer):  # type: ignore[misc]
    """Recurrent and convolution states of one layer, replaced instead of written in place.

    So gradients and the recomputation of layers see the states that a forward began with.
    """

    def update_conv_state(self, conv_states: Tensor, state_idx: int = 0, **options: Any) -> Tensor:
        """Add the inputs of new tokens. Returns the earlier inputs and the new ones."""
        if self.conv_states[state_idx] is not None:
            self.conv_states[state_idx] = self.conv_states[state_idx].clone()
        states: Tensor = super().update_conv_state(conv_states, state_idx, **options)
        return states

    def update_recurrent_state(
        self, recurrent_states: Tensor, state_idx: int = 0, **_options: Any
    ) -> Tensor:
        """Replace the state."""
        self.recurrent_states[state_idx] = recurrent_states
        self.is_recurrent_states_initialized[state_idx] = True
        return recurrent_states


class MixedLayer(RecurrentLayer, CacheLayer):
    """Layer with both recurrent states and keys and values (Falcon-H1)."""

    def __init__(self, states: int, *args: Any, **options: Any) -> None:
        CacheLayer.__init__(self, *args, **options)
        LinearAttentionLayer.__init__(self, number_of_states=states)


def own_layers(lm: LM) -> dict[int, Any]:
    """Return empty cache layers that are no plain keys and values, by decoder layer."""
    try:
        layers = DynamicCache(config=lm.config).layers
    except Exception:  # configurations that describe no cache
        return {}
    # a window of the model is applied as a mask, so all keys are kept
    plain = (DynamicLayer, DynamicSlidingWindowLayer)
    return {number: layer for number, layer in enumerate(layers) if type(layer) not in plain}


def holds_keys(own: Any) -> bool:
    """True if a layer of `own_layers`, or none, has keys and values of its own."""
    return own is None or isinstance(own, DynamicLayer)


def new_layer(own: Any, *args: Any, **options: Any) -> Any:
    """Return a new layer like `own`, with arguments of a `CacheLayer`; None for keys and values."""
    if own is None:
        return CacheLayer(*args, **options)
    if isinstance(own, LinearAttentionLayer) and holds_keys(own):
        return MixedLayer(own.number_of_states, *args, **options)
    if type(own) is LinearAttentionLayer:
        return RecurrentLayer(own.number_of_states)
    return deepcopy(own)


def cache_tensors(cache: Any) -> dict[str, Tensor]:
    """Return tensors and numbers of a cache by path, without keys and values of a `CacheLayer`."""
    found = {path: torch.as_tensor(value) for path, value in _leaves(cache)}
    return {path: value if value.dim() else value[None] for path, value in found.items()}


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, Tensor | int]]:
    for name, value in _children(node):
        if isinstance(value, Tensor | int):
            yield f"{path}{name}", value
        else:
            yield from _leaves(value, f"{path}{name}.")


def _children(node: Any) -> list[tuple[str, Any]]:
    if isinstance(node, list | tuple):
        node = dict(enumerate(node))
    if isinstance(node, Mapping):
        return [(str(key), value) for key, value in node.items()]
    if isinstance(node, SKIPPED) or not hasattr(node, "__dict__"):
        return []
    skipped = EMPTY_CACHE_LAYER if isinstance(node, CacheLayer) else ()
    return [(name, value) for name, value in vars(node).items() if name not in skipped]


SKIPPED = PreTrainedConfig, nn.Module, type, DummyLayer
EMPTY_CACHE_LAYER = vars(CacheLayer(None, shared=0, capacity=0, retain=True))


def fill_cache(cache: Any, like: Any, tensors: Mapping[str, Tensor], rows_N: Tensor) -> None:
    """Set tensors and numbers of a cache to copies of `tensors`, with these rows of them.

    A single row serves all of `rows_N`.

    Args:
        like: cache of this model after one token. It gives types, devices and number formats.

    Raises:
        KeyError: `tensors` are not those of such a cache.
    """
    known = dict(_leaves(like))
    if missing := sorted(known.keys() - tensors.keys()):
        raise KeyError(missing[0])
    for path, tensor in tensors.items():
        *parents, last = path.split(".")
        node = cache
        for name in parents:
            node = dict(_children(node))[name]
        value = _leaf_value(tensor, known.get(path), rows_N)
        if isinstance(node, Mapping | list):
            node[int(last) if last.isdigit() else last] = value  # type: ignore[index]
        else:
            setattr(node, last, value)


def _leaf_value(tensor: Tensor, known: Tensor | int | None, rows_N: Tensor) -> Tensor | int:
    """Return the value to set in place of a known one; None if a cache gets it later."""
    if known is None:
        known = tensor if tensor.is_floating_point() or tensor.numel() > 1 else int(tensor)
    if not isinstance(known, Tensor):
        return type(known)(tensor.item())
    if not known.dim():
        return tensor[0].to(known)
    chosen_N = rows_N.new_zeros(len(rows_N)) if len(tensor) == 1 else rows_N
    return tensor.to(known).index_select(0, chosen_N.to(known.device))
