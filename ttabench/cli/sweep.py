"""`ttabench sweep`: run a grid of configurations, typed or from a suite file."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttabench.cli import options as o
from ttabench.core.declared import QUERY_GROUP, RUN_GROUP
from ttabench.core.errors import UserError
from ttabench.run.request import RunRequest
from ttabench.terminal import render

if TYPE_CHECKING:
    from ttabench.core.types import Json
    from ttabench.sweep.engines import Job, JobReport

EXECUTION_PANEL = "Parallel execution"


@o.add_options("typed_fields", RunRequest, only=o.RUN_OPTIONS["sweep"], typed_only=True)
def sweep(
    typed_fields: Mapping[str, Any],
    suite: Annotated[
        Path | None,
        typer.Argument(
            metavar="[SUITE.yaml]", help="Suite file that defines the runs.", show_default=False
        ),
    ] = None,
    methods: Annotated[
        str, o.option(RUN_GROUP, "Methods, separated by commas.", "--methods", "-m")
    ] = "",
    tasks: Annotated[str, o.option(RUN_GROUP, "Tasks, separated by commas.", "--tasks", "-t")] = "",
    models: Annotated[
        str, o.option(RUN_GROUP, "Base models, separated by commas. (default: nano)")
    ] = "",
    seeds: Annotated[
        str, o.option(QUERY_GROUP, "Random seeds, one run each, such as 0,1,2. (default: 0)")
    ] = "",
    keep: Annotated[
        str,
        o.option(
            RUN_GROUP,
            "Memory budgets as shares of the context, one run each, such as 0.1,0.2,0.5. "
            "Methods without a budget run once.",
        ),
    ] = "",
    keep_tokens: Annotated[
        str, o.option(RUN_GROUP, "Memory budgets in tokens, one run each, such as 128,256.")
    ] = "",
    swap_state: o.SwapState = False,
    jobs: Annotated[
        int, o.option(EXECUTION_PANEL, "Number of parallel runs.", "--jobs", "-j", min=1, max=1024)
    ] = 1,
    threads: o.Threads = None,
    gpus_per_run: Annotated[
        int, o.option(EXECUTION_PANEL, "GPUs per run; 0: every run sees all GPUs.", min=0, max=64)
    ] = 0,
    engine: Annotated[str, o.option(EXECUTION_PANEL, "Job engine: local, ray or slurm.")] = "local",
    engine_set: Annotated[
        list[str] | None,
        o.option(
            EXECUTION_PANEL,
            "Option of the engine, key=value, such as address=auto or partition=gpu. Repeatable.",
        ),
    ] = None,
    shard: Annotated[
        str,
        o.option(
            EXECUTION_PANEL,
            "Run only part I of N: every N-th run, starting with the I-th.",
            metavar="I/N",
        ),
    ] = "",
    out: o.Out = o.DEFAULT_OUT,
    force: o.Force = False,
    dry_run: o.DryRun = False,
    gpu: Annotated[
        str,
        o.option(
            EXECUTION_PANEL,
            "With --dry-run: estimate hours and memory on this GPU (h200, h100, a100, l40s or l4), "
            "without weights and data.",
        ),
    ] = "",
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Run a grid of methods, tasks, models, seeds and settings. Stored results are not run again.

    Define the runs in SUITE.yaml or by options. Options override the file's values for all runs.
    If a run fails, its reason is printed, the other runs continue, and the exit code is 1.
    """
    from ttabench.core.declared import parse_assignments, parse_value
    from ttabench.profiling.job import parse_method_names
    from ttabench.sweep import engines, suite as suites

    typed = suites.to_suite_options(typed_fields)
    if swap_state:
        typed[suites.SWAP_OPTION] = True
    for name, text in (("methods", methods), ("tasks", tasks), ("models", models)):
        if text:
            typed[name] = parse_method_names(text, ())
    numbers = (
        ("seeds", seeds, list[int]),
        ("keep_tokens", keep_tokens, list[int]),
        ("keep", keep, list[float]),
    )
    for name, text, kind in numbers:
        if text:
            typed[name] = list(
                dict.fromkeys(parse_value(text, kind, f"--{name.replace('_', '-')}"))
            )
    if gpu and not dry_run:
        raise UserError("--gpu is only an estimate.", "Add --dry-run.")
    data = _merge_suite(suite, typed)
    try:
        cells = suites.expand_suite(data)
        if gpu:
            from ttabench.sweep.estimate import estimate_table

            table = estimate_table(cells, suites.task_sizes(data), gpu)
            render.print_tables([table], "json" if json else "table")
            return
        runs = suites.plan_jobs(cells)
    except UserError as error:
        raise UserError(f"{suite}: {error.what}" if suite else error.what, error.hint) from None
    runs = suites.select_shard(runs, shard) if shard else runs
    for note, count in Counter(note for run in runs for note in run.notes).items():
        render.print_note(f"Note: {note} ({count} of {len(runs)} runs).")
    if dry_run:
        _list_jobs(runs, out, json=json, quiet=quiet)
        return
    options = parse_assignments(engine_set or (), "--engine-set")
    resources = engines.Resources(jobs=jobs, threads=threads, gpus=gpus_per_run, options=options)
    reports = engines.run_jobs(
        runs, out, engines.find_engine(engine, options), resources, force=force
    )
    if not _run_jobs(runs, reports, out, json=json, quiet=quiet):
        raise typer.Exit(1)


