"""THE loop: a method reads what an episode shows, the frozen LM under its patch answers what the episode asks.

    Observe, Observe, ... --> session.read(...)       timed as "adapt"
    Ask, Ask, ...         --> session.answer(...)     timed as "ask", stored batch by batch

A method that does not look at the question gets one patch, encoded once ("encode"), for all queries in a row. The loop
knows neither tables nor files: finished queries go to a folder, progress to a callback, time and memory to a `Meter`.

Whose state answers tells memory from mere format: the text's own, one made of another text, or none. What stands in the
window is always the text's own: the tensors that a method names in `own_tensors`, and the pieces a task keeps there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any, TypeAlias

import torch

from ttabench.core.errors import UserError
from ttabench.core.meter import Meter, largest
from ttabench.core.types import Ask, Episode, Observe, Tick
from ttabench.lm.forward.patching import select_rows
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.lm.verbs.answering import BatchSize, alike, in_batches
from ttabench.lm.verbs.scoring import NotFinite
from ttabench.methods.base import BaseMethod
from ttabench.methods.session import Session
from ttabench.readers import Task
from ttabench.records.folder import RunFolder
from ttabench.records.samples import EpisodeCost, Sample, kept
from ttabench.stats.metrics import Metric


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Everything a run needs besides its task."""

    lm: LM
    method: BaseMethod[object]
    metrics: tuple[Metric, ...]
    """Those that have a value for one query are computed at once."""
    batch_size: int = 32
    """Queries answered together, fewer where they do not fit into memory; `batching.AUTO` for as many as fit."""
    start: State | None = None
    """A state of one row that every episode begins with; by default an empty one."""
    ask_only: bool = False
    """Leave all observations out."""
    state_of: str = "own"
    """Whose state answers, see `config.STATES_OF`; only with "own" is all of the text read and its cost measured."""
    boost: float = 1.0
    """Factor of the largest weight deltas, see `lm.patch.boosted`."""
    batch_contexts: int = 1
    """Episodes read together, see `at_once`."""

    def of_one_query(self) -> dict[str, Metric]:
        """The metrics that have a value for one query, by name."""
        return {metric.name: metric for metric in self.metrics if metric.judge is not None}


class _Counts:
    """How far a run is, over all its episodes; what there is may have been estimated too low."""

    def __init__(self, tick: Tick, **totals: int) -> None:
        self._tick, self._totals, self._done = tick, totals, dict.fromkeys(totals, 0)

    def add(self, what: str, more: int) -> None:
        """So many more are done."""
        self._done[what] += more
        if what == "answered" or self._totals[what]:
            self._tick(what, self._done[what], max(self._done[what], self._totals[what]))


def run_episodes(context: RunContext, task: Task, folder: RunFolder, tick: Tick) -> BatchSize:
    """Run all episodes of a task, at last with the returned number of queries together; what the folder holds already
    is not run again.

    Raises:
        UserError: the context or a query does not fit the model, or the task does not fit the method.
    """
    size = BatchSize(context.batch_size, context.lm.device.type)
    counts = _Counts(tick, read=0 if context.ask_only else task.n_observes, answered=task.n_asks)
    for group in _groups(paired(task, context.lm, context.state_of), at_once(context)):
        episodes, others = zip(*group, strict=True)
        for episode in episodes:
            asks = episode.asks()
            assert len({ask.key for ask in asks}) == len(asks), f"{episode.key} asks two queries of one key"
        before, done = folder.take_up(episodes, context.of_one_query())
        if done:
            counts.add("read", 0 if context.ask_only else sum(len(episode.observes()) for episode in episodes))
            counts.add("answered", len(before))
            continue
        rows = [_Row(episode, [one for one in before if one.episode == episode.key]) for episode in episodes]
        _EpisodeRun(context, rows, others[0], folder, counts, size).run()
    return size


Paired: TypeAlias = tuple[Episode, Episode | None]


def _groups(pairs: Iterable[Paired], most: int) -> Iterator[list[Paired]]:
    """Episodes that are read together: neighbours with the same steps, the same groups whatever is done already."""
    for _, same in groupby(pairs, lambda pair: _steps(pair[0])):
        while group := list(islice(same, most)):
            yield group


def at_once(context: RunContext) -> int:
    """How many contexts are read together."""
    method = context.method
    alone = context.start is not None or context.ask_only or context.state_of != "own"
    return 1 if alone or method.one_reader or method.looks_at_question else context.batch_contexts


def _steps(episode: Episode) -> tuple[bool, ...] | str:
    """Which of its steps are queries: episodes that are alike go together, those with pieces in the window alone."""
    asks = [isinstance(step, Ask) for step in episode.steps]
    return episode.key if any(ask.window for ask in episode.asks()) else tuple(asks)


