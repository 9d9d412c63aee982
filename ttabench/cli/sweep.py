"""`ttabench sweep`: what was typed, or stands in a file, as a suite; then its runs, or a list of them."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttabench.cli import options as o
from ttabench.core.declared import HOW, RUN, WHAT
from ttabench.core.errors import UserError
from ttabench.run.request import RunRequest
from ttabench.terminal import render

if TYPE_CHECKING:
    from ttabench.core.types import Json
    from ttabench.records.schema import RunRecord
    from ttabench.sweep.engines import Job, Report

WHERE = "Where it runs"
MOST_ROWS = 40
"""Of a table; of more runs only those that failed are rows."""


@o.takes("said", RunRequest, without=("method", "task", "model", "keep", "keep_tokens"), typed_only=True)
def sweep(
    said: Mapping[str, Any],
    suite: Annotated[
        Path | None, typer.Argument(metavar="[SUITE.yaml]", help="A file that names the runs.", show_default=False)
    ] = None,
    methods: Annotated[
        str,
        o.option(RUN, "Methods, separated by commas.", "--methods", "-m", autocompletion=o.complete_method),
    ] = "",
    tasks: Annotated[
        str, o.option(RUN, "Tasks, separated by commas.", "--tasks", "-t", autocompletion=o.complete_task)
    ] = "",
    models: Annotated[
        str,
        o.option(RUN, "Base LMs, separated by commas. (default: nano)", "--models", autocompletion=o.complete_model),
    ] = "",
    seeds: Annotated[str, o.option(WHAT, "Seeds, one run each: 0,1,2. (default: 0)")] = "",
    keep: Annotated[
        str,
        o.option(RUN, "Shares of the context to keep, one run each: 0.1,0.2,0.5. Methods without a budget run once.",
                 "--keep"),
    ] = "",
    keep_tokens: Annotated[
        str, o.option(RUN, "Tokens of the context to keep, one run each: 128,256.", "--keep-tokens")
    ] = "",
    swap_state: o.SwapState = False,
    jobs: Annotated[int, o.option(WHERE, "Runs at a time.", "--jobs", "-j", min=1, max=1024)] = 1,
    threads: o.Threads = None,
    gpus_per_run: Annotated[
        float, o.option(WHERE, "GPUs for each run; below 1, several runs share one.", min=0, max=64)
    ] = 0.0,
    engine: Annotated[str, o.option(WHERE, "local, ray or slurm.", "--engine")] = "local",
    engine_set: Annotated[
        list[str] | None,
        o.option(WHERE, "An option of the engine, key=value (address=auto, partition=gpu); repeat for more.",
                 "--engine-set"),
    ] = None,
    shard: Annotated[
        str, o.option(WHERE, "Only part I of N: every N-th run, from the I-th on.", metavar="I/N")
    ] = "",
    out: o.Out = o.DEFAULT_OUT,
    force: o.Force = False,
    dry_run: o.DryRun = False,
    json: o.AsJson = False,
    quiet: o.Quiet = False,
    schema: Annotated[bool, o.option(HOW, "Print the JSON schema of a suite.", "--schema")] = False,
) -> None:  # fmt: skip
    """Run a grid of methods, tasks, models, seeds and settings: what is stored is not run again.

    The runs stand in SUITE.yaml (--schema prints what it may say), or are typed; options beside a file take the place
    of what it says of all runs. A run that fails is a row with its reason, and the others go on; the command then
    leaves with 1.
    """
    from ttabench.core.typed import assignments, whole_numbers
    from ttabench.profiling.job import method_names
    from ttabench.sweep import engines
    from ttabench.sweep import suite as suites
    from ttabench.sweep.grid import cells, planned, share

    if schema:
        render.print_json(suites.schema())
        return
    typed = suites.as_said(said) | ({suites.SWAP: True} if swap_state else {})
    for name, text in (("methods", methods), ("tasks", tasks), ("models", models)):
        typed |= {name: method_names(text, ())} if text else {}
    for name, text in (("seeds", seeds), ("keep_tokens", keep_tokens)):
        if text:
            typed[name] = list(dict.fromkeys(whole_numbers(f"--{name.replace('_', '-')}", text)))
    if keep:
        try:
            typed["keep"] = list(dict.fromkeys(map(float, keep.split(","))))
        except ValueError:
            raise UserError(f"--keep {keep!r} is not a list of shares.", "Write --keep 0.1,0.2.") from None
    try:
        runs = planned(cells(_suite(suite, typed)))
    except UserError as error:
        raise UserError(f"{suite}: {error.what}" if suite else error.what, error.hint) from None
    runs = share(runs, shard) if shard else runs
    if dry_run:
        _list(runs, out, json=json, quiet=quiet)
        return
    options = assignments(engine_set or (), "--engine-set")
    resources = engines.Resources(jobs=jobs, threads=threads, gpus=gpus_per_run, options=options)
    reports = engines.swept(runs, out, engines.engine(engine, options), resources, force=force)
    if not _run(runs, reports, out, json=json, quiet=quiet):
        raise typer.Exit(1)


def _suite(file: Path | None, typed: Mapping[str, Json]) -> Json:
    """The suite of a file, overridden by the options typed beside it."""
    from ttabench.sweep.suite import BUDGETS, read

    if file is None:
        if missing := [name for name in ("methods", "tasks") if name not in typed]:
            hint = "Give SUITE.yaml, or --methods none,icl --tasks streamingqa."
            raise UserError(f"No {' and no '.join(missing)} are named.", hint)
        return dict(typed)
    data = read(file)
    if not isinstance(data, dict):
        return data
    replaced = {*typed, *(BUDGETS if {*BUDGETS} & {*typed} else ())}
    return {**{key: value for key, value in data.items() if key not in replaced}, **typed}


def _run(runs: Sequence[Job], reported: Generator[Report], out: Path, *, json: bool, quiet: bool) -> bool:
    """Make the runs and show them; whether all are stored."""
    from ttabench.report.finding import load_run

    began, rows = time.monotonic(), list[dict[str, Any]]()
    reports = _made(runs, reported, talking=not (json or quiet))
    for run in runs:
        report, record = reports[run.id], None
        if report.state != "failed":
            try:
                record = load_run(out / run.id)
            except UserError as error:
                report = replace(report, state="failed", reason=str(error))
        rows.append(_row(run, report, record, out))
    failed, seconds = [row for row in rows if row["how"] == "failed"], time.monotonic() - began
    if json:
        render.print_json({"runs": rows, "seconds": round(seconds, 3)})
    elif quiet:
        for run, row in zip(runs, rows, strict=True):
            if row in failed:
                render.remark(f"{run.label}: {row['reason']}", style="")
            else:
                render.print_line(row["folder"])
    else:
        states = Counter(row["how"] for row in rows)
        counts = ", ".join(f"{states[how]} {how}" for how in ("new", "continued", "stored", "failed") if states[how])
        lines = [f"{len(runs)} runs in {timedelta(seconds=round(seconds))}: {counts}.",
                 f"Compare: ttabench compare --out {quote(str(out))}",
                 *(["The same command tries the failed runs again."] if failed else [])]  # fmt: skip
        if shown := rows if len(rows) <= MOST_ROWS else failed:
            _table(f"Runs in {out}", shown, "\n".join(lines))
        else:
            render.print_line("\n".join(lines))
    return not failed


def _made(runs: Sequence[Job], reports: Generator[Report], *, talking: bool) -> dict[str, Report]:
    """Make these runs; the report of each by its id. On a terminal a bar, elsewhere a line for each as it comes."""
    labels = {run.id: run.label for run in runs}
    last: dict[str, Report] = {}
    watched = talking and sys.stderr.isatty()
    with render.progress(watched) as tick, closing(reports):
        for report in reports:
            last[report.id] = report
            states = Counter(one.state for one in last.values())
            done, total = len(last) - states["stored"], len(runs) - states["stored"]
            if watched and total:
                tick(f"runs, {states['failed']} failed", done, total)
            elif talking and report.state != "stored":
                how = _how(report.state, report.reason, report.seconds)
                render.remark(f"{done} of {total} runs: {labels[report.id]}: {how}", style="")
    return last


def _row(run: Job, report: Report, record: RunRecord | None, out: Path) -> dict[str, Any]:
    row = record.value(record.main_metric) if record else None
    return {
        **_named(run), "folder": str(out / run.id), "state_of": run.request.state_of, "how": report.state,
        "reason": report.reason, "seconds": round(report.seconds, 3), "metric": record.main_metric if record else None,
        "value": row.value if row else None, "stderr": row.stderr if row else None, "n": row.n if row else None,
    }  # fmt: skip


def _named(run: Job) -> dict[str, Any]:
    names = {"id": run.id, "method": run.method, "task": run.task, "seed": run.seed}
    return {**names, "model": run.request.base_name}


def _how(state: str, reason: str, seconds: float) -> str:
    """The outcome of a run: `new (1.4 s)`; not every engine reports seconds."""
    if state == "failed":
        return f"failed: {reason}"
    return f"{state} ({seconds:.1f} s)" if seconds else state


def _table(title: str, rows: Sequence[Mapping[str, Any]], caption: str) -> None:
    from ttabench.report.figures import shown

    lines = []
    for row in rows:
        figure = "" if row["value"] is None else shown(row["metric"], row["value"], row["stderr"])
        named = (row["id"], row["method"], row["task"], row["model"], str(row["seed"]))
        lines.append((*named, row["metric"] or "", figure, _how(row["how"], row["reason"], row["seconds"])))
    columns = ("run", "method", "task", "model", "#seed", "metric", "#value ± stderr", "what became of it")
    table = render.Table(title=title, columns=columns, rows=tuple(lines), caption=caption, names=("metric", "run"),
                         spare=("model", "run"))  # fmt: skip
    render.show([table if len({row["model"] for row in rows}) > 1 else table.without("model")])


def _list(runs: Sequence[Job], out: Path, *, json: bool, quiet: bool) -> None:
    """List the runs, and which are stored; no model is loaded."""
    from ttabench.records.schema import is_stored
    from ttabench.run.resolve import resolve_method

    rows = []
    for run in runs:
        stored = is_stored(out / run.id)
        rows.append({**_named(run), "stored": stored, "notes": [] if stored else resolve_method(run.request).notes()})
    todo = [row for row in rows if not row["stored"]]
    if json:
        render.print_json({"runs": rows})
    elif quiet:
        for row in todo:
            render.print_line(row["id"])
    else:
        lines = []
        for row in rows:
            to_do = "stored" if row["stored"] else "to run untrained" if row["notes"] else "to run"
            lines.append((row["id"], row["method"], row["task"], row["model"], str(row["seed"]), to_do))
        caption = f"{len(rows)} runs: {len(rows) - len(todo)} stored, {len(todo)} to run."
        columns = ("run", "method", "task", "model", "#seed", "what is to do")
        render.show([render.Table(title=f"Runs for {out}", columns=columns, rows=tuple(lines), caption=caption,
                                  names=("run",), spare=("model", "run"))])  # fmt: skip
        for line in dict.fromkeys(f"Note: {note}." for row in rows for note in row["notes"]):
            render.remark(line)
