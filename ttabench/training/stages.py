"""A training by its recipe: stages one after the other, each with a checkpoint that the next one begins from.

A recipe may ask for an earlier stage: another method, on whose checkpoint the base then stands (a LoRA), or the method
itself with other settings, whose parameters are trained on. Its checkpoint lies in the folder `first` of the later one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from itertools import chain, cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_type_hints

from ttabench.core.declared import (
    create_fields_model,
    format_setting,
    parse_assignments,
    parse_value,
    validate_arguments,
    validate_model,
)
from ttabench.core.digests import canonical_json, non_default_values, short_hash
from ttabench.core.environment import restore_global_state, seed_everything
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import ProgressCallback, no_log, no_progress
from ttabench.methods.checkpoints import HEADER_FILE, is_peft_folder, read_header
from ttabench.methods.settings import resolve_preset
from ttabench.methods.spec import MethodSpec, Recipe
from ttabench.readers.cards import load_yaml
from ttabench.records.local_paths import source_name
from ttabench.run.evaluation import ModelCache
from ttabench.run.plan import Plan, make_plan
from ttabench.run.request import NO_CHECKPOINT, RunRequest, UserPath
from ttabench.run.resolve import resolve_method, training_prompt
from ttabench.training.config import TrainConfig, TrainOptions, TrainRecord, untrainable_error

if TYPE_CHECKING:
    from ttabench.core.types import Episode
    from ttabench.lm.model import LM

FIRST_STAGE_FOLDER = "first"
"""Folder of the stage before, in that of the one that stands on it."""
MAX_EPISODE_QUERIES = 10**6
"""Queries of one training episode."""
RESUME_DIGESTS = ("card", "reader", "method", "model")
"""Of the digests of what a run reads, those that a training must have in common with one that goes on."""
VALIDATION_EPISODES = 4
"""Episodes of a task in a validation: a book each, or a few documents with their queries."""


OpenProgress: TypeAlias = Callable[[], AbstractContextManager[ProgressCallback]]
"""Opened once a stage, for the ticks of its steps."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One of the trainings that a recipe asks for: a method, on a base, into a folder."""

    request: RunRequest
    recipe: Recipe
    out: Path

    def on_top_of(self, before: Stage | None) -> Stage:
        """The same once the stage before is trained: its parameters go on, or the base stands on its checkpoint."""
        if before is None:
            return self
        if before.request.method != self.request.method:
            return replace(self, request=replace(self.request, base_checkpoint=str(before.out)))
        own_settings, earlier_settings = (
            resolve_method(stage.request).settings for stage in (self, before)
        )
        differing = tuple(
            f"{key}={format_setting(value)}"
            for key, value in own_settings.items()
            if value != earlier_settings[key]
        )
        settings, below = (*self.request.settings, *differing), before.request.base_checkpoint
        request = replace(
            self.request, settings=settings, checkpoint=str(before.out), base_checkpoint=below
        )
        return replace(
            self, request=replace(request, preset="")
        )  # the checkpoint brings its settings


