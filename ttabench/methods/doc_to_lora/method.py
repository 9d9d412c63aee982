"""Doc-to-LoRA: a hypernetwork computes low-rank deltas of a chunk from the inputs of every layer.

Charakorn et al., "Doc-to-LoRA: Learning to Instantly Internalize Contexts", arXiv 2602.15902
(SakanaAI/doc-to-lora). Chunks are read separately. Their deltas and the shared deltas act together,
as one delta with the sum of their ranks.

Shape letters: L layers · B rows · T tokens · D width of the base model · R ranks of all chunks ·
I/O features in and out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ttabench.core.types import Chunk, Query
from ttabench.lm.forward.patching import InputLocation, observe_inputs, prefill
from ttabench.lm.forward.tokens import new_chunk_ids, pad
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch, State
from ttabench.methods.doc_to_lora import DOC_TO_LORA, DocToLoraSettings
from ttabench.methods.doc_to_lora.networks import Hypernetwork
from ttabench.methods.parts.lora import group_by_layer, target_names
from ttabench.methods.trainable import Trainable

FINAL_NORM_NAMES = ("norm", "ln_f", "final_layer_norm", "final_layernorm")
"""Names of the norm after the last layer."""
CHUNK_BATCH_SIZE = 16
"""Chunks that are read in one forward pass."""


def build_hypernetwork(lm: LM, settings: DocToLoraSettings) -> Hypernetwork:
    """Build the untrained hypernetwork for a base model."""
    names = group_by_layer(lm, target_names(lm, settings.targets))[0]
    sizes = {name.rpartition(".")[2]: lm.linear_shape(name) for name in names}
    return Hypernetwork(settings, lm.layers, lm.hidden_size, dict(sorted(sizes.items())))


class DocToLora(Trainable[DocToLoraSettings]):
    """Doc-to-LoRA.

    State: `a.MAP` [B, R, L, I] and `b.MAP` [B, R, L, O] of the chunks of each row, zero-padded.
    """

    spec = DOC_TO_LORA

    def __init__(self, lm: LM, settings: DocToLoraSettings) -> None:
        super().__init__(lm, settings)
        self.names = group_by_layer(lm, target_names(lm, settings.targets))
        children = dict(lm.decoder.named_children())
        self.norm = next(
            (children[name] for name in FINAL_NORM_NAMES if name in children), nn.Identity()
        )
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            network = build_hypernetwork(lm, settings)
        self.network = network.to(lm.device)

    def modules(self) -> nn.ModuleDict:
        """Return the hypernetwork as `network`."""
        return nn.ModuleDict({"network": self.network})

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Read each chunk separately, and append its factors."""
        rows = new_chunk_ids(self.lm, state, chunks)
        segments = [
            [text[part] for text in texts for part in self.settings.chunk_slices(len(text))]
            for texts in rows
        ]
        counts = [sum(map(len, texts)) for texts in rows]
        with torch.set_grad_enabled(self._is_training):
            tensors = {}
            for name, factors in self._chunk_factors(list(chain(*segments))).items():
                row_factors = [
                    part.transpose(1, 2).flatten(0, 1)
                    for part in torch.split(factors, [*map(len, segments)])
                ]
                tensors[name] = pad_sequence(row_factors, batch_first=True)
            read = State(state.rows, tensors, {"tokens_read": counts})
            return self.combine_states(state, read)

    def combine_states(self, state: State, other: State) -> State:
        """Concatenate the factors of both states, as if both texts had been read in sequence."""
        parts = [part.tensors for part in (state, other) if part.tensors]
        tensors = {
            name: torch.cat([part[name] for part in parts], 1)
            for name in {**state.tensors, **other.tensors}
        }
        counts = [
            sum(pair)
            for pair in zip(state.meta["tokens_read"], other.meta["tokens_read"], strict=True)
        ]
        return State(state.rows, tensors, {"tokens_read": counts})

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002  # interface
        """Return the deltas of all chunks, and the shared deltas if anything was read."""
        deltas = {}
        for layer, names in enumerate(self.names if state.tensors else ()):
            for name in names:
                kind = name.rpartition(".")[2]
                shared = self.network.bias_A[kind][layer], self.network.bias_B[kind][layer]
                chunk_parts = (state.tensors[f"{part}.{kind}"][:, :, layer] for part in "ab")
                a_BRI, b_BRO = (
                    torch.cat([row_factors, bias.expand(len(row_factors), -1, -1)], 1)
                    for row_factors, bias in zip(chunk_parts, shared, strict=True)
                )
                deltas[name] = LowRank(a_BRI, self.settings.alpha * b_BRO.mT)
        return Patch(deltas=deltas)

    def _chunk_factors(self, chunks: Sequence[list[int]]) -> dict[str, Tensor]:
        """Return the factors of these chunks by name, [chunks, L, rank, features]."""
        parts = [
            self._read_chunks(chunks[begin : begin + CHUNK_BATCH_SIZE])
            for begin in range(0, len(chunks), CHUNK_BATCH_SIZE)
        ]
        return {
            name: torch.cat([part[name] for part in parts]) for name in (parts[0] if parts else ())
        }

    def _read_chunks(self, chunks: Sequence[list[int]]) -> dict[str, Tensor]:
        lm, end_ids = self.lm, [] if self.lm.chat is None else [*self.lm.chat.end_ids]
        ids_BT, real_BT = pad([[*chunk, *end_ids] for chunk in chunks], lm.pad_id, "right")
        layer_inputs: dict[InputLocation, list[Tensor]] = {layer: [] for layer in range(lm.layers)}
        with (
            torch.no_grad(),
            observe_inputs(
                lm, lambda layer, x: layer_inputs[layer].append(x), [*layer_inputs], len(chunks)
            ),
        ):
            prefill(lm, Patch(), ids_BT)  # padding follows the text
            hidden = [torch.cat(parts, 1) for parts in layer_inputs.values()]
            hidden[-1] = self.norm(hidden[-1])  # the released encoder has one layer fewer
        real_BT = nn.functional.pad(real_BT, (len(lm.start_ids), 0), value=True).to(lm.device)
        pairs = self.network([x.to(lm.device).float() for x in hidden], real_BT)
        return {
            f"{kind}.{name}": factors
            for name, pair in pairs.items()
            for kind, factors in zip("ab", pair, strict=True)
        }
