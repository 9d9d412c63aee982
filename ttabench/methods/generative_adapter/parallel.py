"""Chunks, and what is predicted after each of them, in one forward, layer by layer: the training form.

    layer l    S of every chunk from what enters the layer; their running sums; the delta of each row; the layer

A row's hidden states depend on chunks before it through deltas of the layers below alone, so all rows go through a
layer together. Chen et al., arXiv 2411.05877, appendix on training: the numbers of the chunks read one by one.

Shape letters: B rows · T tokens · D width · R values · K keys · E chunk rows · U different readers, an owner after so
    many chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from ttabench.lm.capture import Place, inputs_shown
from ttabench.lm.deltas import deltas_applied
from ttabench.lm.head import logprobs_of
from ttabench.lm.patch import LowRank
from ttabench.lm.patching import check_fits
from ttabench.lm.tokens import pad
from ttabench.lm.window import Window
from ttabench.methods.generative_adapter.networks import GenerativeAdapterNetworks
from ttabench.methods.generative_adapter.rows import Row, Rows


def row_logprobs(networks: GenerativeAdapterNetworks, rows: Rows) -> list[Tensor]:
    """Log-probabilities of the targets of every row, one float32 tensor each; differentiable.

    Without gradients deltas are made as in use, with them by `generator.learned_directions`.

    Raises:
        UserError: a row does not fit the model's positions.
    """
    lm, all_rows = networks.lm, rows.all
    ids_BT, real_BT = (each.to(lm.device) for each in pad([row.ids for row in all_rows], lm.pad_id, "right"))
    check_fits(lm, None, real_BT.sum(1), "Train with shorter chunks: --set chunk=512.")
    window = Window(lm, None, len(all_rows), retain=False)
    with _adapting(networks, rows, real_BT):
        hidden_BTD = window.feed(ids_BT, filled_BT=real_BT)  # padding stands behind the text, where nothing looks
    places = [(at, row.first + step) for at, row in enumerate(all_rows) for step in range(row.targets)]
    # of a text that begins with nothing, the first token is not predicted
    places = [(at, place) for at, place in places if place]
    rows_N, places_N = torch.tensor(places, device=lm.device).view(-1, 2).unbind(1)
    values_N = logprobs_of(lm, hidden_BTD[rows_N, places_N - 1], ids_BT[rows_N, places_N])
    counts = torch.bincount(rows_N, minlength=len(all_rows)).tolist()
    return list(torch.split(values_N, counts))


@contextmanager
def _adapting(networks: GenerativeAdapterNetworks, rows: Rows, real_BT: Tensor) -> Iterator[None]:
    """Adapt every row to the chunks that it stands after, as the forward of the block comes to each layer."""
    chunks, count = len(rows.chunks), len(rows.all)
    readers = sorted({(row.owner, row.after) for row in rows.all if row.after})
    number = {reader: at for at, reader in enumerate(readers)}
    which_B = torch.tensor([number.get((row.owner, row.after), len(readers)) for row in rows.all])
    which_B = which_B.to(real_BT.device)
    reads_UE = _reads(rows.chunks, readers).to(real_BT.device)
    with ExitStack() as undo:

        def see(layer: Place, hidden_BTD: Tensor) -> None:
            assert isinstance(layer, int)
            for name, generator in networks.generators_of(layer):
                sum_ERK = generator.summed(hidden_BTD[:chunks], real_BT[:chunks])
                sum_URK = (reads_UE @ sum_ERK.flatten(1)).view(-1, *sum_ERK.shape[1:])
                delta = _spread(generator.delta(sum_URK, learning=torch.is_grad_enabled()), which_B)
                undo.enter_context(deltas_applied(networks.lm, {name: delta}, count))

        if readers:
            undo.enter_context(inputs_shown(networks.lm, see, count, blocks=range(networks.lm.layers)))
        yield


def _reads(chunks: Sequence[Row], readers: Sequence[tuple[int, int]]) -> Tensor:
    """[U, E]: 1 where a reader has read a chunk."""
    place: dict[int, int] = {}
    numbers = []
    for row in chunks:
        place[row.owner] = place.get(row.owner, -1) + 1
        numbers.append((row.owner, place[row.owner]))
    return torch.tensor([[float(owner == own and at < after) for own, at in numbers] for owner, after in readers])


def _spread(delta: LowRank, which_B: Tensor) -> LowRank:
    """The delta of each row; of rows that have read nothing, zero."""
    a_BRI = torch.cat([delta.a_BRI, torch.zeros_like(delta.a_BRI[:1])])[which_B]
    if len(delta.b_BOR) == 1:
        return LowRank(a_BRI, delta.b_BOR)
    return LowRank(a_BRI, torch.cat([delta.b_BOR, delta.b_BOR[:1]])[which_B])
