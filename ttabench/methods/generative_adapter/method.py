"""Generative Adapter: summed outer products of hidden states become low-rank weight deltas.

Chen et al., "Generative Adapter: Contextualizing Language Models in Parameters with A Single
Forward Pass", arXiv 2411.05877, equations 3 and 6 to 9; training: section 2.3 and appendix.

Shape letters: N adapted maps · B rows · R values · K keys · Q rank · T tokens · D width.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

from ttabench.core.errors import UserError
from ttabench.core.types import Chunk, Episode, Query
from ttabench.lm.forward.tokens import chunk_ids, new_chunk_ids, window_ids
from ttabench.lm.inference.scoring import logprobs_of
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch, State
from ttabench.methods.generative_adapter import GENERATIVE_ADAPTER, GenerativeAdapterSettings
from ttabench.methods.generative_adapter.networks import GenerativeAdapterNetworks, align
from ttabench.methods.parts.one_forward import group_by_length
from ttabench.methods.trainable import Trainable, training_item


class GenerativeAdapter(Trainable[GenerativeAdapterSettings]):
    """Generative Adapter.

    State: `sum` [N, B, R, K], and the factors of the deltas (`norm=svd`), see
    `networks.state_tensors`.
    """

    spec = GENERATIVE_ADAPTER

    def __init__(self, lm: LM, settings: GenerativeAdapterSettings) -> None:
        super().__init__(lm, settings)
        self.networks = GenerativeAdapterNetworks(lm, settings)
        self.granularity = "segment" if settings.buffer else "chunk"

    def modules(self) -> nn.ModuleDict:
        """Return the generators, one per adapted map."""
        return nn.ModuleDict(dict(self.networks.named_children()))

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Read chunk by chunk; the weights adapt to each before the next."""
        rows = new_chunk_ids(self.lm, state, chunks)
        read = list(state.meta["tokens_read"])
        segments = [
            self._split_into_chunks(texts, bool(before))
            for texts, before in zip(rows, read, strict=True)
        ]
        tensors = self._read_chunks(dict(state.tensors), segments)
        counts = [before + sum(map(len, texts)) for before, texts in zip(read, rows, strict=True)]
        return State(state.rows, tensors, {"tokens_read": counts})

    @torch.no_grad()
    def combine_states(self, state: State, other: State) -> State:
        """Add both sums and compute their deltas.

        Each text was read by the weights adapted to the earlier text of its own state. So the
        result differs from reading both texts in sequence.
        """
        sums = [each.tensors["sum"] for each in (state, other) if each.tensors]
        tensors = self.networks.state_tensors(sum(sums[1:], sums[0])) if sums else {}
        counts = [
            sum(pair)
            for pair in zip(state.meta["tokens_read"], other.meta["tokens_read"], strict=True)
        ]
        return State(state.rows, tensors, {"tokens_read": counts})

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002  # interface
        """Return the deltas of every adapted linear map."""
        with torch.no_grad():
            return Patch(deltas=self.networks.deltas(state.tensors))

    def prepare_training(self, first: Sequence[Episode] = ()) -> None:
        """With `init=aligned`, initialise with `align` on the text of the first episodes."""
        if self.settings.init == "aligned":
            chunks = [row.ids for row in self.rows(first) if row.chunk is not None]
            if not chunks:
                fault = "The first training episodes have no text, which init=aligned needs."
                raise UserError(
                    fault,
                    "Use longer episodes (for books: --task-set sequence_tokens=N above window).",
                )
            align(self.networks, chunks)

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Return the mean NLL of the answers, or of the texts.

        With several parts, each is its share of the mean over all tokens.
        """
        rows = self.rows(episodes)
        if not any(row.part and row.chunks_read for row in rows):
            fault = "No training episode has a target after a chunk, so nothing is learned."
            hint = f"Use --set chunk=N below {self.settings.chunk}, or more --documents."
            raise UserError(fault, hint)
        by_part = defaultdict[str, list[Tensor]](list)
        for row, values in zip(rows, row_logprobs(self.networks, rows), strict=True):
            if row.part:
                by_part[row.part].append(values)
        tokens = sum(len(values) for part_values in by_part.values() for values in part_values)
        return {part: -torch.cat(values).sum() / tokens for part, values in by_part.items()}

    def rows(self, episodes: Sequence[Episode]) -> list[Row]:
        """Return the rows that are read and predicted for these episodes."""
        make_rows = self._answer_rows if self.settings.objective == "answer" else self._text_rows
        return [row for owner, episode in enumerate(episodes) for row in make_rows(owner, episode)]

    def _answer_rows(self, owner: int, episode: Episode) -> list[Row]:
        """Return the chunks of an episode, and each query with its answer after earlier chunks."""
        lm = self.lm
        chunks: list[Row] = []
        query_rows: list[Row] = []
        unread: list[Chunk] = []
        for step in episode.steps:
            if isinstance(step, Chunk):
                unread.append(step)
                continue
            has_start = bool(chunks)
            new_chunks = self._split_into_chunks(
                [
                    chunk_ids(lm, chunk, first=not (has_start or index))
                    for index, chunk in enumerate(unread)
                ],
                has_start,
            )
            chunks += [
                Row(ids, owner, index, chunk=index)
                for index, ids in enumerate(new_chunks, len(chunks))
            ]
            unread.clear()
            window = window_ids(lm, step, is_continuation=False)
            prompt, target = training_item(lm, step, is_continuation=bool(window))
            ids = [*lm.start_ids, *window, *prompt, *target]
            query_rows.append(
                Row(ids, owner, len(chunks), first=len(ids) - len(target), part="answer")
            )
        return [*chunks, *query_rows]

    def _text_rows(self, owner: int, episode: Episode) -> list[Row]:
        """Return the chunks of an episode and the training targets of the objective.

        "completion": the tokens of each chunk. "reconstruction": a span of the text read so far, as
        long as the longest chunk, drawn with torch's generator. "both": both.
        """
        objective = self.settings.objective
        read = self._split_into_chunks(
            [
                chunk_ids(self.lm, chunk, first=not index)
                for index, chunk in enumerate(episode.chunks())
            ],
            False,
        )
        part = "" if objective == "reconstruction" else "completion"
        rows = [
            Row(ids, owner, index, first=1, part=part, chunk=index)
            for index, ids in enumerate(read)
        ]
        if objective == "completion":
            return rows
        whole = [token for ids in read for token in ids]
        longest = end = 0
        for index, ids in enumerate(read, 1):
            end, longest = end + len(ids), max(longest, len(ids))
            begin = int(torch.randint(end - min(end, longest) + 1, ()))
            rows.append(
                Row(whole[begin : begin + longest], owner, index, first=1, part="reconstruction")
            )
        return rows

    def _split_into_chunks(self, texts: Sequence[list[int]], has_start: bool) -> list[list[int]]:
        """Split each text of one row into chunks; the start tokens precede the first."""
        if self.settings.buffer:
            texts = [[token for text in texts for token in text]]
        chunks = []
        for text in texts:
            if not text:
                continue
            ids, end = text if has_start else [*self.lm.start_ids, *text], 0
            for size in self.settings.chunk_lengths(len(ids)):
                chunks.append(ids[end : end + size])
                end += size
            has_start = True
        return chunks

    def _read_chunks(
        self, tensors: dict[str, Tensor], chunks: Sequence[list[list[int]]]
    ) -> dict[str, Tensor]:
        """Return the state after these chunks; rows with fewer chunks keep their state."""
        for number in range(max(map(len, chunks), default=0)):
            rows = [row for row, row_chunks in enumerate(chunks) if number < len(row_chunks)]
            row_index = (
                slice(None)
                if len(rows) == len(chunks)
                else torch.tensor(rows, device=self.lm.device)
            )
            row_tensors = {name: tensor[:, row_index] for name, tensor in tensors.items()}
            row_chunks = [chunks[row][number] for row in rows]
            _, _, sum_NBRK = self.networks.read(row_chunks, self.networks.deltas(row_tensors))
            assert sum_NBRK is not None
            shape = len(sum_NBRK), len(chunks), *sum_NBRK.shape[2:]
            after_NBRK = tensors["sum"].clone() if "sum" in tensors else sum_NBRK.new_zeros(shape)
            after_NBRK[:, row_index] += sum_NBRK
            tensors = self.networks.state_tensors(after_NBRK)
        return tensors


@dataclass(frozen=True)
class Row:
    """Text that is read by itself, at positions from 0 on."""

    ids: list[int]
    owner: int
    """Number of the episode with the chunks that the weights are adapted to."""
    chunks_read: int
    """Number of these chunks that were read before."""
    first: int = 0
    """Index of the first target in `ids`; it is predicted from the token before."""
    part: str = ""
    """Part of the loss; empty if nothing is predicted."""
    chunk: int | None = None
    """Number among the chunks of the episode; None if it gives no delta."""


def row_logprobs(networks: GenerativeAdapterNetworks, rows: Sequence[Row]) -> list[Tensor]:
    """Return float32 log-probabilities of the targets of every row; differentiable.

    Without gradients, deltas are computed as at test time; with gradients, by
    `networks.differentiable_singular_vectors`.
    """
    lm = networks.lm
    by_row = dict[int, Tensor]()
    needed_deltas = {(row.owner, row.chunks_read) for row in rows if row.chunks_read}
    deltas, sums = dict[str, LowRank](), dict[int, Tensor]()
    # episodes of these deltas, and the number of their chunks read
    delta_keys: list[tuple[int, int]] = []
    chunks = sorted((row for row in rows if row.chunk is not None), key=lambda row: row.chunk or 0)
    rows_by_chunk = [list(level) for _, level in groupby(chunks, lambda row: row.chunk)]
    for group in [*rows_by_chunk, *group_by_length([row for row in rows if row.chunk is None])]:
        delta_index = [
            delta_keys.index((row.owner, row.chunks_read)) if row.chunks_read else len(delta_keys)
            for row in group
        ]
        row_deltas = _select_rows(deltas, torch.tensor(delta_index, device=lm.device))
        chunk = group[0].chunk
        ids_BT, hidden_BTD, sum_NBRK = networks.read(
            [row.ids for row in group], row_deltas, sum_outer_products=chunk is not None
        )
        logprobs = _target_logprobs(lm, group, hidden_BTD, ids_BT)
        by_row.update(zip(map(id, group), logprobs, strict=True))
        if sum_NBRK is None or chunk is None:
            continue
        for row, sum_NRK in zip(group, sum_NBRK.unbind(1), strict=True):
            sums[row.owner] = sums.get(row.owner, 0) + sum_NRK
        if new_keys := [
            (row.owner, chunk + 1) for row in group if (row.owner, chunk + 1) in needed_deltas
        ]:
            sum_NBRK = torch.stack([sums[owner] for owner, _ in new_keys], 1)
            new_deltas = networks.compute_deltas(sum_NBRK, differentiable=torch.is_grad_enabled())
            deltas = {
                name: _concat_rows(deltas.get(name), delta) for name, delta in new_deltas.items()
            }
            delta_keys += new_keys
    return [by_row[id(row)] for row in rows]


def _concat_rows(before: LowRank | None, delta: LowRank) -> LowRank:
    """Append the rows of one delta to those of another."""
    a_BRI, b_BOR = delta.a_BRI, delta.b_BOR.expand(len(delta.a_BRI), -1, -1)
    if before is None:
        return LowRank(a_BRI, b_BOR)
    return LowRank(torch.cat([before.a_BRI, a_BRI]), torch.cat([before.b_BOR, b_BOR]))


def _select_rows(deltas: Mapping[str, LowRank], which_B: Tensor) -> dict[str, LowRank]:
    """Select the deltas of each row; rows without chunks (index after the last) get zeros."""
    zero_deltas = {
        name: LowRank(torch.zeros_like(delta.a_BRI[:1]), delta.b_BOR[:1])
        for name, delta in deltas.items()
    }
    more = {name: _concat_rows(delta, zero_deltas[name]) for name, delta in deltas.items()}
    return {
        name: LowRank(delta.a_BRI[which_B], delta.b_BOR[which_B]) for name, delta in more.items()
    }


def _target_logprobs(
    lm: LM, rows: Sequence[Row], hidden_BTD: Tensor, ids_BT: Tensor
) -> list[Tensor]:
    """Return log-probabilities of the targets of each row, without its first token."""
    positions = [
        (index, position)
        for index, row in enumerate(rows)
        if row.part
        for position in range(max(1, row.first), len(row.ids))
    ]
    if not positions:
        return [hidden_BTD.new_zeros(0, dtype=torch.float32)] * len(rows)
    rows_N, position_N = torch.tensor(positions, device=lm.device).unbind(1)
    values_N = logprobs_of(lm, hidden_BTD[rows_N, position_N - 1], ids_BT[rows_N, position_N])
    return list(torch.split(values_N, torch.bincount(rows_N, minlength=len(rows)).tolist()))
