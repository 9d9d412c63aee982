"""CCM: a text read piece by piece, whose COMP tokens' keys and values are all that is left of it; and a stream.

Kim et al., arXiv 2312.03414, equations 1 to 3, section 4.2 and figure 8.

Shape letters: T tokens · S slots · n COMP tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.parity.reference.decoders import Weights, causal, llama, mixed, rotated

Cache = list[tuple[Tensor, Tensor]]
"""Keys and values [1, H, S, D] of every layer."""
ANSWER = 3
"""Last tokens of a question, which are what is learned."""


class Ccm:
    """A Llama, and COMP tokens behind its vocabulary that alone pass a LoRA.

    Args:
        told: sizes, of `llama`, the LoRA and COMP tokens.
        state: weights, LoRA and embeddings in the names of the fixture.
    """

    def __init__(self, told: dict[str, Any], state: Weights) -> None:
        self.told, self.state, self.vocabulary = told, state, told["vocab_size"]
        tables = [state[f"model.embed_tokens.{part}embeddings.weight"] for part in ("", "comp_")]
        self.weights = {**state, "model.embed_tokens.weight": torch.cat(tables)}
        self.comp_n = self.vocabulary + torch.arange(told["n_comp"])
        shape = (1, told["num_key_value_heads"], 0, told["head_dim"])
        self.empty: Cache = [(tables[0].new_zeros(shape),) * 2] * told["num_hidden_layers"]

    def read(self, ids_T: Tensor, first: int, behind: Cache, *, by_slot: bool = False) -> tuple[Tensor, Cache]:
        """Logits [T, V] of tokens at places from `first` on, and their keys and values.

        Args:
            ids_T: the tokens.
            first: place of the first.
            behind: what they see beside themselves.
            by_slot: keys are kept as they were before rotation, and rotated by their slot.
        """
        own: Cache = []
        places_T, theta, told = first + torch.arange(len(ids_T)), self.told["rope_theta"], self.told
        marked_T1 = (ids_T >= self.vocabulary)[:, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            own.append((k if by_slot else rotated(k, places_T, theta), v))
            keys, values = (torch.cat(pair, 2) for pair in zip(behind[layer], own[layer], strict=True))
            if by_slot:
                keys = rotated(keys, torch.arange(keys.shape[2]), theta)
            return mixed(rotated(q, places_T, theta), keys, values, causal(len(ids_T), keys.shape[2] - len(ids_T)))

        def lora(name: str, x: Tensor) -> Tensor | float:
            if name.rpartition(".")[2] not in told["lora_targets"]:
                return 0.0
            a, b = (self.state[f"{name}.lora_{letter}.default.weight"] for letter in "AB")
            return marked_T1 * (x @ a.T @ b.T) * (told["lora_alpha"] / told["lora_r"])

        return llama(self.weights, told, ids_T[None], attend, lora)[0], own

    def memories(self, pieces: list[Tensor], way: str) -> list[Cache]:
        """What is held after each piece; each sees the memory of those before it (`way`: concat.. or merge..)."""
        found, memory, place = list[Cache](), self.empty, 0
        for number, piece in enumerate(pieces, 1):
            text = self.read(piece, place, memory)[1]
            place += len(piece)
            fresh = self.read(self.comp_n, place, joined(memory, text))[1]
            if way.startswith("merge") and found:
                pairs = [zip(*layer, strict=True) for layer in zip(memory, fresh, strict=True)]
                memory = [tuple(old + (new - old) / number for old, new in pair) for pair in pairs]  # type: ignore[misc]
            else:
                memory = joined(memory, fresh)
            found.append(memory)
        return found

    def answer_loss(self, logits_TV: Tensor, query_T: Tensor) -> Tensor:
        return cross_entropy(logits_TV[-ANSWER - 1 : -1], query_T[-ANSWER:])

    def stream(self, text_T: Tensor, rule: dict[str, int]) -> tuple[Tensor, list[int], int]:
        """Logits [T, V], slots held before each token, and how often was compressed."""
        cache, memory, logits, lengths, times = self.empty, 0, list[Tensor](), list[int](), 0
        for token in text_T[None].T:
            lengths.append(slots := cache[0][0].shape[2])
            out, fresh = self.read(token, slots, cache, by_slot=True)
            logits.append(out[0])
            cache = joined(cache, fresh)
            if slots < rule["window"]:
                continue
            end = rule["sink"] + memory + rule["comp_size"]
            comp = self.read(self.comp_n, end, part(cache, 0, end), by_slot=True)[1]
            held = joined(part(cache, rule["sink"], rule["sink"] + memory), comp)
            memory = min(memory + len(self.comp_n), rule["comp_cache"])
            newest = part(held, held[0][0].shape[2] - memory, None)
            cache = joined(joined(part(cache, 0, rule["sink"]), newest), part(cache, end, None))
            times += 1
        return torch.stack(logits), lengths, times


def joined(one: Cache, other: Cache) -> Cache:
    pairs = zip(one, other, strict=True)
    return [(torch.cat([k, more_k], 2), torch.cat([v, more_v], 2)) for (k, v), (more_k, more_v) in pairs]


def part(cache: Cache, start: int, end: int | None) -> Cache:
    return [(keys[:, :, start:end], values[:, :, start:end]) for keys, values in cache]
