"""Generative Adapter: the hidden states of a context, summed as outer products, become low-rank weight deltas.

Chen et al., "Generative Adapter: Contextualizing Language Models in Parameters with A Single Forward Pass", arXiv
2411.05877, equations 3 and 6 to 9.
Shape letters: N adapted maps · B rows · R values · K keys · T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Episode, Observe
from ttabench.lm.forward.tokens import new_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import tokens_read
from ttabench.methods.generative_adapter import GENERATIVE_ADAPTER, GenerativeAdapterSettings
from ttabench.methods.generative_adapter.networks import GenerativeAdapterNetworks, align
from ttabench.methods.generative_adapter.training import (
    Row,
    adapted_to,
    answers,
    apart,
    row_logprobs,
    texts,
)
from ttabench.methods.trainable import Trainable

ALL_ROWS = slice(None)


class GenerativeAdapter(Trainable[GenerativeAdapterSettings]):
    """Generative Adapter. State: `sum` [N, B, R, K]; the factors of the deltas (`norm=svd`), see `networks.kept`."""

    spec = GENERATIVE_ADAPTER

    def __init__(self, lm: LM, settings: GenerativeAdapterSettings) -> None:
        super().__init__(lm, settings)
        self.networks = GenerativeAdapterNetworks(lm, settings)
        self.reads = "run" if settings.buffer else "pieces"

    @property
    def parts_of_loss(self) -> tuple[str, ...]:
        """The objective of training on texts; nothing where it learns answers."""
        objective = self.settings.objective
        return {"answer": (), "both": ("completion", "reconstruction")}.get(objective, (objective,))

    def modules(self) -> nn.ModuleDict:
        """generators, one a map."""
        return nn.ModuleDict(dict(self.networks.named_children()))

    @torch.no_grad()
    def adapt(self, state: State, pieces: Sequence[Sequence[Observe]]) -> State:
        """Read chunk by chunk: each is read, added to the sums, and adapted to before the next."""
        rows = new_ids(self.lm, state, pieces)
        read = list(state.meta["tokens_read"])
        chunks = [self._chunks(texts, bool(before)) for texts, before in zip(rows, read, strict=True)]
        tensors = self._read_chunks(dict(state.tensors), chunks)
        counts = [before + sum(map(len, texts)) for before, texts in zip(read, rows, strict=True)]
        return State(state.rows, tensors, {"tokens_read": counts})

    @torch.no_grad()
    def combined(self, state: State, other: State) -> State:
        """The sum of both sums, and the deltas that it makes. Each text was read by the weights adapted to what
        stands before it in its own state, so this is not what reading both in a row gives."""
        sums = [one.tensors["sum"] for one in (state, other) if one.tensors]
        tensors = self.networks.kept(sum(sums[1:], sums[0])) if sums else {}
        counts = [sum(pair) for pair in zip(tokens_read(state), tokens_read(other), strict=True)]
        return State(state.rows, tensors, {"tokens_read": counts})

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """Deltas of every adapted linear map."""
        with torch.no_grad():
            return Patch(deltas=self.networks.deltas(state.tensors))

    def prepare_training(self, first: Sequence[Episode] = ()) -> None:
        """With `init=aligned`, begin where `start` says, on what the first episodes read."""
        if self.settings.init == "aligned":
            chunks = [row.ids for row in self.rows(first) if row.chunk is not None]
            if not chunks:
                fault = "The first training episodes read nothing, and an aligned training begins on what they read."
                raise UserError(fault, "Give longer ones (of books: --task-set sequence_tokens=N above window).")
            align(self.networks, chunks)

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Mean negative log-likelihood of the answers, or of the texts, see `training`; each of several parts has its
        share of the mean over all tokens."""
        rows = self.rows(episodes)
        if not any(row.part and row.after for row in rows):
            fault = "No training episode has anything to predict behind a chunk, so nothing is learned."
            raise UserError(
                fault, f"Give shorter chunks (--set chunk=N, now {self.settings.chunk}) or more --documents."
            )
        by_part = {part: torch.cat(own) for part, own in _by_part(rows, row_logprobs(self.networks, rows)).items()}
        tokens = sum(map(len, by_part.values()))
        return {part: -values.sum() / tokens for part, values in by_part.items()}

    @torch.no_grad()
    def validate(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """NLL of a token under the deltas of what was read, of another episode's and of nothing, by part of the loss;
        "loss" is the mean of the first."""
        rows = apart(self.rows(episodes))
        figures: dict[str, float] = {}
        for state, shift in (("own", 0), ("other", 1), ("none", None)):
            values = _by_part(rows, row_logprobs(self.networks, adapted_to(rows, shift)))
            figures |= {f"{part}_{state}": -float(torch.cat(own).mean()) for part, own in values.items()}
        own = [value for name, value in figures.items() if name.endswith("_own")]
        return {"loss": sum(own) / len(own), **figures}

    def rows(self, episodes: Sequence[Episode]) -> list[Row]:
        """What is read and predicted of these episodes."""
        rows, parts = list[Row](), self.parts_of_loss
        for owner, episode in enumerate(episodes):
            given = self.lm, episode, owner, self._chunks
            rows += texts(*given, parts) if parts else answers(*given)
        return rows

    def _chunks(self, texts: Sequence[list[int]], begun: bool) -> list[list[int]]:
        """The chunks of one row: of each text by itself, what begins the first in front."""
        if self.settings.buffer:
            texts = [[token for text in texts for token in text]]
        chunks = []
        for text in texts:
            if not text:
                continue
            ids, end = text if begun else [*self.lm.start_ids, *text], 0
            for size in self.settings.cut(len(ids)):
                chunks.append(ids[end : end + size])
                end += size
            begun = True
        return chunks

    def _read_chunks(self, tensors: dict[str, Tensor], chunks: Sequence[list[list[int]]]) -> dict[str, Tensor]:
        """The state after these chunks of every row; rows that have fewer wait."""
        for number in range(max(map(len, chunks), default=0)):
            rows = [row for row, own in enumerate(chunks) if number < len(own)]
            which = ALL_ROWS if len(rows) == len(chunks) else torch.tensor(rows, device=self.lm.device)
            known = {name: tensor[:, which] for name, tensor in tensors.items()}
            own = [chunks[row][number] for row in rows]
            _, _, sum_NBRK = self.networks.read(own, self.networks.deltas(known))
            assert sum_NBRK is not None
            before_NBRK = tensors["sum"] if "sum" in tensors else sum_NBRK.new_zeros(
                len(sum_NBRK), len(chunks), *sum_NBRK.shape[2:]
            )  # fmt: skip
            after_NBRK = before_NBRK.clone()
            after_NBRK[:, which] += sum_NBRK
            tensors = self.networks.kept(after_NBRK)
        return tensors


def _by_part(rows: Sequence[Row], values: Sequence[Tensor]) -> dict[str, list[Tensor]]:
    """Values of rows by the part of the loss that they belong to."""
    by_part: dict[str, list[Tensor]] = {}
    for row, own in zip(rows, values, strict=True):
        if row.part:
            by_part.setdefault(row.part, []).append(own)
    return by_part
