"""THE loop: a method reads what an episode shows, the frozen LM under its patch answers what the episode asks.

    Observe, Observe, ... --> session.read(...)       timed as "adapt"
    Ask, Ask, ...         --> session.answer(...)     timed as "ask", stored batch by batch

A method that does not look at the question gets one patch, encoded once ("encode"), for all queries in a row. The loop
knows neither tables nor files: finished queries go to a folder, progress to a callback, time and memory to a `Meter`.

Whose state answers tells memory from mere format: the text's own, one made of another text, or none. What stands in the
window is always the text's own: the tensors that a method names in `unswapped_tensors`, and the pieces a task keeps there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any, TypeAlias

import torch

from ttabench.core.errors import UserError
from ttabench.core.meter import Meter, largest_peak
from ttabench.core.types import Chunk, Episode, ProgressCallback, Query
from ttabench.lm.forward.patching import select_rows
from ttabench.lm.inference.answering import BatchSize, group_by_mode, run_in_batches
from ttabench.lm.inference.scoring import NonFiniteError
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import BaseMethod
from ttabench.methods.session import Session
from ttabench.readers import Task
from ttabench.records.folder import RunFolder
from ttabench.records.samples import EpisodeCost, Sample, query_to_store
from ttabench.stats.metrics import Metric


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Everything a run needs besides its task."""

    lm: LM
    method: BaseMethod[object]
    metrics: tuple[Metric, ...]
    """Those that have a value for one query are computed at once."""
    batch_size: int = 32
    """Queries answered together, fewer where they do not fit into memory; `answering.AUTO` for as many as fit."""
    start: State | None = None
    """A state of one row that every episode begins with; by default an empty one."""
    ask_only: bool = False
    """Leave all observations out."""
    state_of: str = "own"
    """Whose state answers, see `run_fields.ANSWERING_STATES`; only with "own" is all of the text read and its cost measured."""
    boost: float = 1.0
    """Factor of the largest weight deltas, see `lm.patch.boosted`."""
    batch_contexts: int = 1
    """Episodes read together, see `contexts_per_batch`."""

    def per_query_metrics(self) -> dict[str, Metric]:
        """The metrics that have a value for one query, by name."""
        return {metric.name: metric for metric in self.metrics if metric.query_function is not None}


class _ProgressCounts:
    """How far a run is, over all its episodes; what there is may have been estimated too low."""

    def __init__(self, on_progress: ProgressCallback, **totals: int) -> None:
        self._tick, self._totals, self._done = on_progress, totals, dict.fromkeys(totals, 0)

    def add(self, what: str, more: int) -> None:
        """So many more are done."""
        self._done[what] += more
        if what == "answered" or self._totals[what]:
            self._tick(what, self._done[what], max(self._done[what], self._totals[what]))


def run_episodes(
    context: RunContext, task: Task[Any], folder: RunFolder, on_progress: ProgressCallback
) -> BatchSize:
    """Run all episodes of a task, at last with the returned number of queries together; what the folder holds already
    is not run again.

    Raises:
        UserError: the context or a query does not fit the model, or the task does not fit the method.
    """
    size = BatchSize(context.batch_size, context.lm.device.type)
    counts = _ProgressCounts(
        on_progress, read=0 if context.ask_only else task.n_chunks, answered=task.n_queries
    )
    for group in _group_episodes(
        pair_episodes(task, context.lm, context.state_of), contexts_per_batch(context)
    ):
        episodes, others = zip(*group, strict=True)
        for episode in episodes:
            queries = episode.queries()
            assert len({query.key for query in queries}) == len(queries), (
                f"{episode.key} asks two queries of one key"
            )
        before, done = folder.resume_episodes(episodes, context.per_query_metrics())
        if done:
            counts.add(
                "read",
                0 if context.ask_only else sum(len(episode.chunks()) for episode in episodes),
            )
            counts.add("answered", len(before))
            continue
        rows = [
            _EpisodeRow(
                episode,
                [done_before for done_before in before if done_before.episode == episode.key],
            )
            for episode in episodes
        ]
        _EpisodeRun(context, rows, others[0], folder, counts, size).run()
    return size


EpisodePair: TypeAlias = tuple[Episode, Episode | None]


def _group_episodes(pairs: Iterable[EpisodePair], max_size: int) -> Iterator[list[EpisodePair]]:
    """Episodes that are read together: neighbours with the same steps, the same groups whatever is done already."""
    for _, similar in groupby(pairs, lambda pair: _step_kinds(pair[0])):
        while group := list(islice(similar, max_size)):
            yield group


def contexts_per_batch(context: RunContext) -> int:
    """How many contexts are read together."""
    method = context.method
    alone = context.start is not None or context.ask_only or context.state_of != "own"
    return (
        1 if alone or not method.supports_batching or method.query_aware else context.batch_contexts
    )


