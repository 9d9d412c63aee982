"""`ttabench eval`: run a method on a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ttabench.cli import options as o
from ttabench.cli.errors import apply_resource_limits
from ttabench.core.declared import parse_value
from ttabench.core.errors import UserError
from ttabench.core.types import no_log
from ttabench.records.run_fields import ANSWERING_STATES
from ttabench.run.request import RunRequest
from ttabench.terminal import render

if TYPE_CHECKING:
    from ttabench.records.schema import RunRecord
    from ttabench.run.evaluation import EvaluationResult
    from ttabench.run.plan import Plan


@o.add_options("request", RunRequest, method="icl", task="streamingqa")
def eval_(
    command: typer.Context,
    request: RunRequest,
    swap_state: o.SwapState = False,
    seeds: o.Seeds = "0",
    threads: o.Threads = None,
    memory_limit: o.MemoryLimit = "",
    tracker: o.Tracker = "",
    out: o.Out = o.DEFAULT_OUT,
    force: o.Force = False,
    dry_run: o.DryRun = False,
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Run a method on a task and store the result.

    Repeating a command resumes an interrupted run, or prints the stored result.

    With --state, method, settings and base model are those of the state, unless you set them.
    """
    if request.state is not None:
        from ttabench.run.request import QUERY_FIELDS, inherit_from_state

        request = inherit_from_state(
            request, request.state, o.typed_names(command), except_fields=QUERY_FIELDS
        )
    from ttabench.run.plan import make_plan

    requests = (
        [replace(request, state_of=state) for state in ANSWERING_STATES]
        if swap_state
        else [request]
    )
    seed_numbers = dict.fromkeys(parse_value(seeds, list[int], "--seeds"))
    if not seed_numbers:
        raise UserError("--seeds is empty.", "Use a list, such as --seeds 1,2,3.")
    if not dry_run:
        apply_resource_limits(threads, memory_limit, request.device)
    plans = [make_plan(one, seed) for one in requests for seed in seed_numbers]
    if dry_run:
        _dry_run(plans, json=json)
        return
    results = _run_plans(plans, out, tracker, force=force, is_verbose=not (json or quiet))
    if quiet and not json:
        for result in results:
            render.print_line(str(result.folder))
    else:
        _show(results, json=json, shows_comparison=swap_state)


def _run_plans(
    plans: Sequence[Plan], out: Path, tracker: str, *, force: bool, is_verbose: bool
) -> list[EvaluationResult]:
    from ttabench.run.evaluation import ModelCache, execute
    from ttabench.run.tracking import final_figures, open_tracker

    models, results = ModelCache(), []
    for plan in plans:
        config = plan.config
        name = f"{config.method} on {config.task}, {config.identity()}"
        with (
            open_tracker(tracker, name, config.to_json()) as log_metrics,
            render.show_progress(is_verbose) as on_progress,
        ):
            log = render.print_note if is_verbose else no_log
            results.append(
                execute(plan, models, out, force=force, on_progress=on_progress, log=log)
            )
            log_metrics(final_figures(results[-1].record))
        if results[-1].status == "stored":
            _print_stored_notes(plan, results[-1].record, is_verbose)
    return results


def _print_stored_notes(plan: Plan, record: RunRecord, is_verbose: bool) -> None:
    """Print remarks on a stored run: machine, notes, other package versions and missing metrics."""
    from ttabench.core.environment import changed_versions
    from ttabench.report.method_rows import machine_name

    if is_verbose:
        machine = machine_name(record.hardware, record.model.get("device"))
        render.print_note(
            f"Run {record.id} is already stored ({record.created}, {machine}). "
            "Use --force to run it again."
        )
        for note in record.notes:
            render.print_note(f"Note: {note}.")
        if versions := changed_versions(record.versions):
            render.print_note(f"Run {record.id} used other versions: {', '.join(versions)}.")
    metric_names: list[str] = plan.task_record["metrics"]
    if missing := [
        name for name in metric_names if name not in (record.task.get("metrics") or metric_names)
    ]:
        render.print_note(
            f"Run {record.id} lacks the metrics {', '.join(missing)}. Use --force to run it again."
        )


def _show(results: Sequence[EvaluationResult], *, json: bool, shows_comparison: bool) -> None:
    from ttabench.report.compare import compare_runs
    from ttabench.report.comparison_tables import comparison_tables
    from ttabench.report.tables import run_table
    from ttabench.report.verdict import make_verdict

    comparison = (
        compare_runs([(one.folder, one.record) for one in results]) if shows_comparison else None
    )
    if json:
        runs = [
            {**each.record.model_dump(mode="json"), "folder": str(each.folder), "how": each.status}
            for each in results
        ]
        result = {"runs": runs}
        if comparison:
            result["differences"] = [asdict(difference) for difference in comparison.differences]
        render.print_json(result)
    elif comparison:
        verdict = make_verdict(comparison)
        render.print_sentences(verdict.sentences)
        render.print_tables(comparison_tables(comparison))
        render.print_sentences(verdict.notes)
    else:
        render.print_tables([run_table([(each.record, each.folder) for each in results])])


def _dry_run(plans: Sequence[Plan], *, json: bool) -> None:
    """Print the resolved configuration; loads no model."""
    from ttabench.report.tables import config_table
    from ttabench.run.recording import plan_caveats

    if json:
        runs = [
            {"id": p.config.identity(), "config": p.config.to_json(), "notes": plan_caveats(p)}
            for p in plans
        ]
        render.print_json({"runs": runs})
        return
    render.print_tables([config_table(plans)])
    for note in plan_caveats(plans[0]):
        render.print_note(f"Note: {note}.")
