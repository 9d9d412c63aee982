"""Chunks in one forward, layer by layer, and what is predicted after them in further ones: the training form.

Chen et al., arXiv 2411.05877, section 2.3 and appendix on training: the numbers of the chunks read one by one.
Shape letters: B rows · T tokens · D width · R values · K keys · E chunk rows · U different readers, an owner after so
    many chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ttabench.core.types import Ask, Episode, Observe
from ttabench.lm.forward.deltas import deltas_applied
from ttabench.lm.forward.head import logprobs_of
from ttabench.lm.forward.hooks import Place, observe_inputs
from ttabench.lm.forward.patching import check_fits
from ttabench.lm.forward.tokens import new_ids, pad, window_ids
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, State
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
        fresh = cut(_ids(lm, unread, begun=bool(chunks)), bool(chunks))
        chunks += [Row(ids, owner, at, chunk=at) for at, ids in enumerate(fresh, len(chunks))]
        unread.clear()
        asked.append(_asked(lm, step, owner, len(chunks)))
    return [*chunks, *asked]


def texts(lm: LM, episode: Episode, owner: int, cut: Cut, parts: Sequence[str]) -> list[Row]:
    """Chunks of what is read; with "completion" their own tokens are predicted, with "reconstruction" a stretch of what
    was read up to each, as long as the longest chunk, drawn from torch's generator."""
    read = cut(_ids(lm, episode.observes(), begun=False), False)
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


def read_by_base(rows: Sequence[Row]) -> list[Row]:
    """The same with every chunk read by the base model; what is predicted in them stands in rows of its own."""
    return [row if row.chunk is None else replace(row, after=0) for row in apart(rows)]


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


def _ids(lm: LM, pieces: Sequence[Observe], *, begun: bool) -> list[list[int]]:
    """Ids of pieces that follow what was read before, if anything was."""
    before = State(1, meta={"tokens_read": [int(begun)]})
    return new_ids(lm, before, [[piece] for piece in pieces])[0]


def _asked(lm: LM, ask: Ask, owner: int, after: int) -> Row:
    window = window_ids(lm, ask, follows=False)
    prompt, target = training_item(lm, ask, follows=bool(window))
    ids = [*lm.start_ids, *window, *prompt, *target]
    return Row(ids, owner, after, first=len(ids) - len(target), part="answer")


def row_logprobs(networks: GenerativeAdapterNetworks, rows: Sequence[Row]) -> list[Tensor]:
    """Log-probabilities of the targets of every row, one float32 tensor each; differentiable. Without gradients
    deltas are made as in use, with them by `generator.learned_directions`."""
    lm, by_row = networks.lm, dict[int, Tensor]()
    chunks = [row for row in rows if row.chunk is not None]
    known = sorted({(row.owner, row.after) for row in rows if row.after})
    number = {reader: at for at, reader in enumerate(known)}

    def readers(group: Sequence[Row]) -> Tensor:
        """[B]: the reader of each row; one more than there are where it has read nothing."""
        return torch.tensor([number.get((row.owner, row.after), len(known)) for row in group], device=lm.device)

    deltas: dict[str, LowRank] = {}
    for group in ([chunks] if chunks else []) + alike([row for row in rows if row.chunk is None]):
        ids_BT, real_BT = (padded.to(lm.device) for padded in pad([row.ids for row in group], lm.pad_id, "right"))
        check_fits(lm, None, real_BT.sum(1), "Train with shorter chunks: --set chunk=512.")
        which_B = readers(group)
        with (
            _adapting(networks, known, chunks, which_B, real_BT, deltas)
            if group is chunks
            else deltas_applied(lm, _spread(deltas, which_B), len(group))
        ):
            # padding stands behind the text, where causal attention never looks
            hidden_BTD = Window(lm, None, len(group), retain=False).feed(ids_BT)
        values = _targets(lm, group, hidden_BTD, ids_BT)
        by_row |= {id(row): value for row, value in zip(group, values, strict=True)}
    return [by_row[id(row)] for row in rows]


@contextmanager
def _adapting(
    networks: GenerativeAdapterNetworks,
    known: Sequence[Reader],
    chunks: Sequence[Row],
    which_B: Tensor,
    real_BT: Tensor,
    deltas: dict[str, LowRank],
) -> Iterator[None]:
    """Adapt every chunk to those that it stands after, as the forward of the block comes to each layer."""
    if not known:
        yield
        return
    lm = networks.lm
    # 1 where a reader has read a chunk
    reads = [[float(row.owner == owner and (row.chunk or 0) < after) for row in chunks] for owner, after in known]
    reads_UE = torch.tensor(reads, device=lm.device)
    with ExitStack() as undo:

        def see(layer: Place, hidden_BTD: Tensor) -> None:
            assert isinstance(layer, int)
            for name, generator in networks.generators_of(layer):
                sum_ERK = generator.summed(hidden_BTD, real_BT)
                sum_URK = (reads_UE @ sum_ERK.flatten(1)).view(-1, *sum_ERK.shape[1:])
                deltas[name] = generator.delta(sum_URK, learning=torch.is_grad_enabled())
                own = _spread({name: deltas[name]}, which_B)
                undo.enter_context(deltas_applied(lm, own, len(chunks)))

        undo.enter_context(observe_inputs(lm, see, range(lm.layers), len(chunks)))
        yield


def _spread(deltas: Mapping[str, LowRank], which_B: Tensor) -> dict[str, LowRank]:
    """The deltas of each row; of rows that have read nothing, zero."""
    by_name = {}
    for name, delta in deltas.items():
        a_BRI = torch.cat([delta.a_BRI, torch.zeros_like(delta.a_BRI[:1])])[which_B]
        shared = len(delta.b_BOR) == 1
        b_BOR = delta.b_BOR if shared else torch.cat([delta.b_BOR, delta.b_BOR[:1]])[which_B]
        by_name[name] = LowRank(a_BRI, b_BOR)
    return by_name


def _targets(lm: LM, rows: Sequence[Row], hidden_BTD: Tensor, ids_BT: Tensor) -> list[Tensor]:
    """Log-probabilities of the targets of each row; the first token of a row is not predicted from anything."""
    places = [(at, row.first + step) for at, row in enumerate(rows) for step in range(row.targets) if row.first + step]
    if not places:
        return [hidden_BTD.new_zeros(0, dtype=torch.float32)] * len(rows)
    rows_N, places_N = torch.tensor(places, device=lm.device).unbind(1)
    values_N = logprobs_of(lm, hidden_BTD[rows_N, places_N - 1], ids_BT[rows_N, places_N])
    return list(torch.split(values_N, torch.bincount(rows_N, minlength=len(rows)).tolist()))
