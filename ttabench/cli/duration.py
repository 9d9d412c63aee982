"""How long an evaluation should take on this machine: its operations on paper, over the machine's rate of products.

    estimate(plans, first, Paper(shape, work, cost), Setting()).sentence()      "It should take about 3 minutes on ..."

The products of matrices are those that the cost on paper counts. What stands between them (norms, activations,
rotations) and what the calls themselves take is added as two models that were measured have it. Where calls take most
of the time, as in small models, the estimate is a lower bound, and says so. Loading is left out; a run that is stored,
wholly or in part, takes less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ttabench.core.errors import UserError
from ttabench.core.progress import in_words
from ttabench.core.types import Episode
from ttabench.cost import Cost, Shape, Workload
from ttabench.profiling.matmul_rates import Setting, rates_of

if TYPE_CHECKING:
    from ttabench.run.plan import Plan

CALLS_A_LAYER = 200
"""What a layer takes beside its products for one token behind a cache, in calls on next to no numbers: 221 (nano), 399
(SmolLM2-135M) in transformers, of about 75 that torch sees; the rest is python."""
ELEMENTS = 180
"""What a layer takes beside products and calls for a token, in operations on as many numbers as the model is wide: 171
(SmolLM2-135M) to 212 (nano) for 512 tokens."""
MOST_CALLS = 0.5
"""Share of the time that calls may take where an estimate is more than a lower bound."""
TOGETHER = 64
"""Queries that `--batch-size auto` begins with on a processor."""


@dataclass(frozen=True)
class Paper:
    """A run on paper: the shape of the model, the tokens of one episode, and what they cost."""

    shape: Shape
    work: Workload
    cost: Cost


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Seconds that runs should take, without loading."""

    seconds: float
    at_least: bool
    """Calls take most of it, which are only counted roughly: it will be more."""
    busy: bool
    """The machine was busy when its rate was measured."""

    def sentence(self) -> str:
        """For people, to two units at most."""
        how = "at least" if self.at_least else "about"
        when = ", as busy as it was when this was measured" if self.busy else ""
        return f"It should take {how} {in_words(self.seconds)} on this machine{when}."


def estimate(plans: Sequence[Plan], first: Episode, paper: Paper, setting: Setting) -> Estimate | None:
    """The time of these runs, which differ in their seeds, together; None where their device is not here.

    Args:
        plans: resolved runs.
        first: the first episode of the first, which stands for all.
        paper: what that episode costs.
        setting: device, number format and threads.
    """
    try:
        rates = rates_of(setting)
    except UserError:  # a run may be planned where it cannot be made
        return None
    load = _load(plans[0], first, paper)
    shape = paper.shape
    products = sum(flops / rates.flops(rows, shape.hidden) for flops, rows, _ in load)
    tokens = sum(flops for flops, _, _ in load) / (2 * shape.body)
    between = tokens * shape.layers * shape.hidden * ELEMENTS * rates.element_seconds
    calls = sum(passes for _, _, passes in load) * shape.layers * CALLS_A_LAYER * rates.call_seconds
    seconds = products + between + calls
    return Estimate(seconds=seconds * len(plans), at_least=calls > MOST_CALLS * seconds, busy=rates.busy)


def _load(plan: Plan, first: Episode, paper: Paper) -> list[tuple[float, float, float]]:
    """(operations, rows that go together, passes through the model) of reading, prompts, and what is written."""
    work, cost, asks = paper.work, paper.cost, first.asks()
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
