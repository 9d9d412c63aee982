"""Training: chunks of several texts, one after the other, and what is predicted in and behind them.

Chen et al., arXiv 2411.05877, section 2.3 and appendix on training.
Shape letters: N adapted maps · B rows · T tokens · D width · R values · K keys · Q rank · I/O features in and out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from ttabench.core.types import Episode, Observe
from ttabench.lm.forward.tokens import piece_ids, window_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank
from ttabench.lm.verbs.scoring import logprobs_of
from ttabench.methods.generative_adapter.networks import GenerativeAdapterNetworks
from ttabench.methods.parts.one_forward import alike
from ttabench.methods.trainable import training_item

Cut = Callable[[Sequence[list[int]], bool], list[list[int]]]
"""(ids of pieces, whether something was read before) to the chunks that they are read in."""
Reader = tuple[int, int]
"""An owner, and after how many of its chunks."""


@dataclass(frozen=True)
class Row:
    """A text that is read by itself, at positions from 0 on."""

    ids: list[int]
    owner: int
    """Number of the episode whose chunks it is adapted to."""
    after: int
    """How many of these chunks."""
    first: int = 0
    """Place of the first target in `ids`; it is predicted from the token before."""
    part: str = ""
    """Of the loss; empty where nothing is predicted."""
    chunk: int | None = None
    """Its number among the chunks of its owner; None where no delta is made of it."""

    @property
    def targets(self) -> int:
        """Tokens that are predicted."""
        return len(self.ids) - self.first if self.part else 0


def answers(lm: LM, episode: Episode, owner: int, cut: Cut) -> list[Row]:
    """Chunks of what is read, and every question with its answer behind the chunks that stand before it."""
    chunks: list[Row] = []
    asked: list[Row] = []
    unread: list[Observe] = []
    for step in episode.steps:
        if isinstance(step, Observe):
            unread.append(step)
            continue
        begun = bool(chunks)
        fresh = cut([piece_ids(lm, piece, first=not (begun or at)) for at, piece in enumerate(unread)], begun)
        chunks += [Row(ids, owner, at, chunk=at) for at, ids in enumerate(fresh, len(chunks))]
        unread.clear()
        window = window_ids(lm, step, follows=False)
        prompt, target = training_item(lm, step, follows=bool(window))
        ids = [*lm.start_ids, *window, *prompt, *target]
        asked.append(Row(ids, owner, len(chunks), first=len(ids) - len(target), part="answer"))
    return [*chunks, *asked]


def texts(lm: LM, episode: Episode, owner: int, cut: Cut, parts: Sequence[str]) -> list[Row]:
    """Chunks of what is read; with "completion" their own tokens are predicted, with "reconstruction" a stretch of what
    was read up to each, as long as the longest chunk, drawn from torch's generator."""
    read = cut([piece_ids(lm, piece, first=not at) for at, piece in enumerate(episode.observes())], False)
    part = "completion" if "completion" in parts else ""
    rows = [Row(ids, owner, at, first=1, part=part, chunk=at) for at, ids in enumerate(read)]
    if "reconstruction" not in parts:
        return rows
    whole = [token for ids in read for token in ids]
    longest = end = 0
    for at, ids in enumerate(read, 1):
        end, longest = end + len(ids), max(longest, len(ids))
        begin = int(torch.randint(end - min(end, longest) + 1, ()))
        rows.append(Row(whole[begin : begin + longest], owner, at, first=1, part="reconstruction"))
    return rows


def apart(rows: Sequence[Row]) -> list[Row]:
    """The same with what is predicted in chunks as rows of their own, so that it may be adapted to other chunks."""
    chunks = [row for row in rows if row.chunk is not None]
    again = [replace(row, chunk=None) for row in chunks if row.part]
    return [*(replace(row, part="") for row in chunks), *again, *(row for row in rows if row.chunk is None)]


