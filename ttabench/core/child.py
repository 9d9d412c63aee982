"""Worker process that answers requests over a pipe. A crash is reported, not raised.

    worker = WorkerProcess(answer, ("ttabench.lm.model",), {"CUDA_VISIBLE_DEVICES": "1"})
    for message in worker.ask(request):   # messages of `answer`; after a crash, a `ProcessDeath`

On Linux, slow imports run once in a server process that forks the workers.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

SendMessage: TypeAlias = Callable[[Any], None]
SAFE_PATH_VARIABLE = "PYTHONSAFEPATH"
"""Variable that stops Python from importing from the current folder."""
_environment_lock = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class ProcessDeath:
    """Report of a process that died."""

    code: int
    """Exit status. A negative value is the number of the signal that killed it."""
    last_line: str = ""
    """Last line of its output."""


class WorkerProcess:
    """Process that answers requests. It ends no later than its parent."""

    def __init__(
        self,
        answer: Callable[[Any, SendMessage], None],
        imports: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        context: Any = multiprocessing.get_context(
            "forkserver" if sys.platform == "linux" else "spawn"
        )
        if sys.platform == "linux":
            context.set_forkserver_preload(list(imports))
        self._folder = TemporaryDirectory()
        self._output = Path(self._folder.name) / "output"
        self._pipe, worker_end = context.Pipe()
        working_environment = (
            str(Path.cwd()),
            {**os.environ, SAFE_PATH_VARIABLE: "1", **(environment or {})},
            str(self._output),
        )
        self._process = context.Process(
            target=_serve, args=(answer, worker_end, *working_environment), daemon=True
        )
        with _safe_path():
            self._process.start()
        worker_end.close()

    def ask(self, request: object) -> Iterator[Any]:
        """Yield the messages that answer a request. A `ProcessDeath` comes last if it died."""
        try:
            self._pipe.send(request)
            yield from iter(self._pipe.recv, None)  # None ends an answer
        except (EOFError, OSError):
            self._process.join()
            text = self._output.read_text("utf-8", "replace") if self._output.exists() else ""
            lines = [
                line.strip()
                for line in text[-2000:].splitlines()
                # the resource tracker of the dead process may warn into the same output
                if line.strip() and "resource_tracker" not in line
            ]
            yield ProcessDeath(code=self._process.exitcode, last_line=lines[-1] if lines else "")

    def close(self) -> None:
        """Kill the process and remove its files."""
        self._process.kill()
        self._process.join()
        self._pipe.close()
        self._folder.cleanup()


@contextmanager
def _safe_path() -> Iterator[None]:
    """Start processes that import nothing from the current folder. The environment is restored."""
    with _environment_lock:
        before = os.environ.get(SAFE_PATH_VARIABLE)
        os.environ[SAFE_PATH_VARIABLE] = "1"
        try:
            yield
        finally:
            del os.environ[SAFE_PATH_VARIABLE]
            if before is not None:
                os.environ[SAFE_PATH_VARIABLE] = before


def _serve(
    answer: Callable[[Any, SendMessage], None],
    pipe: Connection,
    folder: str,
    environment: Mapping[str, str],
    output: str,
) -> None:
    # a daemon could not start children
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    # the parent handles the interrupt and ends this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    with Path(output).open("wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # Semaphores of libraries (tqdm) outlive a killed process. A separate resource tracker removes
    # them and warns into the output of this process; that of the parent would warn on the screen.
    vars(resource_tracker._resource_tracker).update(_fd=None, _pid=None)

    def end_with_the_parent() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_the_parent, daemon=True).start()
    os.register_at_fork(after_in_child=pipe.close)  # forks of a method must not answer
    while True:
        answer(pipe.recv(), pipe.send)
        pipe.send(None)
