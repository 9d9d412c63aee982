"""A sweep on screen: its progress, the table of its runs at the end, and what `--dry-run` says of them before."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from ttabench.core.errors import UserError
from ttabench.records.schema import RunRecord, is_stored
from ttabench.report.figures import shown
from ttabench.report.finding import load_run
from ttabench.run.resolve import resolve_method
from ttabench.sweep.engines import Job, Report, State
from ttabench.terminal import render

if TYPE_CHECKING:
    from ttabench.core.types import Json

LAST: tuple[State, ...] = ("new", "continued", "stored", "failed")
"""Outcomes of runs, in the order in which they are counted."""
MOST_ROWS = 40
"""Of a table; of more runs only those that failed are rows."""


def made(runs: Sequence[Job], reports: Generator[Report], *, talking: bool) -> dict[str, Report]:
    """Make these runs; the report of each by its id. On a terminal a bar, elsewhere a line for each as it comes."""
    labels = {run.id: run.label.replace(",", "") for run in runs}
    last, watched = dict[str, Report](), talking and sys.stderr.isatty()
    with render.progress(watched) as tick, closing(reports):
        for report in reports:
            last[report.id] = report
            states = Counter(one.state for one in last.values())
            done, total = len(last) - states["stored"], len(runs) - states["stored"]
            if watched and total:
                tick(f"runs, {states['failed']} failed", done, total)
            elif talking and report.state != "stored":
                render.remark(f"{done} of {total} runs: {labels[report.id]}: {_how(report)}", style="")
    return last


def remark(lines: Iterable[str]) -> None:
    """Say these on standard error."""
    for line in lines:
        render.remark(line)


def run(runs: Sequence[Job], reported: Generator[Report], out: Path, *, json: bool, quiet: bool) -> bool:
    """`ttabench sweep`: make the runs and show them; whether all are stored."""
    began = time.monotonic()
    reports, records = made(runs, reported, talking=not (json or quiet)), dict[str, RunRecord]()
    for run in runs:
        if reports[run.id].state != "failed":
            try:
                records[run.id] = load_run(out / run.id)
            except UserError as error:
                reports[run.id] = replace(reports[run.id], state="failed", reason=str(error))
    failed, seconds = [run for run in runs if reports[run.id].state == "failed"], time.monotonic() - began
    if json:
        rows = [_row(run, reports[run.id], records.get(run.id), out) for run in runs]
        render.print_json({"runs": rows, "seconds": round(seconds, 3)})
    elif quiet:
        for run in runs:
            if run in failed:
                render.remark(f"{run.label}: {reports[run.id].reason}", style="")
            else:
                render.print_line(str(out / run.id))
    else:
        states = Counter(report.state for report in reports.values())
        counts = ", ".join(f"{states[name]} {name}" for name in LAST if states[name])
        lines = [f"{len(runs)} runs in {timedelta(seconds=round(seconds))}: {counts}.",
                 f"Compare: ttabench compare --out {quote(str(out))}"]  # fmt: skip
        lines += ["The same command tries the failed runs again."] if failed else []
        _show(runs if len(runs) <= MOST_ROWS else failed, reports, records, out, lines)
    return not failed


def _show(
    runs: Sequence[Job], reports: Mapping[str, Report], records: Mapping[str, RunRecord], out: Path,
    lines: Sequence[str],
) -> None:  # fmt: skip
    if not runs:
        render.say(lines)
        return
    model = ("model",) if runs[0].model else ()
    rows = []
    for run in runs:
        record = records.get(run.id)
        row = record.value(record.main_metric) if record else None
        figure = (row.metric, shown(row.metric, row.value, row.stderr)) if row else ("", "")
        named = (run.id, run.method, run.task, *filter(None, [run.model]), str(run.seed))
        rows.append((*named, *figure, _how(reports[run.id])))
    columns = ("run", "method", "task", *model, "#seed", "metric", "#value ± stderr", "what became of it")
    render.show([render.Table(title=f"Runs in {out}", columns=columns, rows=tuple(rows), caption="\n".join(lines),
                              names=("metric", "run"), spare=("run",))])  # fmt: skip


def _how(report: Report) -> str:
    """The outcome of a run: `new (1.4 s)`; not every engine reports seconds."""
    if report.state == "failed":
        return f"failed: {report.reason}"
    return f"{report.state} ({report.seconds:.1f} s)" if report.seconds else report.state


def _row(run: Job, report: Report, record: RunRecord | None, out: Path) -> dict[str, Json]:
    row = record.value(record.main_metric) if record else None
    return {
        **_named(run), "folder": str(out / run.id), "state_of": run.request.state_of, "how": report.state,
        "reason": report.reason, "seconds": round(report.seconds, 3), "metric": record.main_metric if record else None,
        "value": row.value if row else None, "stderr": row.stderr if row else None, "n": row.n if row else None,
    }  # fmt: skip


def dry_run(runs: Sequence[Job], out: Path, *, json: bool, quiet: bool) -> None:
    """List the runs, and which are stored; no model is loaded."""
    rows = [_planned(run, out) for run in runs]
    if json:
        render.print_json({"runs": rows})
        return
    if quiet:
        for row in rows:
            if not row["stored"]:
                render.print_line(row["id"])
        return
    stored = sum(row["stored"] for row in rows)
    columns = ("run", "method", "task", "model", "#seed", "what is to do")
    cells = []
    for row in rows:
        to_do = "stored" if row["stored"] else "to run untrained" if row["notes"] else "to run"
        cells.append((row["id"], row["method"], row["task"], row["model"], str(row["seed"]), to_do))
    caption = f"{len(rows)} runs: {stored} stored, {len(rows) - stored} to run."
    render.show([render.Table(title=f"Runs for {out}", columns=columns, rows=tuple(cells), caption=caption,
                              names=("run",), spare=("model", "run"))])  # fmt: skip
    remark(dict.fromkeys(f"Note: {note}." for row in rows for note in row["notes"]))


def _planned(run: Job, out: Path) -> dict[str, Any]:
    stored = is_stored(out / run.id)
    return {**_named(run), "stored": stored, "notes": [] if stored else resolve_method(run.request).notes()}


def _named(run: Job) -> dict[str, Json]:
    names = {"id": run.id, "method": run.method, "task": run.task, "seed": run.seed}
    return {**names, "model": run.request.base_name}
