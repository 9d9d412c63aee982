"""THE loop: a method reads what an episode shows, the frozen LM under its patch answers what the episode asks.

    Observe, Observe, ... --> method.adapt_many(state, ...)            timed as "adapt"
    Ask, Ask, ...         --> method.patch(state, asks) --> answers    timed as "ask", stored batch by batch

A method that does not look at the question gets one patch, encoded once ("encode"), for all queries in a row. The loop
knows neither tables nor files: finished queries go to a `Sink`, progress to a callback, time and memory to a `Meter`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

import torch

from ttabench.answering import answer, gold_likelihoods
from ttabench.batching import BatchSize, in_batches
from ttabench.errors import UserError
from ttabench.lm import LM
from ttabench.meter import Meter
from ttabench.methods.base import BaseMethod
from ttabench.metrics import metric
from ttabench.patching import encoded, follows_text
from ttabench.progress import Tick
from ttabench.readers import Task
from ttabench.store import EpisodeCost, Sample
from ttabench.stream import window_ids
from ttabench.swapping import Replacement, blocks, paired
from ttabench.types import Ask, Episode, Observe, Patch, State

READ_AT_ONCE = 256
"""Pieces handed to a method in one call: enough to batch by length, few enough for the progress bar to move."""


class Sink(Protocol):
    """Where finished queries go, and what was finished before (see `store.RunFolder`)."""

    def answered(self, episode: str, key: str) -> bool:
        """Whether this query was answered before."""
        ...

    def finished(self, episode: str) -> bool:
        """Whether this whole episode was."""
        ...

    def append(self, samples: Sequence[Sample]) -> None:
        """Keep these, at once."""
        ...

    def end_episode(self, cost: EpisodeCost) -> None:
        """An episode is done."""
        ...


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Everything a run needs besides its task."""

    lm: LM
    method: BaseMethod[object]
    metrics: tuple[str, ...]
    """Names; those that have a value for one query are computed at once."""
    batch_size: int = 32
    """Queries answered together, fewer where they do not fit into memory; `batching.AUTO` for as many as fit."""
    start: State | None = None
    """A state of one row that every episode begins with; by default an empty one."""
    ask_only: bool = False
    """Leave all observations out."""
    state_of: str = "own"
    """Whose state answers, see `swapping`; what reading cost is always that of the text's own."""


def run_episodes(bench: Bench, task: Task, sink: Sink, tick: Tick) -> None:
    """Run all episodes of a task; what the sink has finished already is not run again.

    Raises:
        UserError: the context or a query does not fit the model, or the task does not fit the method.
    """
    size = BatchSize(bench.batch_size, bench.lm.device.type)
    counts = _Counts(tick, 0 if bench.ask_only else task.n_observes, task.n_asks)
    for episode, other in paired(task, bench.lm, bench.state_of):
        asks = episode.asks()
        assert len({ask.key for ask in asks}) == len(asks), f"{episode.key} asks two queries of one key"
        if sink.finished(episode.key):
            counts.read(0 if bench.ask_only else len(episode.observes()))
            counts.asked(len(asks))
        else:
            replacement = Replacement(bench.method, other) if bench.state_of != "own" else None
            _EpisodeRun(bench, (episode, replacement), sink, counts, size).run()


class _Counts:
    """How far a run is, over all its episodes; what there is may have been estimated too low."""

    def __init__(self, tick: Tick, observes: int, asks: int) -> None:
        self._tick, self._observes, self._asks = tick, observes, asks
        self._read = self._asked = 0

    def read(self, more: int) -> None:
        self._read += more
        if self._observes:
            self._tick("read", self._read, max(self._read, self._observes))

    def asked(self, more: int) -> None:
        self._asked += more
        self._tick("answered", self._asked, max(self._asked, self._asks))