class _Row:
    """An episode that is being run, and what its queries hold."""

    def __init__(self, episode: Episode, before: Sequence[Sample]) -> None:
        self.episode = episode
        self.done = {sample.key for sample in before}
        self.patch_bytes = max((sample.patch_bytes for sample in before), default=0)
        self.read_slots = max((sample.read_slots for sample in before), default=0)
        """Keys and values of context that one query reads, in tokens."""


class _EpisodeRun:
    """One pass through episodes that are read together, answered under their own states or under what replaces that of
    a single one. What several cost is shared out among them."""

    def __init__(
        self, context: RunContext, rows: list[_Row], other: Episode | None, folder: RunFolder, counts: _Counts,
        size: BatchSize,
    ) -> None:  # fmt: skip
        self.context, self.rows, self.folder, self.counts, self.size = context, rows, folder, counts, size
        lm, method, boost = context.lm, context.method, context.boost
        if context.state_of == "own":
            self.session = Session(lm, method, context.start, rows=len(rows), boost=boost)
        else:
            self.session = SwappedSession(lm, method, other, boost=boost)
        assert self.session.rows == len(rows), "an episode has one reader"
        self.meter = Meter(lm.device)
        self.pieces = 0
        self.held_bytes = 0
        """Keys and values that are kept between the queries."""
        self.owners: dict[int, int] = {}
        """Rows of the queries that are asked, by identity."""

    def run(self) -> None:
        """Read and ask, in the order of the steps, and store what it cost."""
        self._check_reads_on()
        in_turn = zip(*(row.episode.steps for row in self.rows), strict=True)
        try:
            for asking, steps in groupby(in_turn, lambda together: isinstance(together[0], Ask)):
                together: list[Any] = list(steps)
                if asking:
                    self._ask(together)
                elif not self.context.ask_only:
                    self._read(together)
        except NotFinite as error:
            kept = "What was answered before is kept; the same command continues."
            where = " or ".join(row.episode.key for row in self.rows)
            raise UserError(f"{where}: {error.what}", f"{error.hint} {kept}") from None
        for row in range(len(self.rows)):
            self.folder.end_episode(self._cost(row))

    def _check_reads_on(self) -> None:
        steps = self.rows[0].episode.steps
        method, reads = self.context.method, groupby(isinstance(step, Observe) for step in steps)
        if method.reads == "once" and not self.context.ask_only and sum(reading for reading, _ in reads) > 1:
            fault = f"{method.name} can read one text, once, but this task reads on after a question."
            hint = "Ask at one place only (metaicl, lamp, dailydialog: --task-set steps=12), or use snapkv."
            raise UserError(fault, hint)

    def _read(self, pieces: list[tuple[Observe, ...]]) -> None:
        self.session.read_rows(pieces)
        while self.session.pending:
            with self.meter.phase("adapt"):
                done = self.session.flush_some()
            self.pieces += done
            self.counts.add("read", done * len(self.rows))
        self.session.flush()  # what another text takes is no cost of this one

    def _ask(self, in_turn: list[tuple[Ask, ...]]) -> None:
        rows = self.rows
        done = [ask.key in row.done for asks in in_turn for row, ask in zip(rows, asks, strict=True)]
        self.counts.add("answered", sum(done))
        for _, group in groupby(in_turn, key=lambda asks: asks[0].window):
            together = list(group)
            if not self.context.method.looks_at_question:  # the session keeps one patch for all queries under a window
                with torch.no_grad(), self.meter.phase("encode"):
                    patch = self.session.patch(together[0])
                prefix = select_rows(patch, [0]).prefix
                self.held_bytes = max(self.held_bytes, prefix.nbytes if prefix is not None else 0)
                self._count_slots(patch, enumerate(together[0]))
            self.owners = {id(ask): row for asks in together for row, ask in enumerate(asks)}
            for batch in alike(self.context.lm, [ask for asks in together for ask in asks]):  # done or not: one order
                left = [ask for ask in batch if ask.key not in rows[self.owners[id(ask)]].done]
                for samples in in_batches(left, self.size, self._answer):
                    self.folder.append(samples)
                    self.counts.add("answered", len(samples))

    def _count_slots(self, patch: Patch, asks: Iterable[tuple[int, Ask]]) -> None:
        for row, ask in asks:
            slots = self.session.context_slots(patch, ask, row)
            self.rows[row].read_slots = max(self.rows[row].read_slots, slots)

    @torch.no_grad()
    def _answer(self, asks: list[Ask]) -> list[Sample]:
        context, owners = self.context, [self.owners[id(ask)] for ask in asks]
        with self.meter.phase("ask"):
            patch = self.session.patch(asks)
            behind = patch if len(self.rows) == 1 else select_rows(patch, owners)
            answers = self.session.answer(asks, behind)
        if asks[0].mode == "generate":  # off the clock: measuring how likely the gold answer was is no answering
            likelihoods = self.session.gold_likelihoods(asks, behind)
            answers = [
                replace(given, logprobs=(value,), tokens=(count,))
                for given, (value, count) in zip(answers, likelihoods, strict=True)
            ]
        bytes_of_one = (patch if len(self.rows) == 1 else select_rows(patch, [0])).nbytes
        for row in self.rows:
            row.patch_bytes = max(row.patch_bytes, bytes_of_one)
        if context.method.looks_at_question:
            self._count_slots(patch, [(owners[0], asks[0])])
        metrics, state = context.of_one_query(), self.session.state
        return [
            Sample(
                episode=self.rows[row].episode.key,
                ask=kept(ask),
                answer=given,
                metrics={name: value(given.prediction, ask, given) for name, value in metrics.items()},
                context_tokens=_tokens_read(state, row),
                ask_ms=self.meter.last_seconds * 1000 / len(asks),
                ask_cpu_ms=self.meter.last_cpu_seconds * 1000 / len(asks),
                patch_bytes=self.rows[row].patch_bytes,
                read_slots=self.rows[row].read_slots,
            )
            for row, ask, given in zip(owners, asks, answers, strict=True)
        ]

    def _cost(self, row: int) -> EpisodeCost:
        state, meter, rows = self.session.state, self.meter, len(self.rows)
        return EpisodeCost(
            episode=self.rows[row].episode.key,
            pieces=self.pieces,
            tokens_read=_tokens_read(state, row),
            adapt_seconds=meter.seconds["adapt"] / rows,
            encode_seconds=meter.seconds["encode"] / rows,
            # A patch that serves all queries is kept between them: tokens that are re-read cost their keys and values.
            # Deltas are the state once more, or trained parameters. Under --swap-state the other state counts.
            state_bytes=max(self.session.answering().nbytes // rows, self.held_bytes),
            patch_bytes=self.rows[row].patch_bytes,
            adapt_peak_bytes=largest([meter.peak_bytes["adapt"], meter.peak_bytes["encode"]]),
            ask_peak_bytes=meter.peak_bytes["ask"],
            adapt_cpu_seconds=(meter.cpu_seconds["adapt"] + meter.cpu_seconds["encode"]) / rows,
            slots=self._slots(state, row),
            truncated={key: int(value[row]) for key, value in state.meta.items() if key.startswith("truncated")},
        )

    def _slots(self, state: State, row: int) -> tuple[float, int] | None:
        """See `EpisodeCost.slots`."""
        context, read = self.context, _tokens_read(state, row)
        if context.method.spec.keep is None or context.state_of != "own" or not read:
            return None
        kept: float = self.rows[row].read_slots
        if len(self.rows) == 1:  # of several, bytes are those of the longest
            kept = max(state.nbytes / context.lm.slot_bytes, kept)
        return kept, read + len(context.lm.start_ids)


def _tokens_read(state: State, row: int) -> int | None:
    read = state.meta.get("tokens_read")
    return int(read[row]) if read else None


def paired(task: Task, lm: LM, state_of: str) -> Iterator[tuple[Episode, Episode | None]]:
    """Every episode of a task, with the one whose observations take the place of its own (None: they do not)."""
    if state_of != "other":
        yield from ((episode, None) for episode in task.episodes(lm))
        return
    for episode, other in zip(task.episodes(lm), task.others(lm), strict=True):
        assert episode.key == other.key, f"{other.key} stands in for {episode.key}"
        yield episode, other


def replaced(method: BaseMethod[Any], own: State, other: State) -> State:
    """The other state, with what stands in the window of the own one."""
    window = {name: own.tensors[name] for name in method.own_tensors if name in own.tensors}
    kept = {name: tensor for name, tensor in other.tensors.items() if name not in method.own_tensors}
    return replace(other, tensors={**kept, **window})


class SwappedSession(Session):
    """A session that answers under the state of another text, or under an empty one; of its own state it has what
    stands in the window.

    `other` is an episode whose observations are read alongside, group by group (at its end the last state stays), and
    whose queries are never asked; None for an empty state.
    """

    def __init__(self, lm: LM, method: BaseMethod[Any], other: Episode | None, *, boost: float = 1.0) -> None:
        super().__init__(lm, method, boost=boost)
        self._other = Session(lm, method)
        steps = groupby(other.steps if other is not None else (), lambda step: isinstance(step, Observe))
        self._groups = iter(
            [[step for step in group if isinstance(step, Observe)] for reading, group in steps if reading]
        )

    def read_rows(self, pieces: Sequence[Sequence[Observe]]) -> None:
        """Read on, and as far in the other text."""
        super().read_rows(pieces)
        self._other.read(next(self._groups, []))

    def flush(self) -> None:
        """As `Session.flush`, of the other text too."""
        super().flush()
        self._other.flush()

    def answering(self) -> State:
        """The other text's state, or an empty one, with what stands in the window of the own text."""
        return replaced(self.method, self.state, self._other.state)
