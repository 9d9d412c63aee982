"""The record of a run that is done: aggregate its samples and costs, and say what it stood on; and its notes.

A note is one sentence without a full stop where a figure would mislead. All follow from what a run stores, so a run
that was killed and continued has the notes of one that was not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import fsum, sqrt
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ttabench.core import environment
from ttabench.core.architectures import NANO
from ttabench.core.meter import largest_peak
from ttabench.core.types import Score
from ttabench.records.folder import RunFolder
from ttabench.records.run_fields import ANSWERING_STATES
from ttabench.records.samples import EpisodeCost, Sample
from ttabench.records.schema import Row, RunRecord
from ttabench.run.budget import kept_share
from ttabench.stats.clusters import (
    RESAMPLED_SOURCES,
    Draw,
    Observation,
    observation_of_query,
    sampling_unit,
)
from ttabench.stats.estimate import Estimate, estimate, interval_of_mean
from ttabench.stats.metrics import Metric

if TYPE_CHECKING:
    from ttabench.lm.model import LM
    from ttabench.lm.patch import State
    from ttabench.methods.base import BaseMethod
    from ttabench.run.plan import Plan

MIN_RELIABLE_QUERIES = 10
"""Queries below which a figure says next to nothing."""
ENGLISH_MODEL = "smollm2-135m-qa"
"""A base model that reads English and answers in a few words."""


def make_record(
    plan: Plan,
    lm: LM,
    method: BaseMethod[Any],
    folder: RunFolder,
    notes: Sequence[str],
    batch_size: int,
) -> RunRecord:
    """The record of a run whose queries are all answered, with these notes, at last so many together."""
    config, model = plan.config, lm.describe()
    auto = {
        name: model[key]
        for name, key in (("device", "device"), ("dtype", "dtype"), ("bos", "start"))
        if getattr(config, name) == "auto"
    }
    return RunRecord(
        id=config.identity(),
        created=datetime.now(UTC).isoformat(timespec="milliseconds"),
        config=config.to_json(),
        method={
            "name": method.name,
            "paper": method.spec.paper,
            "growth": method.growth,
            "looks_at_question": method.query_aware,
            "settings": dict(plan.resolved.settings),
            "preset": plan.resolved.preset,
            "parameters": sum(parameter.numel() for parameter in method.modules().parameters()),
            "training": dict(plan.resolved.training),
        },
        model=model,
        task={**plan.task_record, "dropped": dict(plan.task.dropped)},
        source=plan.task.source,
        seeds={"run": config.seed},
        n=len(folder.samples),
        rows=tuple(make_rows(plan, folder.samples)),
        cost=total_cost(folder.costs, folder.samples) | folder.spent.total_seconds(),
        dropped=dict(plan.task.dropped),
        auto={
            **auto,
            **method.resolved_settings,
            **({} if batch_size == config.batch_size else {"batch_size": batch_size}),
        },
        notes=tuple(notes),
        versions=environment.package_versions(),
        hardware=environment.describe_hardware(),
        determinism=environment.determinism_flags(),
        code=environment.code_version(),
    )


def make_rows(plan: Plan, samples: Sequence[Sample]) -> list[Row]:
    """One row a metric, over all steps and sub-tasks, and for each of them where there are several.

    With several sub-tasks there is also their unweighted mean (sub-task "mean"), which papers print as the average.
    What was asked up to one length of a text counts at every greater length, too; single texts have no rows by length.
    """
    lengths = [int(length) for length in plan.task_record.get("lengths", ())]
    steps = lengths or sorted({sample.step for sample in samples})
    subtasks = sorted({sample.ask.subtask for sample in samples})
    rows = []
    for step in [None, *(steps if len(steps) > 1 else [])]:
        group = [sample for sample in samples if step is None or sample.ask.at.is_counted_at(step)]
        separate_subtasks = subtasks if len(subtasks) > 1 and not (lengths and step) else []
        samples_by_subtask = {
            name: [sample for sample in group if sample.ask.subtask == name]
            for name in separate_subtasks
        }
        for metric in plan.metrics:
            rows += _metric_rows(plan, (step, None), metric, group)
            subtask_rows = [
                row
                for subtask, subtask_samples in samples_by_subtask.items()
                if subtask_samples
                for row in _metric_rows(plan, (step, subtask), metric, subtask_samples)
            ]
            rows += [*subtask_rows, _subtask_mean(subtask_rows)] if subtask_rows else []
    return rows


def _subtask_mean(rows: Sequence[Row]) -> Row:
    """The mean over sub-tasks, each counting alike; the sub-tasks are those that are asked, no sample of others."""
    squares = _sum_if_all_known([row.stderr and row.stderr**2 for row in rows])
    low, high = interval_of_mean([(row.value, row.ci_low, row.ci_high) for row in rows])
    mean = {
        "subtask": "mean",
        "value": fmean(row.value for row in rows),
        "n": sum(row.n for row in rows),
    }
    error = {
        "stderr": None if squares is None else sqrt(squares) / len(rows),
        "ci_low": low,
        "ci_high": high,
    }
    read = _mean_of_known([row.context_tokens for row in rows])
    return rows[0].model_copy(update={**mean, **error, "context_tokens": read, "weight": None})


def _estimate_metric(metric: Metric, draw: Draw, samples: Sequence[Sample]) -> Estimate | None:
    """A metric of a run's queries; None where it is no number."""
    values = list[Observation]()
    for sample in samples:
        ask = sample.ask
        # samples keep no stretch of a book that was scored: there every query is another
        question = repr((ask.prompt, ask.answers)) if ask.answers else ""
        observed, stratum = (
            observation_of_query(draw, sample.episode, sample.key, ask.source_key, question),
            ask.subtask,
        )
        terms: tuple[Any, ...] = (sample.metrics.get(metric.name), 1.0)
        if metric.ratio is not None:
            words, stratum = ask.want.words if isinstance(ask.want, Score) else 0, ""
            terms = -sample.answer.logprobs[0], sample.answer.tokens[0], words
        elif metric.corpus is not None:
            terms = sample.answer.prediction, ask.answers[0], ask.mode == "choose"
        values.append(observed._replace(terms=terms, stratum=stratum))
    return estimate(values, metric.figure)


