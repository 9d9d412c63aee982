"""Evaluation loop: a method reads the chunks of an episode, and the patched LM answers its queries.

    Chunk, Chunk, ... --> session.read_rows(...)  timed as "adapt"
    Query, Query, ... --> session.answer(...)     timed as "ask", stored batch by batch

Consecutive queries share one patch, encoded once ("encode"), unless the method is query-aware.

`state_of` tests whether a score comes from memory of the context: queries are answered under the
own state, the state of a swapped context, or an empty state. The context window always holds the
own text: the method's `unswapped_tensors` and the chunks that a task keeps in the window.
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
    """Everything a run needs, except its task."""

    lm: LM
    method: BaseMethod[object]
    metrics: tuple[Metric, ...]
    """Metrics of the run. Only per-query metrics are computed in the loop."""
    batch_size: int = 32
    """Queries per batch, fewer if memory runs out; `answering.AUTO` for as many as fit."""
    start: State | None = None
    """Initial state of every episode, for one sequence; None for an empty state."""
    ask_only: bool = False
    """True to skip all chunks."""
    state_of: str = "own"
    """State that answers, one of `run_fields.ANSWERING_STATES`. Only "own" measures all costs."""
    boost: float = 1.0
    """Factor of the largest weight deltas, see `lm.patch.boost_deltas`."""
    batch_contexts: int = 1
    """Maximum number of episodes read in one batch, see `contexts_per_batch`."""

    def per_query_metrics(self) -> dict[str, Metric]:
        """Return the metrics that have a value for a single query, by name."""
        return {metric.name: metric for metric in self.metrics if metric.query_function is not None}


class _ProgressCounts:
    """Progress of a run over all episodes; totals are estimates and may be exceeded."""

    def __init__(self, on_progress: ProgressCallback, **totals: int) -> None:
        self._on_progress = on_progress
        self._totals = totals
        self._done = dict.fromkeys(totals, 0)

    def add(self, what: str, count: int) -> None:
        self._done[what] += count
        if what == "answered" or self._totals[what]:
            self._on_progress(what, self._done[what], max(self._done[what], self._totals[what]))


def run_episodes(
    context: RunContext, task: Task[Any], folder: RunFolder, on_progress: ProgressCallback
) -> BatchSize:
    """Run all episodes of a task, except results already in the folder.

    Returns:
        The batch size of queries, as it was at the end.

    Raises:
        UserError: the context or a query does not fit the model, or the task does not fit the
            method.
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
                f"{episode.key} has two queries with the same key"
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
            _EpisodeRow(episode, [sample for sample in before if sample.episode == episode.key])
            for episode in episodes
        ]
        _EpisodeRun(context, rows, others[0], folder, counts, size).run()
    return size


EpisodePair: TypeAlias = tuple[Episode, Episode | None]


def _group_episodes(pairs: Iterable[EpisodePair], max_size: int) -> Iterator[list[EpisodePair]]:
    """Group consecutive episodes with equal step kinds. Groups do not depend on stored results."""
    for _, similar in groupby(pairs, lambda pair: _step_kinds(pair[0])):
        while group := list(islice(similar, max_size)):
            yield group


def contexts_per_batch(context: RunContext) -> int:
    """Return the maximum number of contexts read in one batch."""
    method = context.method
    is_single = context.start is not None or context.ask_only or context.state_of != "own"
    if is_single or not method.supports_batching or method.query_aware:
        return 1
    return context.batch_contexts


def _step_kinds(episode: Episode) -> tuple[bool, ...] | str:
    """Return a grouping key: True per query step; unique for episodes with chunks in the window."""
    queries = [isinstance(step, Query) for step in episode.steps]
    return episode.key if any(query.window for query in episode.queries()) else tuple(queries)


class _EpisodeRow:
    """One episode of a batch, with the sizes measured on its queries."""

    def __init__(self, episode: Episode, before: Sequence[Sample]) -> None:
        self.episode = episode
        self.done = {sample.key for sample in before}
        self.patch_bytes = max((sample.patch_bytes for sample in before), default=0)
        self.read_slots = max((sample.read_slots for sample in before), default=0)
        """Key/value slots of context that one query reads, in tokens."""


