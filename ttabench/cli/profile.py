"""`ttabench profile`: measure the costs of methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from ttabench.cli import options as o
from ttabench.core.declared import EXECUTION_GROUP, RUN_GROUP
from ttabench.core.errors import UserError
from ttabench.core.types import no_log
from ttabench.records.run_fields import RunFields
from ttabench.terminal import render

MEASUREMENT_PANEL = "Measurement"


@o.add_options("base", RunFields, only=o.RUN_OPTIONS["profile"])
def profile(
    base: RunFields,
    methods: Annotated[
        str,
        o.option(
            RUN_GROUP,
            "Methods, separated by commas, or all. "
            "(default: a selection of ten; all with --training or --analytic)",
            "--methods",
            "-m",
        ),
    ] = "",
    prefill: Annotated[
        str,
        o.option(
            MEASUREMENT_PANEL,
            "Context lengths in tokens, separated by commas, such as 1k,4k,64k,1m.",
        ),
    ] = "1k,4k",
    generate: Annotated[
        int, o.option(MEASUREMENT_PANEL, "Number of tokens to generate.", min=1)
    ] = 128,
    repeat: Annotated[
        int, o.option(MEASUREMENT_PANEL, "Number of repetitions; medians are reported.", min=1)
    ] = 5,
    piece_tokens: Annotated[
        int, o.option(MEASUREMENT_PANEL, "Tokens per chunk of context.", min=1)
    ] = 256,
    preset: Annotated[
        str,
        o.option(
            RUN_GROUP,
            "Named settings, for methods that have them. "
            "(default: the preset stream, else the one with the name of the model)",
        ),
    ] = "",
    set_: Annotated[
        list[str] | None,
        o.option(
            RUN_GROUP,
            "Setting: key=value for every method that has it, or method.key=value for one method. "
            "Repeatable.",
            "--set",
            "-s",
        ),
    ] = None,
    task: Annotated[
        str,
        o.option(
            RUN_GROUP, "Task that selects the bundled adapters of trained methods.", "--task", "-t"
        ),
    ] = "streamingqa",
    throughput: Annotated[
        bool,
        o.option(
            MEASUREMENT_PANEL,
            "Measure samples per second at growing batch sizes, and the largest batch that fits.",
            "--throughput",
        ),
    ] = False,
    training: Annotated[
        bool,
        o.option(
            MEASUREMENT_PANEL,
            "Measure milliseconds per training sample, and the memory of adapting to one document.",
            "--training",
        ),
    ] = False,
    analytic: Annotated[
        bool,
        o.option(
            MEASUREMENT_PANEL,
            "Calculate costs from the model's published shapes, without weights or measurements.",
            "--analytic",
        ),
    ] = False,
    memory_limit: o.MemoryLimit = "",
    row_seconds: Annotated[
        float,
        o.option(
            EXECUTION_GROUP,
            "Time limit in seconds for the repetitions of reading, and of answering.",
            min=0,
        ),
    ] = 10.0,
    threads: o.Threads = None,
    plot: Annotated[
        Path | None,
        o.option(
            EXECUTION_GROUP,
            "Also plot latency and memory by context length to this file (.png, .svg or .pdf).",
        ),
    ] = None,
    out: o.Out = o.DEFAULT_OUT,
    force: o.Force = False,
    form: o.Form = "table",
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Measure latency, memory and state size of methods at several context lengths.

    Every method runs in its own process.
    Repeating a command resumes an interrupted profile, or prints the stored result.
    With --analytic, costs are calculated instead, for any model and context length.
    """
    from ttabench.core.amounts import parse_lengths, parse_memory
    from ttabench.profiling.job import Job, Load, choose_methods
    from ttabench.run.plan import resolve_dtype

    output_form: render.Format = "json" if json else form
    if throughput + training + analytic > 1:
        raise UserError(
            "--throughput, --training and --analytic exclude each other.", "Use one of them."
        )
    base = resolve_dtype(base)
    typed: dict[str, Any] = {
        "methods": methods or ("all" if training else ""),
        "preset": preset,
        "settings": tuple(set_ or ()),
    }
    load = Load(
        piece_tokens=piece_tokens, generate=generate, repeat=repeat, row_seconds=row_seconds
    )
    if base.bits and training:
        raise UserError("--bits does not affect --training.", "Remove one of them.")
    if analytic:
        from ttabench.profiling.analytic import analytic_table

        table = analytic_table(
            load,
            parse_lengths(prefill),
            **typed,
            model=base.model,
            dtype=base.dtype,
            bits=base.bits,
        )
        render.print_tables([table], output_form)
        return
    job = Job(
        mode="throughput" if throughput else "training" if training else "latency",
        model=base.model,
        base_checkpoint=base.base_checkpoint,
        random_weights=base.random_weights,
        device=base.device,
        dtype=base.dtype,
        max_context=base.max_context,
        bits=base.bits,
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
        render.print_note(
            f"Stored: profile {record.id} of {record.created}, in {outcome.folder}. "
            "Repeat the command to retry failed rows, or use --force to measure all again."
        )
    if plot is not None:  # last, so that a failing plot does not hide the results
        draw(record, plot)
        if not quiet:
            render.print_note(f"Plot: {plot}")
