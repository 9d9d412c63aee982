"""THE loop: a method reads what an episode shows, the frozen LM under its patch answers what the episode asks.

    Observe, Observe, ... --> method.adapt_many(state, ...)            timed as "adapt"
    Ask, Ask, ...         --> method.patch(state, asks) --> answers    timed as "ask", stored batch by batch

A method that does not look at the question gets one patch, encoded once ("encode"), for all queries in a row. The loop
knows neither tables nor files: finished queries go to a `Sink`, progress to a callback, time and memory to a `Meter`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

import torch

from ttabench.answering import answer, gold_likelihoods
from ttabench.batching import BatchSize, alike, in_batches
from ttabench.errors import UserError
from ttabench.lm import LM
from ttabench.meter import Meter
from ttabench.methods.base import BaseMethod
from ttabench.metrics import metric
from ttabench.patching import encoded, follows_text
from ttabench.progress import Counts, Tick
from ttabench.readers import Task
from ttabench.samples import AskCost, EpisodeCost, Sample
from ttabench.stream import window_ids
from ttabench.swapping import Replacement, blocks, paired
from ttabench.types import Ask, Episode, Observe, Patch, State

READ_AT_ONCE = 256
"""Pieces handed to a method in one call: enough to batch by length, few enough for the progress bar to move."""


class Sink(Protocol):
    """Where finished queries go, and what was finished before (see `store.RunFolder`)."""

    def take_up(self, episode: Episode, metrics: Collection[str]) -> Sequence[Sample]:
        """What was answered of this episode before, with a value of each of these metrics."""
        ...

    def finished(self, episode: str) -> bool:
        """Whether all of an episode that was taken up is done, its cost stored."""
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
    """Whose state answers, see `swapping`; only with "own" is all of the text read and its cost measured."""

    def of_one_query(self) -> list[str]:
        """The metrics that have a value for one query."""
        return [name for name in self.metrics if metric(name).ratio is None]


def run_episodes(bench: Bench, task: Task, sink: Sink, tick: Tick) -> None:
    """Run all episodes of a task; what the sink has finished already is not run again.

    Raises:
        UserError: the context or a query does not fit the model, or the task does not fit the method.
    """
    size = BatchSize(bench.batch_size, bench.lm.device.type)
    counts = Counts(tick, 0 if bench.ask_only else task.n_observes, task.n_asks)
    for episode, other in paired(task, bench.lm, bench.state_of):
        asks = episode.asks()
        assert len({ask.key for ask in asks}) == len(asks), f"{episode.key} asks two queries of one key"
        before = sink.take_up(episode, bench.of_one_query())
        if sink.finished(episode.key):
            counts.read(0 if bench.ask_only else len(episode.observes()))
            counts.asked(len(asks))
        else:
            _EpisodeRun(bench, (episode, other), before, sink, counts, size).run()


class _EpisodeRun:
    """One pass through one episode, answered under its own state or under what replaces it."""

    def __init__(
        self,
        bench: Bench,
        read: tuple[Episode, Episode | None],
        before: Sequence[Sample],
        sink: Sink,
        counts: Counts,
        size: BatchSize,
    ) -> None:
        self.bench, self.sink, self.counts, self.size = bench, sink, counts, size
        self.episode, other = read
        self.replacement = Replacement(bench.method, other) if bench.state_of != "own" else None
        self.meter = Meter(bench.lm.device.type)
        self.state = bench.start if bench.start is not None else bench.method.begin(1)
        assert self.state.rows == 1, "an episode has one reader"
        self.pieces = 0
        self.done = {sample.key for sample in before}
        self.asked = {sample.asked.group: sample.asked for sample in before if sample.asked is not None}
        """What asking has cost, by the group that shared a patch; of a run that goes on, what was counted before."""

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
        method = self.bench.method
        read = method.adapt_many if self.replacement is None else method.adapt_window
        for block in blocks(method, pieces, READ_AT_ONCE):
            with self.meter.phase("adapt"):
                self.state = read(self.state, [[piece] for piece in block])
            self.pieces += len(block)
            self.counts.read(len(block))
        if self.replacement is not None:
            self.replacement.read_on(READ_AT_ONCE)

    def _ask(self, asks: list[Ask]) -> None:
        self.counts.asked(sum(ask.key in self.done for ask in asks))
        for _, group in groupby(asks, key=lambda ask: ask.window):
            together = list(group)
            if pending := [ask for ask in together if ask.key not in self.done]:
                self._ask_under_one_window(pending, together[0].key)

    def _ask_under_one_window(self, asks: list[Ask], group: str) -> None:
        # the patch is encoded anew where a run goes on
        self.asked[group] = replace(
            self.asked.get(group, AskCost(group=group)), encode_seconds=0.0, encode_cpu_seconds=0.0
        )
        shared = self._shared_patch(asks, group)
        for together in alike(self.bench.lm, asks):
            for samples in in_batches(together, self.size, lambda batch: self._answer(batch, shared, group)):
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
    def _shared_patch(self, asks: list[Ask], group: str) -> Patch | None:
        """One encoded patch for all queries, where the method does not look at them."""
        if self.bench.method.looks_at_question:
            return None
        with self.meter.phase("encode"):
            patch = self._patch(asks[:1])
        so_far = self.asked[group]
        self.asked[group] = replace(
            so_far,
            encode_seconds=self.meter.last_seconds,
            encode_cpu_seconds=self.meter.last_cpu_seconds,
            encode_peak_bytes=max(so_far.encode_peak_bytes, self.meter.peak_bytes["encode"]),
            held_bytes=max(so_far.held_bytes, patch.prefix.nbytes if patch.prefix is not None else 0),
        )
        return patch

    @torch.no_grad()
    def _answer(self, asks: list[Ask], shared: Patch | None, group: str) -> list[Sample]:
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
        each_ms = self.meter.last_seconds * 1000 / len(asks)
        cost = self.asked[group].answered(patch.nbytes, self.meter.peak_bytes["ask"])
        self.asked[group] = cost
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
                metrics={name: metric(name)(given.prediction, ask, given) for name in bench.of_one_query()},
                ask_ms=each_ms,
                ask_cpu_ms=self.meter.last_cpu_seconds * 1000 / len(asks),
                logprobs=list(given.logprobs),
                tokens=list(given.tokens),
                blank=list(given.blank),
                ended=given.ended,
                part=ask.part,
                position=ask.position,
                words=ask.words,
                asked=cost,
            )
            for ask, given in zip(asks, answers, strict=True)
        ]

    def _largest(self, name: str) -> int:
        return max((getattr(cost, name) for cost in self.asked.values()), default=0)

    def _cost(self) -> EpisodeCost:
        return EpisodeCost(
            episode=self.episode.key,
            pieces=self.pieces,
            tokens_read=_tokens_read(self.state),
            adapt_seconds=self.meter.seconds["adapt"],
            encode_seconds=sum(cost.encode_seconds for cost in self.asked.values()),
            # A patch that serves all queries is kept between them: tokens that are re-read cost their keys and values.
            # Deltas are the state once more, or trained parameters.
            state_bytes=max(self.state.nbytes, self._largest("held_bytes")),
            patch_bytes=self._largest("patch_bytes"),
            adapt_peak_bytes=max(self.meter.peak_bytes["adapt"], self._largest("encode_peak_bytes")),
            ask_peak_bytes=self._largest("ask_peak_bytes"),
            adapt_cpu_seconds=self.meter.cpu_seconds["adapt"]
            + sum(cost.encode_cpu_seconds for cost in self.asked.values()),
            truncated={key: int(sum(value)) for key, value in self.state.meta.items() if key.startswith("truncated")},
        )


def _tokens_read(state: State) -> int | None:
    read = state.meta.get("tokens_read")
    return int(read[0]) if read else None
