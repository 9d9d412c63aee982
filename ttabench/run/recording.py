"""Run records: aggregated samples and costs, provenance, and notes.

A note is one sentence, without a full stop, about a figure that could mislead. Notes depend only on
stored data, so a resumed run has the same notes as an uninterrupted one.
"""

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
from ttabench.stats.estimate import estimate, interval_of_mean
from ttabench.stats.metrics import Metric

if TYPE_CHECKING:
    from ttabench.lm.model import LM
    from ttabench.lm.patch import State
    from ttabench.methods.base import Method
    from ttabench.run.plan import Plan

MIN_RELIABLE_QUERIES = 10
"""Number of queries below which a note warns of an unreliable figure."""
ENGLISH_MODEL = "smollm2-135m-qa"
"""Base model suggested for English texts; it gives short answers."""


def make_record(
    plan: Plan,
    lm: LM,
    method: Method[Any],
    folder: RunFolder,
    notes: Sequence[str],
    batch_size: int,
) -> RunRecord:
    """Build the record of a finished run.

    Args:
        batch_size: number of queries in the last batches.
    """
    config = plan.config
    model = lm.describe()
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
        cost=total_cost(folder.costs, folder.samples)
        | folder.spent.total_seconds()
        | folder.reply_tokens(),
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
    """Aggregate samples into rows: one per metric, plus one per step and per sub-task if several.

    Several sub-tasks also get their unweighted mean (sub-task "mean"), the average that papers
    report. For tasks with `lengths`, a query counts at its own length and at every greater one, and
    there are no rows per sub-task and length.
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
            rows += _metric_rows(plan, step, None, metric, group)
            subtask_rows = [
                row
                for subtask, subtask_samples in samples_by_subtask.items()
                if subtask_samples
                for row in _metric_rows(plan, step, subtask, metric, subtask_samples)
            ]
            rows += [*subtask_rows, _subtask_mean(subtask_rows)] if subtask_rows else []
    return rows


def _subtask_mean(rows: Sequence[Row]) -> Row:
    """Average over sub-tasks with equal weights. The sub-tasks are fixed, not a sample."""
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


def _metric_rows(
    plan: Plan, step: int | None, subtask: str | None, metric: Metric, samples: Sequence[Sample]
) -> list[Row]:
    """Return the row of a metric over queries, or no row if the metric is undefined."""
    config, values = plan.config, list[Observation]()
    draw = Draw(
        sampling_unit(plan.task_record), config.seed, is_fresh=plan.task.source in RESAMPLED_SOURCES
    )
    for sample in samples:
        ask = sample.ask
        # samples do not store the scored text of a book: every query is its own question there
        question = repr((ask.prompt, ask.answers)) if ask.answers else ""
        observed = observation_of_query(draw, sample.episode, sample.key, ask.source_key, question)
        stratum = ask.subtask
        terms: tuple[Any, ...] = (sample.metrics.get(metric.name), 1.0)
        if metric.ratio is not None:
            if not sample.answer.logprobs:  # a server may return none
                return []
            words = ask.want.words if isinstance(ask.want, Score) else 0
            stratum = ""
            terms = -sample.answer.logprobs[0], sample.answer.tokens[0], words
        elif metric.corpus is not None:
            terms = sample.answer.prediction, ask.answers[0], ask.mode == "choose"
        values.append(observed._replace(terms=terms, stratum=stratum))
    result = estimate(values, metric.figure)
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
            step=step,
            subtask=subtask,
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
    known = [value for value in values if value is not None]
    return fsum(known) if len(known) == len(values) else None


def total_cost(
    costs: Sequence[EpisodeCost], samples: Sequence[Sample]
) -> dict[str, float | int | None]:
    """Aggregate the costs of a run.

    Seconds are sums over episodes, `ask_ms` is the mean over queries, and bytes are the maximum
    over episodes. Peaks are None on devices that do not report them.
    """
    read = [cost.tokens_read for cost in costs if cost.tokens_read is not None]
    # encoding a patch once for all queries counts as adaptation
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
    """List the notes that are known before a model is loaded."""
    caveats = [str(note) for note in plan.task.notes]
    if template := plan.config.inputs.get("template"):
        caveats.append(f"the chat template received: {template}")
    if control := ANSWERING_STATES[plan.config.state_of]:
        caveats += [control, *plan.task_record.get("others", {}).get("notes", [])]
    return [*caveats, *plan.resolved.notes()]


def caveats(plan: Plan, method: Method[Any], folder: RunFolder) -> list[str]:
    """List all notes of a finished run."""
    lm = method.lm
    costs = folder.costs
    n = len(folder.samples)
    read = [cost.tokens_read for cost in costs]
    notes = plan_caveats(plan)
    if lm.random_weights:
        notes.append(f"the base model has random weights and the tokenizer of {lm.tokenizer_name}")
    notes += served_caveats(lm)
    notes += nano_caveats(lm) if plan.task.source != "mini" else []
    if any(sample.ask.mode == "generate" for sample in folder.samples):
        notes += generation_caveats(lm)
    notes += _truncation_notes(truncated(costs))
    notes += position_caveats(method)
    notes += eviction_caveats(method, read) if plan.config.state_of == "own" else []
    return notes + (
        [f"n = {n}: results of so few queries are unreliable"] if n < MIN_RELIABLE_QUERIES else []
    )


def state_caveats(method: Method[Any], state: State) -> list[str]:
    """List the notes of a state made by `adapt` or `ask`, outside a run."""
    lost = {
        key: int(sum(value)) for key, value in state.meta.items() if key.startswith("truncated")
    }
    smaller_chunk_hints = [
        f"{note}; smaller chunks may fit (--pieces paragraphs)" for note in _truncation_notes(lost)
    ]
    return [
        *smaller_chunk_hints,
        *position_caveats(method),
        *eviction_caveats(method, state.meta.get("tokens_read", [])),
    ]


def nano_caveats(lm: LM) -> list[str]:
    """Note that nano only knows the synthetic world."""
    if lm.name != NANO:
        return []
    return [f"nano knows only its synthetic world; for other texts use --model {ENGLISH_MODEL}"]


def served_caveats(lm: LM) -> list[str]:
    """Note the figures of a model on a server that differ from those of models in this process."""
    if lm.server is None:
        return []
    answer_nll = (
        "answer NLL excludes the end of the answer"
        if lm.returns_logprobs
        else "the server returns no log-probabilities of prompts, so there is no answer NLL"
    )
    return [f"budgets and lengths of a served model count bytes of text; {answer_nll}"]


def generation_caveats(lm: LM) -> list[str]:
    """Note the settings of `generation_config.json` that greedy decoding ignores."""
    ignored = ", ".join(
        f"{name}={str(value)[:40]}" for name, value in lm.generation_settings.items()
    )
    if not ignored:
        return []
    return [f"decoding is greedy: generation_config.json of {lm.name} is ignored ({ignored})"]


def position_caveats(method: Method[Any]) -> list[str]:
    """Note that cached keys keep their original positions, as this model cannot move them."""
    from ttabench.lm.forward.capabilities import get_capabilities

    if (
        "original" not in method.resolved_settings.values()
        or get_capabilities(method.lm).rotary is not None
    ):
        return []
    return [f"positions=auto means original here: cached keys of {method.lm.name} cannot be moved"]


def eviction_caveats(method: Method[Any], read: Sequence[int | None]) -> list[str]:
    """Note that an eviction method evicted nothing.

    Args:
        read: tokens of every context that was read; None or 0 if unknown.
    """
    counts = [count for count in read if count]
    kept_whole = [count for count in counts if method.evicts_nothing(count)]
    if not kept_whole:
        return []
    where = (
        ""
        if len(kept_whole) == len(counts)
        else f" from {len(kept_whole)} of {len(counts)} contexts"
    )
    reason = f"{max(kept_whole):,} tokens of context fit its budget"
    return [
        f"{method.name} evicted nothing{where}: {reason}, "
        f"so this measures full context (icl), not {method.name}"
    ]


def truncated(costs: Sequence[EpisodeCost]) -> dict[str, int]:
    """Sum the methods' counts of unread context over episodes, by name of the count."""
    names = sorted({name for cost in costs for name in cost.truncated})
    return {name: sum(cost.truncated.get(name, 0) for cost in costs) for name in names}


def _truncation_notes(truncated: Mapping[str, int]) -> list[str]:
    return [
        f"the context was truncated: {name} {lost:,}" for name, lost in truncated.items() if lost
    ]
