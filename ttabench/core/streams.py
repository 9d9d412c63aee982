"""Standard input, output and error as every command needs them: there, and able to take any character."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress


def ready() -> None:
    """Open those that are closed, on nothing, and let none end a command for a character that it lacks.

    A closed one would be given to the next file that is opened, and whatever a library prints would stand in it.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, _nowhere())
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an encoding that lacks ± must not end a command


def flushed() -> OSError | None:
    """Write out what is still to be written; what failed, if anything did."""
    failed = None
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except OSError as error:
            failed = failed or error
            setattr(sys, name, _nowhere())  # python would try again when it ends
        except ValueError:  # somebody closed it
            setattr(sys, name, _nowhere())
    return failed


def abandoned() -> None:
    """Write no more on standard output."""
    with suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


def _nowhere() -> io.TextIOWrapper:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123  # as long as the process lives
