"""StreamingLLM: one token after another through a Llama whose layers keep the first and the last keys.

Xiao et al., arXiv 2309.17453, section 3.2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.parity.reference.decoders import Weights, llama, mixed, rotated


def places_left(places: list[int], most: int, sinks: int) -> list[int]:
    """The first `sinks` of the cached places, and the last ones up to `most` in all."""
    return places if len(places) <= most else places[:sinks] + places[len(places) - (most - sinks) :]


def stream(w: Weights, config: dict[str, Any], ids_T: Tensor, rule: dict[str, Any]) -> tuple[Tensor, list[int]]:
    """Logits [T, V] of a text, and the places that lie in the cache after it.

    Args:
        w: weights of a Llama.
        config: its configuration.
        ids_T: the text.
        rule: n_sink, recent, evict (before: the cache and the new token fit; after: the token sees one more) and
            positions (cache: slots are numbered anew at every token; original: places in the text).
    """
    most, sinks, theta = rule["n_sink"] + rule["recent"], rule["n_sink"], config["rope_theta"]
    cache: dict[int, dict[int, tuple[Tensor, Tensor]]] = {layer: {} for layer in range(config["num_hidden_layers"])}
    logits: list[Tensor] = []

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cached = {**cache[layer], len(logits): (k, v)}
        cache[layer] = {place: cached[place] for place in places_left(list(cached), most, sinks)}
        used = cache[layer] if rule["evict"] == "before" else cached
        places_S = torch.tensor(list(used) if rule["positions"] == "original" else range(len(used)))
        keys, values = (torch.cat([entry[part] for entry in used.values()], dim=2) for part in (0, 1))
        seen = torch.ones(1, 1, len(used), dtype=torch.bool)
        return mixed(rotated(q, places_S[-1:], theta), rotated(keys, places_S, theta), values, seen)

    for token in range(len(ids_T)):
        logits.append(llama(w, config, ids_T[None, token : token + 1], attend)[0, 0])
    return torch.stack(logits), list(cache[0])
