"""`ttabench profile`: what can be typed, and what people see of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ttabench.cli import options as o
from ttabench.cli.declaring import takes, typed_names
from ttabench.core.errors import UserError
from ttabench.core.progress import loading
from ttabench.records.run_fields import RunFields

if TYPE_CHECKING:
    from ttabench.profiling.driver import Outcome
    from ttabench.profiling.job import Job
    from ttabench.profiling.rows import Row
    from ttabench.terminal.render import Format

MEASURING = (
    "random_weights", "repeat", "checkpoint", "task", "memory_limit", "row_seconds", "time_limit", "device",
    "threads", "plot", "out", "force", "quiet",
)  # fmt: skip
"""Options that decide how something is measured and stored: no part of a profile on paper."""
ON_PAPER = ("queries",)
"""Options of a profile on paper alone."""


@takes("base", RunFields, only=("model", "random_weights", "device", "dtype"))
def profile(
    context: typer.Context,
    base: RunFields,
    methods: o.Methods = "",
    prefill: o.Prefill = "1k,4k",
    generate: o.Generate = 128,
    repeat: o.Repeat = 5,
    piece_tokens: o.PieceTokens = 256,
    preset: o.ProfilePreset = "",
    set_: o.ProfileSet = None,
    checkpoint: o.ProfileCheckpoint = "",
    task: o.ShippedFor = "streamingqa",
    throughput: o.Throughput = False,
    training: o.ProfileTraining = False,
    analytic: o.Analytic = False,
    queries: o.Queries = 1,
    memory_limit: o.MemoryLimit = "",
    row_seconds: o.RowSeconds = 20.0,
    time_limit: o.TimeLimit = None,
    threads: o.Threads = None,
    plot: o.ProfilePlot = None,
    out: o.Out = o.DEFAULT_OUT,
    force: o.Force = False,
    form: o.Form = "table",
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Measure what methods cost at several lengths of context: latency, memory, state, share of the machine's limit.

    Every method runs in a process of its own. The same command again resumes where it stopped, or shows what is stored.
    With --analytic nothing is measured: costs follow from published shapes, at once, for any model and length.
    """
    if not (json or quiet or form != "table" or analytic):
        loading(f"libraries and {Path(base.model).name or base.model}")
    if throughput + training + analytic > 1:
        raise UserError("--throughput, --training and --analytic cannot be combined.", "Give one of them.")
    typed = {"methods": methods, "preset": preset, "settings": tuple(set_ or ())}
    load = {"piece_tokens": piece_tokens, "generate": generate, "repeat": repeat, "row_seconds": row_seconds}
    showing = Showing(form="json" if json else form, quiet=quiet, force=force, threads=threads)
    if analytic:
        _refuse(context, MEASURING, "has no effect with --analytic.")
        paper = {**typed, "model": base.model, "prefill": prefill}
        _on_paper(paper, load, {"dtype": base.dtype, "queries": queries}, showing)
        return
    _refuse(context, ON_PAPER, "has an effect only with --analytic.")
    fields = {
        "mode": "throughput" if throughput else "training" if training else "latency", "model": base.model,
        "random_weights": base.random_weights, "task": task, "device": base.device, "dtype": base.dtype,
        "time_limit": time_limit,
    }  # fmt: skip
    job = _job(fields, load, {**typed, "checkpoint": checkpoint}, Sizes(prefill=prefill, memory_limit=memory_limit))
    _run(job, out, plot, showing)


@dataclass(frozen=True, kw_only=True)
class Showing:
    """How the profile is run and shown."""

    form: str = "table"
    quiet: bool = False
    force: bool = False
    """Measure what is stored again."""
    threads: int | None = None
    """Of the processor; None leaves torch's choice."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes as typed."""

    prefill: str
    memory_limit: str = ""


def _refuse(context: typer.Context, names: Collection[str], why: str) -> None:
    """Refuse options that were typed (not those of the environment) and would change nothing."""
    typed = typed_names(context)
    for option in context.command.params:
        if option.name in names and option.name in typed:
            raise UserError(f"{option.opts[0]} {why}", "Leave it out.")


