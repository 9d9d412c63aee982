"""Doc-to-LoRA: low-rank deltas of a chunk, which a hypernetwork makes of what enters every layer while it is read.

Charakorn et al., "Doc-to-LoRA: Learning to Instantly Internalize Contexts", arXiv 2602.15902 (SakanaAI/doc-to-lora).
Chunks are read apart; their deltas, and those that all share, act together, as one whose rank is the sum of theirs.
Shape letters: L layers · B rows · T tokens · D width of the base · R ranks of all chunks · I/O features in and out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ttabench.core.types import Ask, Observe
from ttabench.lm.forward.patching import Place, observe_inputs, read
from ttabench.lm.forward.tokens import new_ids, pad
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch, State
from ttabench.methods.doc_to_lora import DOC_TO_LORA, DocToLoraSettings
from ttabench.methods.doc_to_lora.networks import Hypernetwork
from ttabench.methods.parts.lora import by_layer, target_names
from ttabench.methods.trainable import Trainable

NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm")
"""Names of the norm behind the last layer."""
AT_ONCE = 16
"""Chunks that are read in one forward."""


def new_network(lm: LM, settings: DocToLoraSettings) -> Hypernetwork:
    """Make the untrained hypernetwork for a base model."""
    names = by_layer(lm, target_names(lm, settings.targets))[0]
    sizes = {name.rpartition(".")[2]: lm.linear_shape(name) for name in names}
    return Hypernetwork(settings, lm.layers, lm.hidden_size, dict(sorted(sizes.items())))


class DocToLora(Trainable[DocToLoraSettings]):
    """State: `a.MAP` [B, R, L, I] and `b.MAP` [B, R, L, O] of the chunks of each row, zero where it has fewer."""

    spec = DOC_TO_LORA

    def __init__(self, lm: LM, settings: DocToLoraSettings) -> None:
        super().__init__(lm, settings)
        self.names = by_layer(lm, target_names(lm, settings.targets))
        named = dict(lm.decoder.named_children())
        self.norm = next((named[name] for name in NORMS if name in named), nn.Identity())
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            network = new_network(lm, settings)
        self.network = network.to(lm.device)

    def modules(self) -> nn.ModuleDict:
        """network, the hypernetwork."""
        return nn.ModuleDict({"network": self.network})

    def adapt(self, state: State, pieces: Sequence[Sequence[Observe]]) -> State:
        """Read each chunk by itself; its deltas stand behind those of the chunks before."""
        rows = new_ids(self.lm, state, pieces)
        chunks = [[text[part] for text in texts for part in self.settings.cut(len(text))] for texts in rows]
        with torch.set_grad_enabled(self._learning):
            tensors = {}
            for name, made in self._made(list(chain(*chunks))).items():
                own = [part.transpose(1, 2).flatten(0, 1) for part in torch.split(made, [*map(len, chunks)])]
                tensors[name] = torch.cat([*self._held(state, name), pad_sequence(own, batch_first=True)], 1)
        counts = [before + sum(map(len, texts)) for before, texts in zip(state.meta["tokens_read"], rows, strict=True)]
        return State(state.rows, tensors or state.tensors, {"tokens_read": counts})

    def combined(self, state: State, other: State) -> State:
        """The deltas of both, as if both had been read in a row, but for the break between them."""
        names = {**state.tensors, **other.tensors}
        held = {name: [*self._held(state, name), *self._held(other, name)] for name in names}
        tensors = {name: torch.cat(parts, 1) for name, parts in held.items()}
        counts = [sum(pair) for pair in zip(state.meta["tokens_read"], other.meta["tokens_read"], strict=True)]
        return State(state.rows, tensors, {"tokens_read": counts})

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The deltas of all chunks, and those that all share once something was read."""
        deltas = {}
        for layer, names in enumerate(self.names if state.tensors else ()):
            for name in names:
                kind = name.rpartition(".")[2]
                shared = self.network.bias_A[kind][layer], self.network.bias_B[kind][layer]
                both = (state.tensors[f"{part}.{kind}"][:, :, layer] for part in "ab")
                a_BRI, b_BRO = (
                    torch.cat([own, bias.expand(len(own), -1, -1)], 1) for own, bias in zip(both, shared, strict=True)
                )
                deltas[name] = LowRank(a_BRI, self.settings.alpha * b_BRO.mT)
        return Patch(deltas=deltas)

    def _held(self, state: State, name: str) -> list[Tensor]:
        return [state.tensors[name]] if name in state.tensors else []

    def _made(self, chunks: Sequence[list[int]]) -> dict[str, Tensor]:
        """The factors of these chunks by name, [chunks, L, rank, features]."""
        parts = [self._read(chunks[begin : begin + AT_ONCE]) for begin in range(0, len(chunks), AT_ONCE)]
        names = [
            (f"{kind}.{name}", name, which) for name in self.network.sizes if parts for which, kind in enumerate("ab")
        ]
        return {key: torch.cat([part[name][which] for part in parts]) for key, name, which in names}

    def _read(self, chunks: Sequence[list[int]]) -> dict[str, tuple[Tensor, Tensor]]:
        lm, ends = self.lm, [] if self.lm.chat is None else [*self.lm.chat.end_ids]
        ids_BT, real_BT = pad([[*chunk, *ends] for chunk in chunks], lm.pad_id, "right")
        seen: dict[Place, list[Tensor]] = {layer: [] for layer in range(lm.layers)}
        with torch.no_grad(), observe_inputs(lm, lambda layer, x: seen[layer].append(x), [*seen], len(chunks)):
            read(lm, Patch(), ids_BT, real_BT)
            hidden = [torch.cat(parts, 1) for parts in seen.values()]
            hidden[-1] = self.norm(hidden[-1])  # as the released code, whose reader has one layer less
        real_BT = nn.functional.pad(real_BT, (len(lm.start_ids), 0), value=True).to(lm.device)
        return self.network([x.to(lm.device).float() for x in hidden], real_BT)
