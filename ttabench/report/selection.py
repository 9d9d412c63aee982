"""Selection of stored runs by path, id, method, task and model.

select_runs(["results/nine", "3f0c"], out, {})               paths, patterns, prefixes of ids
select_runs(["mac", "icl"], out, {"task": ["streamingqa"]})  names of methods

Packed runs and runs of a submission (`records.schema`) have paths like runs in folders: SUITE/ID.
Methods select from the runs of the paths, or from all runs if there are no paths. Paths without
runs are skipped if other names have runs.
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
from ttabench.core.files import read_text
from ttabench.methods import registry
from ttabench.records.schema import (
    RECORD_FILE,
    RECORD_REMEDY,
    RUNS_FILE,
    SAMPLES_FILE,
    SUBMISSION_REMEDY,
    SUBMISSION_SUFFIX,
    TRASH_FOLDER,
    RunRecord,
    is_stored,
    is_submission,
    load_record,
    packed_runs,
    submission_file,
)
from ttabench.report.stored import StoredRun, full_config

CREATED_PATTERN = re.compile(r'"created"\s*:\s*"([^"]*)"')
"""Creation time in the text of a record, found faster than the text is parsed."""


@dataclass(frozen=True, kw_only=True)
class LoadedRuns:
    """Loaded runs, and messages on those that are left out."""

    runs: tuple[StoredRun, ...] = ()
    damaged: tuple[str, ...] = ()
    """A message for each damaged file, with its fault and remedy."""
    skipped: tuple[str, ...] = ()
    """Names without runs."""


def load_run(folder: Path) -> RunRecord:
    """Load the record of a run.

    Raises:
        UserError: the record is damaged, or this version cannot read its configuration.
    """
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
    """Load the runs in these folders, in order.

    Raises:
        UserError: all are damaged.
    """
    kept, damaged = list[StoredRun](), list[str]()
    for folder in folders:
        try:
            kept.append((folder, load_run(folder)))
        except UserError as error:
            damaged.append(str(error))
    refuse_all_damaged(len(kept), damaged)
    return LoadedRuns(runs=tuple(kept), damaged=tuple(damaged))


def refuse_all_damaged(count: int, damaged: Sequence[str]) -> None:
    """Raise the first message if there are no runs (`count`) and at least one is damaged."""
    if damaged and not count:
        more = f" {len(damaged) - 1} more are damaged, too." if len(damaged) > 1 else ""
        raise UserError(damaged[0] + more)


def _created(file: Path) -> str:
    """Return the creation time of a record, empty if damaged; file times do not survive a clone."""
    with suppress(UserError):
        found = CREATED_PATTERN.search(read_text(file))
        return found[1] if found else ""
    return ""


def packed_run_dates(folder: Path) -> dict[Path, str]:
    """Return the creation times of packed runs; a damaged file is one run, and loading it fails."""
    with suppress(UserError):
        return {folder / name: run.created for name, run in packed_runs(folder).items()}
    return {folder / RUNS_FILE: ""}


def list_runs(folder: Path) -> list[Path]:
    """Return the runs directly below a folder, in folders and packed, oldest first."""
    made = packed_run_dates(folder) | {
        file.parent: _created(file) for file in folder.glob(f"*/{RECORD_FILE}")
    }
    return sorted(made, key=lambda run: (made[run], run))


def _runs_matching(pattern: str) -> list[Path]:
    """Return the runs that match a pattern of paths, or have a file that does."""
    path = Path(pattern)
    base, below = Path(path.anchor), path.relative_to(path.anchor)
    matches = {match.parent if match.is_file() else match for match in base.glob(str(below))}
    # `**` matches any number of folders, including none
    above = below if below.name == "**" else below.parent
    packed = {
        run
        for file in base.glob(str(above / RUNS_FILE))
        for run in packed_run_dates(file.parent)
        if run.name == RUNS_FILE or fnmatch(run.name, path.name)
    }
    stored = {
        match
        for match in matches
        if (match / RECORD_FILE).exists() and match.parent.name != TRASH_FOLDER
    }
    return sorted(stored | packed)


def runs_at_path(name: str) -> list[Path] | None:
    """Return the runs of a path or pattern; None if it does not exist.

    A file that is no record is returned as is, and loading it fails. A folder may contain runs, or
    folders of runs.
    """
    path = Path(name)
    if path.name in (RUNS_FILE, SAMPLES_FILE) and (packed := packed_run_dates(path.parent)):
        return list(packed)
    if is_submission(path):
        return [path / run for run in packed_runs(path)]
    if path.is_file():
        return [path.parent if path.name == RECORD_FILE else path]
    with suppress(UserError):  # a damaged file is reported when it is loaded
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
                f"{name!r} is no valid pattern ({error}).", "Use one like 'results/*'."
            ) from None
    return None


def run_folders(folder: Path, levels: int = 2, exclude: Collection[str] = ()) -> Iterator[Path]:
    """Yield the folder if it has runs, else the folders with runs up to `levels` below it.

    Folders with a name in `exclude` are skipped.
    """
    if (folder / RUNS_FILE).exists() or any(folder.glob(f"*/{RECORD_FILE}")):
        yield folder
    elif levels and folder.is_dir():
        for path in sorted(
            path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()
        ):
            if path.name not in (*exclude, TRASH_FOLDER):
                yield from run_folders(path, levels - 1, exclude)


def list_runs_below(folder: Path, exclude: Collection[str] = ()) -> list[Path]:
    """Return the runs of a folder, or else of the folders in it, see `run_folders`."""
    return [
        run
        for folder_with_runs in run_folders(folder, exclude=exclude)
        for run in list_runs(folder_with_runs)
    ]


def _runs_with_prefix(name: str, out: Path) -> set[Path]:
    """Return the runs directly below a folder that have this id prefix; reads no records."""
    inside = [
        *packed_run_dates(out),
        *(file.parent for file in out.glob(f"{escape(Path(name).name)}*/{RECORD_FILE}")),
    ]
    return {run for run in inside if run.name.startswith(name) and run.name != RUNS_FILE}


is_id_prefix = re.compile("[0-9a-f]{6,}").fullmatch
"""Match an id prefix. Such a name is no method, so records need not be read to resolve it."""


def find_by_id(name: str, out: Path, folders: Sequence[Path]) -> Path:
    """Return the run with this id prefix, among the folders or else in `out`.

    Raises:
        UserError: there is no such run, or there are several.
    """
    if len(Path(name).parts) > 1:
        raise UserError(
            f"There is no file or folder {name}.", "Fix the path, or run `ttabench list runs`."
        )
    for place in (folders, _runs_with_prefix(name, out)):
        matching = [run for run in place if run.name.startswith(name)]
        matching = [run for run in matching if run.name == name] or matching
        if len(matching) == 1:
            return matching[0]
    if matching:
        raise UserError(
            f"{len(matching)} runs in {out} begin with {name!r}.", "Use more digits of the id."
        )
    packed_runs(out)  # raises if the file is damaged: it may contain the run
    ids = [run.name for run in (*folders, *list_runs(out))]
    if not ids:
        raise UserError(
            f"There are no runs in {out}, so {name!r} cannot be found.",
            "Run `ttabench eval` first, or set the folder with --out.",
        )
    fault = f"{name!r} matches no run id in {out}, and no file, folder or method."
    hint = f"Run `ttabench list runs --out {quote(str(out))}` or `ttabench list methods`."
    raise UnknownName(
        "run", name, [*ids, *registry.methods(), *registry.families()], fault=fault, hint=hint
    )


def find_run(name: str, out: Path) -> Path:
    """Return the run of a folder, or the run in `out` with this id prefix.

    Raises:
        UserError: there is no such run, or there are several.
    """
    path = Path(name)
    if is_stored(path):
        return path
    if path.is_dir():
        raise UserError(f"{name} is not the folder of a run.", "Run `ttabench list runs`.")
    return find_by_id(name, out, ())


RunFilters: TypeAlias = Mapping[str, Sequence[str] | None]
"""Typed names by "task", "method" and "model"; each text may contain several names, with commas.

