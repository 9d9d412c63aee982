"""Run folders: each run is computed once, then loaded, and resumed if it was interrupted.

One process at a time computes a run. Its folder has a journal with one JSON object per line, so
that a killed process loses no finished answers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import TypeAdapter

from ttabench.core import files
from ttabench.core.errors import UserError
from ttabench.core.files import MissingFile, reading_file
from ttabench.core.meter import WorkTimer
from ttabench.core.types import Episode, Json
from ttabench.records.samples import EpisodeCost, Sample, write_samples
from ttabench.records.schema import (
    RECORD_FILE,
    SAMPLES_FILE,
    TRASH_FOLDER,
    RunRecord,
    is_stored,
    load_record,
    save_record,
)

MAX_JOURNAL_BYTES = 1 << 35
"""Limit for reading a journal into memory."""
PARTIAL_FILE = "partial.jsonl"
T = TypeVar("T")
RecordT = TypeVar("RecordT")


@lru_cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def parse_strict(cls: type[T], value: object) -> T:
    """Convert JSON values to a dataclass, with strict types and mappings for nested dataclasses."""
    parsed: T = _adapter(cls).validate_json(  # type: ignore[arg-type]  # a class can be hashed
        json.dumps(value), strict=True
    )
    return parsed


class RunFolder:
    """The folder of one run, `OUT/<id>`, and its journal.

    A journal line has a batch of answers, the cost of an episode, or the reply of a server.
    """

    def __init__(self, out: Path, run: str) -> None:
        self.path, self.journal, self._process = out / run, out / run / PARTIAL_FILE, os.getpid()
        self.spent = WorkTimer()
        self.samples: list[Sample] = []
        """Answered queries of all episodes that were started."""
        self.costs: list[EpisodeCost] = []
        """Costs of the finished episodes."""
        self.replies: dict[str, Json] = {}
        """Replies of the server that runs the model, by digest of their request."""
        self._samples_before: dict[str, dict[str, tuple[tuple[int, int], Sample]]] = {}
        """Samples of an interrupted run by episode and query key, each with its (line, index) in
        the journal. The later of two answers to one query counts."""
        self._costs_before: dict[str, EpisodeCost] = {}
        files.make_writable_folder(self.path, out)

    def _journal_lines(self) -> list[bytes]:
        """Lines of the journal. A truncated last line is removed, so that the next write starts
        a new line."""
        try:
            with reading_file(
                self.journal, "Remove it, or use another --out.", max_bytes=MAX_JOURNAL_BYTES
            ):
                if self.journal.is_symlink():
                    raise ValueError("it is a symbolic link")
                content = self.journal.read_bytes()
                whole = content[: content.rfind(b"\n") + 1]
                if len(whole) < len(content):
                    files.truncate_file(self.journal, len(whole))
        except MissingFile:
            return []
        return whole.splitlines()

    def write(self, line: Mapping[str, Json]) -> None:
        """Append a journal line and flush it to disk."""
        if os.getpid() != self._process:
            os._exit(0)  # a fork by a method must not write the same run
        files.append_text(self.journal, json.dumps(line, ensure_ascii=False) + "\n")

    def discard(self) -> None:
        """Delete the partial results."""
        with reading_file(self.journal, "Remove it, or use another --out.", max_bytes=None):
            self.journal.unlink(missing_ok=True)

    @contextmanager
    def locked(self, log: Callable[[str], None]) -> Iterator[None]:
        """Lock the folder, waiting for another process if needed; remove it afterwards if it has
        no results."""
        message = f"Another process is running {self.path.name}; waiting for it."
        with files.hold_lock(self.path, lambda: log(message)):
            files.remove_partial_files(self.path)
            try:
                yield
            finally:
                is_owner = os.getpid() == self._process  # False in a fork by a method
                if is_owner and not is_stored(self.path) and not self.journal.exists():
                    with suppress(OSError):
                        files.remove_path(self.path / files.LOCK_FILE)
                        self.path.rmdir()

    def resume(self) -> int:
        """Read the partial results of an interrupted run and return the number of answered queries.

        `resume_episodes` checks which of them belong to the task.
        """
        self.spent.begin()  # excludes waiting for the lock
        if (self.path / SAMPLES_FILE).is_dir():
            raise UserError(
                f"{self.path / SAMPLES_FILE} is a folder.", "Remove it, or use another --out."
            )
        for number, text in enumerate(self._journal_lines()):
            # queries of a damaged line are answered again
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                if (line := json.loads(text))["run"] != self.path.name:
                    continue
                if line["kind"] == "episode":
                    cost = parse_strict(EpisodeCost, line["value"])
                    self._costs_before[cost.episode] = cost
                elif line["kind"] == "reply":
                    self.replies |= line["value"]
                else:
                    for index, sample in enumerate(
                        [parse_strict(Sample, value) for value in line["value"]]
                    ):
                        self._samples_before.setdefault(sample.episode, {})[sample.key] = (
                            (number, index),
                            sample,
                        )
                self.spent.add(*line["seconds"])
        return sum(map(len, self._samples_before.values()))

    def resume_episodes(
        self, episodes: Sequence[Episode], metrics: Collection[str]
    ) -> tuple[list[Sample], bool]:
        """Return (stored samples of these episodes in journal order, True if all episodes were
        finished).

        The episodes are read together. Only samples with a value of each of `metrics` are returned.
        """
        found: list[tuple[tuple[int, int], Sample]] = []
        for episode in episodes:
            queries = {query.key: query for query in episode.queries()}
            before = self._samples_before.pop(episode.key, {})
            found += [
                (position, sample)
                for key, (position, sample) in before.items()
                if key in queries and sample.answers_query(queries[key], metrics)
            ]
        found.sort(key=itemgetter(0))
        whole = len(found) == sum(len(episode.queries()) for episode in episodes)
        done = whole and all(episode.key in self._costs_before for episode in episodes)
        if done:
            self.costs += [self._costs_before[episode.key] for episode in episodes]
        elif whole and found:
            # the last batch is answered again, to measure the cost of a query
            (last, _), _ = found[-1]
            found = [one for one in found if one[0][0] < last]
        kept = [sample for _, sample in found]
        self.samples += kept
        return kept, done

    def append(self, samples: Sequence[Sample]) -> None:
        """Store answered queries in the journal."""
        self._append_line("samples", [asdict(sample) for sample in samples])
        self.samples += samples

    def finish_episode(self, cost: EpisodeCost) -> None:
        """Store the cost of a finished episode."""
        self._append_line("episode", asdict(cost))
        self.costs.append(cost)

    def store_reply(self, request: str, reply: Json) -> None:
        """Store the reply of a server in the journal. `request` is the digest of the request."""
        self._append_line("reply", {request: reply})
        self.replies[request] = reply

    def reply_tokens(self) -> dict[str, int]:
        """Count requests, prompt tokens and completion tokens of a server; empty without one."""
        if not self.replies:
            return {}
        names = ("prompt_tokens", "completion_tokens")
        counts = {name: sum(reply[name] for reply in self.replies.values()) for name in names}
        return {"requests": len(self.replies), **counts}

    def _append_line(self, kind: str, value: Json) -> None:
        self.write(
            {"run": self.path.name, "kind": kind, "value": value, "seconds": self.spent.lap()}
        )

    def finish(self, record: RunRecord) -> RunRecord:
        """Write the samples, then the record with their digests, then delete the partial results.

        Returns the record.
        """
        digests = write_samples(
            self.path / SAMPLES_FILE, [sample.to_row() for sample in self.samples]
        )
        record = record.model_copy(update={"sample_digests": digests})
        save_record(record, self.path)
        self.discard()
        return record


def move_to_trash(run: Path) -> Path:
    """Move a stored run to `TRASH_FOLDER` next to it, and return its new folder.

    Raises:
        UserError: the run is packed, damaged or in progress, or the trash has a run of this id.
    """

    def refuse() -> None:
        raise UserError(f"A process is running {run}.", "Wait for it, or end it first.")

    if not (run / RECORD_FILE).is_file():
        raise UserError(
            f"{run} is in a packed file, so it cannot be removed.", "Use runs in folders."
        )
    if load_record(run).id != run.name:
        raise UserError(f"{run} has the record of another run.", "Remove it by hand.")
    trash = run.parent / TRASH_FOLDER
    if (trash / run.name).exists():
        raise UserError(
            f"{trash} already has a run {run.name}.", f"Remove {trash / run.name} first."
        )
    files.make_writable_folder(trash, run.parent)
    with files.hold_lock(run, refuse):
        files.move_path(run, trash / run.name)
    return trash / run.name


@dataclass(frozen=True, kw_only=True)
class RunResult(Generic[RecordT]):
    """A stored result."""

    record: RecordT
    folder: Path
    status: Literal["stored", "continued", "new"]
    """Loaded from the store, continued after an interruption, or computed from the start."""


def get_or_run(
    run_path: Path,
    work: Callable[[RunFolder], RunRecord],
    *,
    force: bool,
    log: Callable[[str], None],
) -> RunResult[RunRecord]:
    """Load the run if it is stored, else compute it with `work` in its folder."""
    stored = not force and is_stored(run_path)
    is_complete = not (run_path / PARTIAL_FILE).exists()
    if stored and (is_complete or files.is_locked(run_path) or not os.access(run_path, os.W_OK)):
        return RunResult(record=load_record(run_path), folder=run_path, status="stored")
    folder = RunFolder(run_path.parent, run_path.name)
    with folder.locked(log):
        if force:
            folder.discard()
        elif is_stored(run_path):
            folder.discard()  # the process was killed after it wrote the record
            return RunResult(record=load_record(run_path), folder=run_path, status="stored")
        resumed_queries = folder.resume()
        if resumed_queries:
            log(f"Continuing run {run_path.name}: {resumed_queries} queries are already answered.")
        record = work(folder)
    return RunResult(
        record=record, folder=run_path, status="continued" if resumed_queries else "new"
    )
