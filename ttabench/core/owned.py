"""Which files in a folder that the user named are ours: those that a list beside them names, and no others."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path

from ttabench.core.checked_file import object_of
from ttabench.core.errors import UserError
from ttabench.core.files import write_atomically

LIST_FILE = ".ttabench.json"
FILES = "files"


def owned(folder: Path) -> set[str]:
    """The names in a folder that its list says are ours; none where there is no list of ours."""
    path = folder / LIST_FILE
    try:
        names = None if path.is_symlink() else object_of(path).get(FILES)
    except UserError:
        return set()
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def refuse_foreign(folder: Path, names: Collection[str], command: str, known: Collection[str] = ()) -> None:
    """Whether these names may be written in a folder."""
    ours = owned(folder)
    new = set(names) - ours - set(known)
    for name in sorted(new if ours else {LIST_FILE, *new}):
        if os.path.lexists(folder / name):
            fault = f"{folder / name} was not written by `ttabench {command}` and is not replaced, even with --force."
            raise UserError(fault, "Give another --out, or move it away.")


def claim(folder: Path, names: Collection[str], command: str, known: Collection[str] = ()) -> None:
    """Note that these names are ours from here on; the caller holds the lock of the folder."""
    refuse_foreign(folder, names, command, known)
    ours = owned(folder)
    if not set(names) <= ours:
        write_atomically(folder / LIST_FILE, json.dumps({FILES: sorted({*ours, *known, *names})}) + "\n")
