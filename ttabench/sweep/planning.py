"""Every cell of a suite resolved before anything runs; what is one run stands once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ttabench.core.errors import UserError
from ttabench.report.blocks import STATES
from ttabench.run.evaluation import base_of
from ttabench.run.plan import Plan, Shared, make_plan
from ttabench.sweep.engines import Job
from ttabench.sweep.grid import Cell
from ttabench.sweep.suite import BUDGETS


def planned(cells: Sequence[Cell]) -> list[Job]:
    """The runs of these cells, each once, in an order that keeps base models."""
    shared = Shared()
    made: dict[int, Job] = {}
    # those that read the same rows one after the other: rows are made once, and only the newest are kept
    for number, cell in sorted(enumerate(cells), key=lambda run: (run[1].request.task, run[1].seed)):
        made[number] = _run(cell, make_plan(cell.request, cell.seed, shared))
    runs: dict[str, Job] = {}
    for number in range(len(cells)):
        runs.setdefault(made[number].id, made[number])
    if len({run.request.base_name for run in runs.values()}) > 1:
        runs = {run.id: replace(run, model=run.request.base_name) for run in runs.values()}
    order = {base: place for place, base in enumerate(dict.fromkeys(run.base for run in runs.values()))}
    return sorted(runs.values(), key=lambda run: order[run.base])


def share(runs: Sequence[Job], part: str) -> list[Job]:
    """`--shard 2/5`: every fifth run, from the second on; the same ones wherever the same suite is given."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", part)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError(f"--shard {part[:40]!r} is no part.", "Write --shard 1/4 to 4/4.")
    return list(runs[int(match[1]) - 1 :: int(match[2])])


def _run(cell: Cell, plan: Plan) -> Job:
    request, config = cell.request, plan.config
    more = [f"checkpoint={request.checkpoint}"] if request.checkpoint else []
    budget = [f"{name}={value}" for name in BUDGETS if (value := getattr(request, name)) is not None]
    more += [f"preset={request.preset}"] if request.preset else []
    return Job(
        id=config.identity(),
        request=request,
        seed=cell.seed,
        base=repr(base_of(request, chat_template=config.chat_template)),
        method=" ".join([config.method, *budget, *request.settings, *more]) + STATES[config.state_of],
        task=" ".join(
            [config.task, *(text if len(text) <= 40 else f"{text[:37]}..." for text in request.task_options)]
        ),
    )
