"""What a state keeps of a text: a key/value cache, or the newest token ids, which are read again before every query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ttabench.core.deprecation import renamed
from ttabench.lm.forward.patching import BLOCK_TOKENS
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
"""Functions of this module by the names that earlier versions gave them."""

if not TYPE_CHECKING:  # else a type checker accepts any name of this module
    __getattr__ = renamed(__name__, RENAMED_FUNCTIONS)


def prefix_tensors(prefix: Prefix) -> dict[str, Tensor]:
    """A prefix of plain slots, the first of them BOS where the model has one, as tensors of a state."""
    tensors = {"next": prefix.next_position_B, **stack_layers("keys", prefix.keys_LBHPD)}
    tensors |= stack_layers("values", prefix.values_LBHPD)
    if prefix.mask_BP is not None and not bool(prefix.mask_BP.all()):
        tensors["mask"] = prefix.mask_BP
    return tensors


def prefix_from_tensors(tensors: Mapping[str, Tensor]) -> Prefix | None:
    """The value that `prefix_tensors` put there."""
    if "next" not in tensors:
        return None
    keys, values = unstack_layers(tensors, "keys"), unstack_layers(tensors, "values")
    return Prefix(keys, values, tensors["next"], tensors.get("mask"), holds_bos=True)


def stack_layers(name: str, parts: Sequence[Tensor]) -> dict[str, Tensor]:
    """Tensors of all layers as one [L, ...] of that name, or as one each where they do not go together."""
    if len({(part.shape, part.device) for part in parts}) == 1:
        return {name: torch.stack(list(parts))}
    return {f"{name}.{layer}": part for layer, part in enumerate(parts)}


def unstack_layers(tensors: Mapping[str, Tensor], name: str) -> tuple[Tensor, ...]:
    """What `stack_layers` put there, a tensor a layer."""
    if name in tensors:
        return tuple(tensors[name].unbind(0))
    own = [key for key in tensors if key.startswith(f"{name}.")]
    return tuple(tensors[f"{name}.{layer}"] for layer in range(len(own)))


def extend_prefix(
    lm: LM, held: Prefix | None, ids_BT: Tensor, mask_BT: Tensor | None = None
) -> Prefix:
    """What was read before and this text behind it, as the model reads it; `mask_BT` is false where one is padded."""
    window = Window(lm, held, ids_BT.shape[0], capacity=ids_BT.shape[1])
    real_BT = None if mask_BT is None or bool(mask_BT.all()) else mask_BT
    for begin in range(0, ids_BT.shape[1], BLOCK_TOKENS):
        part = slice(begin, begin + BLOCK_TOKENS)
        window.feed(ids_BT[:, part], None if real_BT is None else real_BT[:, part])
    return window.prefix()


def append_ids(
    lm: LM, tensors: Mapping[str, Tensor], rows_new: Sequence[Sequence[int]], limit: int
) -> dict[str, Tensor]:
    """The last `limit` ids of each row once these are read: "tokens" [B, T] padded behind, "lengths" [B]."""
    kept = [
        [*old, *new] for old, new in zip(stored_ids(tensors, len(rows_new)), rows_new, strict=True)
    ]
    tokens_BT, mask_BT = pad([row[-limit:] for row in kept], lm.pad_id, "right")
    return {"tokens": tokens_BT.to(lm.device), "lengths": mask_BT.sum(1).to(lm.device)}


def stored_ids(tensors: Mapping[str, Tensor], rows: int) -> list[list[int]]:
    """These ids, row by row; empty rows while nothing is read."""
    if "tokens" not in tensors:
        return [[] for _ in range(rows)]
    pairs = zip(tensors["tokens"], tensors["lengths"].tolist(), strict=True)
    return [row[:length].tolist() for row, length in pairs]


def window_patch(tensors: Mapping[str, Tensor]) -> Patch:
    """These ids in the window, as wide as the longest row; an empty patch where no row has any."""
    width = int(tensors["lengths"].max()) if "tokens" in tensors else 0
    if not width:
        return Patch()
    lengths_B = tensors["lengths"]
    mask_BT = torch.arange(width, device=lengths_B.device) < lengths_B[:, None]
    return Patch(tokens_BT=tensors["tokens"][:, :width], tokens_mask_BT=mask_BT)
