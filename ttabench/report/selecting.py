"""Which of the stored runs are compared: those that were named, of the tasks, methods and models that were asked for.

    selected(["mac", "icl"], Path("results/scratch"), Wanted(tasks=("streamingqa",)))

A name is a path, a pattern, (the beginning of) an id, or a method; methods choose among the runs of the paths that were
given, or among all. What was named and holds no run is skipped where there are runs beside it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ttabench.core.errors import UnknownName, UserError
from ttabench.methods import registry
from ttabench.records.schema import ASK, RECORD_FILE, RUNS_FILE, SUFFIX, RunRecord, file_of, load_record, runs
from ttabench.report.finding import Loaded, at_path, by_id, load_run, loaded, refuse_all_damaged, runs_in
from ttabench.report.pairing import Run

TIMES = ("ask_ms", "ask_cpu_ms")
"""Columns in which one run made twice differs."""


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


def names_in(texts: Sequence[str]) -> tuple[str, ...]:
    """`["a,b", "c"]` as a, b and c."""
    return tuple(name for text in texts for part in text.split(",") if (name := part.strip()))


def selected(names: Sequence[str], out: Path, wanted: Wanted, submissions: Sequence[Path] = ()) -> Loaded:
    """The runs that are meant, in the order of the names, then those of others; see above. Ids and methods are looked
    for in `out`; methods that were named and `wanted` choose among those of others, too."""
    folders: dict[Path, None] = {}
    skipped, methods, ids = list[str](), list[str](), list[str]()
    known_methods = {*registry.methods(), *registry.families(), *registry.installed()[0]}
    for name in names:
        at = at_path(name)
        if at and not (at[0].is_file() and at[0].name not in (RECORD_FILE, RUNS_FILE)):
            folders.update(dict.fromkeys(at))
        elif name.partition(":")[0] in known_methods:
            methods.append(name)
        else:
            (ids if at is None else skipped).append(name)
    if skipped and not (folders or methods or ids or submissions):
        if Path(skipped[0]).is_file():
            load_record(Path(skipped[0]))  # says what is wrong with it
        raise UserError(f"There are no runs in {', '.join(skipped)}.", "Run `ttabench eval` first, or name a folder.")
    pool = loaded(folders or (runs_in(out) if methods or not names else ()), alone=not submissions)
    meant = [run for run in pool.runs if not methods or _method_of(run[1]) & {*methods}]
    placed = {folder for folder, _ in meant}
    more = loaded([run for name in ids if (run := by_id(name, out, list(folders))) not in placed],
                  alone=not submissions)  # fmt: skip
    theirs = taken(submissions, [*pool.runs, *more.runs])
    _check(methods, [*pool.runs, *theirs.runs], "method", _method_of)
    of_others = [run for run in theirs.runs if not methods or _method_of(run[1]) & {*methods}]
    damaged = (*pool.damaged, *more.damaged, *theirs.damaged)
    chosen = [*meant, *more.runs, *of_others]
    refuse_all_damaged(len(chosen), list(damaged))
    return Loaded(runs=tuple(_wanted(chosen, wanted)), skipped=tuple(skipped), damaged=damaged, alike=theirs.alike)


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


def names_of(files: Sequence[Path]) -> dict[Path, str]:
    """`lab-b` for `files/lab-b.parquet`, or the path where two files have one name; each file once."""
    once = list({os.path.realpath(file): file for file in reversed(files)}.values())[::-1]
    counts = Counter(file.stem for file in once)
    return {file: file.stem if counts[file.stem] == 1 else str(file) for file in once}


def names_of_runs(runs: Sequence[Run]) -> dict[Path, str]:
    """Names of the submissions that these runs lie in."""
    return names_of([file for folder, _ in runs if (file := file_of(folder)) is not None])


def name_in(names: Mapping[Path, str], folder: Path) -> str:
    """Name of the submission of a run; "" for a run of ours."""
    file = file_of(folder)
    return "" if file is None else names.get(file, file.stem)


def file_called(name: str) -> str:
    """The file that is called so."""
    return name if name.endswith(SUFFIX) else name + SUFFIX


def taken(files: Sequence[Path], ours: Sequence[Run]) -> Loaded:
    """The runs of submissions that are not ours already. A run with the id of another and other scores is another run:
    its id gets the name of its file."""
    known: dict[str, list[RunRecord]] = {}
    for _, record in ours:
        known.setdefault(record.id, []).append(record)
    runs, damaged, alike = list[Run](), list[str](), list[str]()
    for file, name in names_of(files).items():
        own, wrong = _runs_of(file)
        damaged += wrong
        new = [run for run in own if not any(_same(run[1], other) for other in known.get(run[1].id, ()))]
        if same := len(own) - len(new):
            verb = "its run is" if len(own) == 1 else f"{same} of its {len(own)} runs are"
            alike.append(f"{file}: {verb} here already, and counted once.")
        for folder, record in new:
            clash = record.id in known
            known.setdefault(record.id, []).append(record)
            runs.append((folder, record.model_copy(update={"id": f"{record.id}@{name}"}) if clash else record))
    return Loaded(runs=tuple(runs), damaged=tuple(damaged), alike=tuple(alike))


def _runs_of(file: Path) -> tuple[list[Run], list[str]]:
    """The runs of a file that can be read, and a line for every one that cannot."""
    if not file.is_file() or file.suffix != SUFFIX:
        raise UserError(f"--with {file} is no submission.", f"{ASK} Folders of runs are named without --with.")
    found, wrong = list[Run](), list[str]()
    try:
        for name in runs(file):
            try:
                record = load_run(file / name)
                if record.id != name:
                    raise UserError("its record is of another run.")
                found.append((file / name, record))
            except UserError as error:
                wrong.append(f"Run {name[:40]} of {file}: {error.what.removesuffix('.')}. {ASK}")
    except UserError as error:
        wrong.append(str(error))
    return found, wrong


def _same(one: RunRecord, other: RunRecord) -> bool:
    """Whether two records of one id have the same scores."""
    ours, theirs = (
        [(row.metric, row.step, row.subtask, row.value, row.n) for row in record.rows] for record in (one, other)
    )
    both = one.sample_digests.keys() & other.sample_digests.keys() - {*TIMES}
    return ours == theirs and all(one.sample_digests[name] == other.sample_digests[name] for name in both)
