"""Generative Adapter: chunks of a context, read one by one, whose hidden states' outer products become weight deltas.

Chen et al., arXiv 2411.05877, equations 3 and 6 to 9, in the names and the layout of the released code: its sum S is
the transpose of the paper's.

Shape letters: T tokens · K inner width of keys · R of values · O outputs · I inputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.parity.reference.decoders import Weights, causal, llama, mixed, rotated

EPS = 1e-6


def outer(w: Weights, hidden_TC: Tensor) -> Tensor:
    """What hidden states add to the sum, [K, R]."""
    scale = (hidden_TC.square().mean(-1, keepdim=True) + EPS).rsqrt()
    normed = w["fastlora_hidden_state_norm.weight"] * hidden_TC * scale
    return (normed @ w["fastlora_A2.weight"].T).T @ (normed @ w["fastlora_A3.weight"].T)


def normed(sum_KR: Tensor, norm: str, rank: int) -> Tensor:
    if norm == "frobenius":
        return sum_KR / (sum_KR.square().sum() + EPS).sqrt()
    left, _, right = torch.linalg.svd(sum_KR, full_matrices=False)
    return left[:, :rank] @ right[:rank]


def delta(w: Weights, sum_KR: Tensor, norm: str, told: dict[str, Any]) -> Tensor:
    """What is added to a weight, [O, I]."""
    inner = normed(sum_KR, norm, told["max_rank"])
    return told["scaling"] * w["fastlora_B.weight"] @ inner.T @ w["fastlora_A1.weight"]


class Adapter:
    """A Llama and a generator in every layer.

    Args:
        told: sizes, of `llama` and the generators, `target`, `norm` and `window`.
        base: weights of the Llama.
        generators: weights of each layer's generator.
    """

    def __init__(self, told: dict[str, Any], base: Weights, generators: list[Weights]) -> None:
        self.told, self.base, self.generators = told, base, generators

    def read(self, ids_T: Tensor, sums: list[Tensor] | None) -> tuple[Tensor, list[Tensor]]:
        """Logits [T, V] of the model adapted to these sums, and what the text adds to them."""
        told, entered = self.told, list[Tensor]()
        names = [f"model.layers.{layer}.{told['target']}" for layer in range(told["num_hidden_layers"])]
        changes = dict(zip(names, self.deltas(sums), strict=True)) if sums else {}
        places_T, theta = torch.arange(len(ids_T)), told["rope_theta"]

        def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return mixed(rotated(q, places_T, theta), rotated(k, places_T, theta), v, causal(len(ids_T)))

        def more(name: str, x: Tensor) -> Tensor | float:
            return x @ changes[name].T if name in changes else 0.0

        logits = llama(self.base, told, ids_T[None], attend, more, entered)[0]
        return logits, [outer(w, x[0]) for w, x in zip(self.generators, entered, strict=True)]

    def deltas(self, sums: list[Tensor]) -> list[Tensor]:
        return [delta(w, each, self.told["norm"], self.told) for w, each in zip(self.generators, sums, strict=True)]

    def sums(self, chunks: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The sum of every layer after these chunks, each read by what those before it made, and their logits."""
        found, logits = list[Tensor](), list[Tensor]()
        for ids in chunks:
            out, added = self.read(ids, found)
            logits.append(out)
            found = [old + new for old, new in zip(found, added, strict=True)] if found else added
        return found, logits

    def losses(self, chunks: list[Tensor], query_T: Tensor) -> list[Tensor]:
        """Of every token that follows another in a chunk or the query, each adapted to the chunks before it."""
        sums, logits = self.sums(chunks)
        rows = zip([*chunks, query_T], [*logits, self.read(query_T, sums)[0]], strict=True)
        return [cross_entropy(out[:-1], ids[1:], reduction="none") for ids, out in rows]


def chunk_len(lengths: list[int], window: int) -> int:
    """Of the chunks of a batch: as few as the window allows, for its longest context."""
    longest = max(lengths)
    return -(-longest // -(-longest // window))
