"""`ttabench show RUN`: one stored run in full, then what it was asked and answered.

run 3f0c2a9b71de
  command  ttabench eval --method mac --task streamingqa --seed 1
  costs    0.06 s to adapt, 3.0 ms a query, 64.0 KiB of state, 464 MiB at most
  ...
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.records.sample_files import has_samples, read_samples
from ttabench.records.schema import RunRecord
from ttabench.records.scores import TEXTS, holds_digests, is_digest, kept_text
from ttabench.report.about import about_tables, as_json
from ttabench.report.figures import shown
from ttabench.report.finding import find_runs, refuse_profiles
from ttabench.report.loading import load_run
from ttabench.report.samples import Sample, beside, likelihood, matching, metrics_of, page_of, samples_of
from ttabench.report.samples import Samples as Samples
from ttabench.stats.metrics import METRICS
from ttabench.terminal import render
from ttabench.terminal.table import Table

LONGEST = 400
"""Characters of a prompt, and of an answer, that are shown without --all."""


def show(name: str, out: Path, wanted: Samples, form: str, *, everything: bool) -> None:
    """Print a run and a page of its samples; all samples that are wanted, for other programs.

    Args:
        name: as `finding.find_runs` takes it.
        out: where ids are looked for.
        wanted: samples.
        form: see `render.FORMATS`.
        everything: no setting, figure or text is left out.

    Raises:
        UserError: no such run, or several; no such page; another run that was asked nothing alike.
    """
    chosen = render.known_format(form)
    folder = one_run(name, out)
    record = load_run(folder)
    kept = has_samples(folder)
    if not kept and (wanted.typed or chosen == "csv"):
        raise UserError(_none_kept(folder), "Run it again with another --out.")
    other = one_run(wanted.differs, out) if wanted.differs else None
    samples = _wanted(folder, record, wanted, other) if kept else []
    note = _missing(folder) if kept else _none_kept(folder)
    if chosen == "json":
        part = page_of(samples, wanted)[0] if wanted.page else samples
        about: dict[str, Json] = {"run": as_json(record, folder), "samples": [sample.flat() for sample in part]}
        render.print_json(about | ({"note": note} if note else {}))
    elif chosen == "csv":
        part = page_of(samples, wanted)[0] if wanted.page else samples
        render.show([_flat(part)], chosen)
    else:
        tables = [] if wanted.typed else about_tables(record, everything=everything)
        if kept:
            others = load_run(other) if other is not None else None
            tables += _page(samples, wanted, (record, others), everything=everything)
        render.show(tables, chosen)
        if note:
            render.print_line(note)


def one_run(name: str, out: Path) -> Path:
    """The folder of one run.

    Raises:
        UserError: no run, or several, of that name.
    """
    runs = find_runs([name], out)
    if len(runs) != 1:
        hint = f"Name one of them: see `ttabench list runs --out {name}`."
        refuse_profiles([] if runs else [Path(name)])
        raise UserError(f"{name} holds {len(runs)} runs, `show` takes one.", hint if runs else "See `ttabench list`.")
    return runs[0]


def _none_kept(folder: Path) -> str:
    return f"{folder.parent} holds the record of run {folder.name} and not its samples."


def _missing(folder: Path) -> str:
    """Columns of a run's samples that are not kept; empty where all are."""
    hidden = holds_digests(read_samples(folder, TEXTS))
    return f"{folder.parent} holds the scores of run {folder.name} and not its texts." if hidden else ""


def _wanted(folder: Path, record: RunRecord, wanted: Samples, other: Path | None) -> list[Sample]:
    samples = samples_of(folder, record)
    metrics = metrics_of(samples, record)
    if other is not None:
        samples = beside(samples, samples_of(other, load_run(other)), metrics)
    return matching(samples, wanted, metrics)


def _flat(samples: Sequence[Sample]) -> Table:
    """All columns of samples, for CSV; lists as JSON."""
    import json

    def cell(value: Json) -> str | int | float | None:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value

    data = tuple({key: cell(value) for key, value in sample.flat().items()} for sample in samples)
    return Table(title="samples", columns=(), rows=(), data=data)


