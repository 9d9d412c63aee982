"""`ttabench train`: the recipe of a preset and what was said otherwise, a checkpoint, and how far it got."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from ttabench.cli import commands, training_tasks
from ttabench.cli.options import DEFAULT_OUT
from ttabench.cli.training_options import Training
from ttabench.core import render
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.identity import changed, hashed, text_of
from ttabench.core.typed import assignments
from ttabench.methods.checkpoint_header import HEADER, Header, header
from ttabench.methods.recipe import Recipe
from ttabench.methods.settings import preset_for
from ttabench.methods.spec import MethodSpec
from ttabench.report.configuration import typed
from ttabench.run.evaluation import ModelCache
from ttabench.run.plan import Plan, make_plan
from ttabench.run.prompting import trained_with
from ttabench.run.request import RunRequest
from ttabench.run.resolve import NO_CHECKPOINT, resolve_method

if TYPE_CHECKING:
    from ttabench.core.types import Episode
    from ttabench.lm.model import LM
    from ttabench.run.training_config import TrainConfig, TrainRecord

FIRST = "first"
"""Folder of the stage before, in that of the one that stands on it."""
SCHEDULES = ("constant", "cosine")
OPTIMIZERS = ("adam", "muon")
FORMATS = ("float32", "float16", "bfloat16")
MOST_ASKED = 10**6
"""Queries of one training episode."""
READ = ("card", "reader", "method", "model")
"""Of the digests of what a run reads, those that a training must have in common with one that goes on."""
VALIDATION_EPISODES = 4
"""Episodes of a validation: a book each, or a few documents with their queries."""


def train(
    request: RunRequest,
    changes: Mapping[str, Any],
    training: Training,
    storing: commands.Storing,
    showing: commands.Showing,
) -> None:
    """`ttabench train`: train by the recipe with these changes, store the checkpoint, and say how to use it."""
    plan = make_plan(request, training.seed)
    name = f"{plan.resolved.spec.name}-{Path(request.task).stem}-{Path(request.base_name).name}"
    out = storing.out or DEFAULT_OUT / "checkpoints" / name
    preset = preset_for(plan.resolved.spec, request.preset, request.model)
    recipe = recipe_of(plan.resolved.spec, preset, changes)
    *earlier, last = _stages(request, recipe, out)
    config = _train_config(recipe, training, out, plan, request.task_options)
    for stage in earlier:  # what is wrong with one is said before anything is trained
        _train_config(stage.recipe, training, stage.out, make_plan(stage.request, training.seed), ())
    before: _Stage | None = None
    for number, stage in enumerate(earlier):
        words = f"stage {number + 1} of {len(earlier) + 1} trained"
        before = stage.behind(before)
        _train_earlier(before, training, words, showing)
    if before is not None:
        request = last.behind(before).request
        plan = make_plan(request, training.seed)
        config = _train_config(recipe, training, out, plan, request.task_options)
    record = _train_stage(plan, recipe, config, training, "trained", showing)
    result = {"steps": record.steps, "loss": record.losses[-1], "seconds": record.seconds, "folder": str(out)}
    result |= {f"validation_{name}": value for name, value in (record.validation or [{}])[-1].items() if name != "step"}
    source = f" --source {quote(request.source)}" if request.source else ""
    again = f"ttabench eval --method {quote(request.method)} --task {request.task}{source} {request.base_words}"
    commands.show_result("trained", result, showing, f"Try it: {again} --checkpoint {out}")
    whole = recipe_of(plan.resolved.spec, preset, {}).steps
    if record.steps < whole and showing.talking:
        render.remark(f"Note: {record.steps:,} steps of the {whole:,} of its recipe: too few to judge the method by.")


@dataclass(frozen=True, kw_only=True)
class _Stage:
    """One of the trainings that a recipe asks for."""

    request: RunRequest
    recipe: Recipe
    out: Path

    def behind(self, before: _Stage | None) -> _Stage:
        """The same once the stage before is trained: its parameters go on, or the base stands on its checkpoint."""
        if before is None:
            return self
        if before.request.method != self.request.method:
            return replace(self, request=replace(self.request, base_checkpoint=str(before.out)))
        mine, theirs = (resolve_method(each.request).settings for each in (self, before))
        changed = tuple(f"{key}={typed(value)}" for key, value in mine.items() if value != theirs[key])
        request = replace(
            self.request,
            settings=(*self.request.settings, *changed),
            preset="",  # the checkpoint brings its settings
            checkpoint=str(before.out),
            base_checkpoint=before.request.base_checkpoint,
        )
        return replace(self, request=request)


def _stages(request: RunRequest, recipe: Recipe, out: Path) -> list[_Stage]:
    """The trainings of a recipe in order; one, where there is a checkpoint to begin from already."""
    own, first = _Stage(request=request, recipe=recipe, out=out), recipe.first
    goes_on = first is not None and first.method == request.method
    there = request.checkpoint not in ("", NO_CHECKPOINT) if goes_on else bool(request.base_checkpoint)
    if first is None or there:
        return [own]
    options = (*request.task_options, *first.task_options)
    if goes_on:
        before = replace(request, settings=(*request.settings, *first.settings), task_options=options)
        if resolve_method(before).settings == resolve_method(request).settings:  # it is what was asked for
            return [own]
    else:
        before = replace(
            request, method=first.method, settings=first.settings, task_options=options, preset="",
            checkpoint=NO_CHECKPOINT,
        )  # fmt: skip
    return [*_stages(before, first.recipe, out / FIRST), own]


def _train_earlier(stage: _Stage, training: Training, words: str, showing: commands.Showing) -> None:
    """An earlier stage, unless its checkpoint is there already."""
    plan = make_plan(stage.request, training.seed)
    config = _train_config(stage.recipe, training, stage.out, plan, stage.request.task_options)
    if training.resume and (stage.out / HEADER).exists() and _is_done(header(stage.out), plan, config):
        return
    _train_stage(plan, stage.recipe, config, training, words, showing)


def _is_done(found: Header, plan: Plan, config: TrainConfig) -> bool:
    """Whether a checkpoint is what this training ends with."""
    from ttabench.run.saves import NEWER

    told, data = found.training.get("config", {}), json.loads(json.dumps(config.data))
    told = {**told, "data": {**{key: data[key] for key in NEWER if key in data}, **told.get("data", {})}}
    wanted = {**config.recipe(), "data": data}
    same = {key: told.get(key) for key in wanted} == wanted and found.settings == plan.resolved.settings
    return same and (found.method, found.step) == (plan.resolved.spec.name, config.steps)


def _train_stage(
    plan: Plan, recipe: Recipe, config: TrainConfig, training: Training, words: str, showing: commands.Showing
) -> TrainRecord:
    """Train the method of a plan and store its checkpoint."""
    from ttabench.core.environment import seed_everything  # torch comes once nothing typed is refused
    from ttabench.run.saves import check
    from ttabench.run.training import refuse_untrainable
    from ttabench.run.training import train as train_method

    assert config.out is not None, "a stage has a folder"
    refuse_untrainable(plan.resolved.spec)
    check(config.out, resume=training.resume)
    seed_everything(training.seed)
    base = ModelCache().get(plan.request, chat_template=plan.config.chat_template)
    if base.stands_on:
        config = replace(config, stands_on={key: base.stands_on[key] for key in ("name", "digest")})
    method = plan.resolved.build(base)
    plans = [plan, *training_tasks.further(plan.request, training.also, training.seed)]
    batches = training_tasks.batches(plans, recipe, base, training.seed, training.accumulate)
    judged = _validation(plan, recipe, base) if training.validate_every else []
    with render.progress(showing.talking) as tick:

        def on_step(step: int, parts: Mapping[str, float]) -> None:
            tick(f"{words}, loss {parts['loss']:.3f}, {parts['tokens_per_second']:,.0f} tokens/s", step, recipe.steps)

        return train_method(method, batches, config, on_step, judged)


def _validation(plan: Plan, recipe: Recipe, base: LM) -> list[Episode]:
    """The episodes of a validation: `VALIDATION_EPISODES` of the first kind, of the task's validation split.

    None where the task or its source has no such split, or it is what is trained on.
    """
    from ttabench.readers import load

    task, split = plan.task, "validation"
    if split not in task.card.splits or task.split == split:
        return []
    options = assignments(plan.request.task_options, "--task-set")
    try:
        found = load(plan.request.task, source=plan.config.source, split=split, options=options)
    except UserError as error:
        render.remark(f"Note: nothing is validated: {error}")
        return []
    if found.describe()["digest"] == plan.config.inputs.get("rows"):  # one file of one's own serves as any split
        render.remark("Note: nothing is validated: the source has one split, which is trained on.")
        return []
    return list(islice(found.training(0, recipe.documents[0], recipe.questions, base), VALIDATION_EPISODES))


def recipe_of(spec: MethodSpec, preset: str, changes: Mapping[str, Any]) -> Recipe:
    """The preset's recipe, with what the command line says otherwise (None and "" say nothing)."""
    said = {key: value for key, value in changes.items() if value not in (None, "")}
    if "documents" in said:
        said["documents"] = commands.number_list("--documents", said["documents"])
    own = spec.recipes.get(preset, Recipe())
    recipe = replace(own, **said)
    if recipe.schedule not in SCHEDULES:
        raise UnknownName("schedule", recipe.schedule, list(SCHEDULES))
    if recipe.optimizer not in OPTIMIZERS:
        raise UnknownName("optimizer", recipe.optimizer, list(OPTIMIZERS))
    if recipe.rounds < 1:
        raise UserError(f"--rounds must be at least 1, got {recipe.rounds}.")
    if not recipe.documents or min(*recipe.documents, recipe.questions) < 1:
        raise UserError("--documents and --questions must be at least 1.", "Leave them out for those of the preset.")
    if (asked := max(recipe.documents) * recipe.questions) > MOST_ASKED:
        raise UserError(f"An episode of {asked:,} questions is too long.", "Give fewer --documents or --questions.")
    return recipe


