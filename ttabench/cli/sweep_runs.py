"""A sweep on screen: its progress, and the table of its runs at the end."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from ttabench.cli.showing import Showing
from ttabench.core.errors import UserError
from ttabench.core.progress import in_words, loaded
from ttabench.report.figures import shown
from ttabench.report.loading import load_run
from ttabench.sweep.driver import Manner, swept
from ttabench.sweep.engines import OPEN, Report, State
from ttabench.sweep.planning import Run
from ttabench.terminal import render
from ttabench.terminal.progress_bars import Bars

if TYPE_CHECKING:
    from ttabench.core.types import Json
    from ttabench.records.schema import RunRecord

LAST: tuple[State, ...] = ("new", "continued", "stored", "failed")
"""Outcomes of runs, in the order in which they are counted."""
MOST_ROWS = 40
"""Of a table; of more runs only those that failed are rows."""


class Screen:
    """The progress of a sweep: on a terminal bars for it and for every run in progress, else a line a run.

    Args:
        runs: all of them.
        enabled: whether anybody is told.
    """

    def __init__(self, runs: Sequence[Run], enabled: bool) -> None:
        self._labels = {run.id: run.label.replace(",", "") for run in runs}
        self._bars = Bars() if enabled and sys.stderr.isatty() else None
        self._enabled, self._running, self._states = enabled, set[str](), Counter[str]()

    def __call__(self, report: Report) -> None:
        """Called with every report."""
        label = self._labels[report.id]
        if report.state == "running":
            self._running.add(report.id)
            if self._bars is not None and report.done[0]:
                what, done, total = report.done
                self._bars(f"{label}, {what}", done, total)
        else:
            self._running.discard(report.id)
            if self._bars is not None:
                self._bars.drop(label)
        if report.state not in OPEN:
            self._states[report.state] += 1
        self._tell(label, report)

    def _tell(self, label: str, report: Report) -> None:
        done, failed = self._states.total() - self._states["stored"], self._states["failed"]
        total = len(self._labels) - self._states["stored"]
        if self._bars is not None:
            if total:
                more = [f"{len(self._running)} running", *([f"{failed} failed"] if failed else [])]
                self._bars(f"runs, {', '.join(more)}", done, total)
        elif self._enabled and report.state not in (*OPEN, "stored"):
            render.remark(f"{done} of {total} runs: {label}: {_how(report)}", style="")

    def stop(self) -> None:
        """Take the bars away."""
        if self._bars is not None:
            loaded()
            self._bars.stop()


def run(runs: Sequence[Run], manner: Manner, showing: Showing) -> bool:
    """`ttabench sweep`: make the runs and show them; whether all are stored."""
    screen, reports_by_run, began = Screen(runs, showing.talking), dict[str, Report](), time.monotonic()
    try:
        with closing(swept(runs, manner)) as reports:
            for report in reports:
                screen(report)
                if report.state not in OPEN:
                    reports_by_run[report.id] = report
    finally:
        screen.stop()
    records: dict[str, RunRecord] = {}
    for run in runs:
        if reports_by_run[run.id].state != "failed":
            try:
                records[run.id] = load_run(manner.out / run.id)
            except UserError as error:
                reports_by_run[run.id] = replace(reports_by_run[run.id], state="failed", reason=str(error))
    failed = [run for run in runs if reports_by_run[run.id].state == "failed"]
    _show(runs, reports_by_run, records, manner.out, showing, time.monotonic() - began)
    return not failed


def _show(
    runs: Sequence[Run], reports: Mapping[str, Report], records: Mapping[str, RunRecord], out: Path, showing: Showing,
    seconds: float,
) -> None:  # fmt: skip
    if showing.json:
        rows = [_row(run, reports[run.id], records.get(run.id), out) for run in runs]
        render.print_json({"runs": rows, "seconds": round(seconds, 3)})
        return
    if showing.quiet:
        for run in runs:
            if reports[run.id].state == "failed":
                render.remark(f"{run.label}: {reports[run.id].reason}", style="")
            else:
                render.print_line(str(out / run.id))
        return
    failed = [run for run in runs if reports[run.id].state == "failed"]
    listed = runs if len(runs) <= MOST_ROWS else failed
    states = Counter(report.state for report in reports.values())
    counts = ", ".join(f"{states[name]} {name}" for name in LAST if states[name])
    lines = [
        f"{len(runs)} runs in {in_words(seconds)}: {counts}.",
        f"Compare: ttabench compare --out {quote(str(out))}",
    ]
    lines += ["The same command tries the failed runs again."] if failed else []
    if not listed:
        render.say(lines)
        return
    cells = tuple((run.id, *_cells(run, reports[run.id], records.get(run.id))) for run in listed)
    columns = ("run", "method", "task", "#seed", "metric", "#value ± stderr", "what became of it")
    render.show([render.Table(title=f"Runs in {out}", columns=columns, rows=cells, caption="\n".join(lines),
                              names=("metric", "run"), spare=("run",))])  # fmt: skip


def _cells(run: Run, report: Report, record: RunRecord | None) -> tuple[str, ...]:
    """Method, task, seed, metric, figure, and what became of a run."""
    row = record.value(record.main_metric) if record else None
    figure = shown(row.metric, row.value, row.stderr) if row else ""
    return run.method, run.task, str(run.seed), row.metric if row else "", figure, _how(report)


def _how(report: Report) -> str:
    """The outcome of a run: `new (1.4 s)`; not every engine reports seconds."""
    if report.state == "failed":
        return f"failed: {report.reason}"
    return f"{report.state} ({report.seconds:.1f} s)" if report.seconds else report.state


def _row(run: Run, report: Report, record: RunRecord | None, out: Path) -> dict[str, Json]:
    row = record.value(record.main_metric) if record else None
    return {
        "id": run.id, "folder": str(out / run.id), "method": run.method, "task": run.task, "seed": run.seed,
        "model": run.request.base_name, "state_of": run.request.state_of, "how": report.state, "reason": report.reason,
        "seconds": round(report.seconds, 3), "metric": record.main_metric if record else None,
        "value": row.value if row else None, "stderr": row.stderr if row else None, "n": row.n if row else None,
    }  # fmt: skip
