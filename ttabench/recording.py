"""The record of a run that is done: aggregate its samples and costs, and say what it stood on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ttabench import environment
from ttabench.metrics import aggregate
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
        notes=(*notes(plan, lm), *_truncations(folder.costs)),
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
    }


def _truncated(costs: Sequence[EpisodeCost]) -> dict[str, int]:
    names = sorted({name for cost in costs for name in cost.truncated})
    return {name: sum(cost.truncated.get(name, 0) for cost in costs) for name in names}


def _truncations(costs: Sequence[EpisodeCost]) -> list[str]:
    return [f"not all context was read: {name} {lost:,}" for name, lost in _truncated(costs).items() if lost]


def tidy_rows(plan: Plan, samples: Sequence[Sample]) -> list[Row]:
    """One row a metric, over all steps and, where there are several, for each step."""
    steps = sorted({sample.step for sample in samples})
    groups: list[tuple[int | None, list[Sample]]] = [(None, list(samples))]
    if len(steps) > 1:
        groups += [(step, [sample for sample in samples if sample.step == step]) for step in steps]
    return [_row(plan, step, group, metric) for step, group in groups for metric in plan.task.card.metrics]


def _row(plan: Plan, step: int | None, samples: Sequence[Sample], metric: str) -> Row:
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
        step=step,
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
