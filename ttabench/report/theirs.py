"""Runs of others, from submissions (`records.submission`): which may stand beside ours, and why the rest may not.

    theirs = taken([Path("lab-b.parquet")], ours)
    theirs.runs         ((Path("lab-b.parquet/3f0c2a9b71de"), record), ...)
    theirs.damaged      ("Run 77ab02c95e10 of lab-b.parquet: the column f1 has other values ...",)
    theirs.alike        ("lab-b.parquet: 2 of its 3 runs are among those here, and count once.",)

A file says of itself what it likes. What can be held against it is: every column of its scores has the digest that the
record names, no query stands there twice, no text stands where a digest belongs, and figures are those of the scores.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttabench.core.errors import UserError
from ttabench.records.sample_files import has_samples, read_samples
from ttabench.records.schema import RunRecord
from ttabench.records.score_digests import DIGITS
from ttabench.records.scores import NAMES, SUBTASK, TEXTS, is_digest, name_of
from ttabench.records.submission import ASK, SUFFIX, submitted
from ttabench.report.loading import load_run
from ttabench.report.pairing import Run, answered, kind_of, steps_of
from ttabench.report.submissions import names_of
from ttabench.stats.aggregation import estimated
from ttabench.stats.metrics import METRICS

DIGEST = re.compile(f"[0-9a-f]{{{DIGITS}}}")
TIMES = ("ask_ms", "ask_cpu_ms")
"""Columns in which one run made twice differs."""
LARGEST = 1e15
"""Of a cost; no clock and no memory goes so far."""
NEAR = 1e-6
"""Figures are the same up to so much of them: another machine adds in another order."""


@dataclass(frozen=True, kw_only=True)
class Theirs:
    """Runs taken from submissions."""

    runs: tuple[Run, ...] = ()
    damaged: tuple[str, ...] = ()
    """A line for every file and run that is left out."""
    alike: tuple[str, ...] = ()
    """A line for every file that has runs of ours."""


def taken(files: Sequence[Path], ours: Sequence[Run]) -> Theirs:
    """The runs of submissions that are whole and not ours already.

    A run with the id of another and other scores is another run: its id gets the name of its file.

    Args:
        files: submissions.
        ours: runs that they are to stand beside.

    Raises:
        UserError: a file that is not there.
    """
    known: dict[str, list[RunRecord]] = {}
    for _, record in ours:
        known.setdefault(record.id, []).append(record)
    names, runs, damaged, alike = names_of(files), list[Run](), list[str](), list[str]()
    for file, name in names.items():
        if not file.is_file():
            fault = f"--with {file} is {'a folder' if file.is_dir() else 'no file'}."
            raise UserError(
                fault, "Name a file that `ttabench export` wrote; folders of runs are named without --with."
            )
        ids, wrong = _whole(file)
        damaged += wrong
        new = [run for run in ids if not any(_same(run[1], other) for other in known.get(run[1].id, ()))]
        if same := len(ids) - len(new):
            verb = "its run is" if len(ids) == 1 else f"{same} of its {len(ids)} runs are"
            alike.append(f"{file}: {verb} here already, and counted once.")
        for folder, record in new:
            clash = record.id in known
            known.setdefault(record.id, []).append(record)
            runs.append((folder, record.model_copy(update={"id": f"{record.id}@{name}"}) if clash else record))
    return Theirs(runs=tuple(runs), damaged=tuple(damaged), alike=tuple(alike))


def _whole(file: Path) -> tuple[list[Run], list[str]]:
    """The runs of a file that are whole, and a line for every one that is not."""
    runs, wrong = list[Run](), list[str]()
    if file.suffix != SUFFIX:
        return [], [f"{file} is no submission: its name does not end in {SUFFIX}. {ASK}"]
    try:
        submission = submitted(file)
    except UserError as error:
        return [], [str(error)]
    for name in submission.records:
        try:
            fault = "several rows have its id" if name in submission.doubled else "its id is no id"
            if name not in submission.doubled and name.isalnum() and name.isascii():
                record = load_run(file / name)
                fault = next(_faults(file / name, record), "")
        except UserError as error:
            fault = error.what.removesuffix(".")
        if fault:
            wrong.append(f"Run {name[:40]} of {file}: {fault}. {ASK}")
        else:
            runs.append((file / name, record))
    return runs, wrong


def _faults(folder: Path, record: RunRecord) -> Iterator[str]:
    """Why a run of a submission may not stand beside others, in a few words."""
    if record.id != folder.name:
        yield f"its record is of run {record.id[:40]}"
    numbers = [number for row in record.rows for number in (row.value, row.stderr, row.ci_low, row.ci_high, row.weight)]
    if not all(number is None or math.isfinite(number) for number in numbers):
        yield "a figure is not finite"
    if not all(cost is None or 0 <= cost <= LARGEST for cost in record.cost.values()):
        yield "a cost is no number that a run can cost"
    if has_samples(folder):
        columns = read_samples(folder, record=record)
        yield from _wrong_scores(columns, record)
        try:
            yield from _wrong_figures((folder, record))
        except (ArithmeticError, IndexError, TypeError, ValueError):
            yield "its scores are not those of queries"


def _wrong_scores(columns: Mapping[str, Sequence[Any]], record: RunRecord) -> Iterator[str]:
    if unnamed := [name for name in columns if not DIGEST.fullmatch(record.sample_digests.get(name, ""))]:
        yield f"the record has no digest of the column {unnamed[0][:40]}"
    if missing := [name for name in record.sample_digests if name not in columns]:
        yield f"the column {missing[0][:40]}, of which the record has a digest, is missing"
    doubled = [key for key, count in Counter(zip(columns["episode"], columns["key"], strict=True)).items() if count > 1]
    if doubled:
        yield f"the query {doubled[0][1][:40]!r} stands there twice"
    for name in columns.keys() & {*TEXTS, *NAMES} - {*SUBTASK}:
        cells = (part for cell in columns[name] for part in (cell if isinstance(cell, list) else [cell]))
        if not all(not text or (name_of(text) == text if name in NAMES else is_digest(text)) for text in cells):
            yield f"the column {name} has what is no digest"
    for name in columns.keys() & METRICS.keys():
        if METRICS[name].scale == 100 and not all(value is None or 0 <= value <= 1 for value in columns[name]):
            yield f"the column {name} has values that are no shares"


def _wrong_figures(run: Run) -> Iterator[str]:
    """Figures over all queries that do not follow from the scores; those of texts together cannot be made again."""
    steps_of([run])
    for row in run[1].rows:
        if row.step is None and row.subtask is None:
            values = list(answered([run], row.metric).values())
            estimate = estimated(kind_of(row.metric), values) if values else None
            if estimate is not None and not math.isclose(estimate.mean, row.value, rel_tol=NEAR, abs_tol=NEAR):
                yield f"its {row.metric[:40]} is {row.value:.6g}, that of its scores {estimate.mean:.6g}"


def _same(one: RunRecord, other: RunRecord) -> bool:
    """Whether two records of one id have the same scores."""
    figures = [
        [(row.metric, row.step, row.subtask, row.value, row.n) for row in record.rows] for record in (one, other)
    ]
    both = one.sample_digests.keys() & other.sample_digests.keys() - {*TIMES}
    return figures[0] == figures[1] and all(one.sample_digests[name] == other.sample_digests[name] for name in both)
