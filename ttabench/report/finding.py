"""Which runs somebody means: by folder, by pattern, by the beginning of an id, or all there are; and their records.

A packed run (`records.packed`) is named like one in a folder: SUITE/ID.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from shlex import quote

from ttabench.core.checked_file import object_of
from ttabench.core.errors import UnknownName, UserError
from ttabench.methods import registry
from ttabench.records.schema import RECORD_FILE, REMEDY, RunRecord, is_stored, load_record
from ttabench.records.suite_archive import ALL_SAMPLES_FILE, RUNS_FILE, runs
from ttabench.report.configuration import whole


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """Runs with their records, and lines that say what was left out."""

    runs: tuple[tuple[Path, RunRecord], ...] = ()
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
    """The runs in these folders, in their order."""
    runs: list[tuple[Path, RunRecord]] = []
    damaged: list[str] = []
    for folder in folders:
        try:
            runs.append((folder, load_run(folder)))
        except UserError as error:
            damaged.append(str(error))
    if alone:
        refuse_all_damaged(len(runs), damaged)
    return Loaded(runs=tuple(runs), damaged=tuple(damaged))


def refuse_all_damaged(runs: int, damaged: list[str]) -> None:
    """Refuse where nothing is left because all is damaged, saying what is wrong with the first."""
    if damaged and not runs:
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
    return list(dict.fromkeys(run for runs in places for run in runs))


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


def ids_in(folder: Path) -> list[str]:
    """Ids of the runs directly below a folder, by name; no record is read."""
    return sorted({*runs(folder), *(file.parent.name for file in folder.glob(f"*/{RECORD_FILE}"))})


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
    if path.name in (RUNS_FILE, ALL_SAMPLES_FILE) and (packed := packed_in(path.parent)):
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
    runs = runs_in(folder)
    if runs or not levels:
        return runs
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    return [run for each in inside for run in runs_below(each, levels - 1)]


def by_id(name: str, out: Path, folders: Sequence[Path] = ()) -> Path:
    """The run whose id begins like this, among these folders or in `out`."""
    for place in (folders, [run for run in runs_in(out) if run.name != RUNS_FILE]):
        matching = [run for run in place if run.name.startswith(name)]
        exact = [run for run in matching if run.name == name]
        if len(exact or matching) == 1:
            return (exact or matching)[0]
    if matching:
        raise UserError(f"{len(matching)} runs in {out} begin with {name!r}.", "Give more digits of the id.")
    runs(out)  # a damaged file may hold it
    known = [run.name for run in (*folders, *place)]
    if not known:
        raise UserError(f"No run {name!r}: {out} holds no runs.", "Run `ttabench eval`, or name the folder with --out.")
    fault = f"No run in {out} has an id that begins with {name!r}, and there is no file, folder or method of that name."
    hint = f"See `ttabench list runs --out {quote(str(out))}` and `ttabench list methods`."
    raise UnknownName("run", name, [*known, *registry.methods(), *registry.families()], fault=fault, hint=hint)
