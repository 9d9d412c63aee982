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

from ttabench.core.declared import as_typed, assignments, checked_arguments, model_of, parse_value, validated
from ttabench.core.digests import changed, hashed, text_of
from ttabench.core.environment import restored, seed_everything
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Tick, no_tick, no_word
from ttabench.methods.checkpoints import HEADER, header, is_peft
from ttabench.methods.settings import preset_for
from ttabench.methods.spec import MethodSpec, Recipe
from ttabench.readers.cards import yaml_of
from ttabench.records.local_paths import source_name
from ttabench.run.evaluation import ModelCache
from ttabench.run.plan import Plan, make_plan
from ttabench.run.request import NO_CHECKPOINT, Place, RunRequest
from ttabench.run.resolve import resolve_method, trained_with
from ttabench.training.config import TrainConfig, TrainOptions, TrainRecord, untrainable

if TYPE_CHECKING:
    from ttabench.core.types import Episode
    from ttabench.lm.model import LM

FIRST = "first"
"""Folder of the stage before, in that of the one that stands on it."""
MOST_ASKED = 10**6
"""Queries of one training episode."""
READ = ("card", "reader", "method", "model")
"""Of the digests of what a run reads, those that a training must have in common with one that goes on."""
VALIDATION_EPISODES = 4
"""Episodes of a task in a validation: a book each, or a few documents with their queries."""


Progress: TypeAlias = Callable[[], AbstractContextManager[Tick]]
"""Opened once a stage, for the ticks of its steps."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One of the trainings that a recipe asks for: a method, on a base, into a folder."""

    request: RunRequest
    recipe: Recipe
    out: Path

    def behind(self, before: Stage | None) -> Stage:
        """The same once the stage before is trained: its parameters go on, or the base stands on its checkpoint."""
        if before is None:
            return self
        if before.request.method != self.request.method:
            return replace(self, request=replace(self.request, base_checkpoint=str(before.out)))
        mine, theirs = (resolve_method(stage.request).settings for stage in (self, before))
        differing = tuple(f"{key}={as_typed(value)}" for key, value in mine.items() if value != theirs[key])
        settings, below = (*self.request.settings, *differing), before.request.base_checkpoint
        request = replace(self.request, settings=settings, checkpoint=str(before.out), base_checkpoint=below)
        return replace(self, request=replace(request, preset=""))  # the checkpoint brings its settings


@dataclass(frozen=True, kw_only=True)
class TrainPlan:
    """A training whose words were all checked; nothing is loaded yet."""

    stages: Sequence[Stage]
    options: TrainOptions
    notify: Callable[[str], None] = no_word
    """Told in one line what else is worth knowing."""

    def run(self, progress: Progress = lambda: nullcontext(no_tick)) -> TrainRecord:
        """Train all stages, of which those that are trained return at once; returns the record of the last."""
        before: Stage | None = None
        for number, stage in enumerate(self.stages, 1):
            before, words = stage.behind(before), f"stage {number} of {len(self.stages)} trained"
            try:
                record = self._train(before, "trained" if stage is self.stages[-1] else words, progress)
            except KeyboardInterrupt:
                self._tell_saved(before)
                raise
        return record

    def _tell_saved(self, stage: Stage) -> None:
        """Say at which step an interrupted training continues."""
        if step := header(stage.out).step if (stage.out / HEADER).exists() else 0:
            force = "" if self.options.resume else " without --force"
            words = f"Repeat the command{force} to continue after it."
            self.notify(f"Step {step} of {stage.recipe.steps} is saved in {stage.out}. {words}")
        else:
            self.notify(f"No step is saved in {stage.out}. The same command begins at step 1.")

    @restored()
    def _train(self, stage: Stage, words: str, progress: Progress) -> TrainRecord:
        """Train the method of a stage and store its checkpoint."""
        from ttabench.training.loop import train as train_method  # torch comes once nothing typed is refused
        from ttabench.training.training_state import check

        options, recipe = self.options, stage.recipe
        plan = make_plan(stage.request, options.seed)
        config = _config(stage, options, plan)
        check(stage.out, resume=options.resume)
        seed_everything(options.seed)
        base = ModelCache().get(plan.request, chat_template=plan.config.chat_template)
        if base.stands_on:
            config = replace(config, stands_on={key: base.stands_on[key] for key in ("name", "digest")})
        method = plan.resolved.build(base)
        plans = [plan, *further(plan.request, options.also, options.seed)]
        episodes_of_steps = batches(plans, recipe, base, options.seed)
        validation: dict[str, list[Episode]] = {}
        for one in plans if options.validate_every else ():
            episodes = list(islice(self._validation(one, recipe, base), VALIDATION_EPISODES))
            validation.setdefault(one.task.card.name, []).extend(episodes)
        with progress() as tick:

            def on_step(step: int, parts: Mapping[str, float]) -> None:
                speed = f"{parts['tokens_per_second']:,.0f} tokens/s"
                tick(f"{words}, loss {parts['loss']:.3f}, {speed}", step, recipe.steps)

            return train_method(method, episodes_of_steps, config, on_step, validation)

    def _validation(self, plan: Plan, recipe: Recipe, base: LM) -> Iterator[Episode]:
        """Episodes of the last lesson's length, of the task's validation split."""
        from ttabench.readers import load

        task, split = plan.task, "validation"
        if split not in task.card.splits or task.split == split:
            return
        task_options = assignments(plan.request.task_options, "--task-set")
        try:
            held_out = load(plan.request.task, source=plan.config.source, split=split, options=task_options)
        except UserError as error:
            self.notify(f"Note: nothing is validated: {error}")
            return
        if held_out.describe()["digest"] == plan.config.inputs.get("rows"):  # one file of one's own serves as any split
            self.notify("Note: nothing is validated: the source has one split, which is trained on.")
            return
        yield from held_out.training(0, recipe.documents[-1], recipe.questions, base)


