"""`ttabench show RUN`: one stored run in full, then what it was asked and answered."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.records.sample_files import has_samples, read_samples
from ttabench.records.samples import COLUMNS
from ttabench.records.schema import RunRecord
from ttabench.records.scores import TEXTS, digest_of, holds_digests, is_digest, kept_text, name_of
from ttabench.report.about import about_tables, as_json
from ttabench.report.figures import shown
from ttabench.report.finding import find_runs, load_run, refuse_profiles
from ttabench.stats.metrics import known
from ttabench.terminal import render
from ttabench.terminal.table import Table

LONGEST = 400
"""Characters of a prompt, and of an answer, that are shown without --all."""
SAID = ("prompt", "prediction", "answers", "key", "episode", "subtask")
MOST_OPTIONS = 8
"""Of a choice, whose log-likelihoods stand in a line."""
Cells = Mapping[str, Any]
"""A query with its answer, by column, see `records.samples`; metrics included."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Which samples are wanted."""

    page: int | None = None
    """Counted from 1; None where none was named."""
    per_page: int = 4
    wrong: bool = False
    differs: str = ""
    """Another run, as it was typed; only what it answered otherwise."""
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
    cells: Cells
    other: Cells = field(default_factory=dict)

    def flat(self) -> dict[str, Json]:
        """One level, for JSON and CSV."""
        return {"sample": self.number, **self.cells, **{f"other_{key}": self.other[key] for key in self.other}}


def show(name: str, out: Path, wanted: Samples, form: str, *, everything: bool) -> None:
    """Print a run and a page of its samples; all samples that are wanted, for other programs. With `everything` no
    setting, figure or text is left out."""
    chosen = render.known_format(form)
    folder = _one_run(name, out)
    record, kept = load_run(folder), has_samples(folder)
    note = _missing(folder, kept=kept)
    if not kept and (wanted.typed or chosen == "csv"):
        raise UserError(note, "Run it again with another --out.")
    other = _one_run(wanted.differs, out) if wanted.differs else None
    samples = _wanted(folder, record, wanted, other) if kept else []
    part, page, pages = _page_of(samples, wanted)
    flat = [sample.flat() for sample in (part if wanted.page else samples)]
    if chosen == "json":
        about: dict[str, Json] = {"run": as_json(record, folder), "samples": flat}
        render.print_json(about | ({"note": note} if note else {}))
    elif chosen == "csv":  # lists as JSON
        data = tuple({key: json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
                      for key, value in row.items()} for row in flat)  # fmt: skip
        render.show([Table(title="samples", columns=(), rows=(), data=data)], chosen)
    else:
        tables = [] if wanted.typed else about_tables(record, everything=everything)
        if kept:
            kinds = ["wrong"] * wanted.wrong + [f"unlike {wanted.differs}"] * bool(wanted.differs)
            kinds += [f"with {wanted.grep!r}"] * bool(wanted.grep)
            title = f"{', '.join(['samples', *kinds])}: "
            title += f"{len(samples)}, page {page} of {pages}" if part else "none"
            runs = [record, *([load_run(other)] if other is not None else [])]
            shown_samples = _tables(title, part, runs, sys.maxsize if everything else LONGEST)
            if page < pages:
                shown_samples[-1] = replace(shown_samples[-1], caption=f"Next: --page {page + 1}")
            tables += shown_samples
        render.show(tables, chosen)
        if note:
            render.print_line(note)


def _one_run(name: str, out: Path) -> Path:
    """The folder of one run."""
    runs = find_runs([name], out)
    if len(runs) != 1:
        hint = f"Name one of them: see `ttabench list runs --out {name}`."
        refuse_profiles([] if runs else [Path(name)])
        raise UserError(f"{name} holds {len(runs)} runs, `show` takes one.", hint if runs else "See `ttabench list`.")
    return runs[0]


def _missing(folder: Path, *, kept: bool) -> str:
    """What of a run's samples is not kept; empty where all is."""
    if not kept:
        return f"{folder.parent} holds the record of run {folder.name} and not its samples."
    hidden = holds_digests(read_samples(folder, TEXTS))
    return f"{folder.parent} holds the scores of run {folder.name} and not its texts." if hidden else ""


def _samples_of(folder: Path, record: RunRecord) -> list[Sample]:
    columns = read_samples(folder, record=record)
    assert "key" in columns, f"samples of {record.id} without keys"
    rows = (dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True))
    return [Sample(number=number, cells=cells) for number, cells in enumerate(rows, 1)]


def _metrics_of(samples: Sequence[Sample], record: RunRecord) -> list[str]:
    """Metrics that every sample has a value of, the main one first."""
    first = samples[0].cells if samples else {}
    named = [name for name in first if name not in COLUMNS and isinstance(first[name], int | float)]
    return sorted(named, key=lambda name: name != record.main_metric)


def _wanted(folder: Path, record: RunRecord, wanted: Samples, other: Path | None) -> list[Sample]:
    """Samples that are wanted, whatever the page."""
    kept = _samples_of(folder, record)
    metrics = _metrics_of(kept, record)
    if other is not None:
        kept = _beside(kept, _samples_of(other, load_run(other)), metrics)
    if wanted.wrong:
        measure = next((name for name in metrics if known(name).most == 1 and known(name).higher_is_better), "")
        if not measure:
            raise UserError("No sample of this run is right or wrong: it has no such metric.", "Leave --wrong out.")
        kept = [sample for sample in kept if sample.cells[measure] < 1]
    text = wanted.grep.casefold()
    return [sample for sample in kept if not text or any(text in _said(sample.cells.get(name)) for name in SAID)]


