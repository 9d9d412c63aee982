"""How a command ends: its exit code, and one line on standard error where it did not do what was asked.

0      done
1      the reader of its output went away; `check` found a broken promise, `sweep` a run that failed
2      a fault of the user's, memory or room that did not suffice: one line says what, where, and what helps
130    interrupted (SIGINT)
143    asked to end (SIGTERM)
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import typer

from ttabench.core import memory
from ttabench.core.amounts import memory as memory_in
from ttabench.core.errors import UserError, printable

INTERRUPTED, TERMINATED = 130, 143
GOES_ON = {
    "eval": "What was answered is stored; the same command goes on from there.",
    "sweep": "What was answered is stored; the same command goes on from there.",
    "train": "The same command goes on from the last save.",
    "profile": "The same command resumes where it stopped.",
    "adapt": "The same command begins anew.",
}
FITS = {
    "eval": "Take a smaller --batch-size or --model, fewer documents (--task-set documents=N, --limit), or --dtype"
    " bfloat16; what is answered stays, and the same command goes on.",
    "train": "Take fewer --documents or --batch-documents, a smaller --model, or --dtype bfloat16;"
    " the same command goes on from the last save.",
    "adapt": "Read less at once (--pieces paragraphs), or take a smaller --model or --dtype bfloat16.",
}
"""Remedy where memory did not suffice, by command."""
LONGEST = 1000
"""Characters of a line that is told."""
NAMED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""Errors of the system about a path that somebody gave; of a path of ours they cannot come."""
OUTPUT = (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT)


def ended(call: Callable[[], object], command: str) -> int:
    """Run a command by a call that returns an exit code or nothing; its exit code. `command`: its name, for advice."""
    _open_streams()
    signals: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        raise KeyboardInterrupt  # whatever an interrupt puts in order is put in order

    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if ours:  # else somebody else decides
        signal.signal(signal.SIGTERM, end)
    try:
        code = _ended(call, command, signals)
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        sys.stdout.flush()
    except OSError as error:
        return _no_output(error)
    except ValueError:  # somebody closed it
        sys.stdout = None  # or python would try again when it ends
    return code


def _open_streams() -> None:
    """Open standard streams that are closed, on nothing, and let none end a command for a character that it lacks.

    A closed one would be given to the next file that is opened, and whatever a library prints would stand in it.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115  # as long as we live
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an encoding that lacks ± must not end a command


def _ended(call: Callable[[], object], command: str, signals: list[int]) -> int:
    try:
        code = call()
    except UserError as error:
        return complain(str(error), 2)
    except (typer.Abort, KeyboardInterrupt) as error:
        if isinstance(error.__cause__, EOFError):  # typer takes it for the end of what somebody types
            raise error.__cause__ from None
        code = INTERRUPTED
    except typer.TyperException as error:
        message, left_with = _of_words(error), int(getattr(error, "exit_code", 2))
        return complain(message, left_with) if message else left_with
    except Exception as error:
        if memory.out_of_memory(error):
            return complain(str(memory.told(FITS.get(command, "Take less at once."))), 2)
        if isinstance(error, OSError) and (code := _of_system(error)) is not None:
            return code
        raise
    if code == INTERRUPTED:
        asked = bool(signals)
        how = "Terminated." if asked else "Interrupted."
        return complain(f"{how} {GOES_ON.get(command, '')}", TERMINATED if asked else INTERRUPTED)
    return code if isinstance(code, int) else 0


def _of_words(error: typer.TyperException) -> str:
    """The fault of a command's words; empty where nothing was typed: the help is shown by then."""
    context = getattr(error, "ctx", None)
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    if context is None or not message:
        return message
    message = message.removesuffix(".")
    return f"{message}{'' if message.endswith('?') else '.'} `{context.command_path} --help` lists what it takes."


def _of_system(error: OSError) -> int | None:
    """The exit code for what the system refused, once it is told; None for what is no fault of the user's."""
    if error.filename is not None and error.errno in NAMED:
        return complain(f"{error.filename}: {error.strerror}. Give another path, or mend its rights.", 2)
    if error.filename is None and error.errno in OUTPUT:  # files have names
        return _no_output(error)
    return None


def _no_output(error: OSError) -> int:
    """Standard output cannot be written: its reader went away, or the disk is full."""
    with suppress(OSError, ValueError):  # nothing more is written there, also when python ends
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
    if error.errno == errno.EPIPE:
        return 1
    reason = error.strerror or error
    return complain(f"Standard output cannot be written: {reason}. What was stored is stored.", 2)


def bounded(threads: int | None, memory_limit: str = "", device: str = "auto") -> None:
    """Let a command take so many threads and so much memory, as `--threads` and `--memory-limit` say."""
    from ttabench.core.environment import quiet_libraries, use_threads

    use_threads(threads)
    most = memory_in(memory_limit) if memory_limit else None
    if most is None and device in ("auto", "cpu"):  # these are there, and torch takes seconds
        return
    from ttabench.lm.loading.devices import find_device, limit_memory

    quiet_libraries()
    torch_device = find_device(device)
    if most is not None:
        if torch_device.type == "cpu":
            memory.check(most)
        limit_memory(most, torch_device)


def complain(text: str, code: int) -> int:
    """Print one line on standard error, and return the exit code."""
    line = printable(" ".join(text.split()))
    if len(line) > LONGEST:  # somebody typed as much; what helps stands at the end
        line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
    if line:
        typer.secho(f"Error: {line}" if code == 2 else line, fg=typer.colors.RED, err=True)
    return code
