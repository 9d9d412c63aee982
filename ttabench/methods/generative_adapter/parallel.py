"""Chunks in one forward, layer by layer, and what is predicted after them in further ones: the training form.

Chen et al., arXiv 2411.05877, appendix on training: the numbers of the chunks read one by one.

Shape letters: B rows · T tokens · D width · R values · K keys · E chunk rows · U different readers, an owner after so
    many chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from ttabench.lm.forward.capture import Place, observe_inputs
from ttabench.lm.forward.deltas import deltas_applied
from ttabench.lm.forward.head import logprobs_of
from ttabench.lm.forward.patching import check_fits
from ttabench.lm.forward.tokens import pad
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank
from ttabench.methods.generative_adapter.networks import GenerativeAdapterNetworks
from ttabench.methods.generative_adapter.rows import Row, Rows
from ttabench.methods.parts.one_forward import alike


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
