"""How runs are made once: found if they are stored, else continued or begun, one process at a time.

The folder of a run that is being made has a journal: findings, one JSON object a line, so that a kill loses nothing.
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
from ttabench.records.schema import SAMPLES_FILE, RunRecord, is_stored, load_record, save_record

MAX_JOURNAL_BYTES = 1 << 35
"""Bytes of a journal that are read into memory."""
PARTIAL_FILE = "partial.jsonl"
T = TypeVar("T")
RecordT = TypeVar("RecordT")


@lru_cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def parse_strict(cls: type[T], value: object) -> T:
    """A dataclass from JSON values, strict about their types: by way of JSON a mapping stands for a dataclass."""
    parsed: T = _adapter(cls).validate_json(  # type: ignore[arg-type]  # a class can be hashed
        json.dumps(value), strict=True
    )
    return parsed


class RunFolder:
    """The folder of one run, `OUT/<id>`, and its journal: a line is a batch of answers, or an episode's cost."""

    def __init__(self, out: Path, run: str) -> None:
        self.path, self.journal, self._process = out / run, out / run / PARTIAL_FILE, os.getpid()
        self.spent = WorkTimer()
        self.samples: list[Sample] = []
        """All answered queries of episodes that were taken up."""
        self.costs: list[EpisodeCost] = []
        """Of the episodes that are done."""
        self._samples_before: dict[str, dict[str, tuple[tuple[int, int], Sample]]] = {}
        """Of a run that was stopped, with line and place in the journal, by episode and key of the query; of two
        answers to one query the later counts."""
        self._costs_before: dict[str, EpisodeCost] = {}
        files.make_writable_folder(self.path, out)

    def _journal_lines(self) -> list[bytes]:
        """Those of the journal; a last one that was cut in the middle of writing is removed, so that what is appended
        stands apart."""
        try:
            with reading_file(
                self.journal, "Remove it, or give another --out.", max_bytes=MAX_JOURNAL_BYTES
            ):
                if self.journal.is_symlink():
                    raise ValueError("it is a link to another file")
                content = self.journal.read_bytes()
                whole = content[: content.rfind(b"\n") + 1]
                if len(whole) < len(content):
                    files.truncate_file(self.journal, len(whole))
        except MissingFile:
            return []
        return whole.splitlines()

    def write(self, line: Mapping[str, Json]) -> None:
        """Keep a finding, at once: it is on the disk when it returns."""
        if os.getpid() != self._process:
            os._exit(0)  # a method forked itself: that copy is not to write the same run
        files.append_text(self.journal, json.dumps(line, ensure_ascii=False) + "\n")

    def discard(self) -> None:
        """Drop the partial results."""
        with reading_file(self.journal, "Remove it, or give another --out.", max_bytes=None):
            self.journal.unlink(missing_ok=True)

    @contextmanager
    def locked(self, log: Callable[[str], None]) -> Iterator[None]:
        """Hold the folder, waiting for another process that does; where nothing comes of it, it is removed."""
        message = f"Another process is running {self.path.name}; waiting for it."
        with files.hold_lock(self.path, lambda: log(message)):
            files.remove_partial_files(self.path)
            try:
                yield
            finally:
                is_owner = (
                    os.getpid() == self._process
                )  # what a method forked leaves the folder to us
                if is_owner and not is_stored(self.path) and not self.journal.exists():
                    with suppress(OSError):
                        files.remove_path(self.path / files.LOCK_FILE)
                        self.path.rmdir()

    def resume(self) -> int:
        """Read the partial results of a killed run; returns how many queries are answered already.

        Which of them the task has is seen when their episode is taken up.
        """
        self.spent.begin()  # waiting for the lock was no work
        if (self.path / SAMPLES_FILE).is_dir():
            raise UserError(
                f"{self.path / SAMPLES_FILE} is a folder.", "Remove it, or give another --out."
            )
        for number, text in enumerate(self._journal_lines()):
            with suppress(
                ValueError, TypeError, KeyError, RecursionError
            ):  # damaged: it is answered again
                if (line := json.loads(text))["run"] != self.path.name:
                    continue
                if line["kind"] == "episode":
                    cost = parse_strict(EpisodeCost, line["value"])
                    self._costs_before[cost.episode] = cost
                else:
                    for place, sample in enumerate(
                        [parse_strict(Sample, value) for value in line["value"]]
                    ):
                        self._samples_before.setdefault(sample.episode, {})[sample.key] = (
                            (number, place),
                            sample,
                        )
                self.spent.add(*line["seconds"])
        return sum(map(len, self._samples_before.values()))

    def resume_episodes(
        self, episodes: Sequence[Episode], metrics: Collection[str]
    ) -> tuple[list[Sample], bool]:
        """Samples from before of episodes that are read together, in their order, with a value of each of these
        metrics; and whether all of the episodes were done."""
        found: list[tuple[tuple[int, int], Sample]] = []
        for episode in episodes:
            asks = {ask.key: ask for ask in episode.queries()}
            before = self._samples_before.pop(episode.key, {})
            found += [
                one
                for key, one in before.items()
                if key in asks and one[1].answers_query(asks[key], metrics)
            ]
        found.sort(key=itemgetter(0))
        whole = len(found) == sum(len(episode.queries()) for episode in episodes)
        done = whole and all(episode.key in self._costs_before for episode in episodes)
        if done:
            self.costs += [self._costs_before[episode.key] for episode in episodes]
        elif (
            whole and found
        ):  # the last batch is asked again, so that what asking costs is measured
            (last, _), _ = found[-1]
            found = [one for one in found if one[0][0] < last]
        kept = [sample for _, sample in found]
        self.samples += kept
        return kept, done

    def append(self, samples: Sequence[Sample]) -> None:
        """Store answered queries at once."""
        self._append_line("samples", [asdict(sample) for sample in samples])
        self.samples += samples

    def finish_episode(self, cost: EpisodeCost) -> None:
        """Store that an episode is done and what it cost."""
        self._append_line("episode", asdict(cost))
        self.costs.append(cost)

    def _append_line(self, kind: str, value: Json) -> None:
        self.write(
            {"run": self.path.name, "kind": kind, "value": value, "seconds": self.spent.lap()}
        )

    def finish(self, record: RunRecord) -> RunRecord:
        """Write the samples, then the record with their digests, then drop the partial results; returns the record."""
        digests = write_samples(
            self.path / SAMPLES_FILE, [sample.to_row() for sample in self.samples]
        )
        record = record.model_copy(update={"sample_digests": digests})
        save_record(record, self.path)
        self.discard()
        return record


