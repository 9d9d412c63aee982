"""A resolved run: every choice is made, and no model is loaded; `plan.config.identity()` is the run's id."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ttabench.core.architectures import ARCHITECTURES, NANO
from ttabench.core.digests import digest
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Json, Mode
from ttabench.lm.loading.hub import refuse_missing
from ttabench.lm.texts import template_of, template_values
from ttabench.methods.settings import defaults
from ttabench.readers import Task, content_digest, load, origin
from ttabench.readers.cards import load_card
from ttabench.readers.sources import defaults as task_defaults
from ttabench.readers.sources import usual_source
from ttabench.records.run_fields import RUN_FIELDS, RunConfig
from ttabench.records.samples import COLUMNS
from ttabench.run.request import RunRequest
from ttabench.run.resolve import Prompting, ResolvedMethod, named, resolve_method, resolve_prompting
from ttabench.stats.metrics import Metric, check_judges, metric

T = TypeVar("T")
OURS = "ttabench"
"""The origin of metrics that are."""


class Shared(dict[tuple[object, ...], Any]):
    """Values that plans of one command share, such as the rows of a task."""

    def once(self, *key: object, make: Callable[[], T]) -> T:
        """The value of `make`, or of the earlier call with the same key."""
        value: T = self[key] if key in self else self.setdefault(key, make())
        return value


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A resolved run: nothing is left to decide, no model is loaded."""

    request: RunRequest
    config: RunConfig
    resolved: ResolvedMethod
    task: Task
    task_record: Mapping[str, Json]
    """The task's own description for the record, its metrics included."""
    metrics: tuple[Metric, ...]


def make_plan(request: RunRequest, seed: int, shared: Shared | None = None) -> Plan:
    """Resolve a request for one seed, that of the order of the data and of everything random.

    `shared` is what other plans were made of; plans of one task then have one `task`, which should not be run.
    """
    if request.ask_only and request.state is None:
        hint = "Give --state DIR, or use --method none."
        raise UserError("--ask-only reads no context, and no state is given.", hint)
    if request.state_of != "own" and request.state is not None:
        raise UserError("--swap-state makes its own states, so --state cannot be given.", "Leave one of them out.")
    known = Shared() if shared is None else shared
    read_card = known.once("card", request.task, make=lambda: load_card(request.task))
    source = request.source or usual_source(read_card, nano=request.model == NANO)
    asked = resolve_prompting(request, read_card)
    resolved = resolve_method(request)
    how: dict[str, Any] = {"source": source, "split": request.split, "seed": seed, "limit": request.limit}
    of_task = (request.task, *how.values(), tuple(asked.options.items()))
    try:
        task = known.once("task", *of_task, make=lambda: load(asked.card, **how, options=asked.options))
    except UserError:
        if source == "hub" and not request.random_weights:
            refuse_missing(request.model)  # a wrong name, rather than the hub that both are fetched from
        raise
    record = dict(known.once("record", *of_task, make=task.describe))
    if request.state_of != "own" and not task.n_observes:
        fault = f"{task.card.name} has no context to read with these options, so there is no state to swap."
        raise UserError(fault, "Change --task-set, or leave --swap-state out.")
    if request.state_of == "other":
        record["others"] = known.once("others", *of_task, make=task.describe_others)
    card = task.card
    metrics = _metrics_of(request.metric, task)
    main = metrics[0].name if request.metric else card.main_metric
    record |= {"metrics": [chosen.name for chosen in metrics], "main_metric": main}
    record["chance"] = card.chance if main == card.main_metric else None
    if declared := {chosen.name: chosen.declared for chosen in metrics if chosen.origin}:
        record["declared"] = declared
    config = RunConfig(
        **{name: getattr(request, name) for name in RUN_FIELDS},
        method=resolved.spec.name,
        task=card.name,
        source=source,
        seed=seed,
        preset=resolved.preset,
        settings=resolved.settings,
        task_options={**record.get("arguments", {}), **record["protocol"]},
        checkpoint=resolved.checkpoint_name(),
        state=str(request.state or ""),
        chat_template=asked.chat,
        inputs=_inputs(request, resolved, asked, record, metrics, known),
        defaults={"settings": defaults(resolved.spec), "task_options": task_defaults(card, source)},
    )
    return Plan(request=request, config=config, resolved=resolved, task=task, task_record=record, metrics=metrics)


def _metrics_of(wanted: str, task: Task) -> tuple[Metric, ...]:
    """The metric that was asked for, if one was, and those of the task."""
    own = tuple(metric(name) for name in task.card.metrics)
    if not wanted:
        return own
    chosen = metric(wanted, files=True)
    mode: Mode = next((ask.mode for episode in task.episodes() for ask in episode.asks()), "generate")
    if chosen.name in COLUMNS:
        raise UserError(f"The metric {chosen.name} has the name of a column of samples.", "Give it another name.")
    check_judges(task.card.name, [chosen], mode)
    return (chosen, *(other for other in own if other.name != chosen.name))


def _inputs(
    request: RunRequest,
    resolved: ResolvedMethod,
    asked: Prompting,
    record: Mapping[str, Json],
    metrics: Sequence[Metric],
    known: Shared,
) -> dict[str, str]:
    """Digests of what a run reads, by name: metrics that are not ttabench's own, or that another than the card made the
    main one, among it."""
    digests = {
        "card": content_digest(asked.card),
        "reader": origin(asked.card.reader),
        "rows": str(record["digest"]),
        "method": resolved.spec.origin,
        "others": str(record["others"]["digest"]) if "others" in record else "",
        "template": template_values(template_of(request.model), thinking=request.thinking) if asked.chat else "",
    }
    for chosen in metrics:
        if chosen.origin or chosen.name == record["main_metric"] != asked.card.main_metric:
            digests[f"metric {chosen.name}"] = chosen.origin or OURS
    return {name: value for name, value in digests.items() if value} | file_inputs(request, resolved, known)


def file_inputs(request: RunRequest, resolved: ResolvedMethod, known: Shared | None = None) -> dict[str, str]:
    """Digests of the files that a run loads after it was planned, by the names of `RunConfig.inputs`."""
    base = (request.model, request.base_checkpoint, request.random_weights)
    memo = Shared() if known is None else known
    digests = {
        **memo.once("base", *base, make=lambda: base_inputs(request)),
        "checkpoint": resolved.checkpoint_digest,
        "state": digest(request.state) if request.state is not None else "",
        **resolved.setting_inputs(),
    }
    return {name: value for name, value in digests.items() if value}


def base_inputs(request: RunRequest) -> dict[str, str]:
    """Digests of the base model (none of random weights) and of the checkpoint it stands on; an unknown model is
    refused."""
    from ttabench.lm.loading.hub import digest_of

    if request.random_weights and request.model not in ARCHITECTURES:
        raise UnknownName("architecture for --random-weights", request.model, list(ARCHITECTURES))
    checkpoint = request.base_checkpoint and digest(named(request.base_checkpoint, request.model))
    return {"model": "" if request.random_weights else digest_of(request.model), "base_checkpoint": checkpoint}
