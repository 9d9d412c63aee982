"""Processes that die in the middle of writing, as if the power went: nothing is caught, nothing is put in order.

    writes = Dying(folder).run(work)             how many steps a piece of work writes in
    Dying(folder, at=3).run(work)                the same, killed before its third step (SIGKILL)

A step is a file or folder that is opened to be written, renamed, removed, made or cut below the folder, a wait for the
disk, and a write of the journal, before it and in its middle. The work is done in a fork of this process.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod"}
WRITING = os.O_WRONLY | os.O_RDWR
LIMIT = 120
"""Seconds after which a fork hangs."""


def fork_and_wait(work: Callable[[int], int]) -> tuple[int, bytes]:
    """Exit code of a piece of work in a fork of this process, and what it wrote into the pipe that it is handed."""
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            code = work(write_end)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe_end:
        text = pipe_end.read()
    return _waited(child), text


@dataclass
class KilledProcess:
    """One fork and where it dies; `at` 0 lets it live."""

    folder: Path
    at: int = 0
    steps: list[str] = field(default_factory=list)

    def run(self, work: Callable[[], int]) -> tuple[int, int]:
        """Exit code of the work (-9 where it was killed), and the steps it came to."""

        def watched(write_end: int) -> int:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._watch(write_end)
            return work()

        code, steps = fork_and_wait(watched)
        return code, len(steps)

    def _watch(self, write_end: int) -> None:
        written = os.write
        synced = os.fsync

        def step(fatal: Callable[[], object] = lambda: None) -> None:
            self.steps.append("")
            written(write_end, b".")
            if len(self.steps) == self.at:
                fatal()
                os.kill(os.getpid(), signal.SIGKILL)

        def audit(event: str, given: tuple[Any, ...]) -> None:
            opened = event == "open" and isinstance(given[2], int) and given[2] & WRITING
            if (opened or event in EVENTS) and self._ours(given):
                step()

        def write(number: int, data: bytes) -> int:
            if number != write_end:
                step()
                step(lambda: written(number, data[: len(data) // 2]))
            return written(number, data)

        def fsync(number: int) -> None:
            step()
            synced(number)

        os.write, os.fsync = write, fsync
        sys.addaudithook(audit)

    def _ours(self, given: tuple[Any, ...]) -> bool:
        paths = [str(each) for each in given if isinstance(each, str | Path)]
        inside = any(
            isinstance(each, int) and each > 2 for each in given[1:]
        )  # names below an open folder
        return any(
            path.startswith(str(self.folder)) or (inside and not path.startswith("/"))
            for path in paths
        )


def run_forked(work: Callable[[], int]) -> tuple[int, str]:
    """Exit code and standard error of a piece of work in a fork of this process, for instance under a limit."""

    def redirected(write_end: int) -> int:
        os.dup2(write_end, 2)
        sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
        sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8", buffering=1)
        return work()

    code, text = fork_and_wait(redirected)
    return code, text.decode("utf-8", "replace")


def _waited(child: int) -> int:
    for _ in range(LIMIT * 100):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"a process of {LIMIT} s: it hangs")