@dataclass(frozen=True, kw_only=True)
class TrainPlan:
    """A training whose words were all checked; nothing is loaded yet."""

    stages: Sequence[Stage]
    options: TrainOptions
    log: Callable[[str], None] = no_log
    """Told in one line what else is worth knowing."""

    def run(self, open_progress: OpenProgress = lambda: nullcontext(no_progress)) -> TrainRecord:
        """Train all stages, of which those that are trained return at once; returns the record of the last."""
        before: Stage | None = None
        for number, stage in enumerate(self.stages, 1):
            before, words = stage.on_top_of(before), f"stage {number} of {len(self.stages)} trained"
            try:
                record = self._train(
                    before, "trained" if stage is self.stages[-1] else words, open_progress
                )
            except KeyboardInterrupt:
                self._log_saved_step(before)
                raise
        return record

    def _log_saved_step(self, stage: Stage) -> None:
        """Say at which step an interrupted training continues."""
        if step := read_header(stage.out).step if (stage.out / HEADER_FILE).exists() else 0:
            force = "" if self.options.resume else " without --force"
            words = f"Repeat the command{force} to continue after it."
            self.log(f"Step {step} of {stage.recipe.steps} is saved in {stage.out}. {words}")
        else:
            self.log(f"No step is saved in {stage.out}. The same command begins at step 1.")

    @restore_global_state()
    def _train(self, stage: Stage, words: str, open_progress: OpenProgress) -> TrainRecord:
        """Train the method of a stage and store its checkpoint."""
        from ttabench.training.loop import (
            train as train_method,  # torch comes once nothing typed is refused
        )
        from ttabench.training.training_state import check_folder

        options, recipe = self.options, stage.recipe
        plan = make_plan(stage.request, options.seed)
        config = _train_config(stage, options, plan)
        check_folder(stage.out, resume=options.resume)
        seed_everything(options.seed)
        base = ModelCache().get(plan.request, chat_template=plan.config.chat_template)
        if base.stands_on:
            config = replace(
                config, stands_on={key: base.stands_on[key] for key in ("name", "digest")}
            )
        method = plan.resolved.build(base)
        plans = [plan, *plan_further_tasks(plan.request, options.also, options.seed)]
        episodes_of_steps = make_batches(plans, recipe, base, options.seed)
        validation: dict[str, list[Episode]] = {}
        for task_plan in plans if options.validate_every else ():
            episodes = list(islice(self._validation(task_plan, recipe, base), VALIDATION_EPISODES))
            validation.setdefault(task_plan.task.card.name, []).extend(episodes)
        with open_progress() as on_progress:

            def on_step(step: int, parts: Mapping[str, float]) -> None:
                speed = f"{parts['tokens_per_second']:,.0f} tokens/s"
                on_progress(f"{words}, loss {parts['loss']:.3f}, {speed}", step, recipe.steps)

            return train_method(method, episodes_of_steps, config, on_step, validation)

    def _validation(self, plan: Plan, recipe: Recipe, base: LM) -> Iterator[Episode]:
        """Episodes of the last lesson's length, of the task's validation split."""
        from ttabench.readers import load

        task, split = plan.task, "validation"
        if split not in task.card.splits or task.split == split:
            return
        task_options = parse_assignments(plan.request.task_options, "--task-set")
        try:
            held_out = load(
                plan.request.task, source=plan.config.source, split=split, options=task_options
            )
        except UserError as error:
            self.log(f"Note: nothing is validated: {error}")
            return
        if held_out.describe()["digest"] == plan.config.inputs.get(
            "rows"
        ):  # one file of one's own serves as any split
            self.log("Note: nothing is validated: the source has one split, which is trained on.")
            return
        yield from held_out.training_episodes(0, recipe.documents[-1], recipe.questions, base)


def plan_training(
    request: RunRequest,
    changes: Mapping[str, Any],
    options: TrainOptions,
    out: Path,
    log: Callable[[str], None] = no_log,
) -> TrainPlan:
    """The stages of a training, checked: what is wrong with one is said before anything is trained."""
    request, also = split_mixture(request, options.also)
    options = replace(options, also=also)
    resolved = make_plan(request, options.seed).resolved
    preset = resolve_preset(resolved.spec, request.preset, request.model)
    recipe = make_recipe(resolved.spec, preset, changes)
    stages = _stages(request, recipe, out)
    for stage in reversed(stages):
        plan = make_plan(stage.request, options.seed)
        if not plan.resolved.spec.trainable:
            raise untrainable_error(plan.resolved.spec.name)
        _train_config(stage, options, plan)
    return TrainPlan(stages=stages, options=options, log=log)


