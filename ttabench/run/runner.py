"""Evaluation loop: a method reads the chunks of an episode, and the patched LM answers its queries.

    Chunk, Chunk, ... --> session.read_rows(...)  timed as "adapt"
    Query, Query, ... --> session.answer(...)     timed as "ask", stored batch by batch

Consecutive queries share one patch, unless the method is query-aware. The shared patch is encoded
once, timed as "encode".

`state_of` selects the state that answers the queries: own, of a swapped context, or empty.
Comparing their scores tests whether a score comes from memory of the context. Under every state,
the context window holds the episode's own text: the method's `unswapped_tensors`, and the chunks
that a task keeps in the window.
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
from ttabench.lm.forward.capabilities import get_capabilities
from ttabench.lm.forward.patching import select_rows
from ttabench.lm.inference.answering import BatchSize, group_by_mode, run_in_batches
from ttabench.lm.inference.scoring import NonFiniteError
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import Method
from ttabench.methods.parts.kept import model_cache_of
from ttabench.methods.session import Session, needs_single_queries
from ttabench.readers import Task
from ttabench.records.folder import RunFolder
from ttabench.records.samples import EpisodeCost, Sample, query_to_store
from ttabench.stats.metrics import Metric


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Everything a run needs, except its task."""

    lm: LM
    method: Method[object]
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
        # without chunks to read, only answers are reported
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
    batch_size = 1 if needs_single_queries(context.method) else context.batch_size
    size = BatchSize(batch_size, context.lm.device.type)
    counts = _ProgressCounts(
        on_progress, read=0 if context.ask_only else task.n_chunks, answered=task.n_queries
    )
    for pairs in _group_episodes(
        pair_episodes(task, context.lm, context.state_of), contexts_per_batch(context)
    ):
        episodes, swapped_episodes = zip(*pairs, strict=True)
        for episode in episodes:
            queries = episode.queries()
            assert len({query.key for query in queries}) == len(queries), (
                f"{episode.key} has two queries with the same key"
            )
        stored_samples, is_finished = folder.resume_episodes(episodes, context.per_query_metrics())
        if is_finished:
            counts.add(
                "read",
                0 if context.ask_only else sum(len(episode.chunks()) for episode in episodes),
            )
            counts.add("answered", len(stored_samples))
            continue
        rows = [
            _EpisodeRow(
                episode, [sample for sample in stored_samples if sample.episode == episode.key]
            )
            for episode in episodes
        ]
        _EpisodeRun(context, rows, swapped_episodes[0], folder, counts, size).run()
    return size


EpisodePair: TypeAlias = tuple[Episode, Episode | None]


def _group_episodes(pairs: Iterable[EpisodePair], max_size: int) -> Iterator[list[EpisodePair]]:
    """Group consecutive episodes with equal `_step_kinds`.

    Groups do not depend on stored results, so that a resumed run has the same batches.
    """
    for _, similar in groupby(pairs, lambda pair: _step_kinds(pair[0])):
        while group := list(islice(similar, max_size)):
            yield group


def contexts_per_batch(context: RunContext) -> int:
    """Return the maximum number of contexts read in one batch."""
    method = context.method
    is_single = context.start is not None or context.ask_only or context.state_of != "own"
    if (
        is_single
        or method.query_aware
        or not (method.supports_batching and get_capabilities(context.lm).supports_batching)
    ):
        return 1
    return context.batch_contexts


def _step_kinds(episode: Episode) -> tuple[bool, ...] | str:
    """Return the key by which episodes are grouped: for each step, True if it is a query.

    An episode with chunks in the window gets its own key, so that it is read alone.
    """
    is_query = [isinstance(step, Query) for step in episode.steps]
    return episode.key if any(query.window for query in episode.queries()) else tuple(is_query)


class _EpisodeRow:
    """One episode of a batch, with its answered queries and the sizes measured on its queries."""

    def __init__(self, episode: Episode, before: Sequence[Sample]) -> None:
        self.episode = episode
        self.done = {sample.key for sample in before}
        """Keys of the queries with a stored answer."""
        self.patch_bytes = max((sample.patch_bytes for sample in before), default=0)
        self.read_slots = max((sample.read_slots for sample in before), default=0)
        """Maximum number of key/value slots of context that one query reads, in tokens."""