def _metric_rows(
    plan: Plan,
    step_and_subtask: tuple[int | None, str | None],
    metric: Metric,
    samples: Sequence[Sample],
) -> list[Row]:
    """The row of a metric; none where it is no number."""
    draw = Draw(
        sampling_unit(plan.task_record),
        plan.config.seed,
        is_fresh=plan.task.source in RESAMPLED_SOURCES,
    )
    result, config = _estimate_metric(metric, draw, samples), plan.config
    if result is None:
        return []
    return [
        Row(
            run=config.identity(),
            method=config.method,
            task=config.task,
            source=plan.task.source,
            model=config.base,
            seed=config.seed,
            step=step_and_subtask[0],
            subtask=step_and_subtask[1],
            metric=metric.name,
            value=result.mean,
            n=result.n,
            context_tokens=_mean_of_known([sample.context_tokens for sample in samples]),
            stderr=result.stderr,
            ci_low=result.ci_low,
            ci_high=result.ci_high,
            weight=result.weight if result.weight != result.n else None,
        )
    ]


def _mean_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _sum_if_all_known(values: Sequence[float | None]) -> float | None:
    """None where one is not known."""
    known = [value for value in values if value is not None]
    return fsum(known) if len(known) == len(values) else None


def total_cost(
    costs: Sequence[EpisodeCost], samples: Sequence[Sample]
) -> dict[str, float | int | None]:
    """Seconds are summed over the episodes, `ask_ms` is the mean over queries, bytes are the largest of any episode.

    Peaks are None where the device does not tell them.
    """
    read = [cost.tokens_read for cost in costs if cost.tokens_read is not None]
    # Encoding a patch once for all queries is part of reading, whenever a method does it.
    adapt_seconds = sum(cost.adapt_seconds + cost.encode_seconds for cost in costs)
    pieces = sum(cost.pieces for cost in costs)
    return {
        **truncated(costs),
        "episodes": len(costs),
        "pieces": pieces,
        "tokens_read": sum(read) if read else None,
        "adapt_seconds": adapt_seconds,
        "adapt_ms_per_piece": adapt_seconds * 1000 / pieces if pieces else None,
        "encode_seconds": sum(cost.encode_seconds for cost in costs),
        "ask_seconds": sum(sample.ask_ms for sample in samples) / 1000,
        "adapt_cpu_seconds": _sum_if_all_known([cost.adapt_cpu_seconds for cost in costs]),
        "ask_cpu_seconds": _sum_if_all_known(
            [sample.ask_cpu_ms and sample.ask_cpu_ms / 1000 for sample in samples]
        ),
        "ask_ms": fmean(sample.ask_ms for sample in samples) if samples else None,
        "state_bytes": max((cost.state_bytes for cost in costs), default=0),
        **({"kept_share": share} if (share := kept_share(costs)) is not None else {}),
        "patch_bytes": max((cost.patch_bytes for cost in costs), default=0),
        "adapt_peak_memory_bytes": largest_peak(cost.adapt_peak_bytes for cost in costs),
        "ask_peak_memory_bytes": largest_peak(cost.ask_peak_bytes for cost in costs),
        "peak_memory_bytes": largest_peak(
            peak for cost in costs for peak in (cost.adapt_peak_bytes, cost.ask_peak_bytes)
        ),
    }


