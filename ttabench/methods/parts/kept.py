"""States that keep a KV cache, or the last token ids, which are read again before every query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ttabench.core.deprecation import renamed
from ttabench.lm.forward.patching import feed_in_blocks, prepare_mask
from ttabench.lm.forward.tokens import pad
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, Prefix

RENAMED_FUNCTIONS = {
    "appended": "append_ids",
    "cached": "prefix_tensors",
    "ids_of": "stored_ids",
    "prefix_of": "prefix_from_tensors",
    "read_on": "extend_prefix",
    "window_of": "window_patch",
}
"""Present names of functions of this module by their earlier names."""

CACHE_PREFIX = "cache."
"""Beginning of the names of state tensors that are parts of the model's own cache."""

if not TYPE_CHECKING:  # else a type checker accepts any name of this module
    __getattr__ = renamed(__name__, RENAMED_FUNCTIONS)


def prefix_tensors(prefix: Prefix) -> dict[str, Tensor]:
    """Convert a prefix without biases to state tensors. Its first slot is BOS, if there is one."""
    tensors = {"next": prefix.next_position_B, **stack_layers("keys", prefix.keys_LBHPD)}
    tensors |= stack_layers("values", prefix.values_LBHPD)
    if prefix.mask_BP is not None and not bool(prefix.mask_BP.all()):
        tensors["mask"] = prefix.mask_BP
    return tensors | name_model_cache(prefix.model_cache)


def prefix_from_tensors(tensors: Mapping[str, Tensor]) -> Prefix | None:
    """Restore the prefix from tensors of `prefix_tensors`, None if there are none."""
    if "next" not in tensors:
        return None
    keys, values = unstack_layers(tensors, "keys"), unstack_layers(tensors, "values")
    mask_BP, model_cache = tensors.get("mask"), model_cache_of(tensors)
    return Prefix(keys, values, tensors["next"], mask_BP, holds_bos=True, model_cache=model_cache)


def name_model_cache(model_cache: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `Prefix.model_cache` as state tensors."""
    return {f"{CACHE_PREFIX}{path}": tensor for path, tensor in model_cache.items()}


def model_cache_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of `name_model_cache` among those of a state, by their paths."""
    return {
        name.removeprefix(CACHE_PREFIX): tensor
        for name, tensor in tensors.items()
        if name.startswith(CACHE_PREFIX)
    }


def stack_layers(name: str, parts: Sequence[Tensor]) -> dict[str, Tensor]:
    """Stack the tensors of all layers to [L, ...], or name them separately if shapes differ."""
    if len({(part.shape, part.device) for part in parts}) == 1:
        return {name: torch.stack(list(parts))}
    return {f"{name}.{layer}": part for layer, part in enumerate(parts)}


def unstack_layers(tensors: Mapping[str, Tensor], name: str) -> tuple[Tensor, ...]:
    """Return the tensors of `stack_layers`, one per layer."""
    if name in tensors:
        return tuple(tensors[name].unbind(0))
    layers = sum(key.startswith(f"{name}.") for key in tensors)
    return tuple(tensors[f"{name}.{layer}"] for layer in range(layers))


def extend_prefix(
    lm: LM, prefix: Prefix | None, ids_BT: Tensor, mask_BT: Tensor | None = None
) -> Prefix:
    """Read a text after a prefix, and return both as a prefix. `mask_BT` is False for padding."""
    window = Window(lm, prefix, ids_BT.shape[0], capacity=ids_BT.shape[1])
    feed_in_blocks(window, ids_BT, prepare_mask(lm, mask_BT))
    return window.prefix()


def append_ids(
    lm: LM, tensors: Mapping[str, Tensor], rows_new: Sequence[Sequence[int]], limit: int
) -> dict[str, Tensor]:
    """Append ids and keep the last `limit` of each row.

    Returns:
        "tokens" [B, T] with padding at the end, and "lengths" [B].
    """
    stored = stored_ids(tensors, len(rows_new))
    kept = [[*old, *new] for old, new in zip(stored, rows_new, strict=True)]
    tokens_BT, mask_BT = pad([row[-limit:] for row in kept], lm.pad_id, "right", lm.device)
    return {"tokens": tokens_BT.to(lm.id_dtype), "lengths": mask_BT.sum(1)}


def stored_ids(tensors: Mapping[str, Tensor], rows: int) -> list[list[int]]:
    """Return the ids of `append_ids` for each row, empty rows if nothing was read."""
    if "tokens" not in tensors:
        return [[] for _ in range(rows)]
    pairs = zip(tensors["tokens"], tensors["lengths"].tolist(), strict=True)
    return [row[:length].tolist() for row, length in pairs]


def window_patch(tensors: Mapping[str, Tensor]) -> Patch:
    """Return the ids of `append_ids` as tokens in the window, or an empty patch without ids."""
    width = int(tensors["lengths"].max()) if "tokens" in tensors else 0
    if not width:
        return Patch()
    lengths_B = tensors["lengths"]
    mask_BT = torch.arange(width, device=lengths_B.device) < lengths_B[:, None]
    return Patch(tokens_BT=tensors["tokens"][:, :width], tokens_mask_BT=mask_BT)
