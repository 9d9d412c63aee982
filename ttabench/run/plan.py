"""Plans: fully resolved runs before any model is loaded. `plan.config.identity()` is the run id."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ttabench.core.architectures import ARCHITECTURES, NANO
from ttabench.core.digests import digest_path
from ttabench.core.errors import UserError, require_known
from ttabench.core.types import Json, Mode
from ttabench.lm.loading.hub import refuse_missing_model
from ttabench.methods.settings import default_settings
from ttabench.readers import READERS, Task, content_digest, load
from ttabench.readers.cards import load_card
from ttabench.readers.sources import default_options as default_options, default_source
from ttabench.records.run_fields import RUN_FIELDS, RunConfig, RunFields
from ttabench.records.samples import SAMPLE_COLUMNS
from ttabench.run.adapters import checkpoint_path
from ttabench.run.prompts import ResolvedPrompt, resolve_prompt
from ttabench.run.request import RunRequest
from ttabench.run.resolve import ResolvedMethod, resolve_method
from ttabench.stats.metrics import Metric, check_metric_modes, metric

T = TypeVar("T")
F = TypeVar("F", bound=RunFields)
BUILTIN_ORIGIN = "ttabench"
"""Origin of the metrics of this package."""


class PlanCache(dict[tuple[object, ...], Any]):
    """Values shared by the plans of one command, such as the rows of a task."""

    def get_or_make(self, *key: object, make: Callable[[], T]) -> T:
        """Return the value of `make`, cached by key."""
        value: T = self[key] if key in self else self.setdefault(key, make())
        return value


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Fully resolved run, before any model is loaded."""

    request: RunRequest
    config: RunConfig
    resolved: ResolvedMethod
    task: Task[Any]
    task_record: Mapping[str, Json]
    """Description of the task for the record, including its metrics."""
    metrics: tuple[Metric, ...]


def resolve_dtype(fields: F) -> F:
    """Replace the data type `fastest` by the one that is measured to be fastest on this device."""
    if fields.dtype != "fastest":
        return fields
    from ttabench.lm.loading.devices import fastest_dtype

    return replace(fields, dtype=fastest_dtype(fields.device))


def make_plan(request: RunRequest, seed: int, shared: PlanCache | None = None) -> Plan:
    """Resolve a request for one seed.

    Args:
        seed: seed of the data order and of all random numbers.
        shared: cache shared with other plans. Plans of one task then share one `task` object, so
            they must not be run.
    """
    if request.ask_only and request.state is None:
        hint = "Add --state DIR, or use --method none."
        raise UserError("--ask-only reads no context, so it needs a state.", hint)
    if request.state_of != "own" and request.state is not None:
        raise UserError(
            "--swap-state creates its own states and excludes --state.", "Remove one of them."
        )
    request = resolve_dtype(request)
    cache = PlanCache() if shared is None else shared
    read_card = cache.get_or_make("card", request.task, make=lambda: load_card(request.task))
    source = request.source or default_source(read_card, nano=request.model == NANO)
    prompt = resolve_prompt(request, read_card)
    resolved = resolve_method(request)
    load_options: dict[str, Any] = {
        "source": source,
        "split": request.split,
        "seed": seed,
        "limit": request.limit,
    }
    task_key = (request.task, *load_options.values(), tuple(prompt.options.items()))
    try:
        task = cache.get_or_make(
            "task",
            *task_key,
            make=lambda: load(prompt.card, **load_options, options=prompt.options),
        )
    except UserError:
        if source == "hub" and not request.random_weights:
            # blame a wrong model name first: model and task come from the same hub
            refuse_missing_model(request.model)
        raise
    record = dict(cache.get_or_make("record", *task_key, make=task.describe))
    if request.state_of != "own" and not task.n_chunks:
        fault = f"{task.card.name} has no context with these options, so no state can be swapped."
        raise UserError(fault, "Set other values with --task-set, or remove --swap-state.")
    if request.state_of == "other":
        record["others"] = cache.get_or_make("others", *task_key, make=task.describe_swapped)
    card = task.card
    metrics = _select_metrics(request.metric, task)
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
        chat_template=prompt.chat,
        inputs=_input_digests(request, resolved, prompt, record, metrics, cache),
        defaults={
            "settings": default_settings(resolved.spec),
            "task_options": default_options(card, source),
        },
    )
    return Plan(
        request=request,
        config=config,
        resolved=resolved,
        task=task,
        task_record=record,
        metrics=metrics,
    )


def _select_metrics(requested: str, task: Task[Any]) -> tuple[Metric, ...]:
    """Return the requested metric, if any, followed by those of the task."""
    task_metrics = tuple(metric(name) for name in task.card.metrics)
    if not requested:
        return task_metrics
    chosen = metric(requested, files=True)
    mode: Mode = next(
        (query.mode for episode in task.episodes() for query in episode.queries()), "generate"
    )
    if chosen.name in SAMPLE_COLUMNS:
        raise UserError(
            f"The metric name {chosen.name} is reserved for a column of samples.",
            "Use another name.",
        )
    check_metric_modes(task.card.name, [chosen], mode)
    return (chosen, *(other for other in task_metrics if other.name != chosen.name))


def _input_digests(
    request: RunRequest,
    resolved: ResolvedMethod,
    prompt: ResolvedPrompt,
    record: Mapping[str, Json],
    metrics: Sequence[Metric],
    cache: PlanCache,
) -> dict[str, str]:
    """Return digests of all inputs of a run, by name.

    Built-in metrics count only if `--metric` makes one of them the main metric.
    """
    digests = {
        "card": content_digest(prompt.card),
        "reader": READERS.origin(prompt.card.reader),
        "rows": str(record["digest"]),
        "method": resolved.spec.origin,
        "others": str(record["others"]["digest"]) if "others" in record else "",
        "template": prompt.template_values,
    }
    for chosen in metrics:
        if chosen.origin or chosen.name == record["main_metric"] != prompt.card.main_metric:
            digests[f"metric {chosen.name}"] = chosen.origin or BUILTIN_ORIGIN
    return {name: value for name, value in digests.items() if value} | file_digests(
        request, resolved, cache
    )


def file_digests(
    request: RunRequest, resolved: ResolvedMethod, cache: PlanCache | None = None
) -> dict[str, str]:
    """Return digests of the files that a run loads after planning, named as `RunConfig.inputs`."""
    base = (request.model, request.base_checkpoint, request.random_weights)
    cache = PlanCache() if cache is None else cache
    digests = {
        **cache.get_or_make("base", *base, make=lambda: base_model_digests(request)),
        "checkpoint": resolved.checkpoint_digest,
        "state": digest_path(request.state) if request.state is not None else "",
        **resolved.setting_inputs(),
    }
    return {name: value for name, value in digests.items() if value}


def base_model_digests(request: RunRequest) -> dict[str, str]:
    """Return digests of the base model and of its base checkpoint; random weights have none.

    Raises:
        UserError: the model is unknown.
    """
    from ttabench.lm.loading.hub import model_digest

    if request.random_weights:
        require_known("architecture for --random-weights", request.model, ARCHITECTURES)
    return {
        "model": "" if request.random_weights else model_digest(request.model),
        "base_checkpoint": digest_path(checkpoint_path(request.base_checkpoint, request.model))
        if request.base_checkpoint
        else "",
    }
