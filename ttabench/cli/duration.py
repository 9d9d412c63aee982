"""What runs should cost: on paper, and in time on this machine, which is their operations over its rate of products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ttabench.core.errors import UserError
from ttabench.core.progress import in_words
from ttabench.core.types import Episode, Json
from ttabench.cost import Cost, Workload, shape_of, workload

if TYPE_CHECKING:
    from ttabench.run.plan import Plan

CALLS_A_LAYER = 200
"""Calls of a layer on next to no numbers for one token behind a cache: 221 (nano), 399 (SmolLM2-135M)."""
ELEMENTS = 180
"""Operations of a layer for a token beside products and calls, on as many numbers as the model is wide: 171
(SmolLM2-135M) to 212 (nano) for 512 tokens."""
MOST_CALLS = 0.5
"""Share of the time that calls may take where an estimate is more than a lower bound."""
TOGETHER = 64
"""Queries that `--batch-size auto` begins with on a processor."""


def expected(plans: Sequence[Plan], threads: int | None) -> tuple[Cost | None, dict[str, Json] | None]:
    """Cost of an episode on paper, and `seconds` of these plans, which differ in their seeds; None where not known.

    Times are `at_least` so long where calls take most of them, which are only counted roughly.
    """
    from ttabench.profiling.matmul_rates import rates_of

    plan, request, spec = plans[0], plans[0].request, plans[0].resolved.spec
    shape = shape_of(request.model)
    if shape is None or spec.cost is None:
        return None, None
    first = next(iter(plan.task.episodes()))
    work = workload(first, request.dtype)
    cost = spec.cost(plan.resolved.settings_object, shape, work)
    if cost is None:
        return None, None
    try:
        rates = rates_of(request.device, request.dtype, threads)
    except UserError:  # a run may be planned where it cannot be made
        return cost, None
    load = _load(plan, first, work, cost)
    products = sum(flops / rates.flops(rows, shape.hidden) for flops, rows, _ in load)
    tokens = sum(flops for flops, _, _ in load) / (2 * shape.body)
    between = tokens * shape.layers * shape.hidden * ELEMENTS * rates.element_seconds
    calls = sum(passes for _, _, passes in load) * shape.layers * CALLS_A_LAYER * rates.call_seconds
    seconds = products + between + calls
    return cost, {"seconds": seconds * len(plans), "at_least": calls > MOST_CALLS * seconds}


def in_time(time: Mapping[str, Json]) -> str:
    """`about 3 minutes`."""
    return f"{'at least' if time['at_least'] else 'about'} {in_words(time['seconds'])}"


def _load(plan: Plan, first: Episode, work: Workload, cost: Cost) -> list[tuple[float, float, float]]:
    """(operations, rows that go together, passes through the model) of reading, prompts, and what is written."""
    asks = first.asks()
    together = min(max(1, len(asks)), plan.config.batch_size or TOGETHER)
    # tokens that are written go through the model one by one, all others at once
    written = work.new_tokens - 1 if asks and asks[0].mode == "generate" else 0
    writing = cost.ask_flops * written / work.asked
    batches = plan.task.n_asks / together
    load: list[tuple[float, float, float]] = [
        (plan.task.n_asks * (cost.ask_flops - writing), together * (work.asked - written), batches),
        (plan.task.n_asks * writing, together, batches * written),
    ]
    if cost.adapt_flops and not plan.config.ask_only:
        episodes = plan.task.n_observes / max(1, len(first.observes()))
        load.append((episodes * cost.adapt_flops, max(work.pieces), plan.task.n_observes))
    return load
