"""Which of the stored runs are compared: those that were named, of the tasks, methods and models that were asked for.

    selected(["mac", "icl"], Path("results/scratch"), Wanted(tasks=("streamingqa",)))

A name is a path, a pattern, (the beginning of) an id, or a method; methods choose among the runs of the paths that were
given, or among all. What was named and holds no run is skipped where there are runs beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from ttabench.core.errors import UnknownName, UserError
from ttabench.methods import registry
from ttabench.records.schema import RECORD_FILE, RunRecord, load_record
from ttabench.records.suite_archive import RUNS_FILE, is_submission
from ttabench.report.finding import NoRuns, at_path, by_id, loaded, refuse_all_damaged, refuse_profiles, runs_in
from ttabench.report.pairing import Run
from ttabench.report.theirs import taken


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Names of which a run has to have one of each kind; all are taken where none is named."""

    tasks: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    """Whole names, or families: kvpress stands for every kvpress:..."""
    models: tuple[str, ...] = ()

    @classmethod
    def typed(cls, tasks: Sequence[str] | None, methods: Sequence[str] | None, models: Sequence[str] | None) -> Wanted:
        """Of texts as they are typed: each a name, or several with commas."""
        return cls(tasks=names_in(tasks or ()), methods=names_in(methods or ()), models=names_in(models or ()))


@dataclass(frozen=True, kw_only=True)
class Selected:
    """The runs, and what was named and holds none."""

    runs: tuple[Run, ...]
    skipped: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()
    """See `Theirs`."""


def names_in(texts: Sequence[str]) -> tuple[str, ...]:
    """`["a,b", "c"]` as a, b and c."""
    return tuple(name for text in texts for part in text.split(",") if (name := part.strip()))


def selected(names: Sequence[str], out: Path, wanted: Wanted, submissions: Sequence[Path] = ()) -> Selected:
    """The runs that are meant, in the order of the names, then those of others; see above.

    Ids and methods are looked for in `out`; methods that were named and `wanted` choose among those of others, too.
    """
    found: dict[Path, None] = {}
    skipped, methods, ids = [], [], []
    for name in names:
        at = at_path(name)
        if at and not _is_no_record(at):
            found.update(dict.fromkeys(at))
        elif _is_method(name):
            methods.append(name)
        elif at is not None:
            skipped.append(name)
        else:
            ids.append(name)
    if skipped and not (found or methods or ids or submissions):
        _refuse(skipped)
    alone = not submissions
    pool = loaded(found or (runs_in(out) if methods or not names else ()), alone=alone)
    placed = {folder for folder, record in pool.runs if not methods or _method_of(record) & {*methods}}
    named = [folder for name in ids if (folder := _by_id(name, out, list(found))) not in placed]
    more = loaded(named, alone=alone)
    theirs = taken(submissions, [*pool.runs, *more.runs])
    _check(methods, [*pool.runs, *theirs.runs], "method", _method_of)
    ours = [run for run in pool.runs if run[0] in placed]
    of_others = [run for run in theirs.runs if not methods or _method_of(run[1]) & {*methods}]
    damaged = (*pool.damaged, *more.damaged, *theirs.damaged)
    runs = [*ours, *more.runs, *of_others]
    refuse_all_damaged(len(runs), list(damaged))
    return Selected(runs=tuple(_wanted(runs, wanted)), skipped=tuple(skipped), damaged=damaged, alike=theirs.alike)


def _by_id(name: str, out: Path, folders: Sequence[Path]) -> Path:
    """The run of that id, among the folders that were named or in `out`."""
    if len(matching := [folder for folder in folders if folder.name.startswith(name)]) == 1:
        return matching[0]
    try:
        return by_id(name, out)
    except (UnknownName, NoRuns) as error:
        if isinstance(error, NoRuns) and not folders:
            raise
        if "/" in name:
            raise UserError(f"There is no file or folder {name}.", "Check the path.") from None
        ids = {folder.name for folder in (*folders, *runs_in(out))}
        known = [*ids, *registry.methods(), *registry.families()]
        where = "of the folders given" if folders else f"in the folder {out}"
        fault = f"No run {where} has an id that begins with {name!r}, and there is no folder or method of that name."
        listed = "" if folders else f" --out {quote(str(out))}"
        hint = f"See `ttabench list runs{listed}` and `ttabench list methods`."
        raise UnknownName("run", name, known, fault=fault, hint=hint) from None


def _is_no_record(at: Sequence[Path]) -> bool:
    return len(at) == 1 and at[0].is_file() and at[0].name not in (RECORD_FILE, RUNS_FILE)


def _is_method(name: str) -> bool:
    return name.partition(":")[0] in {*registry.methods(), *registry.families(), *registry.installed()[0]}


def _refuse(skipped: Sequence[str]) -> None:
    if len(skipped) > 1:
        raise UserError(f"None of the {len(skipped)} names is a run ({skipped[0]}, ...).", "Name folders of runs.")
    if is_submission(Path(skipped[0])):
        raise UserError(f"{skipped[0]} is a submission: name it with --with.", "Runs stand in folders.")
    if Path(skipped[0]).is_file():
        load_record(Path(skipped[0]))  # says what is wrong with it
    refuse_profiles([Path(name) for name in skipped])
    raise UserError(f"There are no runs in {skipped[0]}.", "Run `ttabench eval` first, or name another folder.")


def _method_of(record: RunRecord) -> set[str]:
    """Its method and the family of it."""
    method = str(record.config.get("method"))
    return {method, method.partition(":")[0]}


def _wanted(runs: Sequence[Run], wanted: Wanted) -> list[Run]:
    kinds: list[tuple[tuple[str, ...], str, Callable[[RunRecord], set[str]]]] = [
        (wanted.tasks, "task", lambda record: {str(record.config.get("task"))}),
        (wanted.methods, "method", _method_of),
        (wanted.models, "model", lambda record: {record.base}),
    ]
    kept = list(runs)
    for names, kind, of in kinds:
        _check(names, runs, kind, of)
        kept = [run for run in kept if not names or of(run[1]) & {*names}]
    if runs and not kept:
        asked = ", ".join(name for names, _, _ in kinds for name in names)
        raise UserError(f"None of {len(runs)} runs is of all of these: {asked}.", "Ask for fewer, or list runs.")
    return kept


def _check(names: Sequence[str], runs: Sequence[Run], kind: str, of: Callable[[RunRecord], set[str]]) -> None:
    """Refuse a name that no run has."""
    known = {name for _, record in runs for name in of(record)}
    for name in names:
        if runs and name not in known:
            have = "is of" if kind != "task" else "is on"
            raise UnknownName(kind, name, sorted(known), fault=f"None of these runs {have} the {kind} {name!r}.")
