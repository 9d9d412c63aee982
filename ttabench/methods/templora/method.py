"""TempLoRA: a LoRA trained on the context itself while it is read, and thrown away at its end.

    Ask(score, unit i)      the adapter of the units before, the last `prefix` tokens in the window
    Observe(unit i)         `epochs` steps on [prefix | unit i], loss on the unit's tokens; factors and moments go on

Wang, Ma, Cai, arXiv 2401.11504 (released code: TemporaryLoRA/Temp-LoRA): by="unit". StreamAdapter (arXiv 2411.09289,
appendix B.1) trains one on demonstrations instead: by="epoch", `epochs` passes over all pieces that arrive together,
each a sample of its own, which leave the window. Rows train together, each with factors, moments and steps of its own.

Shape letters: B rows · N numbers of a row's factors · R rank · I/O features in and out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import Tensor

from ttabench.core.types import Ask, Json, Observe
from ttabench.lm.forward.deltas import deltas_applied
from ttabench.lm.forward.patching import check_fits
from ttabench.lm.forward.recompute import layers_recomputed, step_bytes
from ttabench.lm.forward.tokens import new_ids, pad, piece_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.lm.verbs.scoring import Item, target_logprobs
from ttabench.methods.base import TRAINED_APART, BaseMethod, labelled
from ttabench.methods.parts import lora
from ttabench.methods.parts.newest import appended, ids_of, window_of
from ttabench.methods.parts.row_dropout import RowDropout
from ttabench.methods.parts.row_factors import Adam, Factors, RowFactors, shaped
from ttabench.methods.templora import TEMPLORA
from ttabench.methods.templora.settings import TempLoraSettings

SHORTER = "Read shorter pieces (`adapt --pieces paragraphs`), or keep fewer tokens before each (--set prefix=N)."
STEP_BYTES = {"cpu": 2**28, "cuda": 2**32}
"""What a gradient step may hold between its two ways. Rows that together need more take turns; a row that needs more by
itself computes its layers again on the way back."""
VECTORS = ("factors", "first_moment", "second_moment")
Lesson = tuple[float, Item]
"""Learning rate, and prefix and target ids."""


class TempLora(BaseMethod[TempLoraSettings]):
    """TempLoRA. State: a row's factors and their moments as vectors [B, N], steps and pieces so far, last tokens."""

    spec = TEMPLORA
    label_notes = TRAINED_APART
    own_tensors = ("tokens", "lengths")

    def __init__(self, lm: LM, settings: TempLoraSettings) -> None:
        super().__init__(lm, settings)
        sizes = {name: lm.linear_shape(name) for name in lora.target_names(lm, settings.targets)}
        rank = settings.rank
        self._layout = {name: (torch.Size((rank, i)), torch.Size((o, rank))) for name, (i, o) in sizes.items()}
        self.reads = "run" if settings.by == "epoch" else "pieces"

    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Train on pieces in order, rows together; those with the most steps first, so that all others drop out.

        Raises:
            UserError: a piece with its prefix is longer than the model's positions.
        """
        held = dict(state.tensors) or self._fresh(state.rows)
        pieces = self._pieces(state, chunks)
        texts = ids_of(held, state.rows)
        lessons = [list(self._lessons(*row)) for row in zip(texts, pieces, held["pieces"].tolist(), strict=True)]
        order = sorted(range(state.rows), key=lambda row: -len(lessons[row]))
        places = torch.tensor(order, device=self.lm.device)
        trained = {name: held[name].index_select(0, places) for name in (*VECTORS, "steps")}
        self._train(trained, [lessons[row] for row in order])
        if order != sorted(order):
            trained = {name: factors.index_select(0, places.argsort()) for name, factors in trained.items()}
        counts = torch.tensor([len(row) for row in pieces], device=self.lm.device)
        trained |= {"pieces": held["pieces"] + counts, **self._newest(texts, pieces)}
        read = [old + sum(map(len, row)) for old, row in zip(state.meta["tokens_read"], pieces, strict=True)]
        return State(state.rows, trained, {"tokens_read": read, **self._labelled(state)})

    def adapt_window(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """The newest tokens, without a step of training."""
        held = dict(state.tensors) or self._fresh(state.rows)
        pieces = self._pieces(state, chunks)
        read = [old + sum(map(len, row)) for old, row in zip(state.meta["tokens_read"], pieces, strict=True)]
        newest = self._newest(ids_of(held, state.rows), pieces)
        return State(state.rows, held | newest, {"tokens_read": read, **self._labelled(state)})

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The factors as deltas, and the newest tokens in the window."""
        tensors = state.tensors
        kept = self.settings.prefix - 1
        newest = appended(self.lm, {}, ids_of(tensors, state.rows), kept) if kept > 0 else {}
        if "factors" not in tensors:
            return window_of(newest)
        return replace(window_of(newest), deltas=lora.deltas(self._factors(tensors["factors"]), self.settings))

    def _labelled(self, state: State) -> dict[str, dict[str, Json]]:
        """Whether passes go over what is read now by itself, behind other text."""
        return labelled(state, "passes_over_parts", self.reads == "run" and any(state.meta["tokens_read"]))

    def _pieces(self, state: State, chunks: Sequence[Sequence[Observe]]) -> list[list[list[int]]]:
        """Ids of the pieces of every row; turns that nothing stands in front of begin a conversation of their own."""
        if self.lm.chat is None or self.settings.prefix:
            return new_ids(self.lm, state, chunks)
        return [[piece_ids(self.lm, chunk[row], first=True) for chunk in chunks] for row in range(state.rows)]

    def _fresh(self, rows: int) -> dict[str, Tensor]:
        device = self.lm.device
        drawn = lora.started(self.lm, self.settings)
        start_N = torch.cat([factor.flatten() for pair in drawn.values() for factor in pair])
        zeros_N = torch.zeros((), device=device).expand(start_N.shape)
        made = {
            "factors": start_N,
            "first_moment": zeros_N,
            "second_moment": zeros_N,
            "steps": torch.zeros((), dtype=torch.int64, device=device),
            "pieces": torch.zeros((), dtype=torch.int64, device=device),
            "tokens": torch.full((self.settings.prefix,), self.lm.pad_id, device=device),
            "lengths": torch.zeros((), dtype=torch.int64, device=device),
        }
        return {name: factor.expand(rows, *factor.shape) for name, factor in made.items()}

    def _factors(self, vectors_BN: Tensor) -> Factors:
        """Views of the vectors, by linear map."""
        return shaped(vectors_BN, self._layout)

    def _newest(self, texts: list[list[int]], pieces: list[list[list[int]]]) -> dict[str, Tensor]:
        """The last tokens of every row, `prefix` of them at most."""
        size, device = self.settings.prefix, self.lm.device
        read = [[*text, *(token for piece in row for token in piece)] for text, row in zip(texts, pieces, strict=True)]
        kept = [text[max(0, len(text) - size) :] if size else [] for text in read]
        tokens, mask = pad([*kept, [0] * size], self.lm.pad_id, "right")
        return {"tokens": tokens[:-1].to(device), "lengths": mask[:-1].sum(1).to(device)}

    def _train(self, trained: dict[str, Tensor], lessons: list[list[Lesson]]) -> None:
        """Take all steps, in place: as many rows at a time as a step of the longest has room for."""
        lengths = [self._length(item) for row in lessons for _, item in row]
        if not lengths:
            return
        check_fits(self.lm, None, lengths, SHORTER)
        together = max(1, self._room() // max(1, step_bytes(self.lm, max(lengths))))
        for begin in range(0, len(lessons), together):
            part = slice(begin, begin + together)
            self._train_together({name: factors[part] for name, factors in trained.items()}, lessons[part])

    def _train_together(self, trained: dict[str, Tensor], lessons: list[list[Lesson]]) -> None:
        s = self.settings
        steps, most = trained["steps"].tolist(), len(lessons[0])
        if not most:
            return
        factors = RowFactors(trained, self._layout, Adam(beta2=s.beta2, eps=s.eps, decay=s.decay, clip=s.clip))
        for number in range(most):
            current = [row[number] for row in lessons if number < len(row)]
            seeds = [s.seed * 1_000_003 + before + number for before in steps[: len(current)]]
            learned = self._backward(factors, [item for _, item in current], seeds)
            factors.step([rate if any_ else None for (rate, _), any_ in zip(current, learned, strict=True)])
        trained["steps"] += torch.tensor([len(row) for row in lessons], device=self.lm.device)

    def _room(self) -> int:
        return STEP_BYTES.get(self.lm.device.type, STEP_BYTES["cuda"])

    def _length(self, item: Item) -> int:
        return len(self.lm.start_ids) + len(item[0]) + len(item[1]) - 1

    def _backward(self, factors: RowFactors, items: list[Item], seeds: list[int]) -> list[bool]:
        """Gradients of one item a row; which of them had a loss. Dropout depends on the row's seed alone."""
        s, device = self.settings, self.lm.device
        lengths = [self._length(item) for item in items]
        again = s.recompute == "yes" or (s.recompute == "auto" and step_bytes(self.lm, sum(lengths)) > self._room())
        zeros = RowDropout(s.dropout, seeds, lengths, device, again=again) if s.dropout else None
        with torch.enable_grad(), ExitStack() as inside:
            deltas = lora.deltas(factors.pairs(len(items)), s, zeros)
            inside.enter_context(deltas_applied(self.lm, deltas, len(items)))
            if again:
                inside.enter_context(layers_recomputed(self.lm))
            values = target_logprobs(self.lm, Patch(), items)
            losses = [-value.sum() / len(value) for value in values if len(value)]
            if losses:
                torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        return [len(value) > 0 for value in values]

    def _lessons(self, held: list[int], pieces: list[list[int]], before: int) -> Iterator[tuple[float, Item]]:
        """(learning rate, (prefix ids, target ids)) of every step."""
        s = self.settings
        text, items = list(held), []
        for piece in pieces:
            items.append((text[max(0, len(text) - s.prefix) :] if s.prefix else [], piece))
            text += piece
        if s.by == "unit":
            order = [number for number in range(len(items)) for _ in range(s.epochs)]
        else:
            order = [number for _ in range(s.epochs) for number in range(len(items))]
        rates = self._rates(order, before)
        yield from ((rate, items[number]) for rate, number in zip(rates, order, strict=True) if items[number][1])

    def _rates(self, order: Sequence[int], before: int) -> list[float]:
        s = self.settings
        if s.schedule == "units2":
            return [s.lr * min(1.0, (before + number) / 2) for number in order]
        if s.schedule == "constant" or not order:
            return [s.lr] * len(order)
        probe = torch.optim.SGD([torch.zeros(1)], lr=s.lr)
        cycle = torch.optim.lr_scheduler.OneCycleLR(probe, max_lr=s.lr, total_steps=max(2, len(order)))
        rates = []
        for _ in order:
            rates.append(float(probe.param_groups[0]["lr"]))
            probe.step()
            if len(rates) < max(2, len(order)):
                cycle.step()
        return rates