@dataclass(frozen=True, kw_only=True)
class RunResult(Generic[RecordT]):
    """A result that is stored."""

    record: RecordT
    folder: Path
    status: Literal["stored", "continued", "new"]
    """It was stored already; it was continued after a stop; it was made from the start."""


def get_or_run(
    run_path: Path,
    work: Callable[[RunFolder], RunRecord],
    *,
    force: bool,
    log: Callable[[str], None],
) -> RunResult[RunRecord]:
    """The run if it is stored, else what `work` makes of its folder."""
    stored = not force and is_stored(run_path)
    is_complete = not (run_path / PARTIAL_FILE).exists()
    if stored and (is_complete or files.is_locked(run_path) or not os.access(run_path, os.W_OK)):
        return RunResult(record=load_record(run_path), folder=run_path, status="stored")
    folder = RunFolder(run_path.parent, run_path.name)
    with folder.locked(log):
        if force:
            folder.discard()
        elif is_stored(run_path):
            folder.discard()  # a kill came between the record and this
            return RunResult(record=load_record(run_path), folder=run_path, status="stored")
        resumed_queries = folder.resume()
        if resumed_queries:
            log(f"Continuing run {run_path.name}: {resumed_queries} queries are answered already.")
        record = work(folder)
    return RunResult(
        record=record, folder=run_path, status="continued" if resumed_queries else "new"
    )
