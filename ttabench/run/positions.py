"""Whether a base model has positions for all that a method keeps of a context, seen before the first query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Choose, Episode, Generate, Observe, Score
from ttabench.cost import Shape, Workload
from ttabench.readers.tokens import Tokens

if TYPE_CHECKING:
    from ttabench.lm.model import LM
    from ttabench.run.plan import Plan


def refuse_by_tokens(plan: Plan, lm: LM) -> None:
    """Refuse a plan whose contexts need more positions than its base model has."""
    spec, settings, config = plan.resolved.spec, plan.resolved.settings_object, plan.config
    if spec.cost is None or not lm.max_positions or config.ask_only or config.state_of != "own":
        return
    shape = Shape(
        layers=lm.layers, hidden=lm.hidden_size, heads=lm.heads, kv_heads=lm.kv_heads, head_dim=lm.head_dim,
        feed_forward=4 * lm.hidden_size, vocabulary=lm.vocab_size, gated=False, tied=True,
        model_type=str(lm.config.model_type), starts=len(lm.start_ids), positions=lm.max_positions,
    )  # fmt: skip
    most = spec.most(settings, lm.max_positions) if spec.most else None
    for episode in plan.task.episodes(lm):
        work = _most_at_once(episode, lm)
        cost = spec.cost(settings, shape, work)
        if most is not None and work.tokens > most:
            fault = f"{spec.name} would read {work.tokens:,} tokens of {episode.key}, but can read only {most:,}"
        elif cost is not None and cost.positions > lm.max_positions:
            fault = f"{spec.name} needs {cost.positions:,} positions for {episode.key}"
        else:
            continue
        advice = "Read less of the task (--task-set), keep less (--set truncate=left), or take --method window."
        raise UserError(f"{fault}: {config.model} has {lm.max_positions:,} positions.", advice)


def _most_at_once(episode: Episode, tokens: Tokens) -> Workload:
    """Tokens read and asked up to the query with most in front of it, itself included; joiners are left out."""
    pieces: list[int] = []
    stops: set[int] = set()
    most, place = 0, (0, 1, 1)
    for step in episode.steps:
        if isinstance(step, Observe):
            pieces.append(len(step.ids) or len(tokens.encode(step.text)))
            continue
        prompt, new = _asked(step, tokens)
        stops.add(len(pieces))
        if sum(pieces) + prompt + new > most:
            most, place = sum(pieces) + prompt + new, (len(pieces), prompt, new)
    count, prompt, new = place
    between = tuple(sorted(stop for stop in stops if 0 < stop < count))
    return Workload(pieces=tuple(pieces[:count]), prompt_tokens=prompt, new_tokens=new, asked_between=between)


def _asked(ask: Ask, tokens: Tokens) -> tuple[int, int]:
    """Tokens of a prompt, and those written or scored behind it."""
    want = ask.want
    if isinstance(want, Score):
        return len(want.prompt_ids), len(want.ids) or len(tokens.encode(want.continuation))
    if isinstance(want, Choose):
        return len(tokens.encode(ask.prompt)), max(len(tokens.encode(option)) for option in want.options)
    assert isinstance(want, Generate), want
    return len(tokens.encode(ask.prompt)), want.max_new_tokens
