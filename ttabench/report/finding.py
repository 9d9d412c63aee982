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
from ttabench.records.schema import RECORD_FILE, REMEDY, RunRecord, is_stored, load_record
from ttabench.records.suite_archive import ALL_SAMPLES_FILE, RUNS_FILE, runs
from ttabench.report.configuration import whole

PROFILE_FILE = "profile.json"
"""What `profiling` stores; it lies above this room."""


class NoRuns(UserError):
    """A run was named, and the folder it would lie in holds none."""


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
    found: dict[Path, None] = {}
    for name in names:
        at = at_path(name)
        found.update(dict.fromkeys([by_id(name, out)] if at is None else at))
    return list(found)


def refuse_profiles(folders: Sequence[Path], name: str = "") -> None:
    """Refuse what `ttabench profile` stored: folders, or those in them whose id begins with a name."""
    for folder in folders:
        for file in (folder / PROFILE_FILE, *sorted(folder.glob(f"*/{PROFILE_FILE}"))):
            if file.is_file() and file.parent.name.startswith(name):
                fault = f"{file.parent} holds a profile, not a run of `ttabench eval`."
                raise UserError(fault, f"Its rows are in {file}; the same command shows them again.")


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


def completed(incomplete: str, out: Path) -> list[str]:
    """Runs that what somebody typed may begin: ids in `out`, or SUITE/ID; nothing of what cannot be read."""
    suite, slash, _ = incomplete.rpartition("/")
    try:
        names = [f"{suite}{slash}{run}" for run in ids_in(Path(suite + slash) if slash else out)]
    except (OSError, UserError):
        return []
    return [run for run in names if run.startswith(incomplete)]


def _matching(pattern: str) -> list[Path]:
    """Runs whose paths, or paths of files in them, match a pattern."""
    path = Path(pattern)
    base = Path(path.anchor) if path.anchor else Path()
    below = path.relative_to(path.anchor) if path.anchor else path
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


def by_id(name: str, out: Path) -> Path:
    """The run whose id begins like this."""
    ids = [folder.name for folder in runs_in(out) if folder.name != RUNS_FILE]
    matching = [run for run in ids if run.startswith(name)]
    if len(matching) > 1 and name not in matching:
        raise UserError(f"{len(matching)} runs in {out} begin with {name!r}.", "Give more digits of the id.")
    if matching:
        return out / (name if name in matching else matching[0])
    refuse_profiles([out], name)
    runs(out)  # a damaged file may hold it
    if not ids:
        raise NoRuns(f"No run {name!r}: {out} holds no runs.", "Run `ttabench eval`, or name the folder with --out.")
    fault = f"No run in the folder {out} has an id that begins with {name!r}."
    hint = f"See `ttabench list runs --out {quote(str(out))}`, or name another folder with --out."
    raise UnknownName("run", name, ids, fault=fault, hint=hint)
