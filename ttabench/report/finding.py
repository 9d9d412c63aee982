"""Which runs somebody means: by folder, by pattern, by the beginning of an id, or all there are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ttabench.core.errors import UnknownName, UserError
from ttabench.records.schema import RECORD_FILE


def find_runs(names: Sequence[str], out: Path) -> list[Path]:
    """Folders of runs, from paths, globs, or (beginnings of) ids in `out`; all of `out` for no names.

    A path may be a run's folder, its `run.json`, or a folder of runs. The order is that of the names.

    Raises:
        UserError: a name that is none of these; an id that several runs begin with.
    """
    if not names:
        return runs_in(out)
    found: dict[Path, None] = {}
    for name in names:
        for folder in _runs_named(name, out):
            found.setdefault(folder)
    return list(found)


def _created(file: Path) -> str:
    """When a record says it was made: file times do not survive a clone. Damaged records come first."""
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["created"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def runs_in(folder: Path) -> list[Path]:
    """The run folders directly below a folder, the oldest record first."""
    files = sorted(folder.glob(f"*/{RECORD_FILE}"), key=lambda file: (_created(file), file))
    return [file.parent for file in files]


def _runs_named(name: str, out: Path) -> list[Path]:
    path = Path(name)
    if path.is_file():
        return [path.parent if path.name == RECORD_FILE else path]
    if path.is_dir():
        return [path] if (path / RECORD_FILE).exists() else runs_in(path)
    if any(mark in name for mark in "*?["):
        base = Path(path.anchor) if path.anchor else Path()
        pattern = str(path.relative_to(path.anchor)) if path.anchor else name
        try:
            matches = {match.parent if match.is_file() else match for match in base.glob(pattern)}
        except (ValueError, NotImplementedError) as error:
            raise UserError(f"{name!r} is no pattern of paths ({error}).", "Write it like 'results/*'.") from None
        if runs := sorted(match for match in matches if (match / RECORD_FILE).exists()):
            return runs
    ids = [folder.name for folder in runs_in(out)]
    matching = [run for run in ids if run.startswith(name)]
    if len(matching) > 1 and name not in matching:
        raise UserError(f"{len(matching)} runs in {out} begin with {name!r}.", "Give more digits of the id.")
    if matching:
        return [out / (name if name in matching else matching[0])]
    if not ids:
        raise UserError(f"No run {name!r}: {out} holds no runs.", "Run `ttabench eval`, or name the folder with --out.")
    raise UnknownName(f"run in {out}", name, ids)
