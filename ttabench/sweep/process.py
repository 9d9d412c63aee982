"""One process of this machine that makes runs, see `worker`: started when it is first needed, told what to make.

process = Process(threads=2, environment={"CUDA_VISIBLE_DEVICES": "1"})
for report in process.make(job): ...
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO

from ttabench.core.search_path import own_process
from ttabench.sweep.engines import OPEN, Job, Report


class Process:
    """A process; where it is killed, the next job gets a fresh one.

    Args:
        threads: of the processor; None leaves torch's choice.
        environment: variables of its own.
    """

    def __init__(self, *, threads: int | None, environment: Mapping[str, str]) -> None:
        own = {"OMP_NUM_THREADS": str(threads)} if threads else {}
        self._threads, self._environment = threads, {**os.environ, **own, **environment}
        self._process: subprocess.Popen[str] | None = None
        self._said: IO[str] | None = None

    def make(self, job: Job) -> Iterator[Report]:
        """The report of a job; `lost` where the process ended."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # it died; the end of its output says so
            process.stdin.write(json.dumps(job.to_json()) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            try:
                report = Report(**json.loads(line))
            except ValueError:
                continue  # half a line of a process that was killed
            yield report
            if report.state not in OPEN:
                return
        yield Report(id=job.id, state="lost", reason=self._end(process))

    def close(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                with suppress(BrokenPipeError):
                    stream.close()
        if self._said is not None:
            self._said.close()
        self._process = self._said = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._said = TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # see `close`
            self._process = subprocess.Popen(
                own_process("ttabench.sweep.worker"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
                text=True, env=self._environment,
            )  # fmt: skip
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps({"threads": self._threads}) + "\n")
        return self._process

    def _end(self, process: subprocess.Popen[str]) -> str:
        """How it ended, in one line; it is forgotten."""
        code = process.wait()
        assert self._said is not None
        self._said.seek(0)
        lines = [line.strip() for line in self._said.read()[-2000:].splitlines() if line.strip()]
        self.close()
        if code == -signal.SIGKILL:
            return "Its process was killed (signal 9), as a system does that runs out of memory."
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"Its process {how}{': ' if lines else '.'}{lines[-1] if lines else ''}"
