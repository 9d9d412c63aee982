"""`ttabench show RUN`: one stored run in full, then its queries and answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.records.samples import (
    SAMPLE_COLUMNS,
    has_samples,
    is_digest,
    read_samples,
    text_or_empty,
)
from ttabench.records.schema import RunRecord
from ttabench.report.method_rows import format_value
from ttabench.report.selection import select_runs
from ttabench.report.tables import command_of, detail_tables
from ttabench.stats.metrics import metric_or_default
from ttabench.terminal import render
from ttabench.terminal.table import Table

MAX_SAMPLE_CHARS = 400
"""Maximum characters of a prompt, and of an answer, without --all."""
SEARCHED_COLUMNS = ("prompt", "prediction", "answers", "key", "episode", "subtask")
SampleCells = Mapping[str, Any]
"""Cells of a sample by column, see `records.samples`; `sample` is its number in the run, from 1."""


@dataclass(frozen=True, kw_only=True)
class SampleFilter:
    """Filter of samples."""

    page: int | None = None
    """Number of the page, from 1; None without --page."""
    per_page: int = 4
    wrong: bool = False
    grep: str = ""


def show(
    name: str, out: Path, wanted: SampleFilter, form: render.Format, *, everything: bool
) -> None:
    """Print a run and a page of its samples.

    JSON and CSV contain all matching samples, or those of the page. With a page or a filter, only
    samples are printed.
    With `everything`, all settings, scores and full texts are included.

    Raises:
        UserError: `name` is not a single run, samples are not stored, or the page does not exist.
    """
    runs = select_runs([name], out, {}).runs
    if len(runs) != 1:
        raise UserError(
            f"`show` needs one run, but {name} has {len(runs)}.", "Run `ttabench list runs`."
        )
    (folder, record), kept = runs[0], has_samples(runs[0][0])
    note = _missing_note(folder, kept=kept)
    samples_only = wanted.page is not None or wanted.wrong or bool(wanted.grep)
    if not kept and (samples_only or form == "csv"):
        raise UserError(note, "Run it again with a different --out.")
    samples = _select_samples(folder, record, wanted) if kept else []
    page, pages = wanted.page or 1, max(1, -(-len(samples) // wanted.per_page))
    if page > pages:
        raise UserError(f"There is no page {page}: the last is {pages}.", f"Use --page {pages}.")
    part = samples[(page - 1) * wanted.per_page : page * wanted.per_page]
    if form in ("json", "csv"):
        _print_data(form, part if wanted.page else samples, record, folder, note)
        return
    tables = [] if samples_only else detail_tables(record, everything=everything)
    if kept:
        kinds = ["wrong"] if wanted.wrong else []
        kinds += [f"with {wanted.grep!r}"] if wanted.grep else []
        count = f"{len(samples)}, page {page} of {pages}" if part else "none"
        title = f"{', '.join(['samples', *kinds])}: {count}"
        table = _table(title, part, record, sys.maxsize if everything else MAX_SAMPLE_CHARS)
        tables.append(replace(table, caption=f"Next: --page {page + 1}" if page < pages else ""))
    render.print_tables(tables, form)
    if note:
        render.print_line(note)


def _print_data(
    form: str, flat: Sequence[SampleCells], record: RunRecord, folder: Path, note: str
) -> None:
    if form == "json":
        run = {
            **record.model_dump(mode="json"),
            "command": command_of(record)[0],
            "folder": str(folder),
        }
        about: dict[str, Json] = {"run": run, "samples": flat}
        render.print_json(about | ({"note": note} if note else {}))
        return
    data = tuple(
        {
            key: json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
            for key, value in row.items()
        }
        for row in flat
    )
    render.print_tables([Table(title="samples", columns=(), rows=(), data=data)], "csv")


def _missing_note(folder: Path, *, kept: bool) -> str:
    """Return a note if samples or their texts are not stored; else an empty string."""
    if not kept:
        return f"{folder.parent} contains the record of run {folder.name}, but not its samples."
    texts = read_samples(folder, ["prompt", "prediction"])
    hidden = any(is_digest(str(text)) for column in texts.values() for text in column)
    return (
        f"{folder.parent} contains the scores of run {folder.name}, but not its texts."
        if hidden
        else ""
    )


def _metrics_of(first: SampleCells, record: RunRecord) -> list[str]:
    """Return the metrics of the first sample, the main metric first."""
    metric_values = [
        name
        for name in first
        if name not in (*SAMPLE_COLUMNS, "sample") and isinstance(first[name], int | float)
    ]
    return sorted(metric_values, key=lambda name: name != record.main_metric)


def _select_samples(folder: Path, record: RunRecord, wanted: SampleFilter) -> list[SampleCells]:
    """Return the samples of all pages that match the filter."""
    columns = read_samples(folder, record=record)
    rows = enumerate(zip(*columns.values(), strict=True), 1)
    kept: list[SampleCells] = [
        {"sample": number, **dict(zip(columns, cells, strict=True))} for number, cells in rows
    ]
    if wanted.wrong:
        metrics = _metrics_of(kept[0], record) if kept else []
        measure = next(
            (
                name
                for name in metrics
                if metric_or_default(name).most == 1 and metric_or_default(name).higher_is_better
            ),
            "",
        )
        if not measure:
            raise UserError(
                "This run has no metric that marks a sample as right or wrong.", "Remove --wrong."
            )
        kept = [cells for cells in kept if cells[measure] < 1]
    text = wanted.grep.casefold()
    return [
        cells
        for cells in kept
        if any(text in str(cells.get(name)).casefold() for name in SEARCHED_COLUMNS)
    ]


def _table(title: str, samples: Sequence[SampleCells], record: RunRecord, max_chars: int) -> Table:
    """Return a table with a row per sample."""
    metrics = _metrics_of(samples[0], record) if samples else []
    columns = (
        "sample",
        "position",
        "prompt",
        "gold",
        "prediction",
        "log-likelihood (nats)",
        "score",
    )
    rows = tuple(_row(cells, metrics, max_chars) for cells in samples)
    return Table(title=title, columns=columns, rows=rows, shown_as_blocks=True)


def _row(cells: SampleCells, metrics: Sequence[str], max_chars: int) -> tuple[str, ...]:
    read = f"{cells['context_tokens']:,} tokens" if cells.get("context_tokens") else ""
    step = f"step {cells['step']:,}" if cells.get("step") else ""
    place = str(cells.get("subtask") or cells.get("episode") or "")
    metric_values = [(name, cells[name]) for name in metrics if cells.get(name) is not None]
    scores = ", ".join(f"{name} {format_value(name, value, None)}" for name, value in metric_values)
    return (
        f"{cells['sample']}: {cells['key']} ({place})",
        ", ".join(filter(None, [step, read])),
        tail(text_or_empty(cells["prompt"]), max_chars),
        gold(cells),
        prediction(cells, max_chars),
        likelihood(cells),
        scores,
    )


def tail(text: str, max_chars: int) -> str:
    """Return the end of a prompt, where the question is."""
    return text if len(text) <= max_chars else f"... {text[-max_chars:]}"


def prediction(cells: SampleCells, max_chars: int) -> str:
    """Return the start of the answer; empty if it is a digest, or if a text was scored."""
    text = str(cells.get("prediction") or "")
    if cells.get("mode") == "score" or is_digest(text):
        return ""
    return (text if len(text) <= max_chars else f"{text[:max_chars]} ...") or "(nothing)"


def gold(cells: SampleCells) -> str:
    """Return the stored gold answers."""
    return " | ".join(
        filter(None, (text_or_empty(str(answer)) for answer in cells.get("answers") or ()))
    )


def likelihood(cells: SampleCells) -> str:
    """Return the log-likelihood in nats with its tokens, or those of all options of a choice."""
    values: list[float] = cells.get("logprobs") or []
    tokens: list[int] = cells.get("tokens") or []
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.2f} ({tokens[0]:,} tokens)"
    return f"{', '.join(f'{value:.2f}' for value in values)} ({len(values)} options)"
