"""What the commands do, and what people see of it: plan, run, show. The work itself is done below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttabench import cost, render
from ttabench.errors import UnknownName, UserError
from ttabench.evaluation import Bases, Watching, execute, make_plan
from ttabench.options import DEFAULT_OUT
from ttabench.progress import no_word
from ttabench.reading import Reading, pieces_of
from ttabench.resolving import Wanted, adapter

if TYPE_CHECKING:
    from ttabench.profiling import Load

SCHEDULES = ("constant", "cosine")
FORMATS = ("float32", "float16", "bfloat16")


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
class Recipe:
    """How to train; see the options of `ttabench train`."""

    documents: tuple[int, ...]
    """Pieces in an episode, one number for each equal part of the steps."""
    questions: int
    batch_documents: int
    """Pieces in one step, in as many episodes as that makes; 0 for one episode a step."""
    steps: int
    lr: float
    warmup: int
    schedule: str
    beta2: float
    clip: float
    seed: int
    save_every: int
    dtype: str
    """Number format of the stored parameters."""
    resume: bool

    def episodes(self, documents: int) -> int:
        """Episodes of a step whose episodes hold so many documents."""
        return max(1, self.batch_documents // documents)


def number_list(flag: str, text: str) -> tuple[int, ...]:
    """`"0,1,2"` as numbers.

    Raises:
        UserError: something that is no number from 0 up.
    """
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() for part in parts):
        raise UserError(f"{flag} {text!r} is no list of numbers.", f"Write {flag} 1,2,3.")
    return tuple(int(part) for part in parts)


def seed_list(seeds: str, seed: int) -> tuple[int, ...]:
    """`--seeds` as numbers, without repeats, or else the one `--seed`.

    Raises:
        UserError: a list of something else, or both flags.
    """
    if seeds and seed:
        raise UserError(f"Both --seed {seed} and --seeds {seeds} are given.", "Give one of them.")
    return tuple(dict.fromkeys(number_list("--seeds", seeds))) or (seed,)


def evaluate(wanted: Wanted, seeds: Sequence[int], storing: Storing, showing: Showing) -> None:
    """`ttabench eval`: one run a seed, then one table."""
    plans = [make_plan(wanted, seed) for seed in seeds]
    bases, outcomes = Bases(), []
    for plan in plans:
        with render.progress(showing.talking) as tick:
            watching = Watching(tick=tick, notify=render.remark if showing.talking else no_word)
            outcomes.append(execute(plan, bases, storing.out or DEFAULT_OUT, force=storing.force, watching=watching))
        if outcomes[-1].how == "stored" and showing.talking:
            record = outcomes[-1].record
            render.remark(f"Run {record.id} of {record.created} is stored already; --force runs it again.")
    if showing.json:
        folders = [{"folder": str(outcome.folder), "how": outcome.how} for outcome in outcomes]
        records = [outcome.record.model_dump(mode="json") for outcome in outcomes]
        render.print_json({"runs": [{**record, **where} for record, where in zip(records, folders, strict=True)]})
    elif showing.quiet:
        print("\n".join(str(outcome.folder) for outcome in outcomes))
    else:
        from ttabench.tables import run_table

        render.show([run_table([(outcome.record, outcome.folder) for outcome in outcomes])])


def dry_run(wanted: Wanted, seeds: Sequence[int], showing: Showing) -> None:
    """`ttabench eval --dry-run`: the resolved configuration and what it costs on paper; loads no model."""
    from ttabench.tables import config_table, cost_table

    plans = [make_plan(wanted, seed) for seed in seeds]
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


def train(wanted: Wanted, recipe: Recipe, storing: Storing, showing: Showing) -> None:
    """`ttabench train`: train, store the checkpoint, and say how to use it."""
    from ttabench.environment import seed_everything
    from ttabench.training import lessons
    from ttabench.training import train as train_method

    name = f"{wanted.method}-{Path(wanted.task).stem}-{Path(wanted.model).name}"
    out = storing.out or DEFAULT_OUT / "checkpoints" / name
    plan = make_plan(wanted, recipe.seed)
    if (out / "adapter.json").exists() and not (recipe.resume or storing.force):
        raise UserError(f"{out} holds a checkpoint.", "Go on from it with --resume, or overwrite it with --force.")
    config = _train_config(recipe, out, fresh=plan.adapter.checkpoint is None)
    seed_everything(recipe.seed)
    method = plan.adapter.build(Bases().get(wanted))
    streams = [
        (plan.task.training(recipe.seed + 1_000_003 * lesson, count, recipe.questions), recipe.episodes(count))
        for lesson, count in enumerate(recipe.documents)
    ]
    batches = lessons(streams, recipe.steps)
    with render.progress(showing.talking) as tick:

        def on_step(step: int, parts: Mapping[str, float]) -> None:
            tick(f"trained, loss {parts['loss']:.3f}", step, recipe.steps)

        record = train_method(method, batches, config, on_step)
    result = {"steps": record.steps, "loss": record.losses[-1], "seconds": record.seconds, "folder": str(out)}
    again = f"ttabench eval --method {wanted.method} --task {wanted.task} --model {wanted.model} --checkpoint {out}"
    _show_result("trained", result, showing, f"Try it: {again}")


def _train_config(recipe: Recipe, out: Path, *, fresh: bool) -> Any:
    from ttabench.training import TrainConfig

    values = {
        key: value for key, value in asdict(recipe).items() if key not in ("documents", "questions", "batch_documents")
    }
    for what, name, known in (("schedule", recipe.schedule, SCHEDULES), ("number format", recipe.dtype, FORMATS)):
        if name not in known:
            raise UnknownName(what, name, list(known))
    if not recipe.documents or min(*recipe.documents, recipe.questions) < 1:
        raise UserError("An episode needs documents and questions.", "Give --documents and --questions of 1 or more.")
    try:
        return TrainConfig(**values, out=out, fresh=fresh)
    except ValueError as error:
        raise UserError(f"Training: {error}.", "See `ttabench train --help`.") from None


def adapt(wanted: Wanted, reading: Reading, out: Path, showing: Showing) -> None:
    """`ttabench adapt`: read files, write the state."""
    from ttabench.environment import seed_everything
    from ttabench.states import save_state

    pieces = pieces_of(reading)
    resolved = adapter(wanted)
    seed_everything(0)
    lm = Bases().get(wanted)
    method = resolved.build(lm)
    state = method.begin(1)
    with render.progress(showing.talking) as tick:
        for number, piece in enumerate(pieces, start=1):
            state = method.adapt_many(state, [[piece]])
            tick("read", number, len(pieces))
    folder = save_state(out, state, resolved.belongs(lm))
    result = {"method": wanted.method, "pieces": len(pieces), "state_bytes": state.nbytes, "folder": str(folder)}
    again = f"ttabench eval --method {wanted.method} --model {wanted.model} --state {folder} --ask-only"
    _show_result("adapted", result, showing, f"Ask it: {again}")


def compare(runs: Sequence[str], metric: str, form: str, out: Path, picture: Path | None = None) -> None:
    """`ttabench compare`: runs beside each other, and their differences; drawn, too, where a picture is wanted."""
    from ttabench import plots
    from ttabench.compare import compare as compare_runs
    from ttabench.records import find_runs, load_record
    from ttabench.tables import comparison_tables

    if form not in render.FORMATS:
        raise UnknownName("format", form, list(render.FORMATS))
    chosen = next(known for known in render.FORMATS if known == form)
    if picture is not None:
        plots.check_path(picture)
    folders = find_runs(runs, out)
    found = compare_runs(folders, metric)
    if picture is not None:
        plots.plot(found.entries, [load_record(folder) for folder in folders], picture)
    render.show(comparison_tables(found), chosen)


def profile(wanted: Wanted, load: Load, showing: Showing) -> None:
    """`ttabench profile`: measure one context length."""
    from ttabench.environment import seed_everything
    from ttabench.profiling import profile as measure

    resolved = adapter(wanted)
    seed_everything(0)
    lm = Bases().get(wanted)
    with render.progress(showing.talking) as tick:
        found = measure(lm, resolved.build(lm), load, tick)
    device = lm.describe()["device"]
    _show_result(f"{wanted.method} on {wanted.model} ({device})", asdict(found), showing)


def _show_result(title: str, result: Mapping[str, Any], showing: Showing, hint: str = "") -> None:
    """A result of one row, its names as they stand in records."""
    if showing.json:
        render.print_json(dict(result))
    elif showing.quiet:
        print(result.get("folder", ""))
    else:
        rows = tuple((name.replace("_", " "), render.figure(name, value)) for name, value in result.items())
        render.show([render.Table(title=title, columns=("", "#"), rows=rows, caption=hint)])
