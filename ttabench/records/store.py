"""Where a run lives while it goes on: crash-safe partial results, a lock, and the finished record."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

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
        self.spent = Spent()
        self.left_out = 0
        """Lines of the partial results that do not count."""
        self._samples: dict[tuple[str, str], Sample] = {}
        """By episode and key of the query; of two lines that say the same query the later one counts."""
        self._costs: dict[str, EpisodeCost] = {}
        self._own: dict[str, set[tuple[str, str]]] = {}
        """The queries of episodes that were taken up, by episode."""
        super().__init__(out, run)

    load = staticmethod(load_record)

    @property
    def samples(self) -> list[Sample]:
        """All answered queries."""
        return list(self._samples.values())

    @property
    def costs(self) -> list[EpisodeCost]:
        """Of the episodes that are done."""
        return list(self._costs.values())

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
        lines, self.left_out = self.read()
        while lines and lines[-1].get("left"):  # the rest of a batch alone would have other last digits: all again
            lines.pop()
            self.left_out += 1
        for line in lines:
            try:
                if line.get("run") != self.path.name:
                    raise ValueError("a line of another run")
                self._take(line["kind"], line["value"])
                self.spent.add(*seconds(line))
            except (ValueError, TypeError):
                self.left_out += 1
        return len(self._samples)

    def _take(self, kind: str, value: Json) -> None:
        if kind == "sample":
            sample = typed(Sample, value)
            self.left_out += (sample.episode, sample.key) in self._samples
            self._samples[sample.episode, sample.key] = sample
        elif kind == "episode":
            cost = typed(EpisodeCost, value)
            self._costs[cost.episode] = cost
        else:
            raise ValueError("no line of a run")

    def take_up(self, episode: Episode, metrics: Collection[str]) -> list[Sample]:
        """Samples of this episode from before, with a value of each of these metrics."""
        asks = {(episode.key, ask.key): ask for ask in episode.asks()}
        self._own[episode.key] = set(asks)
        kept = []
        for place, ask in asks.items():
            sample = self._samples.get(place)
            if sample is not None and sample.answers_this(ask, metrics):
                kept.append(sample)
            elif sample is not None:
                self._drop(self._samples, [place])
        if len(kept) < len(asks):  # an episode of which queries are missing did not end
            self._drop(self._costs, {episode.key} & self._costs.keys())
        return kept

    def _drop(self, found: dict[Any, Any], keys: Collection[object]) -> None:
        self.left_out += len(keys)
        for key in keys:
            del found[key]

    def drop_leftovers(self) -> str:
        """Drop lines of queries and episodes that the task does not have; returns a note of all that was dropped.

        The note is of the file, not of the run: what was dropped has been asked again.
        """
        self._drop(self._samples, self._samples.keys() - set().union(*self._own.values()))
        self._drop(self._costs, self._costs.keys() - self._own.keys())
        if not self.left_out:
            return ""
        counted = f"{self.left_out} line" + ("s" if self.left_out > 1 else "")
        return f"{counted} of {PARTIAL_FILE} did not count: damaged, doubled, or of no query of this run"

    def finished(self, episode: str) -> bool:
        """Whether every query of this episode was answered before."""
        return episode in self._costs

    def append(self, samples: Sequence[Sample]) -> None:
        """Store answered queries at once."""
        self._keep([{"kind": "sample", "value": asdict(sample)} for sample in samples])
        self._samples.update({(sample.episode, sample.key): sample for sample in samples})

    def end_episode(self, cost: EpisodeCost) -> None:
        """Store that an episode is done and what it cost."""
        self._keep([{"kind": "episode", "value": asdict(cost)}])
        self._costs[cost.episode] = cost

    def _keep(self, findings: Sequence[Mapping[str, Json]]) -> None:
        counted = [{"run": self.path.name, **line, "left": len(findings) - at} for at, line in enumerate(findings, 1)]
        self.write([{**line, "seconds": self.spent.lap()} for line in counted[:1]] + counted[1:])

    def finish(self, record: RunRecord) -> RunRecord:
        """Write the samples, then the record with their digests, then drop the partial results; returns the record."""
        digests = write_samples(self.path / SAMPLES_FILE, [sample.flat() for sample in self.samples])
        record = record.model_copy(update={"sample_digests": digests})
        save_record(record, self.path)
        self.discard()
        return record
