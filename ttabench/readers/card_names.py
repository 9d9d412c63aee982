"""Names that a task card may hold: of tasks, and of files and folders, which never lead out of what the user gives."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_]*$")]
"""Of a task or sub-task."""


def _below(path: str) -> str:
    if not path or "\\" in path or PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError(f"{path!r} is no path below the folder that is given")
    return path


Below = Annotated[str, AfterValidator(_below)]
"""A file name, or the path of a folder, below the folder given with --source."""
