"""THE loop: a method reads what an episode shows, the frozen LM under its patch answers what the episode asks.

    Observe, Observe, ... --> session.read(...)       timed as "adapt"
    Ask, Ask, ...         --> session.answer(...)     timed as "ask", stored batch by batch

A method that does not look at the question gets one patch, encoded once ("encode"), for all queries in a row. The loop
knows neither tables nor files: finished queries go to a `Sink`, progress to a callback, time and memory to a `Meter`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

import torch

from ttabench.core.errors import UserError
from ttabench.core.meter import Meter, largest
from ttabench.core.progress import Tick
from ttabench.core.types import Ask, Episode, Observe
from ttabench.lm.loading.finite import NotFinite
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.lm.verbs.batching import BatchSize, alike, in_batches
from ttabench.methods.base import BaseMethod
from ttabench.methods.session import Session
from ttabench.readers import Task
from ttabench.records.samples import AskCost, EpisodeCost, Sample, kept
from ttabench.run.looking import MOST_PIECES, looked_at
from ttabench.run.state_control import SwappedSession, paired
from ttabench.stats.metrics import metric


class Sink(Protocol):
    """Where finished queries go, and what was finished before (see `store.RunFolder`)."""

    def take_up(self, episode: Episode, metrics: Collection[str]) -> Sequence[Sample]:
        """Samples of this episode from before, with a value of each of these metrics."""
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
class RunContext:
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
    """Whose state answers, see `state_control`; only with "own" is all of the text read and its cost measured."""

    def of_one_query(self) -> list[str]:
        """The metrics that have a value for one query."""
        return [name for name in self.metrics if metric(name).kind is None]


class _Counts:
    """How far a run is, over all its episodes; what there is may have been estimated too low."""

    def __init__(self, tick: Tick, observes: int, asks: int) -> None:
        self._tick, self._observes, self._asks = tick, observes, asks
        self._read = self._asked = 0

    def read(self, more: int) -> None:
        """So many more pieces were read."""
        self._read += more
        if self._observes:
            self._tick("read", self._read, max(self._read, self._observes))

    def asked(self, more: int) -> None:
        """So many more queries are answered."""
        self._asked += more
        self._tick("answered", self._asked, max(self._asked, self._asks))


def run_episodes(context: RunContext, task: Task, sink: Sink, tick: Tick) -> None:
    """Run all episodes of a task; what the sink has finished already is not run again.

    Raises:
        UserError: the context or a query does not fit the model, or the task does not fit the method.
    """
    size = BatchSize(context.batch_size, context.lm.device.type)
    counts = _Counts(tick, 0 if context.ask_only else task.n_observes, task.n_asks)
    for episode, other in paired(task, context.lm, context.state_of):
        asks = episode.asks()
        assert len({ask.key for ask in asks}) == len(asks), f"{episode.key} asks two queries of one key"
        before = sink.take_up(episode, context.of_one_query())
        if sink.finished(episode.key):
            counts.read(0 if context.ask_only else len(episode.observes()))
            counts.asked(len(asks))
        else:
            _EpisodeRun(context, (episode, other), before, sink, counts, size).run()


class _EpisodeRun:
    """One pass through one episode, answered under its own state or under what replaces it."""

    def __init__(
        self,
        context: RunContext,
        read: tuple[Episode, Episode | None],
        before: Sequence[Sample],
        sink: Sink,
        counts: _Counts,
        size: BatchSize,
    ) -> None:
        self.context, self.sink, self.counts, self.size = context, sink, counts, size
        self.episode, other = read
        if context.state_of == "own":
            self.session = Session(context.lm, context.method, context.start)
        else:
            self.session = SwappedSession(context.lm, context.method, other)
        assert self.session.rows == 1, "an episode has one reader"
        self.meter = Meter(context.lm.device)
        self.pieces = 0
        self.done = {sample.key for sample in before}
        self.asked = {sample.asked.group: sample.asked for sample in before if sample.asked is not None}
        """Costs of asking, by the group that shared a patch; of a run that goes on, with those counted before."""

    def run(self) -> None:
        """Read and ask, in the order of the steps, and store what it cost.

        Raises:
            UserError: the context or a query does not fit the model, or logits are not finite; answers are kept.
        """
        self._check_reads_on()
        try:
            self._take_steps()
        except NotFinite as error:
            kept = "What was answered before is kept; the same command continues."
            raise UserError(f"{self.episode.key}: {error.what}", f"{error.hint} {kept}") from None
        self.sink.end_episode(self._cost())

    def _take_steps(self) -> None:
        for asking, steps in groupby(self.episode.steps, lambda step: isinstance(step, Ask)):
            if asking:
                self._ask([step for step in steps if isinstance(step, Ask)])
            elif not self.context.ask_only:
                self._read([step for step in steps if isinstance(step, Observe)])

    def _check_reads_on(self) -> None:
        method, reads = self.context.method, groupby(isinstance(step, Observe) for step in self.episode.steps)
        if method.reads == "once" and not self.context.ask_only and sum(reading for reading, _ in reads) > 1:
            fault = f"{method.name} can read one text, once, but this task reads on after a question."
            hint = "Ask at one place only (metaicl, lamp, dailydialog: --task-set steps=12), or use snapkv."
            raise UserError(fault, hint)

    def _read(self, pieces: list[Observe]) -> None:
        self.session.read(pieces)
        while self.session.pending:
            with self.meter.phase("adapt"):
                done = self.session.flush_some()
            self.pieces += done
            self.counts.read(done)
        self.session.flush()  # what another text takes is no cost of this one

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
        if not self.context.method.looks_at_question:
            self._encode(asks, group)
        for together in alike(self.context.lm, asks):
            for samples in in_batches(together, self.size, lambda batch: self._answer(batch, group)):
                self.sink.append(samples)
                self.counts.asked(len(samples))

    @torch.no_grad()
    def _encode(self, asks: list[Ask], group: str) -> None:
        """Make the patch that the session keeps for all of these queries, and note what that costs."""
        with self.meter.phase("encode"):
            patch = self.session.patch(asks[:1])
        so_far = self.asked[group]
        self.asked[group] = replace(
            so_far,
            encode_seconds=self.meter.last_seconds,
            encode_cpu_seconds=self.meter.last_cpu_seconds,
            encode_peak_bytes=largest([so_far.encode_peak_bytes, self.meter.peak_bytes["encode"]]),
            held_bytes=max(so_far.held_bytes, patch.prefix.nbytes if patch.prefix is not None else 0),
        )

    @torch.no_grad()
    def _answer(self, asks: list[Ask], group: str) -> list[Sample]:
        context = self.context
        with self.meter.phase("ask"):
            patch = self.session.patch(asks)
            answers = self.session.answer(asks, patch)
        if asks[0].mode == "generate":  # off the clock: measuring how likely the gold answer was is no answering
            likelihoods = self.session.gold_likelihoods(asks, patch)
            answers = [
                replace(given, logprobs=(value,), tokens=(count,))
                for given, (value, count) in zip(answers, likelihoods, strict=True)
            ]
        cost = self.asked[group].answered(patch.nbytes, self.meter.peak_bytes["ask"], self.meter.paths["ask"])
        self.asked[group] = cost
        told = self.pieces <= MOST_PIECES and any(ask.source_key for ask in asks)
        looked = looked_at(self.session.piece_shares(asks) if told else None, asks)  # off the clock, too
        each_ms = self.meter.last_seconds * 1000 / len(asks)
        return [
            Sample(
                episode=self.episode.key,
                ask=kept(ask),
                answer=given,
                metrics={name: metric(name)(given.prediction, ask, given) for name in context.of_one_query()},
                context_tokens=_tokens_read(self.session.state),
                ask_ms=each_ms,
                ask_cpu_ms=self.meter.last_cpu_seconds * 1000 / len(asks),
                asked=cost,
                looked=its,
            )
            for ask, given, its in zip(asks, answers, looked, strict=True)
        ]

    def _largest(self, name: str) -> int:
        return max((getattr(cost, name) for cost in self.asked.values()), default=0)

    def _cost(self) -> EpisodeCost:
        state, asked = self.session.state, self.asked.values()
        return EpisodeCost(
            episode=self.episode.key,
            pieces=self.pieces,
            tokens_read=_tokens_read(state),
            adapt_seconds=self.meter.seconds["adapt"],
            encode_seconds=sum(cost.encode_seconds for cost in asked),
            # A patch that serves all queries is kept between them: tokens that are re-read cost their keys and values.
            # Deltas are the state once more, or trained parameters. Under --swap-state the other state counts.
            state_bytes=max(self.session.answering().nbytes, self._largest("held_bytes")),
            patch_bytes=self._largest("patch_bytes"),
            adapt_peak_bytes=largest([self.meter.peak_bytes["adapt"], *(cost.encode_peak_bytes for cost in asked)]),
            ask_peak_bytes=largest(cost.ask_peak_bytes for cost in asked),
            adapt_cpu_seconds=self.meter.cpu_seconds["adapt"] + sum(cost.encode_cpu_seconds for cost in asked),
            truncated={key: int(sum(value)) for key, value in state.meta.items() if key.startswith("truncated")},
            labels=dict(state.labels),
            adapt_paths=tuple(sorted(self.meter.paths["adapt"] | self.meter.paths["encode"])),
            ask_paths=tuple(sorted({path for cost in asked for path in cost.paths})),
        )


def _tokens_read(state: State) -> int | None:
    read = state.meta.get("tokens_read")
    return int(read[0]) if read else None
