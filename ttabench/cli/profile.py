"""`ttabench profile`: what can be typed, and what people see of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from ttabench.cli import options as o
from ttabench.core.declared import EXECUTION_GROUP, RUN_GROUP
from ttabench.core.errors import UserError
from ttabench.core.types import no_log
from ttabench.records.run_fields import RunFields
from ttabench.terminal import render

MEASUREMENT_PANEL = "What is measured"


@o.add_options("base", RunFields, only=("model", "random_weights", "device", "dtype"))
def profile(
    base: RunFields,
    methods: Annotated[
        str,
        o.option(
            RUN_GROUP,
            "Methods, separated by commas, or all. (default: ten of them; all in training and on paper)",
            "--methods",
            "-m",
        ),
    ] = "",
    prefill: Annotated[
        str, o.option(MEASUREMENT_PANEL, "Tokens of context, separated by commas: 1k,4k,64k,1m.")
    ] = "1k,4k",
    generate: Annotated[
        int, o.option(MEASUREMENT_PANEL, "Tokens written after the prompt.", min=1)
    ] = 128,
    repeat: Annotated[
        int, o.option(MEASUREMENT_PANEL, "Measured repetitions; medians are reported.", min=1)
    ] = 5,
    piece_tokens: Annotated[
        int, o.option(MEASUREMENT_PANEL, "Tokens of one piece of context.", min=1)
    ] = 256,
    preset: Annotated[
        str,
        o.option(
            RUN_GROUP,
            "Named settings, of methods that have them. (default: stream, else those of the model's name)",
        ),
    ] = "",
    set_: Annotated[
        list[str] | None,
        o.option(
            RUN_GROUP,
            "key=value for every method that has the setting, method.key=value for one; repeat for more.",
            "--set",
            "-s",
        ),
    ] = None,
    task: Annotated[
        str,
        o.option(RUN_GROUP, "Task whose shipped checkpoint trained methods use.", "--task", "-t"),
    ] = "streamingqa",
    throughput: Annotated[
        bool,
        o.option(
            MEASUREMENT_PANEL,
            "Samples/s at growing batches, and the largest that fits.",
            "--throughput",
        ),
    ] = False,
    training: Annotated[
        bool,
        o.option(
            MEASUREMENT_PANEL,
            "Milliseconds per training sample, and memory of adapting one document.",
            "--training",
        ),
    ] = False,
    analytic: Annotated[
        bool,
        o.option(
            MEASUREMENT_PANEL,
            "Cost on paper, from published shapes: no weights, at once, any model and length.",
            "--analytic",
        ),
    ] = False,
    memory_limit: o.MemoryLimit = "",
    row_seconds: Annotated[
        float,
        o.option(
            EXECUTION_GROUP,
            "Repeat reading, or answering, no further after so many seconds.",
            min=0,
        ),
    ] = 10.0,
    threads: o.Threads = None,
    plot: Annotated[
        Path | None,
        o.option(EXECUTION_GROUP, "Also draw latency and memory by length: a .png, .svg or .pdf."),
    ] = None,
    out: o.Out = o.DEFAULT_OUT,
    force: o.Force = False,
    form: o.Form = "table",
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Measure what methods cost at several lengths of context: latency, memory, state.

    Every method runs in a process of its own. The same command again resumes where it stopped, or shows what is stored.
    With --analytic nothing is measured: costs follow from published shapes, at once, for any model and length.
    """
    from ttabench.core.amounts import parse_lengths, parse_memory
    from ttabench.profiling.job import Job, Load, choose_methods

    output_form: render.Format = "json" if json else form
    if throughput + training + analytic > 1:
        raise UserError(
            "--throughput, --training and --analytic cannot be combined.", "Give one of them."
        )
    typed: dict[str, Any] = {
        "methods": methods or "all" * training,
        "preset": preset,
        "settings": tuple(set_ or ()),
    }
    load = Load(
        piece_tokens=piece_tokens, generate=generate, repeat=repeat, row_seconds=row_seconds
    )
    if analytic:
        from ttabench.profiling.analytic import analytic_table

        table = analytic_table(
            load, parse_lengths(prefill), **typed, model=base.model, dtype=base.dtype
        )
        render.print_tables([table], output_form)
        return
    job = Job(
        mode="throughput" if throughput else "training" if training else "latency",
        model=base.model,
        random_weights=base.random_weights,
        device=base.device,
        dtype=base.dtype,
        task=task,
        load=load,
        lengths=parse_lengths(prefill),
        method_requests=choose_methods(**typed),
        memory_limit=parse_memory(memory_limit) if memory_limit else None,
    )
    job.check()
    from ttabench.core.environment import use_threads
    from ttabench.profiling.driver import execute
    from ttabench.profiling.record import draw, profile_table
    from ttabench.report.pictures import check_output_path

    if plot is not None:
        check_output_path(plot)
    is_verbose = output_form == "table" and not quiet
    use_threads(threads)
    with render.show_progress(is_verbose) as on_progress:
        log = render.print_note if is_verbose else no_log
        outcome = execute(job, out, force=force, threads=threads, on_progress=on_progress, log=log)
    record = outcome.record
    if quiet:
        render.print_line(str(outcome.folder))
    else:
        render.print_tables([profile_table(record)], output_form)
    if is_verbose:
        place = f"profile {record.id} of {record.created}, in {outcome.folder}"
        render.print_note(
            f"Stored: {place}; --force measures again, and the same command tries failed rows again."
        )
    if plot is not None:  # last: what was measured is seen even where a picture fails
        draw(record, plot)
        if not quiet:
            render.print_note(f"Picture: {plot}")