def _page(
    samples: Sequence[Sample], wanted: Samples, runs: tuple[RunRecord, RunRecord | None], *, everything: bool
) -> list[Table]:
    """A block a sample; where two runs are held against each other, a table of both below it."""
    part, page, pages = page_of(samples, wanted)
    title = f"samples{_kind(wanted)}: " + (f"{len(samples)}, page {page} of {pages}" if part else "none")
    metrics = metrics_of(part, runs[0])
    longest = sys.maxsize if everything else LONGEST
    if wanted.differs and runs[1] is not None:
        tables = [table for sample in part for table in _both(sample, (runs[0], runs[1]), metrics, longest)]
        tables = [replace(tables[0], title=title), *tables[1:]] if tables else [Table(title=title, columns=(), rows=())]
    else:
        tables = [_blocks(title, part, metrics, longest)]
    if page < pages:
        tables[-1] = replace(tables[-1], caption=f"Next: --page {page + 1}")
    return tables


def _kind(wanted: Samples) -> str:
    kinds = ["wrong"] * wanted.wrong + [f"unlike {wanted.differs}"] * bool(wanted.differs)
    kinds += [f"with {wanted.grep!r}"] * bool(wanted.grep)
    return "".join(f", {kind}" for kind in kinds)


def _blocks(title: str, samples: Sequence[Sample], metrics: Sequence[str], longest: int) -> Table:
    columns = ("sample", "asked after", "prompt", "prediction", "gold", "log-likelihood", "score")
    rows = tuple(
        (*_asked(sample, longest), _prediction(sample.cells, longest), _gold(sample), likelihood(sample.cells),
         _score(sample.cells, metrics))
        for sample in samples
    )  # fmt: skip
    return Table(title=title, columns=columns, rows=rows, prose=True)


def _both(sample: Sample, runs: tuple[RunRecord, RunRecord], metrics: Sequence[str], longest: int) -> list[Table]:
    asked = Table(
        title="", columns=("sample", "asked after", "prompt", "gold"),
        rows=((*_asked(sample, longest), _gold(sample)),), prose=True,
    )  # fmt: skip
    heads = tuple(f"{run.config.get('method')} {run.id}" for run in runs)
    sides = (sample.cells, sample.other)
    rows = (
        ("prediction", *(_prediction(side, longest) for side in sides)),
        ("log-likelihood", *map(likelihood, sides)),
        ("score", *(_score(side, metrics) for side in sides)),
    )
    filled = tuple(row for row in rows if row[1] or row[2])
    return [asked, Table(title="", columns=("", *heads), rows=filled, names=("",))]


def _asked(sample: Sample, longest: int) -> tuple[str, str, str]:
    """(number and key, what was read before, prompt)."""
    cells = sample.cells
    read = f"{cells['context_tokens']:,} tokens" if cells.get("context_tokens") else ""
    step = f"step {cells['step']:,}" if cells.get("step") else ""
    place = str(cells.get("subtask") or cells.get("episode") or "")
    return (
        f"{sample.number}: {cells['key']} ({place})",
        ", ".join(filter(None, [step, read])),
        _cut(kept_text(cells["prompt"]), longest),
    )


def _cut(text: object, longest: int) -> str:
    """The end of a text: a question stands behind what it is about."""
    whole = str(text)
    return whole if len(whole) <= longest else f"... {whole[-longest:]}"


def _prediction(cells: Mapping[str, Any], longest: int) -> str:
    text = str(cells.get("prediction", ""))
    if cells.get("mode") == "score" or is_digest(text):
        return ""
    return (text if len(text) <= longest else f"{text[:longest]} ...") or "(nothing)"


def _gold(sample: Sample) -> str:
    return " | ".join(filter(None, (kept_text(str(answer)) for answer in sample.cells.get("answers") or ())))


def _score(cells: Mapping[str, Any], metrics: Sequence[str]) -> str:
    named = [(name, cells[name]) for name in metrics if cells.get(name) is not None]
    return ", ".join(f"{name} {shown(name, value, None)}" for name, value in named if name in METRICS)