def _stages(request: RunRequest, recipe: Recipe, out: Path) -> list[Stage]:
    """The trainings of a recipe in order; one, where there is a checkpoint to begin from already."""
    own, first = Stage(request=request, recipe=recipe, out=out), recipe.first
    continues_method = first is not None and first.method == request.method
    has_checkpoint = (
        request.checkpoint not in ("", NO_CHECKPOINT)
        if continues_method
        else bool(request.base_checkpoint)
    )
    if first is None or has_checkpoint:
        return [own]
    task_options = (*request.task_options, *first.task_options)
    if continues_method:
        before = replace(
            request, settings=(*request.settings, *first.settings), task_options=task_options
        )
        if (
            resolve_method(before).settings == resolve_method(request).settings
        ):  # it is what was asked for
            return [own]
    else:
        before = replace(
            request, method=first.method, settings=first.settings, task_options=task_options
        )
        before = replace(before, preset="", checkpoint=NO_CHECKPOINT)
    return [*_stages(before, first.recipe, out / FIRST_STAGE_FOLDER), own]


def make_recipe(spec: MethodSpec, preset: str, changes: Mapping[str, Any]) -> Recipe:
    """The preset's recipe, with what is said otherwise (None and "" say nothing; `documents` may be a typed list)."""
    changed_fields = {key: value for key, value in changes.items() if value not in (None, "")}
    if isinstance(changed_fields.get("documents"), str):
        changed_fields["documents"] = parse_value(
            changed_fields["documents"], tuple[int, ...], "--documents"
        )
    recipe = replace(spec.recipes.get(preset, Recipe()), **changed_fields)
    if recipe.rounds < 1:
        raise UserError(f"--rounds must be at least 1, got {recipe.rounds}.")
    if not recipe.documents or min(*recipe.documents, recipe.questions) < 1:
        raise UserError(
            "--documents and --questions must be at least 1.",
            "Leave them out for those of the preset.",
        )
    if (asked := max(recipe.documents) * recipe.questions) > MAX_EPISODE_QUERIES:
        raise UserError(
            f"An episode of {asked:,} questions is too long.",
            "Give fewer --documents or --questions.",
        )
    return recipe


