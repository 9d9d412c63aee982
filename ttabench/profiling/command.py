"""`ttabench profile`: what can be typed, and what people see of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttabench import options as o
from ttabench.errors import UserError
from ttabench.progress import no_word

if TYPE_CHECKING:
    from ttabench.profiling.job import Job


def profile(
    methods: o.Methods = "",
    model: o.Model = "nano",
    random_weights: o.RandomWeights = False,
    prefill: o.Prefill = "1k,4k",
    generate: o.Generate = 128,
    repeat: o.Repeat = 5,
    piece_tokens: o.PieceTokens = 256,
    preset: o.Preset = "",
    set_: o.ProfileSet = None,
    checkpoint: o.Checkpoint = "",
    task: o.ShippedFor = "streamingqa",
    throughput: o.Throughput = False,
    training: o.ProfileTraining = False,
    analytic: o.Analytic = False,
    memory_limit: o.MemoryLimit = "",
    row_seconds: o.RowSeconds = 20.0,
    time_limit: o.TimeLimit = None,
    device: o.Device = "auto",
    dtype: o.Dtype = "auto",
    plot: o.ProfilePlot = None,
    out: o.Out = o.DEFAULT_OUT,
    force: o.Force = False,
    form: o.Form = "table",
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Measure what methods cost at several lengths of context: latency, memory, state, share of the machine's limit.

    Every method runs in a process of its own. The same command again goes on where it stopped, or shows what is stored.
    With --analytic nothing is measured: costs follow from published shapes, at once, for any model and length.
    """
    if throughput + training + analytic > 1:
        raise UserError("--throughput, --training and --analytic are three profiles.", "Give one of them.")
    if analytic:
        refused = {"--plot": plot, "--checkpoint": checkpoint, "--memory-limit": memory_limit}
        given = [flag for flag, value in refused.items() if value]
        if given:
            raise UserError(f"{given[0]} has no part in --analytic.", "Leave it out.")
        _on_paper(
            {"methods": methods, "model": model, "prefill": prefill, "preset": preset, "settings": tuple(set_ or ())},
            {"piece_tokens": piece_tokens, "new_tokens": generate, "dtype": dtype},
            "json" if json else form,
        )
        return
    from ttabench.profiling.load import Load

    load = Load(piece_tokens=piece_tokens, generate=generate, repeat=repeat, row_seconds=row_seconds)
    said = {
        "mode": "throughput" if throughput else "training" if training else "latency", "model": model,
        "random_weights": random_weights, "task": task, "device": device, "dtype": dtype, "load": load,
        "time_limit": time_limit,
    }  # fmt: skip
    typed = {"methods": methods, "preset": preset, "settings": tuple(set_ or ()), "checkpoint": checkpoint}
    job = _job(said, typed, prefill, memory_limit)
    _run(job, out, plot, Showing(form="json" if json else form, quiet=quiet, force=force))


def _on_paper(paper: Mapping[str, Any], load: Mapping[str, Any], form: str) -> None:
    from ttabench.analytic import AnalyticLoad
    from ttabench.profiling.load import Load
    from ttabench.profiling.on_paper import Paper, show

    asked = Load(piece_tokens=load["piece_tokens"], generate=load["new_tokens"])
    show(Paper(**paper), AnalyticLoad(**load, prompt_tokens=asked.prompt_tokens), form)


@dataclass(frozen=True, kw_only=True)
class Showing:
    """How the profile is shown, and whether what is stored is measured again."""

    form: str = "table"
    quiet: bool = False
    force: bool = False


def _job(said: Mapping[str, Any], typed: Mapping[str, Any], prefill: str, memory_limit: str) -> Job:
    """What was typed as a job; everything that can be refused without measuring is refused here."""
    from ttabench.hub import find_source
    from ttabench.lm import find_device
    from ttabench.profiling.job import Job, Typed, choose
    from ttabench.profiling.sizes import lengths, memory

    limit = memory(memory_limit) if memory_limit else None
    job = Job(**said, lengths=lengths(prefill), chosen=choose(Typed(**typed)), memory_limit=limit)
    if not job.random_weights:
        find_source(job.model)
    if find_device(job.device).type == "cpu" and job.mode == "throughput" and limit is None:
        what = "On a CPU --throughput would take all memory of the machine."
        raise UserError(what, "Say how much it may take with --memory-limit 4GiB.")
    return job


def _run(job: Job, out: Path, picture: Path | None, showing: Showing) -> None:
    from ttabench import render
    from ttabench.plots import check_path
    from ttabench.profiling.driver import Manner, execute
    from ttabench.profiling.picture import plot
    from ttabench.profiling.tables import profile_tables

    if picture is not None:
        check_path(picture)
    form = render.known_format(showing.form)
    talking = form == "table" and not showing.quiet
    with render.progress(talking) as tick:
        notify = render.remark if talking else no_word
        outcome = execute(job, out, Manner(force=showing.force, tick=tick, notify=notify))
    if outcome.how == "stored" and talking:
        what = f"Profile {outcome.record.id} of {outcome.record.created} is stored already"
        render.remark(f"{what}; --force measures again.")
    if picture is not None:
        plot(outcome.record, picture)
    if showing.quiet:
        print(outcome.folder)
        return
    render.show(profile_tables(outcome.record), form)
    if talking:
        render.remark(f"Stored in {outcome.folder}: profile.json, profile.csv ({outcome.record.seconds:,.0f} s).")
        if any(row.status == "failed" for row in outcome.record.rows):
            render.remark("The same command tries the failed rows again.")
