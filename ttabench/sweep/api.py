"""Python functions by name: `ttabench.evaluate`, `ttabench.compare` and `ttabench.load`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import InstanceOf, PositiveInt

from ttabench.core.architectures import NANO
from ttabench.core.declared import (
    create_fields_model,
    format_setting,
    validate_arguments,
    validate_model,
)
from ttabench.core.deprecation import renamed
from ttabench.core.environment import restore_global_state
from ttabench.core.errors import UserError
from ttabench.records.run_fields import DEFAULT_OUT
from ttabench.records.samples import read_samples
from ttabench.records.schema import RunRecord
from ttabench.report.compare import compare_runs
from ttabench.report.comparison_tables import comparison_data
from ttabench.report.method_rows import format_value
from ttabench.report.selection import load_runs, runs_at_path
from ttabench.report.tables import method_with_state
from ttabench.report.verdict import make_verdict
from ttabench.run.evaluation import MODEL_CACHE, execute
from ttabench.run.plan import make_plan
from ttabench.run.request import UserPath
from ttabench.sweep.suite import FIELD_OF_OPTION, RunPattern, expand_suite

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Run:
    """A stored run."""

    folder: Path
    record: RunRecord

    @property
    def table(self) -> pandas.DataFrame:
        """Figures, one per row; `step` is missing for figures over all steps, `subtask` over all
        sub-tasks."""
        import pandas

        return pandas.DataFrame([row.model_dump() for row in self.record.rows])

    @property
    def samples(self) -> pandas.DataFrame:
        """Queries, one per row: prompt, prediction, right answers, metrics, milliseconds.

        Raises:
            UserError: the samples were not stored, or are damaged.
        """
        import pandas

        return pandas.DataFrame(read_samples(self.folder, record=self.record))

    def __repr__(self) -> str:
        record = self.record
        row = record.value(record.main_metric)
        figure = (
            f"{row.metric} {format_value(row.metric, row.value, row.stderr)}"
            if row
            else "no figure"
        )
        task = record.config.get("task")
        return f"<{method_with_state(record)} on {task}, base {record.base}: {figure}, in {self.folder}>"


@dataclass(frozen=True)
class ComparisonResult:
    """Result of `ttabench compare`."""

    verdict: str
    """The best method, its difference from the next, and whether that is significant."""
    notes: tuple[str, ...]
    """Excluded and untrained rows, and baselines that may be wrong."""
    tables: Mapping[str, pandas.DataFrame]
    """Tables of `ttabench compare --json` by name: "runs", and if not empty "differences" (paired,
    p adjusted), "steps", "overall", "memory", "set_aside". Values as stored: 0.719 for F1."""

    def __str__(self) -> str:
        return self.verdict

    def _repr_html_(self) -> str:
        """Show verdict, notes and tables in a notebook."""
        parts = [f"<p>{escape(line)}</p>" for line in (self.verdict, *self.notes)]
        for name, table in self.tables.items():
            parts += [f"<h4>{escape(name)}</h4>", table.to_html(index=False, na_rep="")]
        return "".join(parts)


@validate_arguments
def evaluate(
    method: str | Path = "icl",
    task: str | Path = "streamingqa",
    model: str | Path = NANO,
    *,
    seed: int = 0,
    out: UserPath | None = None,
    force: bool = False,
    threads: PositiveInt | None = None,
    **options: object,
) -> Run:
    """Run a method on a task as `ttabench eval` does; repeating a call returns or resumes the run.

    Args:
        out: folder of runs; by default that of the command line.
        force: run again even if it is stored.
        threads: number of CPU threads, for this call.
        options: other options of `ttabench eval --help`: `limit=8`, `metric="./mine.py:closeness"`,
            `set={"hierarchy": 16}`, `task_set={"documents": 8}`, `state="folder"` ...

    Raises:
        UserError: an option, name or value is invalid, or `ttabench eval` refuses it.
    """
    run_names = {"method": str(method), "task": str(task), "model": str(model), "seed": seed}
    run_options = {
        name: _to_option_value(name, value) for name, value in options.items() if value is not None
    }
    validate_model(RunPattern, {**run_names, **run_options}, "evaluate")
    run_cells = expand_suite({"include": [{**run_names, **run_options}]})
    if len(run_cells) > 1:
        raise UserError(
            f"These options define {len(run_cells)} runs, but a call computes one.",
            "Use a call for each.",
        )
    with restore_global_state(threads) if threads else nullcontext():
        plan = make_plan(run_cells[0].request, run_cells[0].seed)
        out_folder = Path(out or os.environ.get("TTABENCH_OUT") or DEFAULT_OUT)
        result = execute(plan, MODEL_CACHE, out_folder, force=force)
    return Run(result.folder, result.record)


def _to_option_value(name: str, value: object) -> object:
    """Value of an option as a suite has it; a list in a setting is a single value there."""
    if name in FIELD_OF_OPTION and isinstance(value, Mapping):
        return {
            key: format_setting(part) if isinstance(part, list | tuple) else part
            for key, part in value.items()
        }
    return str(value) if isinstance(value, Path) else value


def load(*names: UserPath) -> list[Run]:
    """Load stored runs, in the order of the names.

    Names are folders of runs, parents of such folders, single runs, or patterns: `"results/**"`.
    Each damaged run is a warning.

    Raises:
        UserError: a name leads to no run, or all runs are damaged.
    """
    validate_model(create_fields_model({"names": tuple[UserPath, ...]}), {"names": names}, "load")
    folders: dict[Path, None] = {}
    for name in names:
        runs = runs_at_path(str(name))
        if not runs:
            raise UserError(
                f"{name} leads to no run.",
                'Use a folder, or a pattern: ttabench.load("results/**").',
            )
        folders.update(dict.fromkeys(runs))
    found = load_runs(folders)
    for line in found.damaged:
        warnings.warn(f"Left out: {line}", stacklevel=2)
    return [Run(folder, record) for folder, record in found.runs]


@validate_arguments
def compare(runs: Iterable[Run], metric: str = "", *, all_pairs: bool = False) -> ComparisonResult:
    """Compare runs by a metric, by default the main metric of each task.

    The result has the best method, quality and cost, and every paired difference with its interval.
    `all_pairs` tests every pair. Each excluded run is a warning.

    Raises:
        UserError: there are no runs, or none has the metric.
    """
    import pandas

    runs = list(runs)
    validate_model(create_fields_model({"runs": list[InstanceOf[Run]]}), {"runs": runs}, "compare")
    comparison = compare_runs(
        [(run.folder, run.record) for run in runs], metric, all_pairs=all_pairs
    )
    without_metric_notes = [f"run {run} lacks the metric" for run in comparison.runs_without_metric]
    for line in (*comparison.damaged, *without_metric_notes):
        warnings.warn(f"Left out: {line}", stacklevel=2)
    tables = {table.title: pandas.DataFrame(table.data) for table in comparison_data(comparison)}
    found = make_verdict(comparison)
    return ComparisonResult(str(found), found.notes, tables)


if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"Compared": "ComparisonResult"})
