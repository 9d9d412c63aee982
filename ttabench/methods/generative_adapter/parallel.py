"""Chunks in one forward, layer by layer, and what is predicted after them in further ones: the training form.

Chen et al., arXiv 2411.05877, appendix on training: the numbers of the chunks read one by one.

Shape letters: B rows · T tokens · D width · R values · K keys · E chunk rows · U different readers, an owner after so
    many chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ttabench.core.types import Ask, Episode, Observe
from ttabench.lm.forward.capture import Place, observe_inputs
from ttabench.lm.forward.deltas import deltas_applied
from ttabench.lm.forward.head import logprobs_of
from ttabench.lm.forward.patching import check_fits
from ttabench.lm.forward.tokens import new_ids, pad, window_ids
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, State
from ttabench.methods.generative_adapter.networks import GenerativeAdapterNetworks
from ttabench.methods.parts.one_forward import alike
from ttabench.methods.trainable import training_item


def row_logprobs(networks: GenerativeAdapterNetworks, rows: Rows) -> list[Tensor]:
    """Log-probabilities of the targets of every row, chunks first, one float32 tensor each; differentiable.

    Without gradients deltas are made as in use, with them by `generator.learned_directions`.
    """
    lm, readers = networks.lm, _Readers(rows)
    by_row: dict[int, Tensor] = {}
    deltas: dict[str, LowRank] = {}
    if rows.chunks:
        ids_BT, real_BT = _padded(lm, rows.chunks)
        with _adapting(networks, readers, real_BT, deltas):
            hidden_BTD = Window(lm, None, len(ids_BT), retain=False).feed(ids_BT)
        by_row |= dict(enumerate(_targets(lm, rows.chunks, hidden_BTD, ids_BT)))
    places_of = {id(row): place for place, row in enumerate(rows.asked)}
    for group in alike(rows.asked):
        places = [places_of[id(row)] for row in group]
        ids_BT, _ = _padded(lm, group)
        which_B = readers.of(group).to(lm.device)
        own = {name: _spread(delta, which_B) for name, delta in deltas.items()}
        with deltas_applied(lm, own, len(group)):
            hidden_BTD = Window(lm, None, len(group), retain=False).feed(ids_BT)
        values = _targets(lm, group, hidden_BTD, ids_BT)
        by_row |= {len(rows.chunks) + place: value for place, value in zip(places, values, strict=True)}
    return [by_row[place] for place in range(len(rows.all))]


class _Readers:
    """Who has read what: every owner after so many chunks that some row stands after."""

    def __init__(self, rows: Rows) -> None:
        self.chunks = rows.chunks
        self.known = sorted({(row.owner, row.after) for row in rows.all if row.after})
        self._number = {reader: at for at, reader in enumerate(self.known)}

    def of(self, rows: Sequence[Row]) -> Tensor:
        """[B]: the reader of each row; one more than there are where it has read nothing."""
        return torch.tensor([self._number.get((row.owner, row.after), len(self.known)) for row in rows])

    def reads(self) -> Tensor:
        """[U, E]: 1 where a reader has read a chunk."""
        count: dict[int, int] = {}
        numbers = []
        for row in self.chunks:
            numbers.append((row.owner, count.get(row.owner, 0)))
            count[row.owner] = count.get(row.owner, 0) + 1
        return torch.tensor(
            [[float(owner == own and at < after) for own, at in numbers] for owner, after in self.known]
        )


@contextmanager
def _adapting(
    networks: GenerativeAdapterNetworks, readers: _Readers, real_BT: Tensor, deltas: dict[str, LowRank]
) -> Iterator[None]:
    """Adapt every chunk to those that it stands after, as the forward of the block comes to each layer."""
    if not readers.known:
        yield
        return
    lm, count = networks.lm, len(readers.chunks)
    which_B, reads_UE = readers.of(readers.chunks).to(lm.device), readers.reads().to(lm.device)
    with ExitStack() as undo:

        def see(layer: Place, hidden_BTD: Tensor) -> None:
            assert isinstance(layer, int)
            for name, generator in networks.generators_of(layer):
                sum_ERK = generator.summed(hidden_BTD, real_BT)
                sum_URK = (reads_UE @ sum_ERK.flatten(1)).view(-1, *sum_ERK.shape[1:])
                deltas[name] = generator.delta(sum_URK, learning=torch.is_grad_enabled())
                undo.enter_context(deltas_applied(lm, {name: _spread(deltas[name], which_B)}, count))

        undo.enter_context(observe_inputs(lm, see, count, blocks=range(lm.layers)))
        yield


def _spread(delta: LowRank, which_B: Tensor) -> LowRank:
    """The delta of each row; of rows that have read nothing, zero."""
    a_BRI = torch.cat([delta.a_BRI, torch.zeros_like(delta.a_BRI[:1])])[which_B]
    if len(delta.b_BOR) == 1:
        return LowRank(a_BRI, delta.b_BOR)
    return LowRank(a_BRI, torch.cat([delta.b_BOR, delta.b_BOR[:1]])[which_B])


def _padded(lm: LM, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Ids and mask, on the model's device; padding stands behind the text, where causal attention never looks."""
    ids_BT, real_BT = (padded.to(lm.device) for padded in pad([row.ids for row in rows], lm.pad_id, "right"))
    check_fits(lm, None, real_BT.sum(1), "Train with shorter chunks: --set chunk=512.")
    return ids_BT, real_BT


