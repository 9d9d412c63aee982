"""`ttabench show RUN`: one stored run in full, then its queries and answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttabench.core.errors import UserError
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
from ttabench.terminal.table import Columns, Table

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
    ((folder, record),) = runs
    kept = has_samples(folder)
    note = _missing_note(folder, kept=kept)
    samples_only = wanted.page is not None or wanted.wrong or bool(wanted.grep)
    if not kept and (samples_only or form == "csv"):
        raise UserError(note, "Run it again with a different --out.")
    samples, metrics = _select_samples(folder, record, wanted) if kept else ([], [])
    page, pages = wanted.page or 1, max(1, -(-len(samples) // wanted.per_page))
    if page > pages:
        raise UserError(f"There is no page {page}: the last is {pages}.", f"Use --page {pages}.")
    part = samples[(page - 1) * wanted.per_page : page * wanted.per_page]
    data = part if wanted.page else samples
    if form == "json":
        run = {
            **record.model_dump(mode="json"),
            "command": command_of(record)[0],
            "folder": str(folder),
        }
        render.print_json({"run": run, "samples": data} | ({"note": note} if note else {}))
        return
    if form == "csv":
        flat = [
            {
                key: json.dumps(value, ensure_ascii=False)
                if isinstance(value, list | dict)
                else value
                for key, value in row.items()
            }
            for row in data
        ]
        render.print_tables([Table.of("samples", flat, {})], form)
        return
    tables = [] if samples_only else detail_tables(record, everything=everything)
    if kept:
        kinds = ["samples", *["wrong"] * wanted.wrong]
        kinds += [f"with {wanted.grep!r}"] if wanted.grep else []
        count = f"{len(samples)}, page {page} of {pages}" if part else "none"
        max_chars = sys.maxsize if everything else MAX_SAMPLE_CHARS
        tables.append(
            Table.of(
                f"{', '.join(kinds)}: {count}",
                part,
                _sample_columns(metrics, max_chars),
                shown_as_blocks=True,
                caption=f"Next: --page {page + 1}" if page < pages else "",
            )
        )
    render.print_tables(tables, form)
    if note:
        render.print_line(note)


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


def _select_samples(
    folder: Path, record: RunRecord, wanted: SampleFilter
) -> tuple[list[SampleCells], list[str]]:
    """Return the samples of all pages that match the filter, and the metrics, main metric first."""
    columns = read_samples(folder, record=record)
    kept: list[SampleCells] = [
        {"sample": number, **dict(zip(columns, cells, strict=True))}
        for number, cells in enumerate(zip(*columns.values(), strict=True), 1)
    ]
    names = [
        name
        for name, cells in columns.items()
        if name not in SAMPLE_COLUMNS and cells and isinstance(cells[0], int | float)
    ]
    metrics = sorted(names, key=lambda name: name != record.main_metric)
    if wanted.wrong:
        known = [(name, metric_or_default(name)) for name in metrics]
        marks = [name for name, metric in known if metric.most == 1 and metric.higher_is_better]
        if not marks:
            raise UserError(
                "This run has no metric that marks a sample as right or wrong.", "Remove --wrong."
            )
        kept = [cells for cells in kept if cells[marks[0]] < 1]
    text = wanted.grep.casefold()
    matching = [
        cells
        for cells in kept
        if any(text in str(cells.get(name)).casefold() for name in SEARCHED_COLUMNS)
    ]
    return matching, metrics


def _sample_columns(metrics: Sequence[str], max_chars: int) -> Columns:
    def position(cells: SampleCells) -> str:
        step, read = cells.get("step"), cells.get("context_tokens")
        return ", ".join([f"step {step:,}"] * bool(step) + [f"{read or 0:,} tokens"] * bool(read))

    def scores(cells: SampleCells) -> str:
        return ", ".join(
            f"{name} {format_value(name, cells[name], None)}"
            for name in metrics
            if cells.get(name) is not None
        )

    return {
        "sample": lambda cells: (
            f"{cells['sample']}: {cells['key']}"
            f" ({cells.get('subtask') or cells.get('episode') or ''})"
        ),
        "position": position,
        "prompt": lambda cells: tail(text_or_empty(cells["prompt"]), max_chars),
        "gold": gold,
        "prediction": lambda cells: prediction(cells, max_chars),
        "log-likelihood (nats)": likelihood,
        "score": scores,
    }


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
