"""Training by a recipe: stages in sequence, each with a checkpoint from which the next one begins.

A recipe may need an earlier stage. If it trains another method, the base model then contains its
checkpoint (a LoRA). If it trains the same method with other settings, its parameters are trained
further. Its checkpoint is in the folder `first` of the later one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_type_hints

from ttabench.core.declared import (
    create_fields_model,
    format_assignments,
    parse_assignments,
    parse_value,
    validate_arguments,
    validate_model,
)
from ttabench.core.digests import canonical_json, non_default_values, short_hash
from ttabench.core.environment import restore_global_state, seed_everything
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Json, ProgressCallback, no_log, no_progress
from ttabench.methods.checkpoints import HEADER_FILE, is_peft_folder, read_header
from ttabench.methods.registry import find_method
from ttabench.methods.settings import resolve_preset
from ttabench.methods.spec import MethodSpec, Recipe, Stage
from ttabench.methods.states import SETTING_PREFIX
from ttabench.readers.cards import load_yaml
from ttabench.records.local_paths import source_name
from ttabench.run.evaluation import ModelCache
from ttabench.run.plan import Plan, make_plan
from ttabench.run.prompts import training_prompt
from ttabench.run.request import NO_CHECKPOINT, RunRequest, UserPath
from ttabench.run.tracking import LogMetrics, log_nothing
from ttabench.training.batches import make_batches
from ttabench.training.config import (
    RECORDED_RECIPE_FIELDS,
    TrainConfig,
    TrainOptions,
    TrainRecord,
    untrainable_error,
)

if TYPE_CHECKING:
    from ttabench.core.types import Episode
    from ttabench.lm.model import LM
    from ttabench.training.loop import OnStep

FIRST_STAGE_FOLDER = "first"
"""Folder of the previous stage, inside that of the stage that builds on it."""
MAX_EPISODE_QUERIES = 10**6
"""Maximum queries of one training episode."""
RESUME_DIGESTS = ("card", "reader", "method", "model")
"""Run inputs that a resumed training must share with the saved one."""
VALIDATION_EPISODES = 4
"""Episodes per task in a validation: a book each, or a few documents with their queries."""


OpenProgress: TypeAlias = Callable[[], AbstractContextManager[ProgressCallback]]
"""Opens the progress callback of a stage."""


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """One training of a recipe, resolved: a method, on a base model, into a folder."""

    config: TrainConfig
    plans: Sequence[Plan]
    """Plan of the task, and those of further tasks."""

    def on_top_of(self, before: PlannedStage) -> PlannedStage:
        """Return the stage on top of the previous one, after that was trained.

        Its parameters are trained further if it is the same method; otherwise its checkpoint goes
        into the base model.
        """
        request, earlier = self.plans[0].request, before.plans[0].request
        trained, first = str(before.config.out), self.config.first
        assert first is not None, "only a recipe with a first stage has a previous stage"
        if earlier.method != request.method:
            return _plan_stage(replace(request, base_checkpoint=trained), self.config)
        # the first stage has other settings, and its checkpoint brings them
        own_settings = self.plans[0].resolved.settings_object
        restored = {key: getattr(own_settings, key) for key in first.settings}
        continued = replace(
            request,
            settings={**request.settings, **restored},
            checkpoint=trained,
            base_checkpoint=earlier.base_checkpoint,
            preset="",
        )
        return _plan_stage(continued, self.config)


@dataclass(frozen=True, kw_only=True)
class TrainPlan:
    """A training with all its settings checked; nothing is loaded yet."""

    stages: Sequence[PlannedStage]
    log: Callable[[str], None] = no_log
    """Receives notes, one line each."""

    def run(
        self,
        open_progress: OpenProgress = lambda: nullcontext(no_progress),
        log_metrics: LogMetrics = log_nothing,
    ) -> TrainRecord:
        """Train all stages and return the record of the last; finished stages return at once.

        `log_metrics` gets the stage, the step and the parts of the loss after every step.
        """
        before: PlannedStage | None = None
        for number, stage in enumerate(self.stages, 1):
            current = stage if before is None else stage.on_top_of(before)
            label = f"stage {number} of {len(self.stages)} trained"
            if number == len(self.stages):
                label = "trained"

            def log_step(step: int, parts: Mapping[str, float], number: int = number) -> None:
                log_metrics({"stage": number, "step": step, **parts})

            try:
                record = self._train(current, label, open_progress, log_step)
            except KeyboardInterrupt:
                self._log_saved_step(current.config)
                raise
            before = current
        return record

    def _log_saved_step(self, config: TrainConfig) -> None:
        """Log the step at which an interrupted training continues."""
        out = config.out
        assert out is not None
        if step := read_header(out).step if (out / HEADER_FILE).exists() else 0:
            force = "" if config.resume else " without --force"
            hint = f"Run the same command{force} to continue after it."
            self.log(f"Step {step} of {config.steps} is saved in {out}. {hint}")
        else:
            self.log(f"No step is saved in {out}. The same command begins at step 1.")

    @restore_global_state()
    def _train(
        self, stage: PlannedStage, label: str, open_progress: OpenProgress, log_step: OnStep
    ) -> TrainRecord:
        # torch is imported only after all arguments were checked
        from ttabench.training.loop import train as train_method
        from ttabench.training.training_state import check_folder

        config, plan = stage.config, stage.plans[0]
        assert config.out is not None
        check_folder(config.out, resume=config.resume)
        seed_everything(config.seed)
        base = ModelCache().get(plan.request, chat_template=plan.config.chat_template)
        if base.stands_on:
            config = replace(
                config, stands_on={key: base.stands_on[key] for key in ("name", "digest")}
            )
        method = plan.resolved.build(base)
        episodes_of_steps = make_batches(stage.plans, config, base, config.seed)
        validation: dict[str, list[Episode]] = {}
        for task_plan in stage.plans if config.validate_every else ():
            episodes = list(islice(self._validation(task_plan, config, base), VALIDATION_EPISODES))
            validation.setdefault(task_plan.task.card.name, []).extend(episodes)
        with open_progress() as on_progress:

            def on_step(step: int, parts: Mapping[str, float]) -> None:
                speed = f"{parts['tokens_per_second']:,.0f} tokens/s"
                on_progress(f"{label}, loss {parts['loss']:.3f}, {speed}", step, config.steps)
                log_step(step, parts)

            return train_method(method, episodes_of_steps, config, on_step, validation)

    def _validation(self, plan: Plan, recipe: Recipe, base: LM) -> Iterator[Episode]:
        """Yield validation episodes of the task, as long as those of the last curriculum step."""
        from ttabench.readers import load

        task, split = plan.task, "validation"
        if split not in task.card.splits or task.split == split:
            return
        options = plan.request.task_options
        try:
            held_out = load(
                plan.request.task, source=plan.config.source, split=split, options=options
            )
        except UserError as error:
            self.log(f"Note: no validation: {error}")
            return
        # a single file of the user's serves as any split
        if held_out.describe()["digest"] == plan.config.inputs.get("rows"):
            self.log("Note: no validation: the source has only the split that is trained on.")
            return
        yield from held_out.training_episodes(0, recipe.documents[-1], recipe.questions, base)


def plan_training(
    request: RunRequest,
    changes: Mapping[str, Any],
    options: TrainOptions,
    out: Path,
    log: Callable[[str], None] = no_log,
) -> TrainPlan:
    """Plan the stages of a training; faults in any of them are reported before training starts."""
    request, also = split_mixture(request, options.also)
    spec = find_method(request.method)
    recipe = make_recipe(spec, resolve_preset(spec, request.preset, request.model), changes)
    try:
        config = TrainConfig(**{**vars(recipe), **vars(options), "also": also, "out": out})
    except ValueError as error:
        raise UserError(f"Training: {error}.", "See `ttabench train --help`.") from None
    return TrainPlan(stages=_plan_stages(request, config, out), log=log)


def _plan_stages(request: RunRequest, config: TrainConfig, out: Path) -> list[PlannedStage]:
    """Plan the trainings of a recipe in order."""
    own = _plan_stage(request, replace(config, out=out))
    first = config.first
    earlier = None if first is None else _earlier_request(own, first)
    if first is None or earlier is None:
        return [own]
    earlier_config = replace(config, **vars(first.recipe))
    return [*_plan_stages(earlier, earlier_config, out / FIRST_STAGE_FOLDER), own]


def _earlier_request(own: PlannedStage, first: Stage) -> RunRequest | None:
    """Return the request of the earlier stage.

    None if there is already a checkpoint to begin from, or if the stage has the settings of the
    earlier one.
    """
    request = own.plans[0].request
    request = replace(request, task_options={**request.task_options, **first.task_options})
    if first.method != request.method:
        if request.base_checkpoint:
            return None
        return replace(
            request,
            method=first.method,
            settings=first.settings,
            preset="",
            checkpoint=NO_CHECKPOINT,
        )
    settings = own.plans[0].resolved.settings_object
    is_own = all(getattr(settings, key) == value for key, value in first.settings.items())
    if is_own or request.checkpoint not in ("", NO_CHECKPOINT):
        return None
    return replace(request, settings={**request.settings, **first.settings})


def _plan_stage(request: RunRequest, config: TrainConfig) -> PlannedStage:
    """Resolve one training: its tasks, its method, and the origin of its data."""
    requests = (request, *(request_for_task(request, words) for words in config.also))
    plans = [make_plan(each, config.seed) for each in requests]
    resolved, run = plans[0].resolved, plans[0].config
    checkpoint = resolved.checkpoint
    if not resolved.spec.trainable:
        raise untrainable_error(resolved.spec.name)
    if checkpoint is not None and is_peft_folder(checkpoint):
        hint = "Use --base-checkpoint to train on top of it."
        raise UserError(f"{checkpoint} is a peft adapter, which cannot be resumed.", hint)
    data: dict[str, Any] = {
        "split": run.split,
        "options": [],
        **_describe_task(plans[0]),
        **{key: getattr(config, key) for key in RECORDED_RECIPE_FIELDS},
        **training_prompt(run.task_options, run.chat_template),
        "protocol": short_hash(
            canonical_json(non_default_values(run.task_options, run.defaults["task_options"]))
        ),
        **{
            name: value
            for name, value in run.inputs.items()
            if name in RESUME_DIGESTS or name.startswith(SETTING_PREFIX)
        },
    }
    if resolved.checkpoint_digest:
        data["begins"] = resolved.checkpoint_digest
    if plans[1:]:
        data["also"] = [_describe_task(plan) for plan in plans[1:]]
    return PlannedStage(config=replace(config, fresh=checkpoint is None, data=data), plans=plans)


def _describe_task(plan: Plan) -> dict[str, Json]:
    """Return the origin of a task's data, for the record of a checkpoint."""
    record: dict[str, Json] = {
        "task": plan.task.card.name,
        "source": source_name(plan.task.source),
        "digest": plan.config.inputs.get("rows", ""),
    }
    if plan.request.task_options:
        record["options"] = format_assignments(plan.request.task_options)
    return record


