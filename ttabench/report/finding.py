"""Which stored runs somebody means, and their records.

    find_runs(["results/nine", "3f0c"], out)                 paths, patterns, beginnings of ids
    selected(["mac", "icl"], out, Wanted(["streamingqa"]))   names of methods, too; runs of others beside ours

A packed run (`records.packing`) is named like one in a folder: SUITE/ID. Methods choose among the runs of the paths
that were given, or among all. What was named and holds no run is skipped where there are runs beside it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from ttabench.core.checked_file import object_of
from ttabench.core.errors import UnknownName, UserError
from ttabench.methods import registry
from ttabench.records.schema import (
    ASK,
    RECORD_FILE,
    REMEDY,
    RUNS_FILE,
    SAMPLES_FILE,
    SUFFIX,
    RunRecord,
    file_of,
    is_stored,
    load_record,
    runs,
)
from ttabench.report.configuration import whole
from ttabench.report.pairing import Run

TIMES = ("ask_ms", "ask_cpu_ms")
"""Columns in which one run made twice differs."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """Runs with their records, and lines that say what was left out."""

    runs: tuple[Run, ...] = ()
    damaged: tuple[str, ...] = ()
    """The file of each, its fault and the remedy."""
    skipped: tuple[str, ...] = ()
    """What was named and holds no run."""
    alike: tuple[str, ...] = ()
    """Files of others that have runs of ours."""


def load_run(folder: Path) -> RunRecord:
    """The record of a run, its configuration one that this version can tell."""
    record = load_record(folder)
    try:
        whole(record.config)
    except UserError as error:
        raise UserError(f"The record {folder / RECORD_FILE} is corrupted: config: {error}", REMEDY) from None
    return record


def loaded(folders: Iterable[Path], *, alone: bool = True) -> Loaded:
    """The runs in these folders, in their order; `alone`: refused where all are damaged."""
    kept: list[Run] = []
    damaged: list[str] = []
    for folder in folders:
        try:
            kept.append((folder, load_run(folder)))
        except UserError as error:
            damaged.append(str(error))
    if alone:
        refuse_all_damaged(len(kept), damaged)
    return Loaded(runs=tuple(kept), damaged=tuple(damaged))


def refuse_all_damaged(count: int, damaged: Sequence[str]) -> None:
    """Refuse where nothing is left because all is damaged, saying what is wrong with the first."""
    if damaged and not count:
        more = f" {len(damaged) - 1} more are damaged, too." if len(damaged) > 1 else ""
        raise UserError(damaged[0] + more)


def find_runs(names: Sequence[str], out: Path) -> list[Path]:
    """Folders of runs, from paths, globs, or (beginnings of) ids in `out`; all of `out` for no names.

    A path may be a run's folder, its `run.json`, a folder of runs, or of such folders. The order is that of the names.

    Raises:
        UserError: a name that is none of these; an id that several runs begin with.
    """
    if not names:
        return runs_in(out)
    places = [[by_id(name, out)] if (at := at_path(name)) is None else at for name in names]
    return list(dict.fromkeys(run for place in places for run in place))


def _created(file: Path) -> str:
    """When a record says it was made: file times do not survive a clone. Damaged records come first."""
    try:
        return str(object_of(file).get("created", ""))
    except UserError:
        return ""


def packed_in(folder: Path) -> dict[Path, str]:
    """When the packed runs of a folder were made; a damaged file of them stands for all: reading it says so."""
    try:
        return {folder / name: run.created for name, run in runs(folder).items()}
    except UserError:
        return {folder / RUNS_FILE: ""}


def runs_in(folder: Path) -> list[Path]:
    """The runs directly below a folder, in folders and packed, the oldest record first; see `packed_in`."""
    made = packed_in(folder) | {file.parent: _created(file) for file in folder.glob(f"*/{RECORD_FILE}")}
    return sorted(made, key=lambda run: (made[run], run))


def _matching(pattern: str) -> list[Path]:
    """Runs whose paths, or paths of files in them, match a pattern."""
    path = Path(pattern)
    base, below = Path(path.anchor), path.relative_to(path.anchor)
    matches = {match.parent if match.is_file() else match for match in base.glob(str(below))}
    above = below if below.name == "**" else below.parent  # `**` stands for any number of folders, none too
    suites = [file.parent for file in base.glob(str(above / RUNS_FILE))]
    packed = {
        run for suite in suites for run in packed_in(suite) if run.name == RUNS_FILE or fnmatch(run.name, path.name)
    }
    return sorted({match for match in matches if (match / RECORD_FILE).exists()} | packed)


def at_path(name: str) -> list[Path] | None:
    """Runs that a path or a pattern of paths leads to; None where it leads nowhere. A file that is no record is
    returned as it is: reading it says so. A folder without runs may hold folders of runs."""
    path = Path(name)
    if path.name in (RUNS_FILE, SAMPLES_FILE) and (packed := packed_in(path.parent)):
        return list(packed)
    if path.is_file():
        return [path.parent if path.name == RECORD_FILE else path]
    with suppress(UserError):  # what a damaged file would say of it is nothing
        if is_stored(path):
            return [path]
    if path.is_dir():
        return runs_below(path)
    if len(path.parts) > 1 and path.parent / RUNS_FILE in packed_in(path.parent):
        return [path.parent / RUNS_FILE]
    if any(mark in name for mark in "*?["):
        try:
            return _matching(name) or None
        except (ValueError, NotImplementedError) as error:
            raise UserError(f"{name!r} is no pattern of paths ({error}).", "Write it like 'results/*'.") from None
    return None


def runs_below(folder: Path, levels: int = 2) -> list[Path]:
    """The runs of a folder; where it has none, those of the folders in it, so many levels down."""
    here = runs_in(folder)
    if here or not levels:
        return here
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    return [run for each in inside for run in runs_below(each, levels - 1)]


def by_id(name: str, out: Path, folders: Sequence[Path] = ()) -> Path:
    """The run whose id begins like this, among these folders or in `out`."""
    for place in (folders, [run for run in runs_in(out) if run.name != RUNS_FILE]):
        matching = [run for run in place if run.name.startswith(name)]
        matching = [run for run in matching if run.name == name] or matching
        if len(matching) == 1:
            return matching[0]
    if matching:
        raise UserError(f"{len(matching)} runs in {out} begin with {name!r}.", "Give more digits of the id.")
    runs(out)  # a damaged file may hold it
    ids = [run.name for run in (*folders, *place)]
    if not ids:
        raise UserError(f"No run {name!r}: {out} holds no runs.", "Run `ttabench eval`, or name the folder with --out.")
    if name in registry.methods():
        raise UserError(f"{name} is a method, not a run.", f"See `ttabench list runs --method {name}`.")
    fault = f"No run in {out} has an id that begins with {name!r}, and there is no file, folder or method of that name."
    hint = f"See `ttabench list runs --out {quote(str(out))}` and `ttabench list methods`."
    raise UnknownName("run", name, [*ids, *registry.methods(), *registry.families()], fault=fault, hint=hint)


class Wanted(NamedTuple):
    """Texts as they are typed, each a name or several with commas; a run has one of each kind, where any is named."""

    tasks: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    """Whole names, or families: kvpress stands for every kvpress:..."""
    models: Sequence[str] | None = None


def selected(names: Sequence[str], out: Path, wanted: Wanted, submissions: Sequence[Path] = ()) -> Loaded:
    """The runs that are meant, in the order of the names, then those of others; see above. Ids and methods are looked
    for in `out`; methods that were named and `wanted` choose among those of others, too."""
    folders: dict[Path, None] = {}
    skipped, among, ids = list[str](), list[str](), list[str]()
    known_methods = {*registry.methods(), *registry.families(), *registry.installed()[0]}
    for name in names:
        at = at_path(name)
        if at and not (at[0].is_file() and at[0].name not in (RECORD_FILE, RUNS_FILE)):
            folders.update(dict.fromkeys(at))
        elif name.partition(":")[0] in known_methods:
            among.append(name)
        else:
            (ids if at is None else skipped).append(name)
    if skipped and not (folders or among or ids or submissions):
        if Path(skipped[0]).is_file():
            load_record(Path(skipped[0]))  # says what is wrong with it
        raise UserError(f"There are no runs in {', '.join(skipped)}.", "Run `ttabench eval` first, or name a folder.")
    alone = not submissions
    pool = loaded(folders or (runs_in(out) if among or not names else ()), alone=alone)
    meant = [run for run in pool.runs if not among or _methods_of(run[1]) & {*among}]
    placed = {folder for folder, _ in meant}
    more = loaded([run for name in ids if (run := by_id(name, out, list(folders))) not in placed], alone=alone)
    theirs = _taken(submissions, [*pool.runs, *more.runs])
    _check(among, [*pool.runs, *theirs.runs], "method", _methods_of)
    chosen = [*meant, *more.runs, *(run for run in theirs.runs if not among or _methods_of(run[1]) & {*among})]
    damaged = (*pool.damaged, *more.damaged, *theirs.damaged)
    refuse_all_damaged(len(chosen), damaged)
    kinds: dict[str, Callable[[RunRecord], set[str]]] = {
        "task": lambda record: {str(record.config.get("task"))}, "method": _methods_of,
        "model": lambda record: {record.base},
    }  # fmt: skip
    kept, asked = chosen, list[str]()
    for texts, (kind, of) in zip(wanted, kinds.items(), strict=True):
        own = [name for text in texts or () for part in text.split(",") if (name := part.strip())]
        _check(own, chosen, kind, of)
        kept = [run for run in kept if not own or of(run[1]) & {*own}]
        asked += own
    if chosen and not kept:
        fault = f"None of {len(chosen)} runs is of all of these: {', '.join(asked)}."
        raise UserError(fault, "Ask for fewer, or list runs.")
    return Loaded(runs=tuple(kept), skipped=tuple(skipped), damaged=damaged, alike=theirs.alike)


def _methods_of(record: RunRecord) -> set[str]:
    """Its method and the family of it."""
    method = str(record.config.get("method"))
    return {method, method.partition(":")[0]}


def _check(names: Sequence[str], among: Sequence[Run], kind: str, of: Callable[[RunRecord], set[str]]) -> None:
    """Refuse a name that no run has."""
    known = {name for _, record in among for name in of(record)}
    for name in names:
        if among and name not in known:
            fault = f"None of these runs is {'on' if kind == 'task' else 'of'} the {kind} {name!r}."
            raise UnknownName(kind, name, sorted(known), fault=fault)


def names_of(files: Sequence[Path]) -> dict[Path, str]:
    """`lab-b` for `files/lab-b.parquet`, or the path where two files have one name; each file once."""
    once = list({os.path.realpath(file): file for file in reversed(files)}.values())[::-1]
    counts = Counter(file.stem for file in once)
    return {file: file.stem if counts[file.stem] == 1 else str(file) for file in once}


def names_of_runs(runs_of_all: Sequence[Run]) -> dict[Path, str]:
    """Name of the submission of each run, by its folder; "" of a run of ours."""
    files = {folder: file_of(folder) for folder, _ in runs_of_all}
    names = names_of([file for file in files.values() if file is not None])
    return {folder: names.get(file, file.stem) if file else "" for folder, file in files.items()}


def file_called(name: str) -> str:
    """The file that is called so."""
    return name if name.endswith(SUFFIX) else name + SUFFIX


def _taken(files: Sequence[Path], ours: Sequence[Run]) -> Loaded:
    """The runs of submissions that are not ours already. A run with the id of another and other scores is another run:
    its id gets the name of its file."""
    known: dict[str, list[RunRecord]] = {}
    for _, record in ours:
        known.setdefault(record.id, []).append(record)
    kept, damaged, alike = list[Run](), list[str](), list[str]()
    for file, name in names_of(files).items():
        own, wrong = _runs_of(file)
        damaged += wrong
        new = [run for run in own if not any(_same(run[1], other) for other in known.get(run[1].id, ()))]
        if same := len(own) - len(new):
            alike.append(f"{file}: {same} of its {len(own)} runs are here already, and counted once.")
        for folder, record in new:
            clash = record.id in known
            known.setdefault(record.id, []).append(record)
            kept.append((folder, record.model_copy(update={"id": f"{record.id}@{name}"}) if clash else record))
    return Loaded(runs=tuple(kept), damaged=tuple(damaged), alike=tuple(alike))


def _runs_of(file: Path) -> tuple[list[Run], list[str]]:
    """The runs of a file that can be read, and a line for every one that cannot."""
    if not file.is_file() or file.suffix != SUFFIX:
        raise UserError(f"--with {file} is no submission.", f"{ASK} Folders of runs are named without --with.")
    kept, wrong = list[Run](), list[str]()
    try:
        for name in runs(file):
            try:
                record = load_run(file / name)
                if record.id != name:
                    raise UserError("its record is of another run.")
                kept.append((file / name, record))
            except UserError as error:
                wrong.append(f"Run {name[:40]} of {file}: {error.what.removesuffix('.')}. {ASK}")
    except UserError as error:
        wrong.append(str(error))
    return kept, wrong


def _same(one: RunRecord, other: RunRecord) -> bool:
    """Whether two records of one id have the same scores."""
    ours, theirs = (
        [(row.metric, row.step, row.subtask, row.value, row.n) for row in record.rows] for record in (one, other)
    )
    both = one.sample_digests.keys() & other.sample_digests.keys() - {*TIMES}
    return ours == theirs and all(one.sample_digests[name] == other.sample_digests[name] for name in both)
