"""The process of a profile that measures a method; what it finds is told as (kind, value)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ttabench.core.child import Tell
from ttabench.core.environment import quiet_libraries, seed_everything, use_threads
from ttabench.core.errors import UserError
from ttabench.lm import model as base
from ttabench.lm.forward.ways import ways_of
from ttabench.lm.loading import devices
from ttabench.lm.model import LM
from ttabench.methods.base import BaseMethod
from ttabench.profiling.batches import throughput
from ttabench.profiling.job import Job
from ttabench.profiling.measure import Measuring
from ttabench.profiling.rows import Row, measured
from ttabench.profiling.training_cost import training

SPARE = 512
"""Positions beside context, prompt and answer: sinks, BOS, what a method keeps for itself."""


def answer(request: Mapping[str, Any], tell: Tell) -> None:
    """Tell of the model, the method, and a row a length, as (kind, value); a fault of the user's is a finding, too."""
    use_threads(request.get("threads"))
    try:
        quiet_libraries()
        seed_everything(0)
        _rows(request, request["job"], tell)
    except UserError as error:
        tell(("fault", {"what": error.what, "hint": error.hint}))


def _rows(request: Mapping[str, Any], job: Job, tell: Tell) -> None:
    lm = base.load(job.model, random_weights=job.random_weights, device=job.device, dtype=job.dtype)
    name, lengths = request["method"], list(request["lengths"])
    tell(("model", lm.describe()))
    lifted = lift_positions(lm, max(lengths) + job.load.prompt_tokens + job.load.generate + SPARE)

    def built() -> BaseMethod[Any]:
        if job.memory_limit is not None:
            devices.hold_memory(job.memory_limit, lm.device)
        return job.adapters()[name].build(lm)

    method = measured(name, 0, built)
    if isinstance(method, Row):
        for length in lengths:
            tell(("row", method.model_copy(update={"prefill": length}).model_dump()))
        return
    trained = sum(parameter.numel() for parameter in method.modules().parameters())
    notes = [lifted] if lifted else []
    tell(("method", {"name": method.name, "growth": method.growth, "parameters": trained, "notes": notes}))
    measuring = Measuring(lm=lm, method=method, load=job.load, known={row.prefill: row for row in request["known"]})
    for length in lengths:
        tell(("at", length))
        if job.mode != "latency":
            row = (throughput if job.mode == "throughput" else training)(lm, method, length, job.load)
        elif job.time_limit is not None and (expected := measuring.expected(length)) > job.time_limit:
            detail = f"would take about {expected:,.0f} s a pass, more than the limit of {job.time_limit:,.0f} s"
            row = Row(method=method.name, prefill=length, status="skipped", detail=detail)
        else:
            row = measuring.row(length)
        tell(("row", row.model_dump()))
        if row.status == "oom":
            return  # what is left of it would be counted with the next length; a fresh process goes on


def lift_positions(lm: LM, needed: int) -> str:
    """Let a rotary model read further than it was trained to: rotation has no table that ends, and costs do not depend
    on values. Returns a note for the record; empty where nothing was lifted."""
    if lm.max_positions >= needed or ways_of(lm).rotary is None:
        return ""
    before, lm.max_positions = lm.max_positions, needed
    return f"positions of {lm.name} were lifted from {before:,} for measuring cost; its answers there mean nothing"