class _EpisodeRun:
    """One pass through a batch of episodes. Costs of the batch are divided equally among them."""

    def __init__(
        self,
        context: RunContext,
        rows: list[_EpisodeRow],
        other: Episode | None,
        folder: RunFolder,
        counts: _ProgressCounts,
        size: BatchSize,
    ) -> None:
        self.context = context
        self.rows = rows
        self.folder = folder
        self.counts = counts
        self.size = size
        lm, method, boost = context.lm, context.method, context.boost
        if context.state_of == "own":
            self.session = Session(lm, method, context.start, rows=len(rows), boost=boost)
        else:
            self.session = SwappedSession(lm, method, other, boost=boost)
        assert self.session.rows == len(rows), "one sequence per episode"
        self.meter = Meter(lm.device)
        self.pieces = 0
        self.cached_bytes = 0
        """Bytes of the KV prefix that is kept between queries."""
        self.row_of_query: dict[int, int] = {}
        """Index of the episode of each query, by `id(query)`."""

    def run(self) -> None:
        """Read and query in the order of the steps, and store the costs."""
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
            resume_hint = "Stored answers are kept; repeat the command to resume."
            keys = " or ".join(row.episode.key for row in self.rows)
            raise UserError(f"{keys}: {error.what}", f"{error.hint} {resume_hint}") from None
        for row in range(len(self.rows)):
            self.folder.finish_episode(self._episode_cost(row))

    def _check_granularity(self) -> None:
        steps = self.rows[0].episode.steps
        method = self.context.method
        reads = groupby(isinstance(step, Chunk) for step in steps)
        if (
            method.granularity == "full"
            and not self.context.ask_only
            and sum(is_chunk for is_chunk, _ in reads) > 1
        ):
            fault = (
                f"{method.name} reads a context only once, but this task reads more after a query."
            )
            hint = (
                "Set a single query step (metaicl, lamp, dailydialog: --task-set steps=12), "
                "or use snapkv."
            )
            raise UserError(fault, hint)

    def _read(self, chunks: list[tuple[Chunk, ...]]) -> None:
        self.session.read_rows(chunks)
        while self.session.pending:
            with self.meter.phase("adapt"):
                done = self.session.adapt_pending()
            self.pieces += done
            self.counts.add("read", done * len(self.rows))
        self.session.flush()  # a swapped context is read outside the meter

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
            if not self.context.method.query_aware:  # the session caches one patch per window
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
            # stored queries are grouped, too, so that a resumed run has the same batches
            for batch in group_by_mode(
                self.context.lm, [query for queries in step_group for query in queries]
            ):
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
        context = self.context
        row_of_query = [self.row_of_query[id(query)] for query in queries]
        with self.meter.phase("ask"):
            patch = self.session.patch(queries)
            query_patch = patch if len(self.rows) == 1 else select_rows(patch, row_of_query)
            answers = self.session.answer(queries, query_patch)
        if queries[0].mode == "generate":  # gold likelihoods are not part of the answering time
            likelihoods = self.session.gold_likelihoods(queries, query_patch)
            answers = [
                replace(answer, logprobs=(value,), tokens=(count,))
                for answer, (value, count) in zip(answers, likelihoods, strict=True)
            ]
        bytes_of_one = (patch if len(self.rows) == 1 else select_rows(patch, [0])).nbytes
        for row in self.rows:
            row.patch_bytes = max(row.patch_bytes, bytes_of_one)
        if context.method.query_aware:
            self._count_slots(patch, [(row_of_query[0], queries[0])])
        metrics = context.per_query_metrics()
        state = self.session.state
        return [
            Sample(
                episode=self.rows[row].episode.key,
                ask=query_to_store(query),
                answer=answer,
                metrics={
                    name: metric(answer.prediction, query, answer)
                    for name, metric in metrics.items()
                },
                context_tokens=_tokens_read(state, row),
                ask_ms=self.meter.last_seconds * 1000 / len(queries),
                ask_cpu_ms=self.meter.last_cpu_seconds * 1000 / len(queries),
                patch_bytes=self.rows[row].patch_bytes,
                read_slots=self.rows[row].read_slots,
            )
            for row, query, answer in zip(row_of_query, queries, answers, strict=True)
        ]

    def _episode_cost(self, row: int) -> EpisodeCost:
        state, meter, rows = self.session.state, self.meter, len(self.rows)
        return EpisodeCost(
            episode=self.rows[row].episode.key,
            pieces=self.pieces,
            tokens_read=_tokens_read(state, row),
            adapt_seconds=meter.seconds["adapt"] / rows,
            encode_seconds=meter.seconds["encode"] / rows,
            # A patch shared by all queries stays in memory, so its KV prefix counts. Weight deltas
            # do not: they duplicate the state or are trained parameters. With --swap-state, the
            # swapped state counts.
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
        """Return `EpisodeCost.slots`."""
        context, read = self.context, _tokens_read(state, row)
        if context.method.spec.keep is None or context.state_of != "own" or not read:
            return None
        kept: float = self.rows[row].read_slots
        if len(self.rows) == 1:  # in a batch, state bytes include padding to the longest sequence
            kept = max(state.nbytes / context.lm.slot_bytes, kept)
        return kept, read + len(context.lm.start_ids)


def _tokens_read(state: State, row: int) -> int | None:
    read = state.meta.get("tokens_read")
    return int(read[row]) if read else None


def pair_episodes(
    task: Task[Any], lm: LM, state_of: str
) -> Iterator[tuple[Episode, Episode | None]]:
    """Yield every episode with the episode of its swapped state, None if not swapped."""
    if state_of != "other":
        yield from ((episode, None) for episode in task.episodes(lm))
        return
    for episode, other in zip(task.episodes(lm), task.swapped_episodes(lm), strict=True):
        assert episode.key == other.key, f"{other.key} is paired with {episode.key}"
        yield episode, other


def replace_state(method: BaseMethod[Any], own: State, other: State) -> State:
    """Return the other state with the own window (`unswapped_tensors`)."""
    window = {name: own.tensors[name] for name in method.unswapped_tensors if name in own.tensors}
    kept = {
        name: tensor
        for name, tensor in other.tensors.items()
        if name not in method.unswapped_tensors
    }
    return replace(other, tensors={**kept, **window})


class SwappedSession(Session):
    """Session that answers under a swapped or empty state, with its own context window.

    Args:
        other: episode to read in parallel, one group of consecutive chunks at a time. Its queries
            are ignored. After its end, its last state stays. None for an empty state.
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
        """Read more chunks, and the next group of chunks of the other context."""
        super().read_rows(pieces)
        self._other.read(next(self._chunk_groups, []))

    def flush(self) -> None:
        """Adapt to all pending chunks of both contexts."""
        super().flush()
        self._other.flush()

    def answer_state(self) -> State:
        """Return the swapped or empty state, with the window of the own context."""
        return replace_state(self.method, self.state, self._other.state)
