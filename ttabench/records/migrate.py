"""Results of earlier versions under the ids of today: folders are renamed, records rewritten, nothing is run again.

    where_stored(out, RUNS, wanted, name_of)    the folder of a result, once both of the following are done
    migrate(out, RUNS, name_of)                 every folder of an earlier schema; returns those that cannot be renamed
    adopt(out, RUNS, before, name)              one of a result that is not finished

A folder is renamed first and its record rewritten after it, so that a kill in between leaves a record that is read as
before and brought up to date the next time. Processes take turns at the lock of the store; a folder that another
process holds, or that cannot be written, is left as it is and used where it lies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttabench.core.checked_file import Unreadable, json_of, plain
from ttabench.core.errors import UserError
from ttabench.core.files import moved
from ttabench.core.locks import locked
from ttabench.core.types import Json
from ttabench.records.journal import Journal

VERSION = re.compile(rb'"schema_version":\s*(\d+)')
HEAD = 200
"""Bytes at the start of a record in which its schema stands."""
NameOf = Callable[[Mapping[str, Json]], str | None]
"""The id that a record has today; None where that cannot be known."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What lies in the folders of one kind of result."""

    record_file: str
    partial_file: str
    schema: int
    named: Callable[[Mapping[str, Json]], Any]
    """A record of today from its JSON; a ValueError where it is damaged."""
    is_stored: Callable[[Path], bool]
    """Whether the finished result that a folder is named for is there, in it or packed."""
    save: Callable[[Any, Path], object]
    """Write such a record, and what follows from it, in its folder; the file of the record comes last."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A result that is looked for."""

    name: str
    """Its id of today."""
    before: str
    """Its id in the earlier schema."""
    force: bool = False
    """It is made anew, and so always under its id of today."""


def where_stored(out: Path, kind: Kind, wanted: Wanted, name_of: NameOf) -> Path:
    """The folder of a result, stored or not, once those of earlier versions are brought up to date.

    It is `OUT/<id>`, unless a stored one of an earlier version cannot be renamed, for instance where `out` can only be
    read.

    Args:
        out: the folder of all results.
        kind: of result.
        wanted: which.
        name_of: the id of today, from the JSON of a record.
    """
    place = out / wanted.name
    if kind.is_stored(place):
        return place
    left = migrate(out, kind, name_of)
    adopt(out, kind, wanted.before, wanted.name)
    return place if wanted.force or kind.is_stored(place) else left.get(wanted.name, place)


def outdated(out: Path, kind: Kind) -> list[Path]:
    """Folders below `out` whose record is of an earlier schema, or was renamed while we looked."""
    return [file.parent for file in sorted(out.glob(f"*/{kind.record_file}")) if _is_outdated(file, kind)]


def _is_outdated(file: Path, kind: Kind) -> bool:
    try:
        with plain(file).open("rb") as handle:
            found = VERSION.search(handle.read(HEAD))
    except FileNotFoundError:
        return True
    except (OSError, Unreadable):
        return False
    return found is not None and int(found[1]) < kind.schema


def migrate(out: Path, kind: Kind, name_of: NameOf) -> dict[str, Path]:
    """Rename the folders of an earlier schema.

    Where several have one id of today, the newest takes it and the others keep theirs.

    Args:
        out: the folder of all results.
        kind: of result.
        name_of: the id of today, from the JSON of a record.

    Returns:
        Where results lie that have an id of today but could not be renamed, by that id.
    """
    if not outdated(out, kind):
        return {}
    try:
        with locked(out, _wait):
            return _migrated(out, kind, name_of, rename=True)
    except UserError:  # a store that can only be read
        return _migrated(out, kind, name_of, rename=False)


def _migrated(out: Path, kind: Kind, name_of: NameOf, *, rename: bool) -> dict[str, Path]:
    found = [(folder, content) for folder in outdated(out, kind) if (content := _read(folder / kind.record_file))]
    left: dict[str, Path] = {}
    for folder, content in sorted(found, key=lambda each: str(each[1].get("created")), reverse=True):
        name = name_of(content)
        if name is None or folder.name not in (content.get("id"), name):  # not to be known, or somebody's own name
            continue
        if not (rename and _renamed(folder, out / name, content, kind)):
            left.setdefault(name, folder)
    return left


def _renamed(folder: Path, target: Path, content: dict[str, Json], kind: Kind) -> bool:
    """Give a folder its name of today, or only its record the schema where another has that name."""
    taken = folder != target and kind.is_stored(target)
    if taken:
        target = folder
    elif folder != target and target.exists():
        return False
    try:
        record = of_today(content, target.name, kind)
        with locked(folder, _refuse):
            if folder != target:
                moved(folder, target)
            say_name(target / kind.partial_file, content["id"], target.name)
            kind.save(record, target)
    except (OSError, UserError, ValueError, KeyError, TypeError):
        return not folder.exists()  # else somebody holds it, or it is damaged, or there is no room
    return True


def of_today(content: Mapping[str, Json], name: str, kind: Kind) -> Any:
    """A record of today under an id, from the JSON of one of an earlier schema; it keeps what it was called before.

    Raises:
        ValueError, KeyError, TypeError: it is damaged.
    """
    former = {"formerly": content["id"]} if content["id"] != name else {}
    return kind.named({**content, **former, "schema_version": kind.schema, "id": name})


def adopt(out: Path, kind: Kind, before: str, name: str) -> None:
    """Give a result that is not finished its id of today, with all that was found, if nobody works on it."""
    folder, target = out / before, out / name
    if before == name or target.exists() or kind.is_stored(target) or not (folder / kind.partial_file).exists():
        return
    try:
        with locked(out, _wait), locked(folder, _refuse):
            if not target.exists() and not (folder / kind.record_file).exists():
                say_name(folder / kind.partial_file, before, name)
                moved(folder, target)
    except (OSError, UserError):
        return  # it stays where it is


def say_name(partial: Path, before: str, name: str) -> None:
    """Let the lines of a result that is not finished say another id, if there are any."""
    journal = Journal(partial)
    if journal.exists():
        lines, _ = journal.read()
        journal.replace({**line, "run": name} if line.get("run") == before else line for line in lines)


def _read(file: Path) -> dict[str, Any] | None:
    try:
        content = json_of(file)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _wait() -> None:
    """Another process renames what lies here, which takes seconds."""


def _refuse() -> None:
    raise UserError("Another process holds the folder.", "")
