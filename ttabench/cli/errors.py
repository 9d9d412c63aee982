"""Exit codes and error messages of commands. An error is one line on standard error.

0      success
1      standard output was closed, a test of `check` failed, or a run of `sweep` failed
2      user error, out of memory, or disk full; the line says what is wrong and how to fix it
130    interrupted (SIGINT)
143    terminated (SIGTERM)
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
    "Use smaller values of --batch-size, --limit or --task-set documents=N, --pieces paragraphs,"
    " a smaller --model, or --dtype bfloat16."
)
"""Advice if memory runs out."""
MAX_ERROR_CHARS = 1000
"""Maximum length of an error line, in characters."""
OUTPUT_ERRNOS = (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT)
"""Errors of standard output. Such an error has no file name."""


@contextmanager
def _writable_streams() -> Iterator[None]:
    """Make standard output and error writable, even if closed or with a limited encoding."""
    errors = dict[io.TextIOWrapper, str]()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the next opened file would get its file descriptor
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115  # stays open
        if isinstance(stream, io.TextIOWrapper):
            errors[stream] = stream.errors or "strict"
            stream.reconfigure(errors="backslashreplace")  # for encodings without ±
    try:
        yield
    finally:
        for stream, before in errors.items():
            with suppress(
                OSError, ValueError
            ):  # reconfigure flushes, and may find it full or closed
                stream.reconfigure(errors=before)


@_writable_streams()
def run_command(
    call: Callable[[], object], resume_hint: str = "", signals: Sequence[int] = ()
) -> int:
    """Run a command, report its errors, and return its exit code.

    Args:
        call: the command; returns an exit code or None.
        resume_hint: message on an interrupted command.
        signals: the list of `sigterm_as_interrupt`, not empty after a SIGTERM.
    """
    try:
        code = call()
        if code == EXIT_INTERRUPTED:  # typer's own
            raise KeyboardInterrupt
        sys.stdout.flush()
    except UserError as error:
        return fail(str(error), 2)
    except (typer.Abort, KeyboardInterrupt):
        if signals:
            return fail(f"Terminated. {resume_hint}", EXIT_TERMINATED)
        return fail(f"Interrupted. {resume_hint}", EXIT_INTERRUPTED)
    except typer.TyperException as error:
        return _report_usage_error(error)
    except Exception as error:
        return _report_system_error(error)
    finally:
        environment.lift_memory_limit()
    return code if isinstance(code, int) else 0


@contextmanager
def sigterm_as_interrupt() -> Iterator[list[int]]:
    """Raise KeyboardInterrupt on SIGTERM; the yielded list collects the received signals."""
    signals: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        raise KeyboardInterrupt

    handles_sigterm = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    )
    if handles_sigterm:
        signal.signal(signal.SIGTERM, end)
    try:
        yield signals
    finally:
        if handles_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _report_system_error(error: Exception) -> int:
    """Report errors of memory, files and standard output; raise any other error again."""
    if environment.is_out_of_memory(error):
        return fail(str(environment.out_of_memory_error(OUT_OF_MEMORY_HINT)), 2)
    if isinstance(error, OSError) and error.filename is not None:
        return fail(
            f"{error.filename}: {error.strerror}. Use another path, or fix its permissions.", 2
        )
    if isinstance(error, OSError) and error.errno in OUTPUT_ERRNOS:
        return _report_output_error(error)
    raise error


def _report_usage_error(error: typer.TyperException) -> int:
    """Report an error in arguments and options; without any, typer has already printed the help."""
    message = error.format_message().replace("Value error, ", "")
    context = getattr(error, "ctx", None)
    if message and context is not None:
        message = message if message.endswith(("?", ".")) else f"{message}."
        message += f" Run `{context.command_path} --help`."
    return fail(message, error.exit_code)


def _report_output_error(error: OSError) -> int:
    """Report that standard output cannot be written, except if its pipe was closed."""
    with suppress(OSError, ValueError):  # else python would write there again at exit
        null_device = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_device, sys.stdout.fileno())
        os.close(null_device)
    if error.errno == errno.EPIPE:
        return 1
    reason = error.strerror or error
    return fail(
        f"Standard output cannot be written: {reason}. Free some space; stored results are kept.", 2
    )


def apply_resource_limits(
    threads: int | None, memory_limit: str = "", device: str = "auto"
) -> None:
    """Apply `--threads` and `--memory-limit`, and check `--device`.

    Raises:
        UserError: the memory limit is invalid, or the device is not available.
    """
    environment.use_threads(threads)
    max_bytes = parse_memory(memory_limit) if memory_limit else None
    if max_bytes is None and device in ("auto", "cpu"):  # always available; torch imports slowly
        return
    from ttabench.lm.loading.devices import find_device, limit_memory

    torch_device = find_device(device)
    if max_bytes is not None:
        limit_memory(max_bytes, torch_device)


def fail(text: str, code: int) -> int:
    """Print one line on standard error, and return the exit code."""
    line = escape_control_characters(" ".join(text.split()))
    if len(line) > MAX_ERROR_CHARS:  # keep the end, which says what to do
        line = f"{line[: MAX_ERROR_CHARS // 2]} ... {line[-MAX_ERROR_CHARS // 2 :]}"
    if line:
        typer.secho(f"Error: {line}" if code == 2 else line, fg=typer.colors.RED, err=True)
    return code
