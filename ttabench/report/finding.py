"""Which stored runs somebody means, and their records.

    selected(["results/nine", "3f0c"], out, {})                      paths, patterns, beginnings of ids
    selected(["mac", "icl"], out, {"task": ["streamingqa"]})         names of methods, too

A packed run (`records.schema`) is named like one in a folder: SUITE/ID; a submission holds runs as a folder does.
Methods choose among the runs of the paths that were given, or among all. What was named and holds no run is skipped
where there are runs beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from glob import escape
from pathlib import Path
from shlex import quote
from typing import TypeAlias

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.files import object_of
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
    is_submission,
    load_record,
    runs,
)
from ttabench.report.stored import Run, whole


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """Runs with their records, and lines that say what was left out."""

    runs: tuple[Run, ...] = ()
    damaged: tuple[str, ...] = ()
    """The file of each, its fault and the remedy."""
    skipped: tuple[str, ...] = ()
    """What was named and holds no run."""


def load_run(folder: Path) -> RunRecord:
    """The record of a run, its configuration one that this version can tell."""
    record = load_record(folder)
    if file_of(folder) and record.id != folder.name:
        raise UserError(f"The record of {folder} is of another run.", ASK)
    try:
        whole(record.config)
    except UserError as error:
        raise UserError(f"The record {folder / RECORD_FILE} is corrupted: config: {error}", REMEDY) from None
    return record


def loaded(folders: Iterable[Path]) -> Loaded:
    """The runs in these folders, in their order; refused where all are damaged."""
    kept, damaged = list[Run](), list[str]()
    for folder in folders:
        try:
            kept.append((folder, load_run(folder)))
        except UserError as error:
            damaged.append(str(error))
    refuse_all_damaged(len(kept), damaged)
    return Loaded(runs=tuple(kept), damaged=tuple(damaged))


def refuse_all_damaged(count: int, damaged: Sequence[str]) -> None:
    """Refuse where nothing is left because all is damaged, saying what is wrong with the first."""
    if damaged and not count:
        more = f" {len(damaged) - 1} more are damaged, too." if len(damaged) > 1 else ""
        raise UserError(damaged[0] + more)


def _created(file: Path) -> str:
    """When a record says it was made: file times do not survive a clone. Damaged records come first."""
    with suppress(UserError):
        return str(object_of(file).get("created", ""))
    return ""


def packed_in(folder: Path) -> dict[Path, str]:
    """When the packed runs of a folder were made; a damaged file of them stands for all: reading it says so."""
    with suppress(UserError):
        return {folder / name: run.created for name, run in runs(folder).items()}
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
    if is_submission(path):
        return [path / run for run in runs(path)]
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


def homes(folder: Path, levels: int = 2, but: Collection[str] = ()) -> Iterator[Path]:
    """The folder, if it has runs; else those of the folders in it that have, so many levels down, `but` those of these
    names."""
    if (folder / RUNS_FILE).exists() or any(folder.glob(f"*/{RECORD_FILE}")):
        yield folder
    elif levels and folder.is_dir():
        for path in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
            if path.name not in but:
                yield from homes(path, levels - 1, but)


def runs_below(folder: Path, but: Collection[str] = ()) -> list[Path]:
    """The runs of a folder; where it has none, those of the folders in it, see `homes`."""
    return [run for home in homes(folder, but=but) for run in runs_in(home)]


def _begun(name: str, out: Path) -> set[Path]:
    """The runs directly below a folder whose ids begin like this; no record is read for it."""
    inside = [*packed_in(out), *(file.parent for file in out.glob(f"{escape(Path(name).name)}*/{RECORD_FILE}"))]
    return {run for run in inside if run.name.startswith(name) and run.name != RUNS_FILE}


DIGITS = re.compile("[0-9a-f]{6,}").fullmatch
"""Of an id: no method is called so, and no record is read to see that."""


def by_id(name: str, out: Path, folders: Sequence[Path]) -> Path:
    """The run whose id begins like this, among these folders or in `out`."""
    if len(Path(name).parts) > 1:
        raise UserError(f"There is no file or folder {name}.", "Check the path, or see `ttabench list runs`.")
    for place in (folders, _begun(name, out)):
        matching = [run for run in place if run.name.startswith(name)]
        matching = [run for run in matching if run.name == name] or matching
        if len(matching) == 1:
            return matching[0]
    if matching:
        raise UserError(f"{len(matching)} runs in {out} begin with {name!r}.", "Give more digits of the id.")
    runs(out)  # a damaged file may hold it
    ids = [run.name for run in (*folders, *runs_in(out))]
    if not ids:
        raise UserError(f"No run {name!r}: {out} holds no runs.", "Run `ttabench eval`, or name the folder with --out.")
    fault = f"No run in {out} has an id that begins with {name!r}, and there is no file, folder or method of that name."
    hint = f"See `ttabench list runs --out {quote(str(out))}` and `ttabench list methods`."
    raise UnknownName("run", name, [*ids, *registry.methods(), *registry.families()], fault=fault, hint=hint)


Wanted: TypeAlias = Mapping[str, Sequence[str] | None]
"""Texts by "task", "method" (a whole name, or a family: kvpress stands for every kvpress:...) and "model", as they are
typed, each a name or several with commas; a run has one of each kind, where any is named."""


def selected(names: Sequence[str], out: Path, wanted: Wanted) -> Loaded:
    """The runs that are meant, in the order of the names; see above. Ids and methods are looked for in `out`; a path
    may be a run's folder, its `run.json`, a folder of runs, or of such folders.

    Raises:
        UserError: a name that is none of these; an id that several runs begin with.
    """
    folders, skipped, among, ids = dict[Path, None](), list[str](), list[str](), list[str]()
    known_methods = {*registry.methods(), *registry.families(), *registry.installed()[0]}
    own_methods = cache(lambda: {name for _, record in loaded(runs_in(out)).runs for name in _methods_of(record)})
    for name in names:
        at = at_path(name)
        if at and not (at[0].is_file() and at[0].name not in (RECORD_FILE, RUNS_FILE)):
            folders.update(dict.fromkeys(at))
        elif name.partition(":")[0] in known_methods or (at is None and not DIGITS(name) and name in own_methods()):
            among.append(name)
        else:
            (ids if at is None else skipped).append(name)
    if skipped and not (folders or among or ids):
        file = Path(skipped[0])
        if file.is_file():  # what is wrong with it
            load_record(file) if file.suffix != SUFFIX else runs(file)
        raise UserError(f"There are no runs in {', '.join(skipped)}.", "Run `ttabench eval` first, or name a folder.")
    named = [by_id(name, out, list(folders)) for name in ids]
    pool = loaded(dict.fromkeys([*(folders or (runs_in(out) if among or not names else ())), *named]))
    _check(among, pool.runs, "method", _methods_of)
    meant = [run for run in pool.runs if not among or run[0] in named or _methods_of(run[1]) & {*among}]
    kinds: dict[str, Callable[[RunRecord], set[str]]] = {
        "task": lambda record: {str(record.config.get("task"))}, "method": _methods_of,
        "model": lambda record: {record.base},
    }  # fmt: skip
    kept, asked = meant, list[str]()
    for kind, of in kinds.items():
        own = [name for text in wanted.get(kind) or () for part in text.split(",") if (name := part.strip())]
        _check(own, meant, kind, of)
        kept = [run for run in kept if not own or of(run[1]) & {*own}]
        asked += own
    if meant and not kept:
        fault = f"None of {len(meant)} runs is of all of these: {', '.join(asked)}."
        raise UserError(fault, "Ask for fewer, or list runs.")
    return Loaded(runs=tuple(kept), skipped=tuple(skipped), damaged=pool.damaged)


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


def lab_of(run: Path) -> str:
    """Name of the submission of a run, `lab-b` of `files/lab-b.parquet`; empty of a run of ours."""
    return run.parent.stem if file_of(run) else ""
