"""The module search path without the current folder: an installed package is imported, never a file that lies there.

`python -m` puts the current folder first on the module search path, so a `torch.py` in a folder of downloads would be
run. The `ttabench` command does not do that; `python -m ttabench`, `python -m ttabench.harness` and the processes of a
profile do without that folder. Modules of python itself (a `types.py` there) are imported before this one can do
anything about it: `python -P -m ttabench` helps.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_RUN = (
    "import sys; sys.path.insert(0, sys.argv[1]); from ttabench.core import search_path; del sys.path[0];"
    " search_path.end_with(int(sys.argv[2])); from {} import main; main()"
)
"""This very ttabench, wherever it lies, then only what the search path has."""
PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


def leave_current_folder() -> None:
    """Take the current folder off the front of the module search path, where `python -m` put it.

    What is imported already stays; parts of ttabench are found beside those that are.
    """
    if sys.flags.safe_path or not sys.path:
        return
    here = [""]
    with suppress(OSError):  # the folder was removed
        here.append(str(Path.cwd()))
    if sys.path[0] in here:
        del sys.path[0]


def started_by_name() -> bool:
    """Whether python is just now importing what `python -m` was given."""
    return sys.argv[:1] == ["-m"]


def own_process(module: str) -> Sequence[str]:
    """The command line of a fresh python that runs `main` of a module of ttabench, and ends with this process."""
    package = Path(__file__).resolve().parents[1]
    return [sys.executable, "-P", "-c", _RUN.format(module), str(package.parent), str(os.getpid())]


def end_with(parent: int) -> None:
    """Let this process end at once when the one that started it does; where the system cannot, it goes on."""
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before this was said
            os._exit(1)
