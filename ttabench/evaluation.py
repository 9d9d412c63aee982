"""From what the user asked for to a stored run: resolve, look whether it is stored, load, run, record.

plan = make_plan(Wanted(method="mac", task="streamingqa"), seed=0)
plan.config.identity()                                  # the run's id, before any model is loaded
outcome = execute(plan, Bases(), Path("runs"))       # returns what is stored, continues, or runs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ttabench.architectures import ARCHITECTURES, NANO
from ttabench.asking import manner
from ttabench.config import STATES_OF, RunConfig, digest
from ttabench.errors import UnknownName, UserError
from ttabench.progress import Tick, no_tick, no_word
from ttabench.readers import Task, load
from ttabench.resolving import Adapter, Wanted, adapter, named
from ttabench.types import Json, State

if TYPE_CHECKING:
    from ttabench.lm import LM
    from ttabench.records import RunRecord
    from ttabench.store import RunFolder


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A resolved run: nothing is left to decide, no model is loaded."""

    wanted: Wanted
    config: RunConfig
    adapter: Adapter
    task: Task
    task_record: Mapping[str, Json]
    """The task's own description for the record, its metrics included."""

    def notes(self) -> list[str]:
        """What the record and the user should know."""
        found = [str(note) for note in self.task.notes]
        if told := STATES_OF[self.config.state_of]:
            found += [told, *self.task_record.get("others", {}).get("notes", [])]
        if self.adapter.cls.trainable and self.adapter.checkpoint is None:
            found.append(f"{self.config.method} has no checkpoint here: its modules are untrained")
        return found


def make_plan(wanted: Wanted, seed: int) -> Plan:
    """Resolve a request for one seed.

    Raises:
        UserError: anything in it that is wrong.
    """
    if wanted.ask_only and wanted.state is None:
        raise UserError("--ask-only leaves nothing read.", "Give --state DIR, or ask closed-book with --method none.")
    if wanted.state_of != "own" and wanted.state is not None:
        raise UserError("--swap-state reads every context anew.", "Leave --state out.")
    _check_model(wanted)
    asked = manner(wanted)
    source = wanted.source or ("mini" if wanted.model == NANO else "hub")
    resolved = adapter(wanted)
    task = load(
        asked.card,
        source=source,
        split=wanted.split,
        seed=seed,
        limit=wanted.limit,
        options=asked.options,
    )
    record = task.describe()
    if wanted.state_of != "own" and not task.n_observes:
        what = f"{task.card.name} shows nothing to adapt to here: there is no state to swap."
        raise UserError(what, "Change --task-set.")
    if wanted.state_of == "other":
        record["others"] = task.describe_others()
    config = RunConfig(
        method=wanted.method,
        task=task.card.name,
        model=wanted.model,
        source=source,
        split=wanted.split,
        seed=seed,
        limit=wanted.limit,
        preset=resolved.preset,
        settings=resolved.settings,
        task_options={**record.get("arguments", {}), **record["protocol"]},
        checkpoint=resolved.checkpoint_name(),
        state=str(wanted.state or ""),
        device=wanted.device,
        dtype=wanted.dtype,
        batch_size=wanted.batch_size,
        random_weights=wanted.random_weights,
        ask_only=wanted.ask_only,
        state_of=wanted.state_of,
        bos=wanted.bos,
        base_checkpoint=wanted.base_checkpoint,
        chat_template=asked.chat,
        inputs=_inputs(wanted, resolved, record),
    )
    card = task.card
    metrics = {"metrics": list(card.metrics), "main_metric": card.main_metric, "chance": card.chance}
    return Plan(wanted=wanted, config=config, adapter=resolved, task=task, task_record={**record, **metrics})


def _inputs(wanted: Wanted, resolved: Adapter, record: Mapping[str, Json]) -> dict[str, str]:
    """Digests of what a run reads, by name."""
    found = {
        "rows": str(record["digest"]),
        "model": _model_digest(wanted),
        "checkpoint": resolved.checkpoint_digest,
        "base_checkpoint": digest(named(wanted.base_checkpoint, wanted.model)) if wanted.base_checkpoint else "",
        "state": digest(wanted.state) if wanted.state is not None else "",
        "others": str(record["others"]["digest"]) if "others" in record else "",
    }
    return {name: value for name, value in found.items() if value}


def _check_model(wanted: Wanted) -> None:
    """Refuse a model that nothing is known of before its task's data are looked for."""
    from ttabench.hub import find_source

    if not wanted.random_weights:
        find_source(wanted.model)
    elif wanted.model not in ARCHITECTURES:
        raise UnknownName("architecture for --random-weights", wanted.model, list(ARCHITECTURES))


def _model_digest(wanted: Wanted) -> str:
    from ttabench.hub import digest_of

    return "" if wanted.random_weights else digest_of(wanted.model)


