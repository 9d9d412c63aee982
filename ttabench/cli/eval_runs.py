"""`ttabench eval`: one run a seed, or their configuration and cost; and what is shown of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from ttabench import cost
from ttabench.cli.options import DEFAULT_OUT
from ttabench.cli.showing import Showing, Storing
from ttabench.core.environment import other_versions
from ttabench.core.errors import UserError
from ttabench.core.progress import no_word
from ttabench.core.typed import whole_numbers
from ttabench.run.base_model import ModelCache
from ttabench.run.caveats import caveats_of_plan
from ttabench.run.config import STATES_OF
from ttabench.run.evaluation import Outcome, Watching, execute
from ttabench.run.plan import Plan, make_plan
from ttabench.run.request import RunRequest
from ttabench.run.room import refuse_on_paper
from ttabench.terminal import render

if TYPE_CHECKING:
    from ttabench.cli.duration import Estimate
    from ttabench.records.schema import RunRecord


def seed_list(seeds: str, seed: int) -> tuple[int, ...]:
    """`--seeds` as numbers, without repeats, or else the one `--seed`.

    Raises:
        UserError: a list of something else, or both flags.
    """
    if seeds and seed:
        raise UserError(f"Both --seed {seed} and --seeds {seeds} are given.", "Give one of them.")
    return tuple(dict.fromkeys(whole_numbers("--seeds", seeds))) or (seed,)


def _plans(request: RunRequest, seeds: Sequence[int], swap: bool) -> list[Plan]:
    """A plan a seed; to swap states, one for each of own, other and none."""
    requests = [replace(request, state_of=state) for state in STATES_OF] if swap else [request]
    return [make_plan(one, seed) for one in requests for seed in seeds]


def evaluate(
    request: RunRequest, seeds: Sequence[int], storing: Storing, showing: Showing, *, swap: bool = False
) -> None:
    """`ttabench eval`: one run a seed, then one table; with `swap` one for each state too, and their differences."""
    plans = _plans(request, seeds, swap)
    models, outcomes = ModelCache(), []
    for plan in plans:
        with render.progress(showing.talking) as tick:
            watching = Watching(tick=tick, notify=render.remark if showing.talking else no_word)
            outcomes.append(execute(plan, models, storing.out or DEFAULT_OUT, force=storing.force, watching=watching))
        if outcomes[-1].how == "stored":
            _tell_stored(plan, outcomes[-1].record, showing)
    _show_runs(outcomes, request.device, showing, compared=swap)


def _tell_stored(plan: Plan, record: RunRecord, showing: Showing) -> None:
    """Remarks on a stored run: its notes, other versions, other defaults, and metrics that it lacks."""
    others, versions = plan.config.other_defaults(record.config), other_versions(record.versions)
    missing = [
        name for name in plan.task.card.metrics if name not in record.task.get("metrics", plan.task.card.metrics)
    ]
    if showing.talking:
        place = elsewhere(record, plan.config.device)
        made, again = (f", made on {place},", "anew here") if place else ("", "again")
        render.remark(f"Run {record.id} of {record.created}{made} is stored already; --force runs it {again}.")
        for note in record.notes:
            render.remark(f"Note: {note}.")
    if others or (versions and showing.talking):
        render.remark(f"Run {record.id} was made with {', '.join([*versions, *others])}.")
    if missing:
        render.remark(f"Run {record.id} was made without {', '.join(missing)}; --force runs it again.")


def elsewhere(record: RunRecord, asked: str) -> str:
    """The device and machine that a stored run was made on, where that is another kind of device than is asked for."""
    made_on = str(record.model.get("device", ""))
    if asked == "auto":
        from ttabench.core.accelerators import here

        asked = here()
    if not made_on or made_on.partition(":")[0] == asked.partition(":")[0]:
        return ""
    from ttabench.report.entry_of import computed_on

    return computed_on(record.hardware, made_on)


def _show_runs(outcomes: Sequence[Outcome], device: str, showing: Showing, *, compared: bool) -> None:
    if showing.quiet and not showing.json:
        for outcome in outcomes:
            render.print_line(str(outcome.folder))
        return
    from ttabench.report.compare import compare as compare_runs
    from ttabench.report.comparison_tables import comparison_tables
    from ttabench.report.tables import run_table

    if showing.json:
        folders = [{"folder": str(outcome.folder), "how": outcome.how} for outcome in outcomes]
        records = [outcome.record.model_dump(mode="json") for outcome in outcomes]
        content = {"runs": [{**record, **where} for record, where in zip(records, folders, strict=True)]}
        if compared:
            differences = compare_runs([outcome.folder for outcome in outcomes]).differences
            content["differences"] = [asdict(difference) for difference in differences]
        render.print_json(content)
    elif compared:
        from ttabench.report.verdict import sentences

        comparison = compare_runs([outcome.folder for outcome in outcomes])
        render.say(sentences(comparison))
        render.show(comparison_tables(comparison))
    else:
        runs = [(outcome.record, outcome.folder) for outcome in outcomes]
        render.show([run_table(runs, [place for record, _ in runs if (place := elsewhere(record, device))])])


def expected(plans: Sequence[Plan], threads: int | None) -> tuple[cost.Cost | None, Estimate | None]:
    """Cost on paper and time here of plans that differ in their seeds; None where they are not known."""
    from ttabench.cli import duration
    from ttabench.profiling.matmul_rates import Setting

    plan, request = plans[0], plans[0].request
    shape = cost.shape_of(request.model)
    if shape is None:
        return None, None
    first = next(iter(plan.task.episodes()))
    work = cost.workload(first, request.dtype)
    spec = plan.resolved.spec
    paper_cost = spec.cost(plan.resolved.settings_object, shape, work) if spec.cost else None
    rates = Setting(device=request.device, dtype=request.dtype, threads=threads)
    return paper_cost, duration.estimate(
        plans, first, duration.Paper(shape, work, paper_cost), rates
    ) if paper_cost else None


def dry_run(
    request: RunRequest, seeds: Sequence[int], showing: Showing, *, swap: bool = False, threads: int | None = None
) -> None:
    """`ttabench eval --dry-run`: the resolved configuration, its cost on paper and in time; loads no model."""
    from ttabench.report.tables import config_table, cost_table

    plans = _plans(request, seeds, swap)
    for plan in plans:
        refuse_on_paper(plan)
    paper_cost, time = expected(plans, threads)
    if showing.json:
        runs = [{"id": p.config.identity(), "config": p.config.to_json(), "notes": caveats_of_plan(p)} for p in plans]
        took = asdict(time) if time else None
        render.print_json({"runs": runs, "cost": asdict(paper_cost) if paper_cost else None, "time": took})
        return
    render.show([config_table(plans), *([cost_table(paper_cost)] if paper_cost else [])])
    for note in caveats_of_plan(plans[0]):
        render.remark(f"Note: {note}.")
    if time is not None:
        render.remark(time.sentence())
    if paper_cost is None:
        render.remark(f"No analytic cost is known for {request.method} on {request.model}.")
