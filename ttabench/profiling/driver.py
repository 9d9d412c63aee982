"""Runs a profile: one fresh process a method, what it finds stored line by line, its death a row.

    outcome = execute(job, Path("results/scratch"))
    outcome.record.rows, outcome.folder, outcome.how

A process killed by the system (SIGKILL) or dead of a failed allocation is out of memory; the lengths it did not come to
go to a fresh one. Whatever else kills it makes a row "failed", which the same command tries again.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TypeAlias

from ttabench.core import environment
from ttabench.core.errors import UserError
from ttabench.core.memory import says_so
from ttabench.core.progress import Tick, no_tick, no_word
from ttabench.core.search_path import own_process
from ttabench.core.types import Json
from ttabench.profiling.job import Job, identity
from ttabench.profiling.record import ProfileFolder, ProfileRecord
from ttabench.profiling.rows import Row, oom
from ttabench.records.folder import Obtained, obtained


@dataclass(frozen=True, kw_only=True)
class End:
    """How a process ended."""

    code: int
    """Exit status; below 0 the signal that killed it."""
    said: str = ""
    """The end of what it wrote on standard error."""

    def row(self, method: str, length: int) -> Row:
        """The row of the length it was at when it died."""
        last = next((line.strip() for line in reversed(self.said.splitlines()) if line.strip()), "")
        if self.code == -signal.SIGKILL:
            return oom(method, length, "the process was killed, as a system does that runs out of memory")
        if says_so(last):
            return oom(method, length, last)
        ending = f"killed by signal {-self.code}" if self.code < 0 else f"ended with code {self.code}"
        return Row(method=method, prefill=length, status="failed", detail=f"the process {ending}: {last}"[:300])


Lines: TypeAlias = Generator[tuple[str, Json] | End, None, None]
"""Findings of a process, line by line (kind, value), and at last how it ended."""


def launch(request: Mapping[str, Json]) -> Lines:
    """A fresh python; it ends when the iterator is closed, or when this process is killed, which closes its input."""
    command = own_process("ttabench.profiling.worker")
    with TemporaryFile("w+", encoding="utf-8", errors="replace") as error_output:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=error_output, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(BrokenPipeError):  # it died at once; what it said is told below
                process.stdin.write(json.dumps(dict(request)) + "\n")
                process.stdin.flush()
            yield from _lines(process.stdout)
            code = process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            with suppress(BrokenPipeError):
                process.stdin.close()
        error_output.seek(0)
        yield End(code=code, said=error_output.read()[-2000:])


def _lines(stdout: IO[str]) -> Iterator[tuple[str, Json]]:
    for line in stdout:
        try:
            message = json.loads(line)
        except ValueError:
            continue  # half a line of a process that was killed
        yield message["kind"], message["value"]


Outcome: TypeAlias = Obtained[ProfileRecord]
"""A profile that is stored."""


def _no_row(row: Row, done: int, total: int) -> None:
    """Nobody is told."""


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How a profile is run and who is told."""

    force: bool = False
    """Measure again even if it is stored."""
    threads: int | None = None
    """Of the processor, for the processes that measure; None leaves torch's choice."""
    tick: Tick = no_tick
    notify: Callable[[str], None] = no_word
    on_row: Callable[[Row, int, int], None] = field(default_factory=lambda: _no_row)
    """Called with each row as it comes, how many there are by then, and how many there will be."""
    launch: Callable[[Mapping[str, Json]], Lines] = field(default_factory=lambda: launch)
    """Runs a request in a process of its own."""


def execute(job: Job, out: Path, manner: Manner | None = None) -> Outcome:
    """Return the profile if it is stored, else run or continue it.

    Raises:
        UserError: the folder cannot be written or is in use; model or device is not there; a stored record is damaged.
    """
    manner = manner or Manner()
    config, hardware = job.config(), environment.hardware()
    where = out / identity(config, hardware, job.defaults())

    def work(folder: ProfileFolder) -> ProfileRecord:
        failed = _Run(job, folder, manner).run()
        record = _record(folder, config, hardware, job, failed)
        if not failed:  # else the same command tries them again
            folder.finish(record)
        return record

    return obtained(ProfileFolder, where, work, force=manner.force, notify=manner.notify)


