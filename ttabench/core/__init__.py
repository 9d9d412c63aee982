"""What every room shares: nouns, errors, names, progress, the machine. Nothing here imports torch at the top."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

__version__ = "0.1.0"


def remove_current_folder_from_path() -> None:
    """Take the current folder off the front of the module search path, where `python -m` put it.

    What is imported already stays; parts of ttabench are found beside those that are.
    """
    with suppress(OSError):  # the folder was removed
        if not sys.flags.safe_path and sys.path[:1] in ([""], [str(Path.cwd())]):
            del sys.path[0]


def is_importing_for_python_m() -> bool:
    """Whether python is just now importing what `python -m` was given."""
    return sys.argv[:1] == ["-m"]
