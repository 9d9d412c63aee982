"""Where a run lives while it goes on: crash-safe partial results, a lock, and the finished record.

Every finished batch of queries is appended to `partial.jsonl` and flushed; a killed run continues from there and
loses no finished query. Two processes with one configuration meet at the lock: the second waits, then returns the
run of the first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ttabench.aggregation import Unit
from ttabench.errors import UserError
from ttabench.locks import LOCK_FILE, locked
from ttabench.records import (
    RECORD_FILE,
    SAMPLES_FILE,
    RunRecord,
    load_record,
    save_record,
    unwritable,
    write_samples,
)
from ttabench.types import Json

PARTIAL_FILE = "partial.jsonl"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One answered query."""

    episode: str
    key: str
    mode: str
    step: int
    context_tokens: int | None
    about: str
    prompt: str
    prediction: str
    answers: list[str]
    metrics: dict[str, float]
    ask_ms: float
    """Its share of the batch it was answered in."""
    logprobs: list[float] = field(default_factory=list)
    """Summed log-probability of each option (`choose`) or of the continuation (`score`)."""
    tokens: list[int] = field(default_factory=list)
    """Number of tokens of each of them."""
    blank: list[float] = field(default_factory=list)
    """Summed log-probability of each option without the question, where the task wants it."""
    part: str = ""
    """Sub-task or book, where the task has several."""
    position: int = 0
    """Tokens of the text in front of a scored stretch of it."""
    words: int = 0
    """Words that begin in it."""

    def unit(self) -> Unit:
        """The scored stretch that this sample is of (`score`)."""
        assert self.mode == "score", f"{self.key} was not scored but answered by {self.mode}"
        return Unit(self.episode, -self.logprobs[0], self.tokens[0], self.words)

    def flat(self) -> dict[str, Json]:
        """One level of columns: the metrics beside the rest."""
        row = asdict(self)
        del row["metrics"]
        assert not set(self.metrics) & set(row), "a metric is named like a column"
        return {**row, **self.metrics}


@dataclass(frozen=True, kw_only=True)
class EpisodeCost:
    """What one episode cost, once all its queries are answered. Seconds, bytes, counts; bytes are peaks."""

    episode: str
    pieces: int
    tokens_read: int | None
    adapt_seconds: float
    encode_seconds: float
    state_bytes: int
    patch_bytes: int
    adapt_peak_bytes: int
    ask_peak_bytes: int
    truncated: dict[str, int] = field(default_factory=dict)
    """What of the context the method could not take in, by its own counts ("truncated_tokens" ...)."""


class RunFolder:
    """The folder of one run, `OUT/<run id>`.

    Args:
        out: the folder of all runs; made if missing.
        run: the run's id.

    Raises:
        UserError: the folder cannot be made or written.
    """

    def __init__(self, out: Path, run: str) -> None:
        self.path = out / run
        self.samples: list[Sample] = []
        self.costs: list[EpisodeCost] = []
        self._answered: set[tuple[str, str]] = set()
        probe = self.path / f".probe-{os.getpid()}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise unwritable(out, error) from None

    @contextmanager
    def locked(self, notify: Callable[[str], None]) -> Iterator[None]:
        """Hold the run's lock; `notify` gets one line if another process holds it and we wait."""
        with locked(self.path, lambda: notify(f"Another process is running {self.path.name}; waiting for it.")):
            yield

    def stored(self) -> RunRecord | None:
        """The finished record, if there is one."""
        return load_record(self.path) if (self.path / RECORD_FILE).exists() else None

    def discard(self) -> None:
        """Forget the partial results."""
        (self.path / PARTIAL_FILE).unlink(missing_ok=True)
        self.samples, self.costs, self._answered = [], [], set()

    def abandon(self) -> None:
        """Leave no empty folder behind where a run failed before its first result."""
        if not (self.path / PARTIAL_FILE).exists() and not (self.path / RECORD_FILE).exists():
            (self.path / LOCK_FILE).unlink(missing_ok=True)
            with suppress(OSError):
                self.path.rmdir()

    def resume(self) -> int:
        """Read the partial results of a killed run; returns how many queries are answered already.

        A last line cut off in the middle of writing is removed; its queries are asked again.

        Raises:
            UserError: a line before the last is damaged.
        """
        path = self.path / PARTIAL_FILE
        if not path.exists():
            return 0
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(path, len(whole))
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                self._take(json.loads(line))
            except (ValueError, TypeError, KeyError):
                raise UserError(f"{path}, line {number} is damaged.", "Start over with --force.") from None
        return len(self.samples)

    def _take(self, line: Mapping[str, Json]) -> None:
        if line["kind"] == "sample":
            sample = Sample(**line["value"])
            self.samples.append(sample)
            self._answered.add((sample.episode, sample.key))
        else:
            self.costs.append(EpisodeCost(**line["value"]))

    def answered(self, episode: str, key: str) -> bool:
        """Whether this query was answered before."""
        return (episode, key) in self._answered

    def finished(self, episode: str) -> bool:
        """Whether every query of this episode was answered before."""
        return any(cost.episode == episode for cost in self.costs)

    def append(self, samples: Sequence[Sample]) -> None:
        """Store answered queries at once."""
        self._write([{"kind": "sample", "value": asdict(sample)} for sample in samples])
        self.samples.extend(samples)
        self._answered.update((sample.episode, sample.key) for sample in samples)

    def end_episode(self, cost: EpisodeCost) -> None:
        """Store that an episode is done and what it cost."""
        self._write([{"kind": "episode", "value": asdict(cost)}])
        self.costs.append(cost)

    def _write(self, lines: Sequence[Mapping[str, Json]]) -> None:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        try:
            with (self.path / PARTIAL_FILE).open("a", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise unwritable(self.path, error) from None

    def finish(self, record: RunRecord) -> Path:
        """Write the samples, then the record, then drop the partial results; returns the record's path."""
        write_samples(self.path / SAMPLES_FILE, [sample.flat() for sample in self.samples])
        path = save_record(record, self.path)
        (self.path / PARTIAL_FILE).unlink(missing_ok=True)
        return path