class _Run:
    """One pass over what is missing."""

    def __init__(self, job: Job, folder: ProfileFolder, manner: Manner) -> None:
        self.job, self.folder, self.manner = job, folder, manner
        self.failed: dict[tuple[str, int], Row] = {}
        self.clock = time.perf_counter()

    def run(self) -> dict[tuple[str, int], Row]:
        """Measure the machine, then every method; returns the rows that failed."""
        if self.job.mode == "latency" and "machine" not in self.folder.told:
            end = self._listen({"task": "machine", "job": self.job.to_json()})
            if end.code:
                raise UserError(f"The machine could not be measured: {end.said.strip()[-200:]}", "")
        for chosen in self.job.chosen:
            self._method(chosen.method)
        return self.failed

    def _method(self, method: str) -> None:
        limits = self.folder.told.get("machine")
        while lengths := self._open(method):
            self.at = lengths[0]
            request = {"task": "measure", "method": method, "lengths": lengths, "limits": limits}
            request["known"] = [row.model_dump() for (name, _), row in self.folder.rows.items()
                                if name == method and row.value("adapt_seconds")]  # fmt: skip
            end = self._listen({**request, "job": self.job.to_json()})
            if end.code:
                self._keep(end.row(method, self.at))
            assert self._open(method) != lengths, f"a process of {method} ended without a row: {end}"

    def _open(self, method: str) -> list[int]:
        missing = self.folder.missing(method, self.job.lengths)
        return [length for length in missing if (method, length) not in self.failed]

    def _listen(self, request: Mapping[str, Json]) -> End:
        """Take what a process finds; faults of the user are raised here."""
        with closing(self.manner.launch({**request, "threads": self.manner.threads})) as lines:
            for line in lines:
                if isinstance(line, End):
                    return line
                self._hear(*line)
        raise AssertionError("a process that never ended")

    def _hear(self, kind: str, value: Json) -> None:
        if kind == "fault":
            raise UserError(value["what"], value["hint"])
        if kind == "tick":
            activity, done, total = value
            self._tell(f", {activity} ({done} of {total})")
        elif kind == "remark":
            self.manner.notify(value)
        elif kind == "at":
            self.at = value
        elif kind == "row":
            self._keep(Row.model_validate(value))
        else:
            self.folder.append(kind, value)

    def _tell(self, more: str = "") -> None:
        """How many rows are done, and what is measured now."""
        self.manner.tick(f"rows{more}", *self._count())

    def _count(self) -> tuple[int, int]:
        """How many rows are done, of how many."""
        return len(self.folder.rows) + len(self.failed), len(self.job.chosen) * len(self.job.lengths)

    def _keep(self, row: Row) -> None:
        now = time.perf_counter()
        self.folder.append("row", row.model_dump(), now - self.clock)
        self.clock = now
        if row.status == "failed":
            self.failed[row.method, row.prefill] = row
        self._tell()
        self.manner.on_row(row, *self._count())


def _record(
    folder: ProfileFolder,
    config: Mapping[str, Json],
    hardware: Mapping[str, Json],
    job: Job,
    failed: Mapping[tuple[str, int], Row],
) -> ProfileRecord:
    rows = {**folder.rows, **failed}
    return ProfileRecord(
        id=folder.path.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=folder.seconds,
        config=dict(config),
        machine=folder.told.get("machine", {}),
        model=folder.told.get("model", {}),
        methods=folder.methods,
        rows=tuple(rows[chosen.method, length] for chosen in job.chosen for length in job.lengths),
        versions=environment.versions(),
        hardware=dict(hardware),
        code=environment.code(),
    )
