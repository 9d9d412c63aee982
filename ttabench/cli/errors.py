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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

import typer

from ttabench.core import environment
from ttabench.core.amounts import parse_memory as parse_memory
from ttabench.core.errors import UserError, escape_control_characters

EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143
OUT_OF_MEMORY_HINT = (
    "Take less at once (--batch-size, --limit, --task-set documents=N, --pieces paragraphs), a smaller --model, or"
    " --dtype bfloat16."
)
"""Remedy where memory did not suffice."""
MAX_ERROR_CHARS = 1000
"""Characters of a line that is told."""
OUTPUT_ERRNOS = (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT)
"""Errors of standard output, which has no name as files have."""


@contextmanager
def _writable_streams() -> Iterator[None]:
    """Standard output and error that can be written: also where they are closed, or their encoding lacks a letter."""
    errors = dict[io.TextIOWrapper, str]()
    for name in ("stdout", "stderr"):
        if (
            stream := getattr(sys, name)
        ) is None:  # closed: the next file that is opened would take its place
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115  # as long as we live
        if isinstance(stream, io.TextIOWrapper):
            errors[stream] = stream.errors or "strict"
            stream.reconfigure(
                errors="backslashreplace"
            )  # an encoding that lacks ± must not end a command
    try:
        yield
    finally:
        for stream, before in errors.items():
            with suppress(OSError, ValueError):  # it is flushed, and may be full or closed by now
                stream.reconfigure(errors=before)


@_writable_streams()
def run_command(
    call: Callable[[], object], resume_hint: str = "", signals: Sequence[int] = ()
) -> int:
    """Run a command by a call that returns an exit code or nothing; its exit code.

    `resume_hint`: said of an interrupted command. `signals`: not empty once the command is asked to end (SIGTERM).
    """
    try:
        code = call()
        if code == EXIT_INTERRUPTED:  # typer's own
            raise KeyboardInterrupt
        sys.stdout.flush()
    except UserError as error:
        return fail(str(error), 2)
    except (typer.Abort, KeyboardInterrupt):
        ending, code = (
            ("Terminated.", EXIT_TERMINATED) if signals else ("Interrupted.", EXIT_INTERRUPTED)
        )
        return fail(f"{ending} {resume_hint}", code)
    except typer.TyperException as error:
        return _report_usage_error(error)
    except Exception as error:
        return _report_system_error(error)
    finally:
        environment.lift_memory_limit()
    return code if isinstance(code, int) else 0


@contextmanager
def sigterm_as_interrupt() -> Iterator[list[int]]:
    """Handle SIGTERM as an interrupt; the yielded list holds the signals so far, which tells the two apart."""
    signals: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        raise KeyboardInterrupt

    handles_sigterm = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    )
    if handles_sigterm:  # else somebody else decides
        signal.signal(signal.SIGTERM, end)
    try:
        yield signals
    finally:
        if handles_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _report_system_error(error: Exception) -> int:
    """Tell what the system refused: memory, a path that somebody gave, standard output; all else is our fault."""
    if environment.is_out_of_memory(error):
        return fail(str(environment.out_of_memory_error(OUT_OF_MEMORY_HINT)), 2)
    if isinstance(error, OSError) and error.filename is not None:
        return fail(
            f"{error.filename}: {error.strerror}. Give another path, or mend its rights.", 2
        )
    if isinstance(error, OSError) and error.errno in OUTPUT_ERRNOS:
        return _report_output_error(error)
    raise error


def _report_usage_error(error: typer.TyperException) -> int:
    """Tell the fault of a command's words; where nothing was typed, the help is shown by then."""
    message, context = (
        error.format_message().replace("Value error, ", ""),
        getattr(error, "ctx", None),
    )
    if message and context is not None:
        message = message if message.endswith(("?", ".")) else f"{message}."
        message += f" `{context.command_path} --help` lists what it takes."
    return fail(message, error.exit_code)


def _report_output_error(error: OSError) -> int:
    """Standard output cannot be written: its reader went away, or the disk is full."""
    with suppress(OSError, ValueError):  # nothing more is written there, also when python ends
        null_device = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_device, sys.stdout.fileno())
        os.close(null_device)
    if error.errno == errno.EPIPE:
        return 1
    reason = error.strerror or error
    return fail(f"Standard output cannot be written: {reason}. What was stored is stored.", 2)


def apply_resource_limits(
    threads: int | None, memory_limit: str = "", device: str = "auto"
) -> None:
    """Let a command take so many threads and so much memory, as `--threads` and `--memory-limit` say."""
    environment.use_threads(threads)
    max_bytes = parse_memory(memory_limit) if memory_limit else None
    if max_bytes is None and device in ("auto", "cpu"):  # these are there, and torch takes seconds
        return
    from ttabench.lm.loading.devices import find_device, limit_memory

    torch_device = find_device(device)
    if max_bytes is not None:
        limit_memory(max_bytes, torch_device)


def fail(text: str, code: int) -> int:
    """Print one line on standard error, and return the exit code."""
    line = escape_control_characters(" ".join(text.split()))
    if len(line) > MAX_ERROR_CHARS:  # somebody typed as much; what helps stands at the end
        line = f"{line[: MAX_ERROR_CHARS // 2]} ... {line[-MAX_ERROR_CHARS // 2 :]}"
    if line:
        typer.secho(f"Error: {line}" if code == 2 else line, fg=typer.colors.RED, err=True)
    return code