def make_recipe(spec: MethodSpec, preset: str, changes: Mapping[str, Any]) -> Recipe:
    """Return the preset's recipe with changes (None and "" change nothing; `documents` may be a
    typed list).
    """
    changed_fields = {key: value for key, value in changes.items() if value not in (None, "")}
    if isinstance(changed_fields.get("documents"), str):
        changed_fields["documents"] = parse_value(
            changed_fields["documents"], tuple[int, ...], "--documents"
        )
    recipe = replace(spec.recipes.get(preset, Recipe()), **changed_fields)
    if recipe.rounds < 1:
        raise UserError(f"--rounds must be at least 1, got {recipe.rounds}.", "Set --rounds 1.")
    if not recipe.documents or min(*recipe.documents, recipe.questions) < 1:
        raise UserError(
            "--documents and --questions must be at least 1.",
            "Remove them to use those of the preset.",
        )
    if (n_queries := max(recipe.documents) * recipe.questions) > MAX_EPISODE_QUERIES:
        raise UserError(
            f"An episode of {n_queries:,} questions is too long.",
            "Use fewer --documents or --questions.",
        )
    return recipe


@validate_arguments
def train(
    method: str,
    task: str = "streamingqa",
    *,
    out: UserPath,
    model: str = "nano",
    source: str = "",
    checkpoint: str = "none",
    base_checkpoint: str = "",
    preset: str = "",
    settings: Mapping[str, object] | None = None,
    task_options: Mapping[str, object] | None = None,
    device: str = "auto",
    options: TrainOptions | None = None,
    **recipe: object,
) -> TrainRecord:
    """Train a method on a task as `ttabench train` does, all stages of its recipe; the same call
    resumes.

    Arguments are named like the command's options. `settings` and `task_options` change those of
    preset and card; `recipe` changes fields of the preset's `Recipe`: `steps=500`, `documents=(8,
    16)`, `lr=1e-3`.

    Raises:
        UserError: an argument is wrong; one line that says what to do.
    """
    known = [field.name for field in fields(Recipe)]
    if unknown := next((name for name in recipe if name not in known), ""):
        raise UnknownName("field of a recipe", unknown, known)
    request = RunRequest(
        method=method,
        task=task,
        split="train",
        model=model,
        source=source,
        checkpoint=checkpoint,
        base_checkpoint=base_checkpoint,
        preset=preset,
        settings=settings or {},
        task_options=task_options or {},
        device=device,
    )
    if isinstance(documents := recipe.get("documents"), int):
        recipe["documents"] = (documents,)
    validate_model(create_fields_model(get_type_hints(Recipe)), recipe, "train")
    return plan_training(request, recipe, options or TrainOptions(), Path(out)).run()


