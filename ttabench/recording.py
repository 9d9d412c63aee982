"""The record of a run that is done: aggregate its samples and costs, and say what it stood on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import fsum, sqrt
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ttabench import environment
from ttabench.metrics import NORMAL_95, aggregate
from ttabench.records import Row, RunRecord
from ttabench.store import EpisodeCost, RunFolder, Sample
from ttabench.types import Json

if TYPE_CHECKING:
    from ttabench.evaluation import Plan
    from ttabench.lm import LM
    from ttabench.methods.base import BaseMethod


def make_record(plan: Plan, lm: LM, method: BaseMethod[Any], folder: RunFolder) -> RunRecord:
    """The record of a run whose queries are all answered."""
    config = plan.config
    return RunRecord(
        id=config.identity(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        config=config.to_json(),
        method=_method(plan, method),
        model=lm.describe(),
        task=dict(plan.task_record),
        source=plan.task.source,
        seeds={"run": config.seed},
        n=len(folder.samples),
        rows=tuple(tidy_rows(plan, folder.samples)),
        cost=total_cost(folder.costs, folder.samples),
        dropped=dict(plan.task.dropped),
        notes=(*notes(plan, lm), *_truncations(folder.costs), *label_notes(method)),
        versions=environment.versions(),
        hardware=environment.hardware(),
        determinism=environment.determinism(),
        code=environment.code(),
    )


def notes(plan: Plan, lm: LM) -> list[str]:
    """What the record and the user should know once the base model is loaded."""
    found = plan.notes()
    if lm.random_weights:
        found.append(f"the base model has random weights and the tokenizer of {lm.tokenizer_name}")
    return found


def label_notes(method: BaseMethod[Any]) -> list[str]:
    """What a method says about how it did its work, in one note."""
    told = ", ".join(
        f"{name} {'yes' if value is True else 'no' if value is False else value}"
        for name, value in method.labels().items()
    )
    return [f"{method.name}: {told.replace('_', ' ')}"] if told else []


def _method(plan: Plan, method: BaseMethod[Any]) -> dict[str, Json]:
    return {
        "name": method.name,
        "paper": method.paper,
        "growth": method.growth,
        "looks_at_question": method.looks_at_question,
        "settings": dict(plan.adapter.settings),
        "preset": plan.adapter.preset,
        "parameters": sum(parameter.numel() for parameter in method.modules().parameters()),
        "training": dict(plan.adapter.training),
        **({"labels": labels} if (labels := method.labels()) else {}),
    }


def _truncated(costs: Sequence[EpisodeCost]) -> dict[str, int]:
    names = sorted({name for cost in costs for name in cost.truncated})
    return {name: sum(cost.truncated.get(name, 0) for cost in costs) for name in names}


def _truncations(costs: Sequence[EpisodeCost]) -> list[str]:
    return [f"not all context was read: {name} {lost:,}" for name, lost in _truncated(costs).items() if lost]


def tidy_rows(plan: Plan, samples: Sequence[Sample]) -> list[Row]:
    """One row a metric, over all steps and sub-tasks, and for each of them where there are several.

    With several sub-tasks there is also their unweighted mean (part "mean"), which papers print as the average.
    """
    steps = sorted({sample.step for sample in samples})
    parts = sorted({sample.part for sample in samples})
    rows = []
    for step in [None, *(steps if len(steps) > 1 else [])]:
        group = [sample for sample in samples if step is None or sample.step == step]
        by_part = [[sample for sample in group if sample.part == part] for part in parts] if len(parts) > 1 else []
        for metric in plan.task.card.metrics:
            rows.append(_row(plan, (step, None), metric, group))
            of_parts = [_row(plan, (step, part), metric, own) for part, own in zip(parts, by_part, strict=False) if own]
            rows += [*of_parts, _mean(of_parts)] if of_parts else []
    return rows


def _mean(rows: Sequence[Row]) -> Row:
    """The mean over sub-tasks, each counting alike."""
    value = fmean(row.value for row in rows)
    known = [row.stderr for row in rows if row.stderr is not None]
    stderr = sqrt(fsum(error**2 for error in known)) / len(rows) if len(known) == len(rows) else None
    half = NORMAL_95 * stderr if stderr is not None else None
    read = [row.context_tokens for row in rows if row.context_tokens is not None]
    return rows[0].model_copy(
        update={
            "part": "mean",
            "context_tokens": fmean(read) if read else None,
            "value": value,
            "n": sum(row.n for row in rows),
            "stderr": stderr,
            "ci_low": value - half if half is not None else None,
            "ci_high": value + half if half is not None else None,
        }
    )


def _row(plan: Plan, place: tuple[int | None, str | None], metric: str, samples: Sequence[Sample]) -> Row:
    found = aggregate([sample.metrics[metric] for sample in samples])
    read = [sample.context_tokens for sample in samples if sample.context_tokens is not None]
    config = plan.config
    return Row(
        run=config.identity(),
        method=config.method,
        task=config.task,
        source=plan.task.source,
        model=config.base,
        seed=config.seed,
        step=place[0],
        part=place[1],
        context_tokens=fmean(read) if read else None,
        metric=metric,
        value=found.mean,
        n=found.n,
        stderr=found.stderr,
        ci_low=found.ci_low,
        ci_high=found.ci_high,
    )


def total_cost(costs: Sequence[EpisodeCost], samples: Sequence[Sample]) -> dict[str, float | int | None]:
    """Seconds are summed over the episodes, `ask_ms` is the mean over queries, bytes are the largest of any episode."""
    read = [cost.tokens_read for cost in costs if cost.tokens_read is not None]
    # Encoding a patch once for all queries is part of reading, whenever a method does it.
    adapt_seconds = sum(cost.adapt_seconds + cost.encode_seconds for cost in costs)
    pieces = sum(cost.pieces for cost in costs)
    return {
        **_truncated(costs),
        "episodes": len(costs),
        "pieces": pieces,
        "tokens_read": sum(read) if read else None,
        "adapt_seconds": adapt_seconds,
        "adapt_ms_per_piece": adapt_seconds * 1000 / pieces if pieces else None,
        "encode_seconds": sum(cost.encode_seconds for cost in costs),
        "ask_seconds": sum(sample.ask_ms for sample in samples) / 1000,
        "ask_ms": fmean(sample.ask_ms for sample in samples) if samples else None,
        "state_bytes": max((cost.state_bytes for cost in costs), default=0),
        "patch_bytes": max((cost.patch_bytes for cost in costs), default=0),
        "adapt_peak_memory_bytes": max((cost.adapt_peak_bytes for cost in costs), default=0),
        "ask_peak_memory_bytes": max((cost.ask_peak_bytes for cost in costs), default=0),
        "peak_memory_bytes": max((max(cost.adapt_peak_bytes, cost.ask_peak_bytes) for cost in costs), default=0),
    }