def _train_config(recipe: Recipe, training: Training, out: Path, plan: Plan, options: Sequence[str]) -> TrainConfig:
    from ttabench.run.training import TrainConfig

    if training.stored not in FORMATS:
        raise UnknownName("number format", training.stored, list(FORMATS))
    said = asdict(replace(recipe, first=None))
    del said["first"]
    sizes = {key: said.pop(key) for key in ("documents", "rounds", "questions", "batch_documents")}
    task, run = plan.task, plan.config
    data = {"task": task.card.name, "source": task.source, "split": task.split, "options": list(options), **sizes}
    data |= trained_with(run.task_options, run.chat_template)
    data["digest"] = run.inputs.get("rows", "")
    data["protocol"] = hashed(text_of(changed(run.task_options, run.defaults["task_options"])))
    data |= {name: value for name, value in run.inputs.items() if name in READ or name.startswith("setting ")}
    if plan.resolved.checkpoint_digest:
        data["begins"] = plan.resolved.checkpoint_digest
    data |= training_tasks.described(training_tasks.further(plan.request, training.also, training.seed))
    told = asdict(training)
    del told["also"]
    told["dtype"] = told.pop("stored")
    try:
        return TrainConfig(**said, **told, out=out, fresh=plan.resolved.checkpoint is None, data=data)
    except ValueError as error:
        raise UserError(f"Training: {error}.", "See `ttabench train --help`.") from None
