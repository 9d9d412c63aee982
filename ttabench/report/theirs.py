"""Runs of others, from submissions (`records.submission`): which stand beside ours, and what they are called.

theirs = taken([Path("lab-b.parquet")], ours)
theirs.runs         ((Path("lab-b.parquet/3f0c2a9b71de"), record), ...)
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ttabench.core.errors import UserError
from ttabench.records.schema import RunRecord
from ttabench.records.suite_archive import ASK, SUFFIX, file_of, runs
from ttabench.report.finding import load_run
from ttabench.report.pairing import Run

TIMES = ("ask_ms", "ask_cpu_ms")
"""Columns in which one run made twice differs."""


@dataclass(frozen=True, kw_only=True)
class Theirs:
    """Runs taken from submissions."""

    runs: tuple[Run, ...] = ()
    damaged: tuple[str, ...] = ()
    """A line for every file and run that is left out."""
    alike: tuple[str, ...] = ()
    """A line for every file that has runs of ours."""


def names_of(files: Sequence[Path]) -> dict[Path, str]:
    """`lab-b` for `files/lab-b.parquet`, or the path where two files have one name; each file once."""
    once = list({os.path.realpath(file): file for file in reversed(files)}.values())[::-1]
    counts = Counter(file.stem for file in once)
    return {file: file.stem if counts[file.stem] == 1 else str(file) for file in once}


def names_of_runs(runs: Sequence[Run]) -> dict[Path, str]:
    """Names of the submissions that these runs lie in."""
    return names_of([file for folder, _ in runs if (file := file_of(folder)) is not None])


def name_in(names: Mapping[Path, str], folder: Path) -> str:
    """Name of the submission of a run; "" for a run of ours."""
    file = file_of(folder)
    return "" if file is None else names.get(file, file.stem)


def file_called(name: str) -> str:
    """The file that is called so."""
    return name if name.endswith(SUFFIX) else name + SUFFIX


def taken(files: Sequence[Path], ours: Sequence[Run]) -> Theirs:
    """The runs of submissions that are not ours already.

    A run with the id of another and other scores is another run: its id gets the name of its file.
    """
    known: dict[str, list[RunRecord]] = {}
    for _, record in ours:
        known.setdefault(record.id, []).append(record)
    runs, damaged, alike = list[Run](), list[str](), list[str]()
    for file, name in names_of(files).items():
        own, wrong = _runs_of(file)
        damaged += wrong
        new = [run for run in own if not any(_same(run[1], other) for other in known.get(run[1].id, ()))]
        if same := len(own) - len(new):
            verb = "its run is" if len(own) == 1 else f"{same} of its {len(own)} runs are"
            alike.append(f"{file}: {verb} here already, and counted once.")
        for folder, record in new:
            clash = record.id in known
            known.setdefault(record.id, []).append(record)
            runs.append((folder, record.model_copy(update={"id": f"{record.id}@{name}"}) if clash else record))
    return Theirs(runs=tuple(runs), damaged=tuple(damaged), alike=tuple(alike))


def _runs_of(file: Path) -> tuple[list[Run], list[str]]:
    """The runs of a file that can be read, and a line for every one that cannot."""
    if not file.is_file():
        fault = f"--with {file} is {'a folder' if file.is_dir() else 'no file'}."
        raise UserError(fault, "Name a file that `ttabench export` wrote; folders of runs are named without --with.")
    if file.suffix != SUFFIX:
        return [], [f"{file} is no submission: its name does not end in {SUFFIX}. {ASK}"]
    try:
        names = list(runs(file))
    except UserError as error:
        return [], [str(error)]
    found, wrong = list[Run](), list[str]()
    if not names:
        return [], [f"{file} holds no run. {ASK}"]
    for name in names:
        try:
            record = load_run(file / name)
        except UserError as error:
            wrong.append(f"Run {name[:40]} of {file}: {error.what.removesuffix('.')}. {ASK}")
            continue
        if record.id == name:
            found.append((file / name, record))
        else:
            wrong.append(f"Run {name[:40]} of {file}: its record is of another run. {ASK}")
    return found, wrong


def _same(one: RunRecord, other: RunRecord) -> bool:
    """Whether two records of one id have the same scores."""
    ours, theirs = (
        [(row.metric, row.step, row.subtask, row.value, row.n) for row in record.rows] for record in (one, other)
    )
    both = one.sample_digests.keys() & other.sample_digests.keys() - {*TIMES}
    return ours == theirs and all(one.sample_digests[name] == other.sample_digests[name] for name in both)