def split_mixture(request: RunRequest, also: Sequence[str]) -> tuple[RunRequest, tuple[str, ...]]:
    """Return the first task of a mixture, and the others in the form of `--also`; any other task is
    returned as it is.
    """
    path = Path(request.task)
    if (
        path.suffix not in (".yaml", ".yml")
        or not isinstance(data := load_yaml(path), dict)
        or "tasks" not in data
    ):
        return request, tuple(also)
    tasks = data["tasks"]
    if len(data) > 1 or not (
        isinstance(tasks, list) and tasks and all(isinstance(task, str) for task in tasks)
    ):
        fault = f"The mixture {path} is not a list of tasks."
        raise UserError(
            fault, 'Use tasks: [NAME, "NAME=SOURCE OPTION=VALUE"], as --also takes them.'
        )
    first = request_for_task(request, tasks[0])
    first = replace(first, task_options={**first.task_options, **request.task_options})
    return first, (*tasks[1:], *also)


def request_for_task(request: RunRequest, words: str) -> RunRequest:
    """Return the request for another task, `NAME=SOURCE OPTION=VALUE`; the source defaults to that
    of `request`.
    """
    named, *options = words.split() or [""]
    name, _, source = named.partition("=")
    task_options = parse_assignments(options, "--also")
    return replace(request, task=name, source=source or request.source, task_options=task_options)
