"""Runs by names: `ttabench.evaluate`, `ttabench.compare` and `ttabench.load`, for a few lines of Python."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import InstanceOf, PositiveInt

from ttabench.core.architectures import NANO
from ttabench.core.declared import as_typed, checked_arguments, model_of, validated
from ttabench.core.environment import restored
from ttabench.core.errors import UserError
from ttabench.records.run_fields import DEFAULT_OUT
from ttabench.records.samples import read_samples
from ttabench.records.schema import RunRecord
from ttabench.report.compare import compared
from ttabench.report.comparison_tables import comparison_data
from ttabench.report.entries import shown
from ttabench.report.finding import at_path, loaded
from ttabench.report.tables import answering
from ttabench.report.verdict import verdict
from ttabench.run.evaluation import MODELS, execute
from ttabench.run.plan import make_plan
from ttabench.run.request import Place
from ttabench.sweep.suite import ASSIGNED, Some, cells

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Run:
    """A stored run."""

    folder: Path
    record: RunRecord

    @property
    def table(self) -> pandas.DataFrame:
        """Its figures, one a row; `step` is missing in those over all steps, `subtask` over all sub-tasks."""
        import pandas

        return pandas.DataFrame([row.model_dump() for row in self.record.rows])

    @property
    def samples(self) -> pandas.DataFrame:
        """Its queries, one a row: prompt, prediction, right answers, a value of every metric, milliseconds; a UserError
        where they were not kept, or are damaged."""
        import pandas

        return pandas.DataFrame(read_samples(self.folder, record=self.record))

    def __repr__(self) -> str:
        record = self.record
        row = record.value(record.main_metric)
        figure = f"{row.metric} {shown(row.metric, row.value, row.stderr)}" if row else "no figure"
        return f"<{answering(record)} on {record.config.get('task')}, base {record.base}: {figure}, in {self.folder}>"


@dataclass(frozen=True)
class Compared:
    """What `ttabench compare` shows of runs."""

    verdict: str
    """Who leads, by how much, and whether that is settled."""
    tables: Mapping[str, pandas.DataFrame]
    """Those of `ttabench compare --json` by name: "runs", and where there are such "differences" (paired, with p
    adjusted for all pairs), "steps", "overall", "set_aside". Values as they are stored: 0.719 of f1."""

    def __str__(self) -> str:
        return self.verdict


@checked_arguments
def evaluate(
    method: str | Path = "icl",
    task: str | Path = "streamingqa",
    model: str | Path = NANO,
    *,
    seed: int = 0,
    out: Place | None = None,
    force: bool = False,
    threads: PositiveInt | None = None,
    **options: object,
) -> Run:
    """Run a method on a task as `ttabench eval` does; the same call again returns or resumes it.

    Args:
        out: folder of the runs; by default that of the command line.
        force: run again even if it is stored.
        threads: of the processor, for this call.
        options: any other of a run, as `ttabench eval --help` lists them: `limit=8`, `metric="./mine.py:closeness"`,
            `set={"hierarchy": 16}`, `task_set={"documents": 8}`, `state="folder"` ...

    A UserError of an option, name or value that means nothing, and of what `ttabench eval` refuses.
    """
    named = {"method": str(method), "task": str(task), "model": str(model), "seed": seed}
    given = {name: _plain(name, value) for name, value in options.items() if value is not None}
    validated(Some, {**named, **given}, "evaluate")
    wanted = cells({"include": [{**named, **given}]})
    if len(wanted) > 1:
        raise UserError(f"A call makes one run, and these options make {len(wanted)}.", "Call it for each of them.")
    with restored(threads) if threads else nullcontext():
        plan = make_plan(wanted[0].request, wanted[0].seed)
        place = Path(out or os.environ.get("TTABENCH_OUT") or DEFAULT_OUT)
        outcome = execute(plan, MODELS, place, force=force)
    return Run(outcome.folder, outcome.record)


def _plain(name: str, value: object) -> object:
    """A value of an option as a suite has it; a list in a setting is one value there."""
    if name in ASSIGNED and isinstance(value, Mapping):
        return {key: as_typed(part) if isinstance(part, list | tuple) else part for key, part in value.items()}
    return str(value) if isinstance(value, Path) else value


def load(*names: Place) -> list[Run]:
    """Stored runs, in the order of the names: folders of runs, or of such folders; single runs; patterns of them,
    `"results/**"`.

    A UserError of a name that is nothing of this, or of damaged runs alone; other damaged ones are a warning each.
    """
    validated(model_of({"names": tuple[Place, ...]}), {"names": names}, "load")
    folders: dict[Path, None] = {}
    for name in names:
        runs = at_path(str(name))
        if not runs:
            raise UserError(f"{name} leads to no run.", 'Name a folder, or a pattern: ttabench.load("results/**").')
        folders.update(dict.fromkeys(runs))
    stored = loaded(folders)
    for line in stored.damaged:
        warnings.warn(f"Left out: {line}", stacklevel=2)
    return [Run(folder, record) for folder, record in stored.runs]


@checked_arguments
def compare(runs: Iterable[Run], metric: str = "", *, all_pairs: bool = False) -> Compared:
    """Compare runs by a metric, by default each task's main one: who leads, quality beside cost, and every difference,
    paired, with its interval; `all_pairs` tests every pair.

    A UserError of no runs, or of a metric that none has; runs that are left out are a warning each.
    """
    import pandas

    runs = list(runs)
    validated(model_of({"runs": list[InstanceOf[Run]]}), {"runs": runs}, "compare")
    comparison = compared([(run.folder, run.record) for run in runs], metric, all_pairs=all_pairs)
    lacking = [f"run {run} lacks the metric" for run in comparison.without_metric]
    for line in (*comparison.damaged, *lacking):
        warnings.warn(f"Left out: {line}", stacklevel=2)
    tables = {table.title: pandas.DataFrame(table.data) for table in comparison_data(comparison)}
    return Compared(verdict(comparison), tables)
