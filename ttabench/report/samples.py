"""What one run was asked and answered: its samples as rows, those that somebody wants, and a page of them.

rows = samples_of(folder, record)
chosen = matching(rows, Samples(wrong=True, grep="Port Ansel"), measure_of(record, rows))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.records.sample_files import read_samples
from ttabench.records.samples import COLUMNS
from ttabench.records.schema import RunRecord
from ttabench.records.scores import digest_of, name_of
from ttabench.stats.metrics import METRICS

SAID = ("prompt", "prediction", "answers", "key", "episode", "subtask")
"""Columns in which a text is looked for."""
MOST_OPTIONS = 8
"""Of a choice, whose log-likelihoods stand in a line."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Which samples are wanted.

    Attributes:
        page: counted from 1; None where none was named.
        differs: another run, as it was typed; only what it answered otherwise.
        grep: only with this text, in upper or lower case.
    """

    page: int | None = None
    per_page: int = 4
    wrong: bool = False
    differs: str = ""
    grep: str = ""

    @property
    def typed(self) -> bool:
        """Whether anything was asked of the samples: then they alone are shown."""
        return self.page is not None or self.wrong or bool(self.differs or self.grep)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One query with its answer; `other` is the answer of the run that it is held against."""

    number: int
    """In the order of the run, from 1."""
    cells: Mapping[str, Any]
    """By column, see `records.samples`; metrics included."""
    other: Mapping[str, Any] = field(default_factory=dict)

    def flat(self) -> dict[str, Json]:
        """One level, for JSON and CSV."""
        return {"sample": self.number, **self.cells, **{f"other_{key}": self.other[key] for key in self.other}}


def samples_of(folder: Path, record: RunRecord) -> list[Sample]:
    """All samples of a run, in its order.

    Raises:
        UserError: its samples were not kept, or cannot be read.
    """
    columns = read_samples(folder, record=record)
    assert "key" in columns, f"samples of {record.id} without keys"
    rows = (dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True))
    return [Sample(number=number, cells=cells) for number, cells in enumerate(rows, 1)]


def metrics_of(samples: Sequence[Sample], record: RunRecord) -> list[str]:
    """Metrics that every sample has a value of, the main one first."""
    first = samples[0].cells if samples else {}
    known = [name for name in first if name not in COLUMNS and isinstance(first[name], int | float)]
    return sorted((name for name in known if name in METRICS), key=lambda name: name != record.main_metric)


def matching(samples: Sequence[Sample], wanted: Samples, metrics: Sequence[str]) -> list[Sample]:
    """Those that are wanted, whatever the page.

    Raises:
        UserError: wrong ones are wanted where nothing is right or wrong.
    """
    kept = list(samples)
    if wanted.wrong:
        measure = next((name for name in metrics if METRICS[name].scale == 100 and METRICS[name].higher_is_better), "")
        if not measure:
            raise UserError("No sample of this run is right or wrong: it has no such metric.", "Leave --wrong out.")
        kept = [sample for sample in kept if sample.cells[measure] < 1]
    if wanted.grep:
        text = wanted.grep.casefold()
        kept = [sample for sample in kept if any(text in _said(sample.cells.get(name)) for name in SAID)]
    return kept


def _said(cell: object) -> str:
    return " ".join(map(str, cell)).casefold() if isinstance(cell, list) else str(cell).casefold()


def beside(samples: Sequence[Sample], others: Sequence[Sample], metrics: Sequence[str]) -> list[Sample]:
    """Samples that another run was asked in the same words and answered otherwise, with its answer.

    Raises:
        UserError: no query was asked of both.
    """
    theirs = {_asked(sample.cells): sample.cells for sample in others}
    both = [(sample, theirs[_asked(sample.cells)]) for sample in samples if _asked(sample.cells) in theirs]
    if not both:
        raise UserError("The two runs share no query: they have other tasks, options or seeds.", "Name another run.")
    return [
        Sample(number=sample.number, cells=sample.cells, other=dict(other))
        for sample, other in both
        if digest_of(sample.cells["prediction"]) != digest_of(other["prediction"])
        or any(sample.cells.get(name) != other.get(name, sample.cells.get(name)) for name in metrics)
        or (sample.cells.get("mode") == "score" and sample.cells["logprobs"] != other["logprobs"])
    ]


def _asked(cells: Mapping[str, Any]) -> tuple[Any, ...]:
    names = (name_of(cells["episode"]), name_of(cells["key"]), cells.get("step"), cells.get("position"))
    return (*names, digest_of(cells["prompt"]), *map(digest_of, cells.get("answers") or ()))


def page_of(samples: Sequence[Sample], wanted: Samples) -> tuple[list[Sample], int, int]:
    """(samples of the page, its number, number of pages).

    Raises:
        UserError: there are not so many pages.
    """
    pages = max(1, -(-len(samples) // wanted.per_page))
    page = wanted.page or 1
    if page > pages:
        raise UserError(f"There is no page {page}: the last is {pages}.", f"Give --page {pages}.")
    return list(samples[(page - 1) * wanted.per_page : page * wanted.per_page]), page, pages


def likelihood(cells: Mapping[str, Any]) -> str:
    """In nats, with the tokens they are sums over; of a choice, of all its options."""
    values: list[float] = cells.get("logprobs") or []
    tokens: list[int] = cells.get("tokens") or []
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.2f} ({tokens[0]:,} tokens)"
    numbers = ", ".join(f"{value:.2f}" for value in values[:MOST_OPTIONS])
    return f"{numbers}{', ...' if len(values) > MOST_OPTIONS else ''} ({len(values)} options)"