def _targets(lm: LM, rows: Sequence[Row], hidden_BTD: Tensor, ids_BT: Tensor) -> list[Tensor]:
    """Log-probabilities of the targets of each row; the first token of a row is not predicted from anything."""
    places = [(at, row.first + step) for at, row in enumerate(rows) for step in range(row.targets) if row.first + step]
    if not places:
        return [hidden_BTD.new_zeros(0, dtype=torch.float32)] * len(rows)
    rows_N, places_N = torch.tensor(places, device=lm.device).unbind(1)
    values_N = logprobs_of(lm, hidden_BTD[rows_N, places_N - 1], ids_BT[rows_N, places_N])
    return list(torch.split(values_N, torch.bincount(rows_N, minlength=len(rows)).tolist()))


Cut = Callable[[Sequence[list[int]], bool], list[list[int]]]
"""(ids of pieces, whether something was read before) to the chunks that they are read in."""


@dataclass(frozen=True)
class Row:
    """A text that is read by itself."""

    ids: list[int]
    owner: int
    """Number of the episode whose chunks it is adapted to."""
    after: int
    """How many of these chunks."""
    first: int = 0
    """Place of the first target in `ids`; it is predicted from the token before."""
    part: str = ""
    """Of the loss; empty where nothing is predicted."""

    @property
    def targets(self) -> int:
        """Tokens that are predicted."""
        return len(self.ids) - self.first if self.part else 0


@dataclass(frozen=True)
class Rows:
    """All rows of a forward."""

    chunks: list[Row]
    asked: list[Row]

    @property
    def all(self) -> list[Row]:
        """Chunks first."""
        return [*self.chunks, *self.asked]

    def __add__(self, other: Rows) -> Rows:
        """Both together."""
        return Rows([*self.chunks, *other.chunks], [*self.asked, *other.asked])


def answers(lm: LM, episode: Episode, owner: int, cut: Cut) -> Rows:
    """Chunks of what is read, and every question with its answer behind the chunks that stand before it."""
    chunks: list[Row] = []
    asked: list[Row] = []
    unread: list[Observe] = []

    def flush() -> None:
        ids, before = _ids(lm, unread, begun=bool(chunks)), len(chunks)
        chunks.extend(Row(each, owner, before + at) for at, each in enumerate(cut(ids, bool(chunks))))
        unread.clear()

    for step in episode.steps:
        if isinstance(step, Observe):
            unread.append(step)
        else:
            flush()
            asked.append(_asked(lm, step, owner, len(chunks)))
    return Rows(chunks, asked)


def texts(lm: LM, episode: Episode, owner: int, cut: Cut, parts: Sequence[str]) -> Rows:
    """Chunks of what is read; with "completion" their own tokens are predicted, with "reconstruction" a stretch of what
    was read up to each, as long as the longest chunk, drawn from torch's generator."""
    read = cut(_ids(lm, episode.observes(), begun=False), False)
    part = "completion" if "completion" in parts else ""
    chunks = [Row(ids, owner, at, first=1, part=part) for at, ids in enumerate(read)]
    if "reconstruction" not in parts:
        return Rows(chunks, [])
    whole = [token for ids in read for token in ids]
    longest, asked, end = 0, [], 0
    for at, ids in enumerate(read, 1):
        end, longest = end + len(ids), max(longest, len(ids))
        begin = int(torch.randint(end - min(end, longest) + 1, ()))
        asked.append(Row(whole[begin : begin + longest], owner, at, first=1, part="reconstruction"))
    return Rows(chunks, asked)


def read_by_base(rows: Rows) -> Rows:
    """The same with every chunk read by the base model; what is predicted in them stands in rows of its own."""
    separate = apart(rows)
    return Rows([replace(row, after=0) for row in separate.chunks], separate.asked)


def apart(rows: Rows) -> Rows:
    """The same with what is predicted in chunks as rows of their own, so that it may be adapted to other chunks."""
    again = [row for row in rows.chunks if row.part]
    return Rows([replace(row, part="") for row in rows.chunks], [*again, *rows.asked])


def adapted_to(rows: Rows, shift: int | None) -> Rows:
    """The same with what is asked adapted to as many chunks of the episode `shift` further on; None: to nothing."""
    counts: dict[int, int] = {}
    for row in rows.chunks:
        counts[row.owner] = counts.get(row.owner, 0) + 1
    owners = max(counts) + 1

    def moved(row: Row) -> Row:
        if shift is None:
            return replace(row, after=0)
        owner = (row.owner + shift) % owners
        return replace(row, owner=owner, after=min(row.after, counts.get(owner, 0)))

    return Rows(rows.chunks, [moved(row) for row in rows.asked])


def _ids(lm: LM, pieces: Sequence[Observe], *, begun: bool) -> list[list[int]]:
    """Ids of pieces that follow what was read before, if anything was."""
    before = State(1, meta={"tokens_read": [int(begun)]})
    return new_ids(lm, before, [[piece] for piece in pieces])[0]


def _asked(lm: LM, ask: Ask, owner: int, after: int) -> Row:
    window = window_ids(lm, ask, follows=False)
    prompt, target = training_item(lm, ask, follows=bool(window))
    ids = [*lm.start_ids, *window, *prompt, *target]
    return Row(ids, owner, after, first=len(ids) - len(target), part="answer")