class _EpisodeRun:
    """One pass through one episode, answered under its own state or under what replaces it."""

    def __init__(
        self, bench: Bench, read: tuple[Episode, Replacement | None], sink: Sink, counts: _Counts, size: BatchSize
    ) -> None:
        self.bench, self.sink, self.counts, self.size = bench, sink, counts, size
        self.episode, self.replacement = read
        self.meter = Meter(bench.lm.device.type)
        self.state = bench.start if bench.start is not None else bench.method.begin(1)
        assert self.state.rows == 1, "an episode has one reader"
        self.pieces = 0
        self.patch_bytes = self.held_bytes = 0

    def run(self) -> None:
        """Read and ask, in the order of the steps, and store what it cost."""
        self._check_reads_once()
        for asking, steps in groupby(self.episode.steps, lambda step: isinstance(step, Ask)):
            if asking:
                self._ask([step for step in steps if isinstance(step, Ask)])
            elif not self.bench.ask_only:
                self._read([step for step in steps if isinstance(step, Observe)])
        self.sink.end_episode(self._cost())

    def _check_reads_once(self) -> None:
        method, reads = self.bench.method, groupby(isinstance(step, Observe) for step in self.episode.steps)
        if method.reads_once and not self.bench.ask_only and sum(reading for reading, _ in reads) > 1:
            what = f"{method.name} compresses one text, once, but this task reads on after a question."
            raise UserError(what, "Ask after the last piece only (metaicl: --task-set steps=16), or use snapkv.")

    def _read(self, pieces: list[Observe]) -> None:
        for block in blocks(self.bench.method, pieces, READ_AT_ONCE):
            with self.meter.phase("adapt"):
                self.state = self.bench.method.adapt_many(self.state, [[piece] for piece in block])
            self.pieces += len(block)
            self.counts.read(len(block))
        if self.replacement is not None:
            self.replacement.read_on(READ_AT_ONCE)

    def _ask(self, asks: list[Ask]) -> None:
        pending = [ask for ask in asks if not self.sink.answered(self.episode.key, ask.key)]
        self.counts.asked(len(asks) - len(pending))
        for _, group in groupby(pending, key=lambda ask: ask.window):
            self._ask_under_one_window(list(group))

    def _ask_under_one_window(self, asks: list[Ask]) -> None:
        shared = self._shared_patch(asks)
        for alike in _alike(self.bench.lm, asks):
            for samples in in_batches(alike, self.size, lambda batch: self._answer(batch, shared)):
                self.sink.append(samples)
                self.counts.asked(len(samples))

    def _patch(self, asks: list[Ask]) -> Patch:
        """The encoded patch for queries of one window, which is read on top of what the method made."""
        bench, replacement = self.bench, self.replacement
        state = self.state if replacement is None else replacement.of(self.state)
        patch = encoded(bench.lm, bench.method.patch(state, asks))
        ids = window_ids(bench.lm, asks[0], follows=follows_text(patch))
        if not ids:
            return patch
        return encoded(bench.lm, replace(patch, tokens_BT=torch.tensor([ids], device=bench.lm.device)))

    @torch.no_grad()
    def _shared_patch(self, asks: list[Ask]) -> Patch | None:
        """One encoded patch for all queries, where the method does not look at them."""
        if self.bench.method.looks_at_question:
            return None
        with self.meter.phase("encode"):
            patch = self._patch(asks[:1])
        self.patch_bytes = max(self.patch_bytes, patch.nbytes)
        self.held_bytes = max(self.held_bytes, patch.prefix.nbytes if patch.prefix is not None else 0)
        return patch

    @torch.no_grad()
    def _answer(self, asks: list[Ask], shared: Patch | None) -> list[Sample]:
        bench = self.bench
        with self.meter.phase("ask"):
            patch = shared if shared is not None else self._patch(asks)
            answers = answer(bench.lm, patch, asks, bench.method.num_beams)
        if asks[0].mode == "generate":  # off the clock: measuring how likely the gold answer was is no answering
            likelihoods = gold_likelihoods(bench.lm, patch, asks)
            answers = [
                replace(given, logprobs=(value,), tokens=(count,))
                for given, (value, count) in zip(answers, likelihoods, strict=True)
            ]
        self.patch_bytes = max(self.patch_bytes, patch.nbytes)
        each_ms = self.meter.last_seconds * 1000 / len(asks)
        return [
            Sample(
                episode=self.episode.key,
                key=ask.key,
                mode=ask.mode,
                step=ask.step,
                context_tokens=_tokens_read(self.state),
                about=ask.about,
                prompt=ask.prompt,
                prediction=given.prediction,
                answers=[] if ask.ids else list(ask.answers),  # a book is not copied into the samples
                metrics={
                    name: metric(name)(given.prediction, ask, given)
                    for name in bench.metrics
                    if metric(name).ratio is None
                },
                ask_ms=each_ms,
                logprobs=list(given.logprobs),
                tokens=list(given.tokens),
                blank=list(given.blank),
                ended=given.ended,
                part=ask.part,
                position=ask.position,
                words=ask.words,
            )
            for ask, given in zip(asks, answers, strict=True)
        ]

    def _cost(self) -> EpisodeCost:
        return EpisodeCost(
            episode=self.episode.key,
            pieces=self.pieces,
            tokens_read=_tokens_read(self.state),
            adapt_seconds=self.meter.seconds["adapt"],
            encode_seconds=self.meter.seconds["encode"],
            # A patch that serves all queries is kept between them: tokens that are re-read cost their keys and values.
            # Deltas are the state once more, or trained parameters.
            state_bytes=max(self.state.nbytes, self.held_bytes),
            patch_bytes=self.patch_bytes,
            adapt_peak_bytes=max(self.meter.peak_bytes["adapt"], self.meter.peak_bytes["encode"]),
            ask_peak_bytes=self.meter.peak_bytes["ask"],
            truncated={key: int(sum(value)) for key, value in self.state.meta.items() if key.startswith("truncated")},
        )


def _tokens_read(state: State) -> int | None:
    read = state.meta.get("tokens_read")
    return int(read[0]) if read else None


def _alike(lm: LM, asks: Sequence[Ask]) -> Iterator[list[Ask]]:
    """Queries of one mode and one answer length together, those of like length side by side, the longest first.

    What does not fit the model fails at once, and a run that was killed goes on with the batches it would have had.
    """
    texts = [ask.prompt + "".join(ask.options) for ask in asks]  # a prompt is read in one row with its options
    lengths = {ask.key: len(ids) for ask, ids in zip(asks, lm.encode_many(texts), strict=True)}
    ordered = sorted(asks, key=lambda ask: (ask.mode, ask.max_new_tokens, -lengths[ask.key], ask.key))
    for _, alike in groupby(ordered, key=lambda ask: (ask.mode, ask.max_new_tokens)):
        yield list(alike)
