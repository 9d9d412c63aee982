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
from ttabench.core.files import read_json_object
from ttabench.methods import registry
from ttabench.records.schema import (
    RECORD_FILE,
    RECORD_REMEDY,
    RUNS_FILE,
    SAMPLES_FILE,
    SUBMISSION_REMEDY,
    SUBMISSION_SUFFIX,
    RunRecord,
    is_stored,
    is_submission,
    load_record,
    packed_runs,
    submission_file,
)
from ttabench.report.stored import StoredRun, full_config


@dataclass(frozen=True, kw_only=True)
class LoadedRuns:
    """Runs with their records, and lines that say what was left out."""

    runs: tuple[StoredRun, ...] = ()
    damaged: tuple[str, ...] = ()
    """The file of each, its fault and the remedy."""
    skipped: tuple[str, ...] = ()
    """What was named and holds no run."""


def load_run(folder: Path) -> RunRecord:
    """The record of a run, its configuration one that this version can tell."""
    record = load_record(folder)
    if submission_file(folder) and record.id != folder.name:
        raise UserError(f"The record of {folder} is of another run.", SUBMISSION_REMEDY)
    try:
        full_config(record.config)
    except UserError as error:
        raise UserError(
            f"The record {folder / RECORD_FILE} is corrupted: config: {error}", RECORD_REMEDY
        ) from None
    return record


def load_runs(folders: Iterable[Path]) -> LoadedRuns:
    """The runs in these folders, in their order; refused where all are damaged."""
    kept, damaged = list[StoredRun](), list[str]()
    for folder in folders:
        try:
            kept.append((folder, load_run(folder)))
        except UserError as error:
            damaged.append(str(error))
    refuse_all_damaged(len(kept), damaged)
    return LoadedRuns(runs=tuple(kept), damaged=tuple(damaged))


def refuse_all_damaged(count: int, damaged: Sequence[str]) -> None:
    """Refuse where nothing is left because all is damaged, saying what is wrong with the first."""
    if damaged and not count:
        more = f" {len(damaged) - 1} more are damaged, too." if len(damaged) > 1 else ""
        raise UserError(damaged[0] + more)


def _created(file: Path) -> str:
    """When a record says it was made: file times do not survive a clone. Damaged records come first."""
    with suppress(UserError):
        return str(read_json_object(file).get("created", ""))
    return ""


def packed_run_dates(folder: Path) -> dict[Path, str]:
    """When the packed runs of a folder were made; a damaged file of them stands for all: reading it says so."""
    with suppress(UserError):
        return {folder / name: run.created for name, run in packed_runs(folder).items()}
    return {folder / RUNS_FILE: ""}


def list_runs(folder: Path) -> list[Path]:
    """The runs directly below a folder, in folders and packed, the oldest record first; see `packed_run_dates`."""
    made = packed_run_dates(folder) | {
        file.parent: _created(file) for file in folder.glob(f"*/{RECORD_FILE}")
    }
    return sorted(made, key=lambda run: (made[run], run))


def _runs_matching(pattern: str) -> list[Path]:
    """Runs whose paths, or paths of files in them, match a pattern."""
    path = Path(pattern)
    base, below = Path(path.anchor), path.relative_to(path.anchor)
    matches = {match.parent if match.is_file() else match for match in base.glob(str(below))}
    above = (
        below if below.name == "**" else below.parent
    )  # `**` stands for any number of folders, none too
    suites = [file.parent for file in base.glob(str(above / RUNS_FILE))]
    packed = {
        run
        for suite in suites
        for run in packed_run_dates(suite)
        if run.name == RUNS_FILE or fnmatch(run.name, path.name)
    }
    return sorted({match for match in matches if (match / RECORD_FILE).exists()} | packed)


def runs_at_path(name: str) -> list[Path] | None:
    """Runs that a path or a pattern of paths leads to; None where it leads nowhere. A file that is no record is
    returned as it is: reading it says so. A folder without runs may hold folders of runs."""
    path = Path(name)
    if path.name in (RUNS_FILE, SAMPLES_FILE) and (packed := packed_run_dates(path.parent)):
        return list(packed)
    if is_submission(path):
        return [path / run for run in packed_runs(path)]
    if path.is_file():
        return [path.parent if path.name == RECORD_FILE else path]
    with suppress(UserError):  # what a damaged file would say of it is nothing
        if is_stored(path):
            return [path]
    if path.is_dir():
        return list_runs_below(path)
    if len(path.parts) > 1 and path.parent / RUNS_FILE in packed_run_dates(path.parent):
        return [path.parent / RUNS_FILE]
    if any(mark in name for mark in "*?["):
        try:
            return _runs_matching(name) or None
        except (ValueError, NotImplementedError) as error:
            raise UserError(
                f"{name!r} is no pattern of paths ({error}).", "Write it like 'results/*'."
            ) from None
    return None


def run_folders(folder: Path, levels: int = 2, exclude: Collection[str] = ()) -> Iterator[Path]:
    """The folder, if it has runs; else those of the folders in it that have, so many levels down, `exclude` those of these
    names."""
    if (folder / RUNS_FILE).exists() or any(folder.glob(f"*/{RECORD_FILE}")):
        yield folder
    elif levels and folder.is_dir():
        for path in sorted(
            path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()
        ):
            if path.name not in exclude:
                yield from run_folders(path, levels - 1, exclude)


def list_runs_below(folder: Path, exclude: Collection[str] = ()) -> list[Path]:
    """The runs of a folder; where it has none, those of the folders in it, see `run_folders`."""
    return [
        run
        for folder_with_runs in run_folders(folder, exclude=exclude)
        for run in list_runs(folder_with_runs)
    ]