def _merge_suite(file: Path | None, typed: Mapping[str, Json]) -> Json:
    """Return the suite of a file, overridden by the typed options."""
    from ttabench.sweep.suite import BUDGET_OPTIONS, read_suite

    if file is None:
        if missing := [name for name in ("methods", "tasks") if name not in typed]:
            hint = "Use a SUITE.yaml, or --methods none,icl --tasks streamingqa."
            raise UserError(f"No {' and no '.join(missing)} are given.", hint)
        return dict(typed)
    data = read_suite(file)
    if not isinstance(data, dict):
        return data
    replaced = {*typed, *(BUDGET_OPTIONS if {*BUDGET_OPTIONS} & {*typed} else ())}
    return {**{key: value for key, value in data.items() if key not in replaced}, **typed}


def _run_jobs(
    runs: Sequence[Job], report_stream: Generator[JobReport], out: Path, *, json: bool, quiet: bool
) -> bool:
    """Print a line per finished run, then a summary; return True if no run failed."""
    began = time.monotonic()
    reports: dict[str, JobReport] = {}
    labels = {run.id: run.label for run in runs}
    with closing(report_stream):
        for report in report_stream:
            reports[report.id] = report
            if report.status == "failed":
                render.print_note(f"{labels[report.id]}: failed: {report.reason}", style="")
            elif not (json or quiet or report.status == "stored"):
                line = f"{labels[report.id]}: {report.status} ({report.seconds:.1f} s)"
                render.print_note(f"{len(reports)} of {len(runs)} runs: {line}", style="")
    states = Counter(report.status for report in reports.values())
    seconds = time.monotonic() - began
    if json:
        rows = [
            {
                **_identity_columns(run),
                "folder": str(out / run.id),
                "state_of": run.request.state_of,
                "how": reports[run.id].status,
                "reason": reports[run.id].reason,
                "seconds": round(reports[run.id].seconds, 3),
            }
            for run in runs
        ]
        render.print_json({"runs": rows, "seconds": round(seconds, 3)})
    elif quiet:
        for run in runs:
            if reports[run.id].status != "failed":
                render.print_line(str(out / run.id))
    else:
        counts = ", ".join(
            f"{states[status]} {status}"
            for status in ("new", "continued", "stored", "failed")
            if states[status]
        )
        render.print_line(f"{len(runs)} runs in {timedelta(seconds=round(seconds))}: {counts}.")
        render.print_line(f"Compare: ttabench compare --out {quote(str(out))}")
        if states["failed"]:
            render.print_line("Repeat the command to retry the failed runs.")
    return not states["failed"]


def _identity_columns(run: Job) -> dict[str, Any]:
    names = {"id": run.id, "method": run.method, "task": run.task, "seed": run.seed}
    return {**names, "model": run.request.base_name}


def _list_jobs(runs: Sequence[Job], out: Path, *, json: bool, quiet: bool) -> None:
    """List the runs and their status; loads no model."""
    from ttabench.records.schema import is_stored

    rows = [{**_identity_columns(run), "stored": is_stored(out / run.id)} for run in runs]
    todo = [row["id"] for row in rows if not row["stored"]]
    if json:
        render.print_json({"runs": rows})
    elif quiet:
        for run_id in todo:
            render.print_line(run_id)
    else:
        lines = [
            (*row, "stored" if stored else "to run") for *row, stored in map(dict.values, rows)
        ]
        table = render.Table(
            title=f"Runs for {out}",
            columns=("run", "method", "task", "#seed", "model", "status"),
            rows=tuple(tuple(map(str, line)) for line in lines),
            caption=f"{len(rows)} runs: {len(rows) - len(todo)} stored, {len(todo)} to run.",
            names=("run",),
            spare=("model", "run"),
        )
        render.print_tables([table])
