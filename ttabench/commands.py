"""What the commands do, and what people see of it: plan, run, show. The work itself is done below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from ttabench import cost, registry, render
from ttabench.config import STATES_OF, Recipe
from ttabench.errors import UnknownName, UserError
from ttabench.evaluation import Bases, Outcome, Plan, Watching, chatting, execute, make_plan
from ttabench.options import DEFAULT_OUT
from ttabench.progress import no_word
from ttabench.reading import Reading, pieces_of, read
from ttabench.resolving import Wanted, adapter

SCHEDULES = ("constant", "cosine")
FORMATS = ("float32", "float16", "bfloat16")
MOST_ASKED = 10**6
"""Queries of one training episode."""
DIGITS = 18
"""Longest whole number that is read."""


@dataclass(frozen=True, kw_only=True)
class Showing:
    """How results are shown: tables, or JSON, or (quiet) only where they were stored."""

    json: bool = False
    quiet: bool = False

    @property
    def talking(self) -> bool:
        """Whether progress and remarks are shown."""
        return not (self.json or self.quiet)


@dataclass(frozen=True, kw_only=True)
class Storing:
    """Where results go, and whether what is there is replaced."""

    out: Path | None = None
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class Training:
    """How `ttabench train` works, whatever the recipe."""

    seed: int
    save_every: int
    dtype: str
    """Number format of the stored parameters."""
    resume: bool


def number_list(flag: str, text: str) -> tuple[int, ...]:
    """`"0,1,2"` as numbers.

    Raises:
        UserError: something that is no number from 0 up.
    """
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() and len(part) <= DIGITS for part in parts):
        raise UserError(f"{flag} {text[:40]!r} is no list of numbers.", f"Write {flag} 1,2,3.")
    return tuple(int(part) for part in parts)


def seed_list(seeds: str, seed: int) -> tuple[int, ...]:
    """`--seeds` as numbers, without repeats, or else the one `--seed`.

    Raises:
        UserError: a list of something else, or both flags.
    """
    if seeds and seed:
        raise UserError(f"Both --seed {seed} and --seeds {seeds} are given.", "Give one of them.")
    return tuple(dict.fromkeys(number_list("--seeds", seeds))) or (seed,)


def _plans(wanted: Wanted, seeds: Sequence[int], swap: bool) -> list[Plan]:
    """A plan a seed; to swap states, one for each of own, other and none."""
    asked = [replace(wanted, state_of=state) for state in STATES_OF] if swap else [wanted]
    return [make_plan(each, seed) for each in asked for seed in seeds]


def evaluate(wanted: Wanted, seeds: Sequence[int], storing: Storing, showing: Showing, *, swap: bool = False) -> None:
    """`ttabench eval`: one run a seed, then one table; with `swap` one for each state too, and their differences."""
    plans = _plans(wanted, seeds, swap)
    bases, outcomes = Bases(), []
    for plan in plans:
        with render.progress(showing.talking) as tick:
            watching = Watching(tick=tick, notify=render.remark if showing.talking else no_word)
            outcomes.append(execute(plan, bases, storing.out or DEFAULT_OUT, force=storing.force, watching=watching))
        if outcomes[-1].how == "stored" and showing.talking:
            record = outcomes[-1].record
            render.remark(f"Run {record.id} of {record.created} is stored already; --force runs it again.")
    _show_runs(outcomes, showing, compared=swap)


def _show_runs(outcomes: Sequence[Outcome], showing: Showing, *, compared: bool) -> None:
    from ttabench.compare import compare as compare_runs
    from ttabench.tables import comparison_tables, run_table

    if showing.json:
        folders = [{"folder": str(outcome.folder), "how": outcome.how} for outcome in outcomes]
        records = [outcome.record.model_dump(mode="json") for outcome in outcomes]
        found = {"runs": [{**record, **where} for record, where in zip(records, folders, strict=True)]}
        if compared:
            apart = compare_runs([outcome.folder for outcome in outcomes]).differences
            found["differences"] = [asdict(each) for each in apart]
        render.print_json(found)
    elif showing.quiet:
        for outcome in outcomes:
            render.print_line(str(outcome.folder))
    elif compared:
        render.show(comparison_tables(compare_runs([outcome.folder for outcome in outcomes])))
    else:
        render.show([run_table([(outcome.record, outcome.folder) for outcome in outcomes])])


def dry_run(wanted: Wanted, seeds: Sequence[int], showing: Showing, *, swap: bool = False) -> None:
    """`ttabench eval --dry-run`: the resolved configuration and what it costs on paper; loads no model."""
    from ttabench.tables import config_table, cost_table

    plans = _plans(wanted, seeds, swap)
    shape = cost.shape_of(wanted.model)
    work = cost.workload(next(iter(plans[0].task.episodes())), wanted.dtype)
    found = cost.estimate(wanted.method, plans[0].config.settings, shape, work) if shape else None
    if showing.json:
        runs = [{"id": p.config.identity(), "config": p.config.to_json(), "notes": p.notes()} for p in plans]
        render.print_json({"runs": runs, "cost": asdict(found) if found else None})
        return
    render.show([config_table(plans), *([cost_table(found)] if found else [])])
    for note in plans[0].notes():
        render.remark(f"Note: {note}.")
    if found is None:
        render.remark(f"No analytic cost is known for {wanted.method} on {wanted.model}.")


def train(wanted: Wanted, changes: Mapping[str, Any], training: Training, storing: Storing, showing: Showing) -> None:
    """`ttabench train`: train by the recipe with these changes, store the checkpoint, and say how to use it."""
    from ttabench.environment import seed_everything
    from ttabench.training import lessons
    from ttabench.training import train as train_method

    name = f"{wanted.method}-{Path(wanted.task).stem}-{Path(wanted.model).name}"
    out = storing.out or DEFAULT_OUT / "checkpoints" / name
    plan = make_plan(wanted, training.seed)
    if (out / "adapter.json").exists() and not (training.resume or storing.force):
        raise UserError(f"{out} holds a checkpoint.", "Go on from it with --resume, or overwrite it with --force.")
    recipe = recipe_of(plan.adapter.cls, registry.preset_for(plan.adapter.cls, wanted.preset, wanted.model), changes)
    config = _train_config(recipe, training, out, plan, wanted.task_options)
    seed_everything(training.seed)
    base = Bases().get(wanted, chat_template=plan.config.chat_template)
    method = plan.adapter.build(base)
    streams = [
        (plan.task.training(training.seed + 1_000_003 * lesson, count, recipe.questions, base), recipe.episodes(count))
        for lesson, count in enumerate(recipe.documents)
    ]
    batches = lessons(streams, recipe.steps, recipe.rounds)
    with render.progress(showing.talking) as tick:

        def on_step(step: int, parts: Mapping[str, float]) -> None:
            tick(f"trained, loss {parts['loss']:.3f}", step, recipe.steps)

        record = train_method(method, batches, config, on_step)
    result = {"steps": record.steps, "loss": record.losses[-1], "seconds": record.seconds, "folder": str(out)}
    again = f"ttabench eval --method {wanted.method} --task {wanted.task} --model {wanted.model} --checkpoint {out}"
    _show_result("trained", result, showing, f"Try it: {again}")


def recipe_of(cls: type[Any], preset: str, changes: Mapping[str, Any]) -> Recipe:
    """The preset's recipe, with what the command line says otherwise (None and "" say nothing)."""
    said = {key: value for key, value in changes.items() if value not in (None, "")}
    if "documents" in said:
        said["documents"] = number_list("--documents", said["documents"])
    own: Recipe = cls.recipes.get(preset, Recipe())
    recipe = replace(own, **said)
    if recipe.schedule not in SCHEDULES:
        raise UnknownName("schedule", recipe.schedule, list(SCHEDULES))
    if recipe.rounds < 1:
        raise UserError(f"--rounds {recipe.rounds} trains nothing.", "Give 1 or more.")
    if not recipe.documents or min(*recipe.documents, recipe.questions) < 1:
        raise UserError("An episode needs documents and questions.", "Give --documents and --questions of 1 or more.")
    if (asked := max(recipe.documents) * recipe.questions) > MOST_ASKED:
        raise UserError(f"An episode of {asked:,} questions is too long.", "Give fewer --documents or --questions.")
    return recipe