def plan_training(
    request: RunRequest,
    changes: Mapping[str, Any],
    options: TrainOptions,
    out: Path,
    notify: Callable[[str], None] = no_word,
) -> TrainPlan:
    """The stages of a training, checked: what is wrong with one is said before anything is trained."""
    request, also = mixed(request, options.also)
    options = replace(options, also=also)
    resolved = make_plan(request, options.seed).resolved
    preset = preset_for(resolved.spec, request.preset, request.model)
    recipe = recipe_of(resolved.spec, preset, changes)
    stages = _stages(request, recipe, out)
    for stage in reversed(stages):
        plan = make_plan(stage.request, options.seed)
        if not plan.resolved.spec.trainable:
            raise untrainable(plan.resolved.spec.name)
        _config(stage, options, plan)
    return TrainPlan(stages=stages, options=options, notify=notify)


def _stages(request: RunRequest, recipe: Recipe, out: Path) -> list[Stage]:
    """The trainings of a recipe in order; one, where there is a checkpoint to begin from already."""
    own, first = Stage(request=request, recipe=recipe, out=out), recipe.first
    goes_on = first is not None and first.method == request.method
    there = request.checkpoint not in ("", NO_CHECKPOINT) if goes_on else bool(request.base_checkpoint)
    if first is None or there:
        return [own]
    task_options = (*request.task_options, *first.task_options)
    if goes_on:
        before = replace(request, settings=(*request.settings, *first.settings), task_options=task_options)
        if resolve_method(before).settings == resolve_method(request).settings:  # it is what was asked for
            return [own]
    else:
        before = replace(request, method=first.method, settings=first.settings, task_options=task_options)
        before = replace(before, preset="", checkpoint=NO_CHECKPOINT)
    return [*_stages(before, first.recipe, out / FIRST), own]


def recipe_of(spec: MethodSpec, preset: str, changes: Mapping[str, Any]) -> Recipe:
    """The preset's recipe, with what is said otherwise (None and "" say nothing; `documents` may be a typed list)."""
    changed_fields = {key: value for key, value in changes.items() if value not in (None, "")}
    if isinstance(changed_fields.get("documents"), str):
        changed_fields["documents"] = parse_value(changed_fields["documents"], tuple[int, ...], "--documents")
    recipe = replace(spec.recipes.get(preset, Recipe()), **changed_fields)
    if recipe.rounds < 1:
        raise UserError(f"--rounds must be at least 1, got {recipe.rounds}.")
    if not recipe.documents or min(*recipe.documents, recipe.questions) < 1:
        raise UserError("--documents and --questions must be at least 1.", "Leave them out for those of the preset.")
    if (asked := max(recipe.documents) * recipe.questions) > MOST_ASKED:
        raise UserError(f"An episode of {asked:,} questions is too long.", "Give fewer --documents or --questions.")
    return recipe