def _step_kinds(episode: Episode) -> tuple[bool, ...] | str:
    """Which of its steps are queries: episodes that are alike go together, those with pieces in the window alone."""
    queries = [isinstance(step, Query) for step in episode.steps]
    return episode.key if any(query.window for query in episode.queries()) else tuple(queries)


class _EpisodeRow:
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
        self,
        context: RunContext,
        rows: list[_EpisodeRow],
        other: Episode | None,
        folder: RunFolder,
        counts: _ProgressCounts,
        size: BatchSize,
    ) -> None:
        self.context, self.rows, self.folder, self.counts, self.size = (
            context,
            rows,
            folder,
            counts,
            size,
        )
        lm, method, boost = context.lm, context.method, context.boost
        if context.state_of == "own":
            self.session = Session(lm, method, context.start, rows=len(rows), boost=boost)
        else:
            self.session = SwappedSession(lm, method, other, boost=boost)
        assert self.session.rows == len(rows), "an episode has one reader"
        self.meter = Meter(lm.device)
        self.pieces = 0
        self.cached_bytes = 0
        """Keys and values that are kept between the queries."""
        self.row_of_query: dict[int, int] = {}
        """Rows of the queries that are asked, by identity."""

    def run(self) -> None:
        """Read and query, in the order of the steps, and store what it cost."""
        self._check_granularity()
        steps_by_row = zip(*(row.episode.steps for row in self.rows), strict=True)
        try:
            for is_query, steps in groupby(
                steps_by_row, lambda step_group: isinstance(step_group[0], Query)
            ):
                step_group: list[Any] = list(steps)
                if is_query:
                    self._ask(step_group)
                elif not self.context.ask_only:
                    self._read(step_group)
        except NonFiniteError as error:
            kept = "What was answered before is kept; the same command continues."
            where = " or ".join(row.episode.key for row in self.rows)
            raise UserError(f"{where}: {error.what}", f"{error.hint} {kept}") from None
        for row in range(len(self.rows)):
            self.folder.finish_episode(self._episode_cost(row))

    def _check_granularity(self) -> None:
        steps = self.rows[0].episode.steps
        method, reads = self.context.method, groupby(isinstance(step, Chunk) for step in steps)
        if (
            method.granularity == "full"
            and not self.context.ask_only
            and sum(is_chunk for is_chunk, _ in reads) > 1
        ):
            fault = (
                f"{method.name} can read one text, once, but this task reads on after a question."
            )
            hint = "Ask at one place only (metaicl, lamp, dailydialog: --task-set steps=12), or use snapkv."
            raise UserError(fault, hint)

    def _read(self, pieces: list[tuple[Chunk, ...]]) -> None:
        self.session.read_rows(pieces)
        while self.session.pending:
            with self.meter.phase("adapt"):
                done = self.session.adapt_pending()
            self.pieces += done
            self.counts.add("read", done * len(self.rows))
        self.session.flush()  # what another text takes is no cost of this one

    def _ask(self, steps_by_row: list[tuple[Query, ...]]) -> None:
        rows = self.rows
        done = [
            query.key in row.done
            for queries in steps_by_row
            for row, query in zip(rows, queries, strict=True)
        ]
        self.counts.add("answered", sum(done))
        for _, group in groupby(steps_by_row, key=lambda queries: queries[0].window):
            step_group = list(group)
            if (
                not self.context.method.query_aware
            ):  # the session keeps one patch for all queries under a window
                with torch.no_grad(), self.meter.phase("encode"):
                    patch = self.session.patch(step_group[0])
                prefix = select_rows(patch, [0]).prefix
                self.cached_bytes = max(
                    self.cached_bytes, prefix.nbytes if prefix is not None else 0
                )
                self._count_slots(patch, enumerate(step_group[0]))
            self.row_of_query = {
                id(query): row for queries in step_group for row, query in enumerate(queries)
            }
            for batch in group_by_mode(
                self.context.lm, [query for queries in step_group for query in queries]
            ):  # done or not: one order
                unanswered = [
                    query
                    for query in batch
                    if query.key not in rows[self.row_of_query[id(query)]].done
                ]
                for samples in run_in_batches(unanswered, self.size, self._answer):
                    self.folder.append(samples)
                    self.counts.add("answered", len(samples))

    def _count_slots(self, patch: Patch, queries: Iterable[tuple[int, Query]]) -> None:
        for row, query in queries:
            slots = self.session.count_context_slots(patch, query, row)
            self.rows[row].read_slots = max(self.rows[row].read_slots, slots)

    @torch.no_grad()
    def _answer(self, queries: list[Query]) -> list[Sample]:
        context, row_of_query = self.context, [self.row_of_query[id(query)] for query in queries]
        with self.meter.phase("ask"):
            patch = self.session.patch(queries)
            query_patch = patch if len(self.rows) == 1 else select_rows(patch, row_of_query)
            answers = self.session.answer(queries, query_patch)
        if (
            queries[0].mode == "generate"
        ):  # off the clock: measuring how likely the gold answer was is no answering
            likelihoods = self.session.gold_likelihoods(queries, query_patch)
            answers = [
                replace(given, logprobs=(value,), tokens=(count,))
                for given, (value, count) in zip(answers, likelihoods, strict=True)
            ]
        bytes_of_one = (patch if len(self.rows) == 1 else select_rows(patch, [0])).nbytes
        for row in self.rows:
            row.patch_bytes = max(row.patch_bytes, bytes_of_one)
        if context.method.query_aware:
            self._count_slots(patch, [(row_of_query[0], queries[0])])
        metrics, state = context.per_query_metrics(), self.session.state
        return [
            Sample(
                episode=self.rows[row].episode.key,
                ask=query_to_store(query),
                answer=given,
                metrics={
                    name: value(given.prediction, query, given) for name, value in metrics.items()
                },
                context_tokens=_tokens_read(state, row),
                ask_ms=self.meter.last_seconds * 1000 / len(queries),
                ask_cpu_ms=self.meter.last_cpu_seconds * 1000 / len(queries),
                patch_bytes=self.rows[row].patch_bytes,
                read_slots=self.rows[row].read_slots,
            )
            for row, query, given in zip(row_of_query, queries, answers, strict=True)
        ]

    def _episode_cost(self, row: int) -> EpisodeCost:
        state, meter, rows = self.session.state, self.meter, len(self.rows)
        return EpisodeCost(
            episode=self.rows[row].episode.key,
            pieces=self.pieces,
            tokens_read=_tokens_read(state, row),
            adapt_seconds=meter.seconds["adapt"] / rows,
            encode_seconds=meter.seconds["encode"] / rows,
            # A patch that serves all queries is kept between them: tokens that are re-read cost their keys and values.
            # Deltas are the state once more, or trained parameters. Under --swap-state the other state counts.
            state_bytes=max(self.session.answer_state().nbytes // rows, self.cached_bytes),
            patch_bytes=self.rows[row].patch_bytes,
            adapt_peak_bytes=largest_peak([meter.peak_bytes["adapt"], meter.peak_bytes["encode"]]),
            ask_peak_bytes=meter.peak_bytes["ask"],
            adapt_cpu_seconds=(meter.cpu_seconds["adapt"] + meter.cpu_seconds["encode"]) / rows,
            slots=self._slots(state, row),
            truncated={
                key: int(value[row])
                for key, value in state.meta.items()
                if key.startswith("truncated")
            },
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


def pair_episodes(
    task: Task[Any], lm: LM, state_of: str
) -> Iterator[tuple[Episode, Episode | None]]:
    """Every episode of a task, with the one whose observations take the place of its own (None: they do not)."""
    if state_of != "other":
        yield from ((episode, None) for episode in task.episodes(lm))
        return
    for episode, other in zip(task.episodes(lm), task.swapped_episodes(lm), strict=True):
        assert episode.key == other.key, f"{other.key} stands in for {episode.key}"
        yield episode, other


def replace_state(method: BaseMethod[Any], own: State, other: State) -> State:
    """The other state, with what stands in the window of the own one."""
    window = {name: own.tensors[name] for name in method.unswapped_tensors if name in own.tensors}
    kept = {
        name: tensor
        for name, tensor in other.tensors.items()
        if name not in method.unswapped_tensors
    }
    return replace(other, tensors={**kept, **window})


class SwappedSession(Session):
    """A session that answers under the state of another text, or under an empty one; of its own state it has what
    stands in the window.

    `other` is an episode whose observations are read alongside, group by group (at its end the last state stays), and
    whose queries are never asked; None for an empty state.
    """

    def __init__(
        self, lm: LM, method: BaseMethod[Any], other: Episode | None, *, boost: float = 1.0
    ) -> None:
        super().__init__(lm, method, boost=boost)
        self._other = Session(lm, method)
        steps = groupby(
            other.steps if other is not None else (), lambda step: isinstance(step, Chunk)
        )
        self._chunk_groups = iter(
            [
                [step for step in group if isinstance(step, Chunk)]
                for is_chunk, group in steps
                if is_chunk
            ]
        )

    def read_rows(self, pieces: Sequence[Sequence[Chunk]]) -> None:
        """Read on, and as far in the other text."""
        super().read_rows(pieces)
        self._other.read(next(self._chunk_groups, []))

    def flush(self) -> None:
        """As `Session.flush`, of the other text too."""
        super().flush()
        self._other.flush()

    def answer_state(self) -> State:
        """The other text's state, or an empty one, with what stands in the window of the own text."""
        return replace_state(self.method, self.state, self._other.state)
