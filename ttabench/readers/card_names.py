"""What every part of a task card may hold: literal values, and names that never lead out of what the user gives."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, StringConstraints

STRICT = ConfigDict(strict=True, extra="forbid", frozen=True)
"""Of the models that a card is made of: values are of their type, and none is unknown."""
Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_]*$")]
"""Of a task or sub-task."""


def _below(path: str) -> str:
    if not path or "\\" in path or PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError(f"{path!r} is no path below the folder that is given")
    return path


Below = Annotated[str, AfterValidator(_below)]
"""A file name, or the path of a folder, below the folder given with --source."""
