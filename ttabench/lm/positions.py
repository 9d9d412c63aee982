"""Position limits of a base model, and rotary frequencies that depend on the length of a text.

Under longrope (arXiv 2402.13753) and dynamic NTK, transformers chooses the frequencies in each
forward, by its last position. Keys of earlier forwards would then have other angles. So a text ends
where the frequencies change, unless they are fixed for a longest text before anything is read.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from transformers import PreTrainedModel

DEFAULT_MAX_POSITIONS = 2**20
"""Position limit of a model whose configuration has none."""
LENGTH_DEPENDENT_TYPES = ("longrope", "dynamic")
"""Rope types of transformers whose frequencies depend on the length of a text."""


def config_size(config: Any, name: str) -> int | None:
    """Return a size of a configuration; None if it is missing or differs by layer."""
    with suppress(RuntimeError, ValueError):
        value = getattr(config, name, None)
        return value if isinstance(value, int) else None
    return None


def position_limits(config: Any) -> tuple[int, int]:
    """Return the longest text in tokens: by default, and with frequencies fixed for its length."""
    configured = max(0, config_size(config, "max_position_embeddings") or 0)
    default = longest = configured or DEFAULT_MAX_POSITIONS
    rope = getattr(config, "rope_parameters", None) or {}
    for values in (rope, *rope.values()):  # one for all layers, or one for each type of layer
        if not isinstance(values, dict) or values.get("rope_type") not in LENGTH_DEPENDENT_TYPES:
            continue
        original = values.get("original_max_position_embeddings") or configured
        default = min(default, original)
        if values["rope_type"] == "dynamic":  # max_position_embeddings is the length before scaling
            longest = max(longest, int(original * (values.get("factor") or 1)))
        elif "long_mscale" in values:  # phimoe computes its angles anew in each forward
            longest = default
    return default, longest


def fix_frequencies(model: PreTrainedModel, length: int) -> str:
    """Fix the rotary frequencies to those of transformers for a text of `length` tokens.

    Returns a name of the frequencies, or "" if they equal those of a short text.
    """
    names = set()
    for module in model.modules():
        types: Any = getattr(module, "rope_type", None)
        for layer, rope_type in (types if isinstance(types, dict) else {"": types}).items():
            if rope_type not in LENGTH_DEPENDENT_TYPES:
                continue
            buffer = f"{layer}_inv_freq" if layer else "inv_freq"
            short_F = getattr(module, buffer).clone()
            last_11 = torch.tensor([[length - 1]], device=short_F.device)
            module(short_F, last_11, *([layer] if layer else []))  # updates the frequencies
            if not torch.equal(short_F, getattr(module, buffer)):
                names.add("long factors" if rope_type == "longrope" else f"{length} tokens")
            if layer:
                types[layer] = "default"  # which transformers does not update
            else:
                module.rope_type = "default"
    return ", ".join(sorted(names))
