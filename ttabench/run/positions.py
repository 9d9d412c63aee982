"""Whether a base model has positions for all that a method keeps of a context, seen before anything is answered: by
letters before a model is loaded, where it is beyond doubt; by its own tokens before the first query."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from ttabench.core.errors import UserError
from ttabench.core.sizes import short
from ttabench.core.types import Ask, Choose, Episode, Generate, Observe, Score
from ttabench.cost import Shape, Workload, shape_of
from ttabench.readers.tokens import Tokens

if TYPE_CHECKING:
    from ttabench.lm.model import LM
    from ttabench.run.plan import Plan

LONGEST = 8
"""Letters a token that no tokenizer reaches in running text."""
AMOUNTS = ("documents", "shots", "steps", "length")
"""Options of tasks that say how much is read; of books it is `tokens`."""


class _Fewest:
    """Tokens as few as they can be: so many letters each, blanks in a row counted once."""

    frame_tokens = 0

    def encode(self, text: str) -> list[int]:
        return list(range(max(2, len(" ".join(text.split())) // LONGEST)))

    def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
        ids = self.encode(text)
        return ids, [len(text) * place // len(ids) for place in ids]


def refuse_on_paper(plan: Plan) -> None:
    """Refuse a plan whose contexts need more positions than its base model has, however few tokens they are."""
    shape = shape_of(plan.request.model)
    if shape is not None:
        _refuse(plan, replace(shape, starts=0), _Fewest(), "at least ")


def refuse_by_tokens(plan: Plan, lm: LM) -> None:
    """The same by the model's own tokens."""
    shape = Shape(
        layers=lm.layers, hidden=lm.hidden_size, heads=lm.heads, kv_heads=lm.kv_heads, head_dim=lm.head_dim,
        feed_forward=4 * lm.hidden_size, vocabulary=lm.vocab_size, gated=False, tied=True,
        model_type=str(lm.config.model_type), starts=len(lm.start_ids), positions=lm.max_positions,
    )  # fmt: skip
    _refuse(plan, shape, lm, "")


def _refuse(plan: Plan, shape: Shape, tokens: Tokens, at_least: str) -> None:
    spec, settings, config = plan.resolved.spec, plan.resolved.settings_object, plan.config
    if spec.cost is None or not shape.positions or config.ask_only or config.state_of != "own":
        return
    most = spec.most(settings, shape.positions) if spec.most else None
    for episode in plan.task.episodes(tokens):
        work = _most_at_once(episode, tokens)
        cost = spec.cost(settings, shape, work)
        if most is not None and work.tokens > most:
            fault = (
                f"{spec.name} would read {at_least}{work.tokens:,} tokens of {episode.key}, but can read only {most:,}"
            )
        elif cost is not None and cost.positions > shape.positions:
            fault = f"{spec.name} needs {at_least}{cost.positions:,} positions for {episode.key}"
        else:
            continue
        advice = _advice(plan, shape.positions // 2)
        raise UserError(f"{fault}: {config.model} has {shape.positions:,} positions.", advice)


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


def _advice(plan: Plan, half: int) -> str:
    """Advice that would fit: less of the task, or settings and methods that keep less; `half` of the positions."""
    protocol, spec = plan.task_record["protocol"], plan.resolved.spec
    ways = [f"--task-set {name}=N with a smaller N" for name in AMOUNTS if name in protocol][:1]
    if "tokens" in protocol and half > protocol["window" if protocol["protocol"] == "strides" else "unit"]:
        ways = [f"--task-set tokens={short(half)}"]
    settings = {field.name for field in fields(spec.Settings)}
    ways += [f"--set truncate=left --set max_tokens={half}"] if "truncate" in settings else []
    if spec.name != "window":
        ways += [*(["--set positions=cache"] if "positions" in settings else []), "--method window"]
    ways = ways or ["a --model of more positions"]
    return f"Give {', '.join(ways[:-1])} or {ways[-1]}." if len(ways) > 1 else f"Give {ways[0]}."