def _train_config(stage: Stage, options: TrainOptions, plan: Plan) -> TrainConfig:
    """How the loop trains, with what its checkpoint tells of the data."""
    task, run = plan.task, plan.config
    asked = list(stage.request.task_options)
    data: dict[str, Any] = {
        "task": task.card.name,
        "source": source_name(task.source),
        "split": task.split,
        "options": asked,
    }
    data |= {
        key: getattr(stage.recipe, key)
        for key in ("documents", "rounds", "questions", "batch_documents")
    }
    data |= training_prompt(run.task_options, run.chat_template)
    data["digest"] = run.inputs.get("rows", "")
    data["protocol"] = short_hash(
        canonical_json(non_default_values(run.task_options, run.defaults["task_options"]))
    )
    data |= {
        name: value
        for name, value in run.inputs.items()
        if name in RESUME_DIGESTS or name.startswith("setting ")
    }
    if plan.resolved.checkpoint_digest:
        data["begins"] = plan.resolved.checkpoint_digest
    for task_plan in plan_further_tasks(plan.request, options.also, options.seed):
        named: dict[str, Any] = {
            "task": task_plan.task.card.name,
            "source": source_name(task_plan.task.source),
        }
        named |= {"digest": task_plan.config.inputs.get("rows", "")}
        named |= (
            {"options": list(task_plan.request.task_options)}
            if task_plan.request.task_options
            else {}
        )
        data.setdefault("also", []).append(named)
    initial_checkpoint = plan.resolved.checkpoint
    if initial_checkpoint is not None and is_peft_folder(initial_checkpoint):
        hint = "Train on top of it: --base-checkpoint."
        raise UserError(f"No training goes on from {initial_checkpoint}, an adapter of peft.", hint)
    config_fields = {**vars(stage.recipe), **vars(options)}
    try:
        return TrainConfig(
            **config_fields, out=stage.out, fresh=initial_checkpoint is None, data=data
        )
    except ValueError as error:
        raise UserError(f"Training: {error}.", "See `ttabench train --help`.") from None


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
    """Train a method on a task as `ttabench train` does, all stages of its recipe; the same call resumes.

    Arguments are named as the command's options are. `settings` and `task_options` are those that differ from preset
    and card, `recipe` fields of `Recipe` that differ from the preset's: `steps=500`, `documents=(8, 16)`, `lr=1e-3`.
    A UserError says in one line what does not fit, and what to do.
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
        settings=_format_assignments(settings),
        task_options=_format_assignments(task_options),
        device=device,
    )
    if isinstance(documents := recipe.get("documents"), int):
        recipe["documents"] = (documents,)
    validate_model(create_fields_model(get_type_hints(Recipe)), recipe, "train")
    return plan_training(request, recipe, options or TrainOptions(), Path(out)).run()


def _format_assignments(values: Mapping[str, object] | None) -> tuple[str, ...]:
    """Values by name, as they are typed."""
    return tuple(f"{key}={format_setting(value)}" for key, value in (values or {}).items())


def split_mixture(request: RunRequest, also: Sequence[str]) -> tuple[RunRequest, tuple[str, ...]]:
    """The first task of a mixture, and the others as words of `--also`; of another task nothing changes."""
    path = Path(request.task)
    if (
        path.suffix not in (".yaml", ".yml")
        or not isinstance(data := load_yaml(path), dict)
        or "tasks" not in data
    ):
        return request, tuple(also)
    words = data["tasks"]
    if len(data) > 1 or not (
        isinstance(words, list) and words and all(isinstance(task_plan, str) for task_plan in words)
    ):
        fault = f"The mixture {path} is no list of tasks."
        raise UserError(
            fault, 'Write tasks: [NAME, "NAME=SOURCE OPTION=VALUE"], as --also takes them.'
        )
    first = _request_for_task(request, words[0])
    return replace(first, task_options=(*first.task_options, *request.task_options)), (
        *words[1:],
        *also,
    )


def _request_for_task(request: RunRequest, words: str) -> RunRequest:
    """The request for another task, `NAME=SOURCE OPTION=VALUE`; of the same kind of source where none is named."""
    named, *options = words.split() or [""]
    name, _, source = named.partition("=")
    return replace(request, task=name, source=source or request.source, task_options=tuple(options))


def plan_further_tasks(request: RunRequest, also: Sequence[str], seed: int) -> list[Plan]:
    """Further tasks, as their cards and `also` say; a UserError where one cannot be used."""
    return [make_plan(_request_for_task(request, words), seed) for words in also]


def make_batches(
    plans: Sequence[Plan], recipe: Recipe, base: LM, seed: int
) -> Iterator[list[Episode]]:
    """The episodes of each step: tasks take turns, a step each, and each goes through the documents of the recipe on
    its own; ends where the task whose turn it is has no more. Of several tasks each reads `batch_documents` pieces."""
    steps = -(-recipe.steps // len(plans))
    tasks = []
    for plan in plans:
        streams = []
        for lesson, documents in enumerate(recipe.documents):
            episodes = plan.task.training_episodes(
                seed + 1_000_003 * lesson, documents, recipe.questions, base
            )
            first = list(
                islice(episodes, len(plans) > 1)
            )  # a book of a mixture has as many pieces as it has
            read = max((len(episode.chunks()) for episode in first), default=0)
            streams.append((chain(first, episodes), recipe.episodes(max(documents, read))))
        tasks.append(curriculum_batches(streams, steps, recipe.rounds))
    for task in cycle(tasks):
        batch = next(task, None)
        if batch is None:
            return
        yield batch


def curriculum_batches(
    streams: Sequence[tuple[Iterator[Episode], int]], steps: int, rounds: int = 1
) -> Iterator[list[Episode]]:
    """Batches of a curriculum: the steps are shared out evenly among the lessons, one after the other. `streams`: for
    each lesson its episodes, and how many of them a step takes; `rounds`: how often all lessons come in turn, with many
    of which they are mixed; where steps are too few for so many, every step is the next lesson."""
    turns = len(streams) * rounds
    for step in range(steps):
        stream, count = streams[(step if steps < turns else step * turns // steps) % len(streams)]
        yield list(islice(stream, count))