def adapted_to(rows: Sequence[Row], shift: int | None) -> list[Row]:
    """The same with what is asked adapted to as many chunks of the episode `shift` further on; None: to nothing."""
    counts = {row.owner: row.chunk + 1 for row in rows if row.chunk is not None}  # the last one tells
    owners = max(counts) + 1

    def moved(row: Row) -> Row:
        if shift is None:
            return replace(row, after=0)
        owner = (row.owner + shift) % owners
        return replace(row, owner=owner, after=min(row.after, counts.get(owner, 0)))

    return [moved(row) if row.chunk is None else row for row in rows]


def row_logprobs(networks: GenerativeAdapterNetworks, rows: Sequence[Row]) -> list[Tensor]:
    """Log-probabilities of the targets of every row, one float32 tensor each; differentiable. Without gradients
    deltas are made as in use, with them by `generator.learned_directions`."""
    lm, by_row, wanted = networks.lm, dict[int, Tensor](), {(row.owner, row.after) for row in rows if row.after}
    known, deltas, sums = list[Reader](), dict[str, LowRank](), dict[int, Tensor]()
    chunks = sorted((row for row in rows if row.chunk is not None), key=lambda row: row.chunk or 0)
    in_turn = [list(level) for _, level in groupby(chunks, lambda row: row.chunk)]
    for group in [*in_turn, *alike([row for row in rows if row.chunk is None])]:
        which = [known.index((row.owner, row.after)) if row.after else len(known) for row in group]
        own, chunk = _spread(deltas, torch.tensor(which, device=lm.device)), group[0].chunk
        ids_BT, hidden_BTD, sum_NBRK = networks.read([row.ids for row in group], own, summed=chunk is not None)
        by_row |= {id(row): value for row, value in zip(group, _targets(lm, group, hidden_BTD, ids_BT), strict=True)}
        if sum_NBRK is None or chunk is None:
            continue
        for row, sum_NRK in zip(group, sum_NBRK.unbind(1), strict=True):
            sums[row.owner] = sums[row.owner] + sum_NRK if row.owner in sums else sum_NRK
        if readers := [(row.owner, chunk + 1) for row in group if (row.owner, chunk + 1) in wanted]:
            made = networks.made(
                torch.stack([sums[owner] for owner, _ in readers], 1), learning=torch.is_grad_enabled()
            )
            deltas = {name: _behind(deltas.get(name), delta) for name, delta in made.items()}
            known += readers
    return [by_row[id(row)] for row in rows]


def _behind(before: LowRank | None, delta: LowRank) -> LowRank:
    """The rows of one delta behind those of another."""
    a_BRI, b_BOR = delta.a_BRI, delta.b_BOR.expand(len(delta.a_BRI), -1, -1)
    return LowRank(a_BRI, b_BOR) if before is None else LowRank(
        torch.cat([before.a_BRI, a_BRI]), torch.cat([before.b_BOR, b_BOR])
    )  # fmt: skip


def _spread(deltas: Mapping[str, LowRank], which_B: Tensor) -> dict[str, LowRank]:
    """The deltas of each row; of rows that have read nothing (the number behind the last), zero."""

    def one_more(delta: LowRank) -> LowRank:
        return _behind(delta, LowRank(torch.zeros_like(delta.a_BRI[:1]), delta.b_BOR[:1]))

    more = {name: one_more(delta) for name, delta in deltas.items()}
    return {name: LowRank(delta.a_BRI[which_B], delta.b_BOR[which_B]) for name, delta in more.items()}


def _targets(lm: LM, rows: Sequence[Row], hidden_BTD: Tensor, ids_BT: Tensor) -> list[Tensor]:
    """Log-probabilities of the targets of each row; the first token of a row is not predicted from anything."""
    places = [(at, row.first + step) for at, row in enumerate(rows) for step in range(row.targets) if row.first + step]
    if not places:
        return [hidden_BTD.new_zeros(0, dtype=torch.float32)] * len(rows)
    rows_N, places_N = torch.tensor(places, device=lm.device).unbind(1)
    values_N = logprobs_of(lm, hidden_BTD[rows_N, places_N - 1], ids_BT[rows_N, places_N])
    return list(torch.split(values_N, torch.bincount(rows_N, minlength=len(rows)).tolist()))
