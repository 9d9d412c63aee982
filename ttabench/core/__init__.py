"""Package core: types, errors, names, progress, environment. No module imports torch at the top."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

__version__ = "0.1.0"


def remove_current_folder_from_path() -> None:
    """Remove the current folder, which `python -m` added, from the front of `sys.path`.

    Modules imported so far stay imported. Other modules of ttabench are found next to them.
    """
    with suppress(OSError):  # the folder was removed
        if not sys.flags.safe_path and sys.path[:1] in ([""], [str(Path.cwd())]):
            del sys.path[0]


def is_importing_for_python_m() -> bool:
    """True while python imports the module that was passed to `python -m`."""
    return sys.argv[:1] == ["-m"]