A run must match one name of each kind that is present. A method family matches all of its methods:
`kvpress` matches every `kvpress:...`.
"""


def select_runs(names: Sequence[str], out: Path, filters: RunFilters) -> LoadedRuns:
    """Return the selected runs, in the order of the names.

    Ids and methods are searched in `out`. A path may be the folder of a run, its `run.json`, a
    folder of runs, or a folder of such folders.

    Raises:
        UserError: a name is unknown, or several runs have the same id prefix.
    """
    folders, skipped, among, ids = dict[Path, None](), list[str](), list[str](), list[str]()
    known_methods = {*registry.families(), *registry.methods().names}
    own_methods = cache(lambda: _values_of("method", load_runs(list_runs(out)).runs))
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
        if file.is_file():  # raise the reason
            load_record(file) if file.suffix != SUBMISSION_SUFFIX else packed_runs(file)
        raise UserError(
            f"There are no runs in {', '.join(skipped)}.",
            "Run `ttabench eval` first, or use another path.",
        )
    named = [find_by_id(name, out, list(folders)) for name in ids]
    if not folders and (among or not names):
        folders = dict.fromkeys(list_runs(out))
    pool = load_runs(dict.fromkeys([*folders, *named]))
    _refuse_unknown(among, pool.runs, "method")
    meant = [
        run
        for run in pool.runs
        if not among or run[0] in named or _values_of("method", [run]) & {*among}
    ]
    kept, requested = meant, list[str]()
    for kind in FILTERS:
        texts = ",".join(filters.get(kind) or ())
        own = [name.strip() for name in texts.split(",") if name.strip()]
        _refuse_unknown(own, meant, kind)
        kept = [run for run in kept if not own or _values_of(kind, [run]) & {*own}]
        requested += own
    if meant and not kept:
        fault = f"None of {len(meant)} runs matches all of: {', '.join(requested)}."
        raise UserError(fault, "Remove a filter, or run `ttabench list runs`.")
    return LoadedRuns(runs=tuple(kept), skipped=tuple(skipped), damaged=pool.damaged)


FILTERS: Mapping[str, Callable[[RunRecord], Sequence[str]]] = {
    "task": lambda record: [str(record.config.get("task"))],
    "method": lambda record: [method := str(record.config.get("method")), method.partition(":")[0]],
    "model": lambda record: [record.base],
}
"""Names of a run by kind. A run has the names of its method and of the family of its method."""


def _values_of(kind: str, runs: Sequence[StoredRun]) -> set[str]:
    return {name for _, record in runs for name in FILTERS[kind](record)}


def _refuse_unknown(names: Sequence[str], among: Sequence[StoredRun], kind: str) -> None:
    """Raise `UnknownName` for a name that no run has."""
    known = _values_of(kind, among)
    for name in names:
        if among and name not in known:
            fault = f"None of these runs is {'on' if kind == 'task' else 'of'} the {kind} {name!r}."
            raise UnknownName(kind, name, sorted(known), fault=fault)


def submission_name(run: Path) -> str:
    """Return the submission of a run, `lab-b` for `files/lab-b.parquet`; empty for a local run."""
    return run.parent.stem if submission_file(run) else ""