def _config(stage: Stage, options: TrainOptions, plan: Plan) -> TrainConfig:
    """How the loop trains, with what its checkpoint tells of the data."""
    task, run = plan.task, plan.config
    asked = list(stage.request.task_options)
    data: dict[str, Any] = {
        "task": task.card.name,
        "source": source_name(task.source),
        "split": task.split,
        "options": asked,
    }
    data |= {key: getattr(stage.recipe, key) for key in ("documents", "rounds", "questions", "batch_documents")}
    data |= trained_with(run.task_options, run.chat_template)
    data["digest"] = run.inputs.get("rows", "")
    data["protocol"] = hashed(text_of(changed(run.task_options, run.defaults["task_options"])))
    data |= {name: value for name, value in run.inputs.items() if name in READ or name.startswith("setting ")}
    if plan.resolved.checkpoint_digest:
        data["begins"] = plan.resolved.checkpoint_digest
    for one in further(plan.request, options.also, options.seed):
        named: dict[str, Any] = {"task": one.task.card.name, "source": source_name(one.task.source)}
        named |= {"digest": one.config.inputs.get("rows", "")}
        named |= {"options": list(one.request.task_options)} if one.request.task_options else {}
        data.setdefault("also", []).append(named)
    begins = plan.resolved.checkpoint
    if begins is not None and is_peft(begins):
        hint = "Train on top of it: --base-checkpoint."
        raise UserError(f"No training goes on from {begins}, an adapter of peft.", hint)
    said = {**vars(stage.recipe), **vars(options)}
    try:
        return TrainConfig(**said, out=stage.out, fresh=begins is None, data=data)
    except ValueError as error:
        raise UserError(f"Training: {error}.", "See `ttabench train --help`.") from None


@checked_arguments
def train(
    method: str,
    task: str = "streamingqa",
    *,
    out: Place,
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
        settings=_assigned(settings),
        task_options=_assigned(task_options),
        device=device,
    )
    if isinstance(documents := recipe.get("documents"), int):
        recipe["documents"] = (documents,)
    validated(model_of(get_type_hints(Recipe)), recipe, "train")
    return plan_training(request, recipe, options or TrainOptions(), Path(out)).run()


def _assigned(values: Mapping[str, object] | None) -> tuple[str, ...]:
    """Values by name, as they are typed."""
    return tuple(f"{key}={as_typed(value)}" for key, value in (values or {}).items())


def mixed(request: RunRequest, also: Sequence[str]) -> tuple[RunRequest, tuple[str, ...]]:
    """The first task of a mixture, and the others as words of `--also`; of another task nothing changes."""
    path = Path(request.task)
    if path.suffix not in (".yaml", ".yml") or not isinstance(data := yaml_of(path), dict) or "tasks" not in data:
        return request, tuple(also)
    words = data["tasks"]
    if len(data) > 1 or not (isinstance(words, list) and words and all(isinstance(one, str) for one in words)):
        fault = f"The mixture {path} is no list of tasks."
        raise UserError(fault, 'Write tasks: [NAME, "NAME=SOURCE OPTION=VALUE"], as --also takes them.')
    first = _taken(request, words[0])
    return replace(first, task_options=(*first.task_options, *request.task_options)), (*words[1:], *also)


def _taken(request: RunRequest, words: str) -> RunRequest:
    """The request for another task, `NAME=SOURCE OPTION=VALUE`; of the same kind of source where none is named."""
    named, *options = words.split() or [""]
    name, _, source = named.partition("=")
    return replace(request, task=name, source=source or request.source, task_options=tuple(options))


def further(request: RunRequest, also: Sequence[str], seed: int) -> list[Plan]:
    """Further tasks, as their cards and `also` say; a UserError where one cannot be used."""
    return [make_plan(_taken(request, words), seed) for words in also]


def batches(plans: Sequence[Plan], recipe: Recipe, base: LM, seed: int) -> Iterator[list[Episode]]:
    """The episodes of each step: tasks take turns, a step each, and each goes through the documents of the recipe on
    its own; ends where the task whose turn it is has no more. Of several tasks each reads `batch_documents` pieces."""
    steps = -(-recipe.steps // len(plans))
    tasks = []
    for plan in plans:
        streams = []
        for lesson, documents in enumerate(recipe.documents):
            episodes = plan.task.training(seed + 1_000_003 * lesson, documents, recipe.questions, base)
            first = list(islice(episodes, len(plans) > 1))  # a book of a mixture has as many pieces as it has
            read = max((len(episode.observes()) for episode in first), default=0)
            streams.append((chain(first, episodes), recipe.episodes(max(documents, read))))
        tasks.append(lessons(streams, steps, recipe.rounds))
    for task in cycle(tasks):
        batch = next(task, None)
        if batch is None:
            return
        yield batch


def lessons(streams: Sequence[tuple[Iterator[Episode], int]], steps: int, rounds: int = 1) -> Iterator[list[Episode]]:
    """Batches of a curriculum: the steps are shared out evenly among the lessons, one after the other. `streams`: for
    each lesson its episodes, and how many of them a step takes; `rounds`: how often all lessons come in turn, with many
    of which they are mixed; where steps are too few for so many, every step is the next lesson."""
    turns = len(streams) * rounds
    for step in range(steps):
        stream, count = streams[(step if steps < turns else step * turns // steps) % len(streams)]
        yield list(islice(stream, count))