def _train_config(recipe: Recipe, training: Training, out: Path, plan: Plan, options: Sequence[str]) -> Any:
    from ttabench.training import TrainConfig

    if training.dtype not in FORMATS:
        raise UnknownName("number format", training.dtype, list(FORMATS))
    said = asdict(recipe)
    sizes = {key: said.pop(key) for key in ("documents", "rounds", "questions", "batch_documents")}
    task = plan.task
    data = {"task": task.card.name, "source": task.source, "split": task.split, "options": list(options), **sizes}
    try:
        return TrainConfig(**said, **asdict(training), out=out, fresh=plan.adapter.checkpoint is None, data=data)
    except ValueError as error:
        raise UserError(f"Training: {error}.", "See `ttabench train --help`.") from None


def adapt(wanted: Wanted, reading: Reading, storing: Storing, showing: Showing) -> None:
    """`ttabench adapt`: read files, write the state."""
    from ttabench.environment import seed_everything
    from ttabench.peft_export import exportable, save_lora
    from ttabench.state_folder import StateFolder
    from ttabench.types import Patch

    pieces = pieces_of(reading)
    resolved = adapter(wanted)
    assert storing.out is not None, "adapt has a default folder"
    folder = StateFolder(storing.out, force=storing.force)
    with folder.held():
        seed_everything(0)
        lm = Bases().get(wanted, chat_template=chatting(wanted)[1])
        method = resolved.build(lm)
        with render.progress(showing.talking) as tick:
            state = read(method, pieces, tick)
        patch = Patch() if method.looks_at_question else method.patch(state, [])
        lora = (lambda inside: save_lora(lm, patch, inside)) if exportable(patch) else None
        folder.write(state, resolved.belongs(lm), lora)
    result = {"method": wanted.method, "pieces": len(pieces), "state_bytes": state.nbytes, "folder": str(folder.path)}
    if lora is not None:
        result["peft"] = str(folder.path / "peft")
        if patch.tokens_BT is not None:
            result["peft_without"] = f"the last {patch.tokens_BT.shape[1]} tokens, which stand in the window"
    again = f"ttabench eval --method {quote(wanted.method)} --model {wanted.model} --state {folder.path} --ask-only"
    _show_result("adapted", result, showing, f"Ask it: {again}")


def compare(runs: Sequence[str], metric: str, form: str, out: Path, picture: Path | None = None) -> None:
    """`ttabench compare`: runs beside each other, and their differences; drawn, too, where a picture is wanted."""
    from ttabench import plots
    from ttabench.compare import compare as compare_runs
    from ttabench.finding import find_runs
    from ttabench.records import load_record
    from ttabench.tables import comparison_tables

    chosen = render.known_format(form)
    if picture is not None:
        plots.check_path(picture)
    folders = find_runs(runs, out)
    found = compare_runs(folders, metric)
    if picture is not None:
        plots.plot(found.entries, [load_record(folder) for folder in folders], picture)
    render.show(comparison_tables(found), chosen)


def _show_result(title: str, result: Mapping[str, Any], showing: Showing, hint: str = "") -> None:
    """A result of one row, its names as they stand in records."""
    if showing.json:
        render.print_json(dict(result))
    elif showing.quiet:
        render.print_line(str(result.get("folder", "")))
    else:
        rows = tuple((name.replace("_", " "), render.figure(name, value)) for name, value in result.items())
        render.show([render.Table(title=title, columns=("", "#"), rows=rows, caption=hint)])
