"""`ttabench show RUN`: one stored run in full, then what it was asked and answered."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.records.samples import COLUMNS, has_samples, is_digest, kept_text, read_samples
from ttabench.records.schema import RunRecord
from ttabench.report.entries import shown
from ttabench.report.finding import selected
from ttabench.report.tables import about_tables, command_of
from ttabench.stats.metrics import known
from ttabench.terminal import render
from ttabench.terminal.table import Table

LONGEST = 400
"""Characters of a prompt, and of an answer, that are shown without --all."""
SAID = ("prompt", "prediction", "answers", "key", "episode", "subtask")
Cells = Mapping[str, Any]
"""A query with its answer, by column, see `records.samples`; metrics included, and its place in the run as `sample`."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Which samples are wanted."""

    page: int | None = None
    """Counted from 1; None where none was named."""
    per_page: int = 4
    wrong: bool = False
    grep: str = ""


def show(name: str, out: Path, wanted: Samples, form: render.Format, *, everything: bool) -> None:
    """Print a run and a page of its samples; all samples that are wanted, for other programs. Where anything was asked
    of the samples they stand alone. With `everything` no setting, figure or text is left out."""
    runs = selected([name], out, {}).runs
    if len(runs) != 1:
        raise UserError(f"{name} holds {len(runs)} runs, `show` takes one.", "See `ttabench list runs`.")
    (folder, record), kept = runs[0], has_samples(runs[0][0])
    note, alone = _missing(folder, kept=kept), wanted.page is not None or wanted.wrong or bool(wanted.grep)
    if not kept and (alone or form == "csv"):
        raise UserError(note, "Run it again with another --out.")
    samples = _wanted(folder, record, wanted) if kept else []
    page, pages = wanted.page or 1, max(1, -(-len(samples) // wanted.per_page))
    if page > pages:
        raise UserError(f"There is no page {page}: the last is {pages}.", f"Give --page {pages}.")
    part = samples[(page - 1) * wanted.per_page : page * wanted.per_page]
    if form in ("json", "csv"):
        _for_programs(form, part if wanted.page else samples, record, folder, note)
        return
    tables = [] if alone else about_tables(record, everything=everything)
    if kept:
        kinds = ["wrong"] * wanted.wrong + [f"with {wanted.grep!r}"] * bool(wanted.grep)
        count = f"{len(samples)}, page {page} of {pages}" if part else "none"
        title = f"{', '.join(['samples', *kinds])}: {count}"
        table = _table(title, part, record, sys.maxsize if everything else LONGEST)
        tables.append(replace(table, caption=f"Next: --page {page + 1}" if page < pages else ""))
    render.show(tables, form)
    if note:
        render.print_line(note)


def _for_programs(form: str, flat: Sequence[Cells], record: RunRecord, folder: Path, note: str) -> None:
    if form == "json":
        run = {**record.model_dump(mode="json"), "command": command_of(record)[0], "folder": str(folder)}
        about: dict[str, Json] = {"run": run, "samples": flat}
        render.print_json(about | ({"note": note} if note else {}))
        return
    data = tuple({key: json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
                  for key, value in row.items()} for row in flat)  # fmt: skip
    render.show([Table(title="samples", columns=(), rows=(), data=data)], "csv")


def _missing(folder: Path, *, kept: bool) -> str:
    """What of a run's samples is not kept; empty where all is."""
    if not kept:
        return f"{folder.parent} holds the record of run {folder.name} and not its samples."
    texts = read_samples(folder, ["prompt", "prediction"])
    hidden = any(is_digest(str(text)) for column in texts.values() for text in column)
    return f"{folder.parent} holds the scores of run {folder.name} and not its texts." if hidden else ""


def _metrics_of(first: Cells, record: RunRecord) -> list[str]:
    """Metrics that samples have a value of, by the first of them; the main one first."""
    named = [name for name in first if name not in (*COLUMNS, "sample") and isinstance(first[name], int | float)]
    return sorted(named, key=lambda name: name != record.main_metric)


def _wanted(folder: Path, record: RunRecord, wanted: Samples) -> list[Cells]:
    """Samples that are wanted, whatever the page."""
    columns = read_samples(folder, record=record)
    rows = enumerate(zip(*columns.values(), strict=True), 1)
    kept: list[Cells] = [{"sample": number, **dict(zip(columns, cells, strict=True))} for number, cells in rows]
    if wanted.wrong:
        metrics = _metrics_of(kept[0], record) if kept else []
        measure = next((name for name in metrics if known(name).most == 1 and known(name).higher_is_better), "")
        if not measure:
            raise UserError("No sample of this run is right or wrong: it has no such metric.", "Leave --wrong out.")
        kept = [cells for cells in kept if cells[measure] < 1]
    text = wanted.grep.casefold()
    return [cells for cells in kept if any(text in str(cells.get(name)).casefold() for name in SAID)]


def _table(title: str, samples: Sequence[Cells], record: RunRecord, longest: int) -> Table:
    """A block a sample."""
    metrics = _metrics_of(samples[0], record) if samples else []
    columns = ("sample", "asked after", "prompt", "gold", "prediction", "log-likelihood", "score")
    rows = tuple(_row(cells, metrics, longest) for cells in samples)
    return Table(title=title, columns=columns, rows=rows, prose=True)


def _row(cells: Cells, metrics: Sequence[str], longest: int) -> tuple[str, ...]:
    read = f"{cells['context_tokens']:,} tokens" if cells.get("context_tokens") else ""
    step = f"step {cells['step']:,}" if cells.get("step") else ""
    place = str(cells.get("subtask") or cells.get("episode") or "")
    named = [(name, cells[name]) for name in metrics if cells.get(name) is not None]
    scores = ", ".join(f"{name} {shown(name, value, None)}" for name, value in named)
    return (f"{cells['sample']}: {cells['key']} ({place})", ", ".join(filter(None, [step, read])),
            tail(kept_text(cells["prompt"]), longest), gold(cells), prediction(cells, longest), likelihood(cells),
            scores)  # fmt: skip


def tail(text: str, longest: int) -> str:
    """The end of a prompt: a question stands behind what it is about."""
    return text if len(text) <= longest else f"... {text[-longest:]}"


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
    return f"{', '.join(f'{value:.2f}' for value in values)} ({len(values)} options)"