class _EpisodeRun:
    """One pass through a batch of episodes, one row of the session per episode.

    Seconds and state bytes of the batch are divided equally among the episodes.
    """

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
        self.chunks_read = 0
        """Chunks read by each episode."""
        self.cached_bytes = 0
        """Bytes of the KV prefix that is kept between queries."""
        self.row_of_query: dict[int, int] = {}
        """Row (index in `rows`) of each query of the current window, by `id(query)`."""

    def run(self) -> None:
        """Read and query in the order of the steps, and store the costs."""
        self._check_granularity()
        steps_of_rows = zip(*(row.episode.steps for row in self.rows), strict=True)
        try:
            for is_query, group in groupby(
                steps_of_rows, lambda aligned_steps: isinstance(aligned_steps[0], Query)
            ):
                aligned_steps: list[Any] = list(group)
                if is_query:
                    self._ask(aligned_steps)
                elif not self.context.ask_only:
                    self._read(aligned_steps)
        except NonFiniteError as error:
            resume_hint = "Stored answers are kept; repeat the command to resume."
            keys = " or ".join(row.episode.key for row in self.rows)
            raise UserError(f"{keys}: {error.what}", f"{error.hint} {resume_hint}") from None
        for row in range(len(self.rows)):
            self.folder.finish_episode(self._episode_cost(row))

    def _check_granularity(self) -> None:
        """Raise a UserError if the method reads a context once, but chunks follow a query."""
        steps = self.rows[0].episode.steps
        method = self.context.method
        step_runs = groupby(isinstance(step, Chunk) for step in steps)
        if (
            method.granularity == "full"
            and not self.context.ask_only
            and sum(is_chunk for is_chunk, _ in step_runs) > 1
        ):
            fault = (
                f"{method.name} reads a context only once, but this task reads more after a query."
            )
            hint = (
                "Set a single query step (metaicl, lamp, dailydialog: --task-set steps=12), "
                "or use snapkv with shares=uniform."
            )
            raise UserError(fault, hint)

    def _read(self, chunk_steps: list[tuple[Chunk, ...]]) -> None:
        self.session.read_rows(chunk_steps)
        while self.session.pending:
            with self.meter.phase("adapt"):
                n_adapted = self.session.adapt_pending()
            self.chunks_read += n_adapted
            self.counts.add("read", n_adapted * len(self.rows))
        self.session.flush()  # reads the swapped context, which is not timed

    def _ask(self, query_steps: list[tuple[Query, ...]]) -> None:
        rows = self.rows
        is_stored = [
            query.key in row.done
            for queries in query_steps
            for row, query in zip(rows, queries, strict=True)
        ]
        self.counts.add("answered", sum(is_stored))
        for _, same_window in groupby(query_steps, key=lambda queries: queries[0].window):
            window_steps = list(same_window)
            if not self.context.method.query_aware:  # the session caches one patch per window
                with torch.no_grad(), self.meter.phase("encode"):
                    patch = self.session.patch(window_steps[0])
                prefix = select_rows(patch, [0]).prefix
                if prefix is not None and self.context.method.bits is None:
                    self.cached_bytes = max(self.cached_bytes, prefix.nbytes)
                self._count_slots(patch, enumerate(window_steps[0]))
            self.row_of_query = {
                id(query): row for queries in window_steps for row, query in enumerate(queries)
            }
            # grouping includes queries with stored answers: a resumed run has the same batches
            for batch in group_by_mode(
                self.context.lm, [query for queries in window_steps for query in queries]
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
        row_indices = [self.row_of_query[id(query)] for query in queries]
        with self.meter.phase("ask"):
            patch = self.session.patch(queries)
            query_patch = patch if len(self.rows) == 1 else select_rows(patch, row_indices)
            answers = self.session.answer(queries, query_patch)
        if queries[0].mode == "generate" and context.lm.returns_logprobs:
            # gold likelihoods are not part of the answering time
            likelihoods = self.session.gold_likelihoods(queries, query_patch)
            answers = [
                replace(answer, logprobs=(value,), tokens=(count,))
                for answer, (value, count) in zip(answers, likelihoods, strict=True)
            ]
        bytes_per_row = (patch if len(self.rows) == 1 else select_rows(patch, [0])).nbytes
        for row in self.rows:
            row.patch_bytes = max(row.patch_bytes, bytes_per_row)
        if context.method.query_aware:
            self._count_slots(patch, [(row_indices[0], queries[0])])
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
            for row, query, answer in zip(row_indices, queries, answers, strict=True)
        ]

    def _episode_cost(self, row: int) -> EpisodeCost:
        state, meter, n_rows = self.session.state, self.meter, len(self.rows)
        return EpisodeCost(
            episode=self.rows[row].episode.key,
            pieces=self.chunks_read,
            tokens_read=_tokens_read(state, row),
            adapt_seconds=meter.seconds["adapt"] / n_rows,
            encode_seconds=meter.seconds["encode"] / n_rows,
            # A patch shared by all queries stays in memory, so its KV prefix counts. Weight deltas
            # do not: they duplicate the state or are trained parameters. With --swap-state, the
            # swapped state counts.
            state_bytes=max(self.session.answer_state().nbytes // n_rows, self.cached_bytes),
            patch_bytes=self.rows[row].patch_bytes,
            adapt_peak_bytes=largest_peak([meter.peak_bytes["adapt"], meter.peak_bytes["encode"]]),
            ask_peak_bytes=meter.peak_bytes["ask"],
            adapt_cpu_seconds=(meter.cpu_seconds["adapt"] + meter.cpu_seconds["encode"]) / n_rows,
            slots=self._slots(state, row),
            truncated={
                key: int(value[row])
                for key, value in state.meta.items()
                if key.startswith("truncated")
            },
        )

    def _slots(self, state: State, row: int) -> tuple[float, int] | None:
        """Return (slots kept, tokens read), see `EpisodeCost.slots`.

        None if the method has no memory budget, nothing was read, or another state answers.
        """
        context, tokens_read = self.context, _tokens_read(state, row)
        bits, has_budget = context.method.bits, context.method.spec.keep is not None
        if context.method.parts() or get_capabilities(context.lm).is_opaque:
            bits = None  # keys and values are only a part of the state
        if not (has_budget or bits) or context.state_of != "own" or not tokens_read:
            return None
        kept_slots: float = self.rows[row].read_slots
        if len(self.rows) == 1:  # in a batch, state bytes include padding to the longest sequence
            # recurrent states of hybrid models are no slots
            recurrent = sum(part.nbytes for part in model_cache_of(state.tensors).values())
            slot_bytes = context.lm.slot_bytes
            state_slots = (state.nbytes - recurrent) / slot_bytes if slot_bytes else 0.0
            # quantised slots are compared with those of 16 bits, whatever the run computes in
            half_slots = state_slots * context.lm.dtype.itemsize / 2
            kept_slots = half_slots if bits else max(state_slots, kept_slots)
        return kept_slots, tokens_read + len(context.lm.start_ids)


def _tokens_read(state: State, row: int) -> int | None:
    read = state.meta.get("tokens_read")
    return int(read[row]) if read else None


def pair_episodes(
    task: Task[Any], lm: LM, state_of: str
) -> Iterator[tuple[Episode, Episode | None]]:
    """Yield every episode with the episode of its swapped context; None if not swapped."""
    if state_of != "other":
        yield from ((episode, None) for episode in task.episodes(lm))
        return
    for episode, other in zip(task.episodes(lm), task.swapped_episodes(lm), strict=True):
        assert episode.key == other.key, f"{other.key} is paired with {episode.key}"
        yield episode, other


def replace_state(method: Method[Any], own: State, other: State) -> State:
    """Return `other` with the context window of `own`, the tensors in `unswapped_tensors`."""
    unswapped = {
        name: own.tensors[name] for name in method.unswapped_tensors if name in own.tensors
    }
    swapped = {
        name: tensor
        for name, tensor in other.tensors.items()
        if name not in method.unswapped_tensors
    }
    return replace(other, tensors={**swapped, **unswapped})


class SwappedSession(Session):
    """Session that answers under a swapped or empty state, with its own context window.

    Args:
        other: episode of the swapped context; None for an empty state. Whenever the own context
            is read, the next group of consecutive chunks of `other` is read, too. Its queries
            are ignored. After its last chunk, its state stays the same.
    """

    def __init__(
        self, lm: LM, method: Method[Any], other: Episode | None, *, boost: float = 1.0
    ) -> None:
        super().__init__(lm, method, boost=boost)
        self._other = Session(lm, method)
        steps = groupby(
            other.steps if other is not None else (), lambda step: isinstance(step, Chunk)
        )
        self._chunk_groups = (list[Any](group) for is_chunk, group in steps if is_chunk)

    def read_rows(self, chunks: Sequence[Sequence[Chunk]]) -> None:
        """Read more chunks, and the next group of chunks of the other context."""
        super().read_rows(chunks)
        self._other.read(next(self._chunk_groups, []))

    def flush(self) -> None:
        """Adapt to all pending chunks of both contexts."""
        super().flush()
        self._other.flush()

    def answer_state(self) -> State:
        """Return the swapped or empty state, with the window of the own context."""
        return replace_state(self.method, self.state, self._other.state)