def _runs_with_prefix(name: str, out: Path) -> set[Path]:
    """The runs directly below a folder whose ids begin like this; no record is read for it."""
    inside = [
        *packed_run_dates(out),
        *(file.parent for file in out.glob(f"{escape(Path(name).name)}*/{RECORD_FILE}")),
    ]
    return {run for run in inside if run.name.startswith(name) and run.name != RUNS_FILE}


is_id_prefix = re.compile("[0-9a-f]{6,}").fullmatch
"""Of an id: no method is called so, and no record is read to see that."""


def find_by_id(name: str, out: Path, folders: Sequence[Path]) -> Path:
    """The run whose id begins like this, among these folders or in `out`."""
    if len(Path(name).parts) > 1:
        raise UserError(
            f"There is no file or folder {name}.", "Check the path, or see `ttabench list runs`."
        )
    for place in (folders, _runs_with_prefix(name, out)):
        matching = [run for run in place if run.name.startswith(name)]
        matching = [run for run in matching if run.name == name] or matching
        if len(matching) == 1:
            return matching[0]
    if matching:
        raise UserError(
            f"{len(matching)} runs in {out} begin with {name!r}.", "Give more digits of the id."
        )
    packed_runs(out)  # a damaged file may hold it
    ids = [run.name for run in (*folders, *list_runs(out))]
    if not ids:
        raise UserError(
            f"No run {name!r}: {out} holds no runs.",
            "Run `ttabench eval`, or name the folder with --out.",
        )
    fault = f"No run in {out} has an id that begins with {name!r}, and there is no file, folder or method of that name."
    hint = f"See `ttabench list runs --out {quote(str(out))}` and `ttabench list methods`."
    raise UnknownName(
        "run", name, [*ids, *registry.methods(), *registry.families()], fault=fault, hint=hint
    )


RunFilters: TypeAlias = Mapping[str, Sequence[str] | None]
"""Texts by "task", "method" (a whole name, or a family: kvpress stands for every kvpress:...) and "model", as they are
typed, each a name or several with commas; a run has one of each kind, where any is named."""


def select_runs(names: Sequence[str], out: Path, filters: RunFilters) -> LoadedRuns:
    """The runs that are meant, in the order of the names; see above. Ids and methods are looked for in `out`; a path
    may be a run's folder, its `run.json`, a folder of runs, or of such folders.

    Raises:
        UserError: a name that is none of these; an id that several runs begin with.
    """
    folders, skipped, among, ids = dict[Path, None](), list[str](), list[str](), list[str]()
    known_methods = {*registry.methods(), *registry.families(), *registry.installed()[0]}
    own_methods = cache(
        lambda: {
            name for _, record in load_runs(list_runs(out)).runs for name in _methods_of(record)
        }
    )
    for name in names:
        at = runs_at_path(name)
        if at and not (at[0].is_file() and at[0].name not in (RECORD_FILE, RUNS_FILE)):
            folders.update(dict.fromkeys(at))
        elif name.partition(":")[0] in known_methods or (
            at is None and not is_id_prefix(name) and name in own_methods()
        ):
            among.append(name)
        else:
            (ids if at is None else skipped).append(name)
    if skipped and not (folders or among or ids):
        file = Path(skipped[0])
        if file.is_file():  # what is wrong with it
            load_record(file) if file.suffix != SUBMISSION_SUFFIX else packed_runs(file)
        raise UserError(
            f"There are no runs in {', '.join(skipped)}.",
            "Run `ttabench eval` first, or name a folder.",
        )
    named = [find_by_id(name, out, list(folders)) for name in ids]
    pool = load_runs(
        dict.fromkeys([*(folders or (list_runs(out) if among or not names else ())), *named])
    )
    _refuse_unknown(among, pool.runs, "method", _methods_of)
    meant = [
        run for run in pool.runs if not among or run[0] in named or _methods_of(run[1]) & {*among}
    ]
    kinds: dict[str, Callable[[RunRecord], set[str]]] = {
        "task": lambda record: {str(record.config.get("task"))},
        "method": _methods_of,
        "model": lambda record: {record.base},
    }
    kept, requested = meant, list[str]()
    for kind, values_of in kinds.items():
        own = [
            name
            for text in filters.get(kind) or ()
            for part in text.split(",")
            if (name := part.strip())
        ]
        _refuse_unknown(own, meant, kind, values_of)
        kept = [run for run in kept if not own or values_of(run[1]) & {*own}]
        requested += own
    if meant and not kept:
        fault = f"None of {len(meant)} runs is of all of these: {', '.join(requested)}."
        raise UserError(fault, "Ask for fewer, or list runs.")
    return LoadedRuns(runs=tuple(kept), skipped=tuple(skipped), damaged=pool.damaged)


def _methods_of(record: RunRecord) -> set[str]:
    """Its method and the family of it."""
    method = str(record.config.get("method"))
    return {method, method.partition(":")[0]}


def _refuse_unknown(
    names: Sequence[str],
    among: Sequence[StoredRun],
    kind: str,
    values_of: Callable[[RunRecord], set[str]],
) -> None:
    """Refuse a name that no run has."""
    known = {name for _, record in among for name in values_of(record)}
    for name in names:
        if among and name not in known:
            fault = f"None of these runs is {'on' if kind == 'task' else 'of'} the {kind} {name!r}."
            raise UnknownName(kind, name, sorted(known), fault=fault)


def submission_name(run: Path) -> str:
    """Name of the submission of a run, `lab-b` of `files/lab-b.parquet`; empty of a run of ours."""
    return run.parent.stem if submission_file(run) else ""
