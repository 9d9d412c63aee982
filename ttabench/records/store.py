"""Where a run lives while it goes on: crash-safe partial results, a lock, and the finished record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

from ttabench.core.errors import UserError
from ttabench.core.meter import Spent
from ttabench.core.types import Episode, Json
from ttabench.records.folder import ResultFolder, seconds, typed
from ttabench.records.sample_files import write_samples
from ttabench.records.samples import EpisodeCost, Sample
from ttabench.records.schema import RECORD_FILE, SAMPLES_FILE, RunRecord, is_stored, load_record, save_record

PARTIAL_FILE = "partial.jsonl"
__all__ = ["EpisodeCost", "RunFolder", "Sample"]


class RunFolder(ResultFolder[RunRecord]):
    """The folder of one run, see `ResultFolder`."""

    record_file: ClassVar[str] = RECORD_FILE
    partial_file: ClassVar[str] = PARTIAL_FILE
    continuing: ClassVar[str] = "Continuing run {name}: {count} queries are answered already."

    def __init__(self, out: Path, run: str) -> None:
        self.samples: list[Sample] = []
        self.costs: list[EpisodeCost] = []
        self.spent = Spent()
        self.left_out = 0
        """Lines of the partial results that do not count."""
        self._answered: set[tuple[str, str]] = set()
        self._read: dict[str, list[Sample]] = {}
        """Samples read back, doubled ones included, by episode; those of episodes taken up are no longer here."""
        self._taken_up: set[str] = set()
        super().__init__(out, run)

    @staticmethod
    def load(folder: Path) -> RunRecord:
        """See `load_record`."""
        return load_record(folder)

    def busy(self) -> str:
        """Its run is this one."""
        return f"Another process is running {self.path.name}; waiting for it."

    @classmethod
    def is_stored(cls, folder: Path) -> bool:
        """See `schema.is_stored`: packed runs count."""
        return is_stored(folder)

    def begin(self) -> None:
        """Waiting was no work."""
        self.spent.begin()

    def resume(self) -> int:
        """Read the partial results of a killed run; returns how many queries are answered already.

        Which of them the task has is seen when their episode is taken up.
        """
        if (self.path / SAMPLES_FILE).is_dir():
            raise UserError(f"{self.path / SAMPLES_FILE} is a folder.", "Remove it, or give another --out.")
        lines, self.left_out = self.journal.read()
        while lines and lines[-1].get("left"):  # the rest of a batch alone would have other last digits: all again
            lines.pop()
            self.left_out += 1
        for line in lines:
            try:
                if line.get("run") != self.path.name:
                    raise ValueError("a line of another run")
                self._take(line["kind"], line["value"])
                self.spent.add(*seconds(line))
            except ValueError:
                self.left_out += 1
        return len(self.samples)

    def _take(self, kind: str, value: Json) -> None:
        if kind == "sample":
            sample = typed(Sample, value)
            self._read.setdefault(sample.episode, []).append(sample)
            if not self.answered(sample.episode, sample.key):
                self._keep([sample])
            return
        cost = typed(EpisodeCost, value)
        if kind != "episode" or self.finished(cost.episode):
            raise ValueError("no line of a run, or an episode that ended twice")
        self.costs.append(cost)

    def _keep(self, samples: Sequence[Sample]) -> None:
        self.samples.extend(samples)
        self._answered.update((sample.episode, sample.key) for sample in samples)

    def _replace(self, episode: str, kept: Mapping[str, Sample]) -> None:
        """Of an episode keep these samples alone, by key, where they or others of their key stood."""
        all_kept = (kept.get(sample.key) if sample.episode == episode else sample for sample in self.samples)
        self.samples = [sample for sample in all_kept if sample is not None]
        self._answered = {(sample.episode, sample.key) for sample in self.samples}

    def take_up(self, episode: Episode, metrics: Collection[str]) -> Sequence[Sample]:
        """Samples of this episode from before; lines under its name that are of no query of it are dropped."""
        self._taken_up.add(episode.key)
        read = self._read.pop(episode.key, [])
        asks = {ask.key: ask for ask in episode.asks()}
        kept: dict[str, Sample] = {}
        for sample in read:
            if sample.key not in kept and sample.key in asks and sample.answers_this(asks[sample.key], metrics):
                kept[sample.key] = sample
        if len(kept) < len(read):
            self.left_out += len(read) - len(kept)
            self._replace(episode.key, kept)
        if len(kept) < len(asks):  # an episode of which queries are missing did not end
            self._keep_costs(lambda cost: cost.episode != episode.key)
        return list(kept.values())

    def _keep_costs(self, wanted: Callable[[EpisodeCost], bool]) -> None:
        kept = [cost for cost in self.costs if wanted(cost)]
        self.left_out += len(self.costs) - len(kept)
        self.costs = kept

    def drop_leftovers(self) -> str:
        """Drop lines of episodes that the task does not have; returns a note of all that was dropped.

        The note is of the file, not of the run: what was dropped has been asked again.
        """
        for episode, read in self._read.items():
            self.left_out += len(read)
            self._replace(episode, {})
        self._keep_costs(lambda cost: cost.episode in self._taken_up)
        self._read = {}
        if not self.left_out:
            return ""
        counted = f"{self.left_out} line" + ("s" if self.left_out > 1 else "")
        return f"{counted} of {PARTIAL_FILE} did not count: damaged, doubled, or of no query of this run"

    def answered(self, episode: str, key: str) -> bool:
        """Whether this query was answered before."""
        return (episode, key) in self._answered

    def finished(self, episode: str) -> bool:
        """Whether every query of this episode was answered before."""
        return any(cost.episode == episode for cost in self.costs)

    def append(self, samples: Sequence[Sample]) -> None:
        """Store answered queries at once."""
        self._write([{"kind": "sample", "value": asdict(sample)} for sample in samples])
        self._keep(samples)

    def end_episode(self, cost: EpisodeCost) -> None:
        """Store that an episode is done and what it cost."""
        self._write([{"kind": "episode", "value": asdict(cost)}])
        self.costs.append(cost)

    def _write(self, findings: Sequence[Mapping[str, Json]]) -> None:
        counted = [{"run": self.path.name, **line, "left": len(findings) - at} for at, line in enumerate(findings, 1)]
        self.journal.append([{**line, "seconds": self.spent.lap()} for line in counted[:1]] + counted[1:])

    def finish(self, record: RunRecord) -> RunRecord:
        """Write the samples, then the record with their digests, then drop the partial results; returns the record."""
        digests = write_samples(self.path / SAMPLES_FILE, [sample.flat() for sample in self.samples])
        record = record.model_copy(update={"sample_digests": digests})
        save_record(record, self.path)
        self.journal.discard()
        return record
