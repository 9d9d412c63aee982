"""From a plan to a stored run: look whether it is stored, load, run, record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ttabench.core.errors import UserError
from ttabench.core.types import Tick, no_tick, no_word
from ttabench.records.folder import Obtained, obtained
from ttabench.run.base_model import ModelCache
from ttabench.run.plan import Plan

if TYPE_CHECKING:
    from ttabench.records.schema import RunRecord
    from ttabench.records.store import RunFolder

Outcome: TypeAlias = "Obtained[RunRecord]"


def execute(
    plan: Plan, models: ModelCache, out: Path, *, force: bool = False, tick: Tick = no_tick,
    notify: Callable[[str], None] = no_word,
) -> Outcome:  # fmt: skip
    """Return the run if it is stored in `out`, else run or continue it and store it; `force`: from the start.

    Raises:
        UserError: the folder cannot be written, the stored record is corrupted, the model or checkpoint cannot be
            loaded, or the context does not fit the model.
    """
    from ttabench.records.store import RunFolder

    where = out / plan.config.identity()

    def work(folder: RunFolder) -> RunRecord:
        return _run(plan, models, folder, tick, notify)

    return obtained(RunFolder, where, work, force=force, notify=notify)


def _run(
    plan: Plan, models: ModelCache, folder: RunFolder, tick: Tick, notify: Callable[[str], None]
) -> RunRecord:  # fmt: skip
    from ttabench.core.environment import seed_everything
    from ttabench.methods.states import fitting
    from ttabench.run.caveats import caveats_after, caveats_before
    from ttabench.run.recording import make_record
    from ttabench.run.runner import RunContext, run_episodes

    config = plan.config
    seed_everything(config.seed)
    lm = models.get(plan.request, chat_template=config.chat_template)
    method, state = plan.resolved.build(lm), plan.request.state
    start = None if state is None else plan.resolved.stored_state(state, lm)
    context = RunContext(
        lm=lm, method=method, metrics=plan.metrics, batch_size=config.batch_size, start=start,
        ask_only=config.ask_only, state_of=config.state_of,
    )  # fmt: skip
    notes = caveats_before(plan, lm)
    pending = list(notes)

    def tell_notes() -> None:  # once something is done: a run that is refused at the start prints one line
        while pending:
            notify(f"Note: {pending.pop(0)}.")

    def noted_tick(what: str, done: int, total: int) -> None:
        tell_notes()
        tick(what, done, total)

    with fitting(state, method.name):
        run_episodes(context, plan.task, folder, noted_tick)
    tell_notes()
    if not folder.samples:
        left = ", ".join(f"{count} {reason}" for reason, count in plan.task.dropped.items())
        fault = f"No query of {config.task} can be asked with the tokenizer of {lm.name}: {left}."
        raise UserError(fault, "Raise the task's limits with --task-set, see `ttabench list tasks`.")
    leftovers = folder.drop_leftovers()
    after = caveats_after(plan, method, folder.costs, folder.samples)
    for note in [*after, *([leftovers] if leftovers else [])]:
        notify(f"Note: {note}.")
    return folder.finish(make_record(plan, lm, method, folder, [*notes, *after]))