def _on_paper(paper: Mapping[str, Any], load: Mapping[str, Any], more: Mapping[str, Any], showing: Showing) -> None:
    """The table of costs on paper, for the load that would be measured."""
    from ttabench.profiling.analytic import AnalyticLoad
    from ttabench.profiling.load import Load
    from ttabench.profiling.on_paper import Paper, show

    asked = Load(**load)
    on_paper = AnalyticLoad(
        piece_tokens=asked.piece_tokens, prompt_tokens=asked.prompt_tokens, new_tokens=asked.generate, **more
    )
    show(Paper(**paper), on_paper, showing.form)


def _job(fields: Mapping[str, Any], load: Mapping[str, Any], typed: Mapping[str, Any], sizes: Sizes) -> Job:
    """The typed options as a job; everything that can be refused without measuring is refused here."""
    from ttabench.core.sizes import lengths, memory
    from ttabench.lm.loading.hub import find_source
    from ttabench.profiling.job import Job, Typed, choose
    from ttabench.profiling.load import Load

    limit = memory(sizes.memory_limit) if sizes.memory_limit else None
    job = Job(
        **fields, load=Load(**load), lengths=lengths(sizes.prefill), chosen=choose(Typed(**typed)), memory_limit=limit
    )
    job.adapters()
    if not job.random_weights:
        find_source(job.model)
    if job.mode == "throughput" and limit is None:
        from ttabench.lm.loading.devices import find_device  # torch comes once nothing typed is refused

        if find_device(job.device).type == "cpu":
            fault = "On a CPU --throughput would take all memory of the machine."
            raise UserError(fault, "Say how much it may take with --memory-limit 4GiB.")
    return job


def _run(job: Job, out: Path, picture: Path | None, showing: Showing) -> None:
    """Measure or find the profile, show it, and draw it last: what was measured is seen even where a picture fails."""
    from ttabench.core.environment import use_threads
    from ttabench.profiling.driver import Manner, execute
    from ttabench.profiling.picture import plot
    from ttabench.report.pictures import check_path
    from ttabench.terminal import render

    if picture is not None:
        check_path(picture)
    form = render.known_format(showing.form)
    talking = form == "table" and not showing.quiet
    use_threads(showing.threads)
    with render.progress(talking, even=False) as tick:
        manner = Manner(force=showing.force, threads=showing.threads)
        if talking:
            manner = replace(manner, tick=tick, notify=render.remark, on_row=partial(_row_line, job.mode))
        outcome = execute(job, out, manner)
    if showing.quiet:
        render.print_line(str(outcome.folder))
    else:
        _show(outcome, form, talking)
    if picture is not None:
        plot(outcome.record, picture)


def _row_line(mode: str, row: Row, done: int, total: int) -> None:
    """Say a row as it comes, on standard error.

    How long the rest takes is not said here: longer contexts take longer, so no mean of rows tells it. A worker says
    how long the next pass should take where that is long.
    """
    from ttabench.profiling.tables import row_line
    from ttabench.terminal import render

    render.remark(f"{row_line(row, mode)} ({done} of {total} rows)", style="")


def _show(outcome: Outcome, form: Format, talking: bool) -> None:
    from ttabench.core.environment import other_versions
    from ttabench.profiling.tables import profile_tables
    from ttabench.terminal import render

    record = outcome.record
    if talking and outcome.how == "stored":
        render.remark(f"Profile {record.id} of {record.created} is stored already; --force measures again.")
        if others := other_versions(record.versions):
            render.remark(f"It was measured with {', '.join(others)}.")
    render.show(profile_tables(record), form)
    if talking:
        render.remark(f"Stored in {outcome.folder}: profile.json, profile.csv ({record.seconds:,.0f} s).")
        if any(row.status == "failed" for row in record.rows):
            render.remark("The same command tries the failed rows again.")