def _said(cell: object) -> str:
    return " ".join(map(str, cell)).casefold() if isinstance(cell, list) else str(cell).casefold()


def _beside(samples: Sequence[Sample], others: Sequence[Sample], metrics: Sequence[str]) -> list[Sample]:
    """Samples that another run was asked in the same words and answered otherwise, with its answer."""
    theirs = {_question(sample.cells): sample.cells for sample in others}
    both = [replace(sample, other=other) for sample in samples if (other := theirs.get(_question(sample.cells)))]
    if not both:
        raise UserError("The two runs share no query: they have other tasks, options or seeds.", "Name another run.")
    return [
        sample
        for sample in both
        if digest_of(sample.cells["prediction"]) != digest_of(sample.other["prediction"])
        or any(sample.cells.get(name) != sample.other.get(name, sample.cells.get(name)) for name in metrics)
        or (sample.cells.get("mode") == "score" and sample.cells["logprobs"] != sample.other["logprobs"])
    ]


def _question(cells: Cells) -> tuple[Any, ...]:
    names = (name_of(cells["episode"]), name_of(cells["key"]), cells.get("step"), cells.get("position"))
    return (*names, digest_of(cells["prompt"]), *map(digest_of, cells.get("answers") or ()))


def _page_of(samples: Sequence[Sample], wanted: Samples) -> tuple[list[Sample], int, int]:
    """(samples of the page, its number, number of pages)."""
    pages = max(1, -(-len(samples) // wanted.per_page))
    page = wanted.page or 1
    if page > pages:
        raise UserError(f"There is no page {page}: the last is {pages}.", f"Give --page {pages}.")
    return list(samples[(page - 1) * wanted.per_page : page * wanted.per_page]), page, pages


def _tables(title: str, samples: Sequence[Sample], runs: Sequence[RunRecord], longest: int) -> list[Table]:
    """A block a sample; where two runs are held against each other, a table of both below it."""
    metrics, columns = _metrics_of(samples, runs[0]), ("sample", "asked after", "prompt")
    if len(runs) == 1 or not samples:
        rows = []
        for sample in samples:
            answer, *more = _answer(sample.cells, metrics, longest)
            rows.append((*_asked(sample, longest), answer, gold(sample.cells), *more))
        heads = (*columns, "prediction", "gold", "log-likelihood", "score")
        return [Table(title=title, columns=heads, rows=tuple(rows), prose=True)]
    tables: list[Table] = []
    for sample in samples:
        asked = (*_asked(sample, longest), gold(sample.cells))
        sides = zip(*(_answer(side, metrics, longest) for side in (sample.cells, sample.other)), strict=True)
        names = ("prediction", "log-likelihood", "score")
        lines = [(name, *side) for name, side in zip(names, sides, strict=True) if any(side)]
        sides_of = (f"{run.config.get('method')} {run.id}" for run in runs)
        tables += [Table(title=title if not tables else "", columns=(*columns, "gold"), rows=(asked,), prose=True),
                   Table(title="", columns=("", *sides_of), rows=tuple(lines), names=("",))]  # fmt: skip
    return tables


def _asked(sample: Sample, longest: int) -> tuple[str, str, str]:
    """(number and key, what was read before, the end of the prompt: a question stands behind what it is about)."""
    cells, prompt = sample.cells, kept_text(sample.cells["prompt"])
    read = f"{cells['context_tokens']:,} tokens" if cells.get("context_tokens") else ""
    step = f"step {cells['step']:,}" if cells.get("step") else ""
    place = str(cells.get("subtask") or cells.get("episode") or "")
    prompt = prompt if len(prompt) <= longest else f"... {prompt[-longest:]}"
    return f"{sample.number}: {cells['key']} ({place})", ", ".join(filter(None, [step, read])), prompt


def _answer(cells: Cells, metrics: Sequence[str], longest: int) -> tuple[str, str, str]:
    """(prediction, log-likelihood, score)."""
    named = [(name, cells[name]) for name in metrics if cells.get(name) is not None]
    scores = ", ".join(f"{name} {shown(name, value, None)}" for name, value in named)
    return prediction(cells, longest), likelihood(cells), scores


def prediction(cells: Cells, longest: int) -> str:
    """What was answered, up to so many characters; empty where that is a digest, or a text was scored."""
    text = str(cells.get("prediction") or "")
    if cells.get("mode") == "score" or is_digest(text):
        return ""
    return (text if len(text) <= longest else f"{text[:longest]} ...") or "(nothing)"


def gold(cells: Cells) -> str:
    """The right answers, those that are kept."""
    return " | ".join(filter(None, (kept_text(str(answer)) for answer in cells.get("answers") or ())))


def likelihood(cells: Cells) -> str:
    """In nats, with the tokens they are sums over; of a choice, of all its options."""
    values: list[float] = cells.get("logprobs") or []
    tokens: list[int] = cells.get("tokens") or []
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.2f} ({tokens[0]:,} tokens)"
    numbers = ", ".join(f"{value:.2f}" for value in values[:MOST_OPTIONS])
    return f"{numbers}{', ...' if len(values) > MOST_OPTIONS else ''} ({len(values)} options)"
