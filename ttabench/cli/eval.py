"""`ttabench eval`: one run a seed, or their configuration; and what is shown of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ttabench.cli import options as o
from ttabench.cli.ending import bounded
from ttabench.core.declared import parse_value
from ttabench.core.errors import UserError
from ttabench.core.types import no_word
from ttabench.records.run_fields import STATES_OF
from ttabench.run.request import RunRequest
from ttabench.terminal import render

if TYPE_CHECKING:
    from ttabench.records.schema import RunRecord
    from ttabench.run.evaluation import Outcome
    from ttabench.run.plan import Plan


@o.takes("request", RunRequest, method="icl", task="streamingqa")
def eval_(
    command: typer.Context,
    request: RunRequest,
    swap_state: o.SwapState = False,
    seeds: o.Seeds = "0",
    threads: o.Threads = None,
    memory_limit: o.MemoryLimit = "",
    out: o.Out = o.DEFAULT_OUT,
    force: o.Force = False,
    dry_run: o.DryRun = False,
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Run a method on a task (icl on streamingqa where neither is said) and store the result.

    The same command again returns or resumes it.

    With --state, the method, settings and base model that are not typed are those that the state was made with.
    """
    if request.state is not None:
        from ttabench.run.request import ASKING, as_it_was_made

        request = as_it_was_made(request, request.state, o.typed_names(command), but=ASKING)
    from ttabench.run.plan import make_plan

    requests = [replace(request, state_of=state) for state in STATES_OF] if swap_state else [request]
    numbers = dict.fromkeys(parse_value(seeds, list[int], "--seeds"))
    if not numbers:
        raise UserError("--seeds names no seed.", "Write --seeds 1,2,3.")
    if not dry_run:
        bounded(threads, memory_limit, request.device)
    plans = [make_plan(one, number) for one in requests for number in numbers]
    if dry_run:
        _dry_run(plans, json=json)
        return
    outcomes = _evaluated(plans, out, force=force, talking=not (json or quiet))
    if quiet and not json:
        for outcome in outcomes:
            render.print_line(str(outcome.folder))
    else:
        _show(outcomes, json=json, compared=swap_state)


def _evaluated(plans: Sequence[Plan], out: Path, *, force: bool, talking: bool) -> list[Outcome]:
    from ttabench.run.evaluation import ModelCache, execute

    models, outcomes = ModelCache(), []
    for plan in plans:
        with render.progress(talking) as tick:
            notify = render.remark if talking else no_word
            outcomes.append(execute(plan, models, out, force=force, tick=tick, notify=notify))
        if outcomes[-1].how == "stored":
            _tell_stored(plan, outcomes[-1].record, talking)
    return outcomes


def _tell_stored(plan: Plan, record: RunRecord, talking: bool) -> None:
    """Remarks on a stored run: where it was made, its notes, other versions, and metrics that it lacks."""
    from ttabench.core.environment import other_versions
    from ttabench.report.entries import computed_on

    if talking:
        place = computed_on(record.hardware, record.model.get("device"))
        render.remark(f"Run {record.id} of {record.created}, made on {place}, is stored already; --force runs it anew.")
        for note in record.notes:
            render.remark(f"Note: {note}.")
        if versions := other_versions(record.versions):
            render.remark(f"Run {record.id} was made with {', '.join(versions)}.")
    wanted: list[str] = plan.task_record["metrics"]
    if missing := [name for name in wanted if name not in (record.task.get("metrics") or wanted)]:
        render.remark(f"Run {record.id} was made without {', '.join(missing)}; --force runs it again.")


def _show(outcomes: Sequence[Outcome], *, json: bool, compared: bool) -> None:
    from ttabench.report.compare import compared as compared_runs
    from ttabench.report.comparison_tables import comparison_tables
    from ttabench.report.tables import run_table
    from ttabench.report.verdict import sentences

    comparison = compared_runs([(one.folder, one.record) for one in outcomes]) if compared else None
    if json:
        runs = [
            {**each.record.model_dump(mode="json"), "folder": str(each.folder), "how": each.how} for each in outcomes
        ]
        differences = [asdict(difference) for difference in comparison.differences] if comparison else None
        render.print_json({"runs": runs, **({"differences": differences} if comparison else {})})
    elif comparison:
        render.say(sentences(comparison))
        render.show(comparison_tables(comparison))
    else:
        render.show([run_table([(each.record, each.folder) for each in outcomes])])


def _dry_run(plans: Sequence[Plan], *, json: bool) -> None:
    """The resolved configuration; loads no model."""
    from ttabench.report.tables import config_table
    from ttabench.run.recording import caveats_of_plan

    if json:
        runs = [{"id": p.config.identity(), "config": p.config.to_json(), "notes": caveats_of_plan(p)} for p in plans]
        render.print_json({"runs": runs})
        return
    render.show([config_table(plans)])
    for note in caveats_of_plan(plans[0]):
        render.remark(f"Note: {note}.")