class Bases:
    """Base models loaded so far, so that several runs of one command load one once."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, str, str, bool, str, bool], LM] = {}

    def get(self, wanted: Wanted, *, chat_template: bool = False) -> LM:
        """The base model of a request, reading in its chat template or not.

        Raises:
            UserError: unknown, missing or unreachable model; a device or number format that is not there.
        """
        key = (wanted.base_name, wanted.device, wanted.dtype, wanted.random_weights, wanted.bos, chat_template)
        if key not in self._loaded:
            from ttabench.environment import quiet_libraries
            from ttabench.lm import load as load_lm

            quiet_libraries()
            lm = load_lm(
                wanted.model,
                random_weights=wanted.random_weights,
                device=wanted.device,
                dtype=wanted.dtype,
                bos=wanted.bos,
            )
            if wanted.base_checkpoint:
                from ttabench.standing import stood_on

                lm = stood_on(lm, named(wanted.base_checkpoint, wanted.model), wanted.base_checkpoint)
            if chat_template:
                lm.use_chat_template()
            self._loaded[key] = lm
        return self._loaded[key]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A run that is stored."""

    record: RunRecord
    folder: Path
    how: Literal["stored", "continued", "new"]
    """It was stored already; it was continued after a stop; it ran from the start."""


@dataclass(frozen=True, kw_only=True)
class Watching:
    """Who is told what goes on: `tick` about progress, `notify` in one line about what else is worth knowing."""

    tick: Tick = no_tick
    notify: Callable[[str], None] = no_word


def execute(plan: Plan, bases: Bases, out: Path, *, force: bool = False, watching: Watching | None = None) -> Outcome:
    """Return the run if it is stored, else run or continue it and store it.

    Args:
        plan: what to run.
        bases: base models already loaded.
        out: folder of all runs.
        force: run again from the start even if it is stored.
        watching: who is told about progress.

    Raises:
        UserError: the folder cannot be written, the stored record is corrupted, the model or checkpoint cannot be
            loaded, or the context does not fit the model.
    """
    from ttabench.records import RECORD_FILE, load_record
    from ttabench.store import RunFolder

    watching = watching or Watching()
    where = out / plan.config.identity()
    if not force and (where / RECORD_FILE).exists():  # it is whole: neither a lock nor a right to write is needed
        return Outcome(record=load_record(where), folder=where, how="stored")
    folder = RunFolder(out, plan.config.identity())
    with folder.locked(watching.notify):
        if not force and (stored := folder.stored()):
            return Outcome(record=stored, folder=folder.path, how="stored")
        if force:
            folder.discard()
        resumed = folder.resume()
        if resumed:
            watching.notify(f"Continuing run {plan.config.identity()}: {resumed} queries are answered already.")
        try:
            record = _run(plan, bases, folder, watching)
        except UserError:
            folder.abandon()
            raise
    return Outcome(record=record, folder=folder.path, how="continued" if resumed else "new")


class _Notes:
    """Notes that are given once something is done: what is refused at the start is refused in one line."""

    def __init__(self, notes: Sequence[str], watching: Watching) -> None:
        self._pending, self._watching = list(notes), watching

    def give(self) -> None:
        while self._pending:
            self._watching.notify(f"Note: {self._pending.pop(0)}.")

    def tick(self, what: str, done: int, total: int) -> None:
        self.give()
        self._watching.tick(what, done, total)


def _run(plan: Plan, bases: Bases, folder: RunFolder, watching: Watching) -> RunRecord:
    from ttabench.environment import seed_everything
    from ttabench.recording import answer_notes, label_notes, make_record, notes
    from ttabench.runner import Bench, run_episodes

    seed_everything(plan.config.seed)
    lm = bases.get(plan.wanted, chat_template=plan.config.chat_template)
    method = plan.adapter.build(lm)
    bench = Bench(
        lm=lm,
        method=method,
        metrics=plan.task.card.metrics,
        batch_size=plan.config.batch_size,
        start=_start(plan, lm),
        ask_only=plan.config.ask_only,
        state_of=plan.config.state_of,
    )
    pending = _Notes(notes(plan, lm), watching)
    run_episodes(bench, plan.task, folder, pending.tick)
    pending.give()
    for note in [*label_notes(method), *answer_notes(folder.samples)]:
        watching.notify(f"Note: {note}.")
    if note := folder.settle():
        watching.notify(f"Note: {note}.")
    record = make_record(plan, lm, method, folder)
    folder.finish(record)
    return record


def _start(plan: Plan, lm: LM) -> State | None:
    if plan.wanted.state is None:
        return None
    from ttabench.states import load_state

    state = load_state(plan.wanted.state, plan.adapter.belongs(lm), str(lm.device))
    if state.rows != 1:
        raise UserError(f"The state in {plan.wanted.state} has {state.rows} rows, a run one.", "Make it anew.")
    return state