def plan_caveats(plan: Plan) -> list[str]:
    """Caveats that are known before anything is loaded."""
    caveats = [str(note) for note in plan.task.notes]
    if template := plan.config.inputs.get("template"):
        caveats.append(f"the chat template was given: {template}")
    if control := ANSWERING_STATES[plan.config.state_of]:
        caveats += [control, *plan.task_record.get("others", {}).get("notes", [])]
    return [*caveats, *plan.resolved.notes()]


def caveats(plan: Plan, method: BaseMethod[Any], folder: RunFolder) -> list[str]:
    """All caveats of a run whose queries are answered."""
    lm, costs, n = method.lm, folder.costs, len(folder.samples)
    read = [cost.tokens_read for cost in costs]
    notes = plan_caveats(plan)
    if lm.random_weights:
        notes.append(f"the base model has random weights and the tokenizer of {lm.tokenizer_name}")
    notes += nano_caveats(lm) if plan.task.source != "mini" else []
    if any(sample.ask.mode == "generate" for sample in folder.samples):
        notes += generation_caveats(lm)
    notes += _truncation_notes(truncated(costs))
    notes += position_caveats(method)
    notes += eviction_caveats(method, read) if plan.config.state_of == "own" else []
    return notes + (
        [f"n = {n}: figures of so few queries say little"] if n < MIN_RELIABLE_QUERIES else []
    )


def state_caveats(method: BaseMethod[Any], state: State) -> list[str]:
    """Caveats of a state that was made outside a run."""
    lost = {
        key: int(sum(value)) for key, value in state.meta.items() if key.startswith("truncated")
    }
    smaller_chunk_hints = [
        f"{note}; smaller pieces may fit (--pieces paragraphs)" for note in _truncation_notes(lost)
    ]
    return [
        *smaller_chunk_hints,
        *position_caveats(method),
        *eviction_caveats(method, state.meta.get("tokens_read", [])),
    ]


def nano_caveats(lm: LM) -> list[str]:
    """What the base model of the package makes of texts of others."""
    return (
        [f"nano knows its miniature world alone; for other texts use --model {ENGLISH_MODEL}"]
        if lm.name == NANO
        else []
    )


def generation_caveats(lm: LM) -> list[str]:
    """Settings of the model's folder that greedy decoding does not follow."""
    ignored = ", ".join(
        f"{name}={str(value)[:40]}" for name, value in lm.generation_settings.items()
    )
    return (
        [f"answers are greedy: generation_config.json of {lm.name} is not followed ({ignored})"]
        if ignored
        else []
    )


def position_caveats(method: BaseMethod[Any]) -> list[str]:
    """Keys that stay where they stood, for the model has none that can be moved."""
    from ttabench.lm.forward.capabilities import get_capabilities

    if (
        "original" not in method.resolved_settings.values()
        or get_capabilities(method.lm).rotary is not None
    ):
        return []
    return [
        f"positions=auto is original here: the keys of {method.lm.name} cannot be moved to places of the cache"
    ]


def eviction_caveats(method: BaseMethod[Any], read: Sequence[int | None]) -> list[str]:
    """Whether a method that evicts had no need to, by the tokens of every context that it has read."""
    counts = [count for count in read if count]
    kept_whole = [count for count in counts if method.evicts_nothing(count)]
    if not kept_whole:
        return []
    where = (
        ""
        if len(kept_whole) == len(counts)
        else f" from {len(kept_whole)} of {len(counts)} contexts"
    )
    reason = f"{method.name} evicted nothing{where}: {max(kept_whole):,} tokens of context fit what it may keep"
    return [f"{reason}, so this measures full context (icl), not {method.name}"]


def truncated(costs: Sequence[EpisodeCost]) -> dict[str, int]:
    """Context that the methods did not read, by their own counts: summed over episodes, by the name of the count."""
    names = sorted({name for cost in costs for name in cost.truncated})
    return {name: sum(cost.truncated.get(name, 0) for cost in costs) for name in names}


def _truncation_notes(truncated: Mapping[str, int]) -> list[str]:
    return [
        f"not all context was read: {name} {lost:,}" for name, lost in truncated.items() if lost
    ]
