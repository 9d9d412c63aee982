"""The work of an episode in tokens, its cost, and the part that all methods share: answering."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

from ttabench.core.amounts import CHARACTERS_A_TOKEN
from ttabench.core.types import Ask, Episode, Generate, Json, Observe, Score
from ttabench.cost.shape import Shape

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 4}
INTEGER = 8
"""Bytes of a token id, a position or a count in a state (int64)."""
SINGLE = 4
"""Bytes of a float32, or of an index (int32)."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """How much is read and asked in one episode."""

    pieces: tuple[int, ...]
    """Tokens of every piece, its joiner included; no BOS."""
    prompt_tokens: int
    new_tokens: int
    """Tokens written, EOS included; an upper limit where a task only gives that."""
    value_bytes: int = 4
    """Of the base model's number format."""
    asked_between: tuple[int, ...] = ()
    """How many of the pieces stand before a query, for each place but the last at which something is asked."""

    @property
    def runs(self) -> tuple[int, ...]:
        """Tokens of the pieces between which nothing is asked, one number a run."""
        return tuple(sum(self.pieces[start:end]) for start, end in pairwise((0, *self.asked_between, len(self.pieces))))

    @property
    def tokens(self) -> int:
        """Of all pieces."""
        return sum(self.pieces)

    @property
    def asked(self) -> int:
        """Positions of prompt and answer: the last token written is never read."""
        return self.prompt_tokens + self.new_tokens - 1


def workload(episode: Episode, dtype: str) -> Workload:
    """The sizes of an episode, at 4 characters a token: no tokenizer is loaded for an estimate."""
    asks, places = episode.asks(), accumulate(isinstance(step, Observe) for step in episode.steps)
    # tokens that are written, or scored where a continuation or options are given
    answers = [
        want.max_new_tokens
        if isinstance(want, Generate)
        else _tokens([want.continuation] if isinstance(want, Score) else want.options)
        for want in (ask.want for ask in asks)
    ]
    asked = {place for step, place in zip(episode.steps, places, strict=True) if isinstance(step, Ask)}
    return Workload(
        pieces=tuple(_tokens([piece.text]) for piece in episode.observes()),
        asked_between=tuple(sorted(asked - {0, len(episode.observes())})),
        prompt_tokens=_tokens([ask.prompt for ask in asks]),
        new_tokens=max(answers),
        value_bytes=BYTES.get(dtype, 4),
    )


def _tokens(texts: Sequence[str]) -> int:
    return max(1, round(sum(map(len, texts)) / CHARACTERS_A_TOKEN / len(texts)))


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Analytic cost of one method on one workload. Keys and values of one position of all layers are one slot."""

    parameters: int
    """Of the base model."""
    added_parameters: int = 0
    """Trained beforehand and kept beside the base model."""
    state_floats: int = 0
    """Fractional numbers in the state after the last piece: keys, values, latents, deltas, moments, scores."""
    state_bytes: int = 0
    """Of the whole state, its token ids, places and counts too."""
    adapt_slots: int = 0
    """Most slots alive while adapting (of what a gradient step keeps, only these)."""
    ask_slots: int = 0
    """Most slots alive while one query is answered."""
    adapt_flops: int = 0
    """Reading all pieces, and whatever all later queries share."""
    ask_flops: int = 0
    """One query, its answer included."""
    positions: int = 0
    """Positions that the base model must have."""


def answer(shape: Shape, work: Workload, context: int, *, begun: bool) -> int:
    """Operations of reading the prompt behind `context` slots and writing the answer token by token. `context`: slots
    in front of the prompt; `begun`: whether the context holds what begins a text; else the prompt starts with it."""
    prompt = work.prompt_tokens + (0 if begun else shape.starts)
    # a token that is written attends to what is there: nothing is masked
    written = replace(shape, dense=False).forward(work.new_tokens - 1, context + prompt)
    return shape.forward(prompt, context) + written + shape.head(work.new_tokens)


def closed_book(shape: Shape, work: Workload) -> Cost:
    """The base model as it is, with weights merged into it or without: no context in the window, no state."""
    slots = shape.starts + work.asked
    return Cost(
        parameters=shape.parameters,
        ask_slots=slots,
        ask_flops=answer(shape, work, 0, begun=False),
        positions=slots,
    )


def in_window(shape: Shape, work: Workload, slots: int, **more: int) -> Cost:
    """So many slots, which are read once, before the first query, and stand in front of each; `more`: other figures."""
    asked = slots + work.asked
    figures = {
        "adapt_slots": slots,
        "ask_slots": asked,
        "adapt_flops": shape.forward(slots),
        "ask_flops": answer(shape, work, slots, begun=True),
        "positions": asked,
    }
    return Cost(parameters=shape.parameters, **{**figures, **more})


def read_again(shape: Shape, work: Workload, tokens: int) -> Cost:
    """A state of the newest `tokens` tokens, which are read once, before the first query."""
    return in_window(shape, work, shape.starts + tokens, state_bytes=INTEGER * (tokens + 1))


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """Settings of a method that has none."""


@dataclass(frozen=True, kw_only=True)
class Formula:
    """A method on paper."""

    name: str
    Settings: type[Any] = NoSettings
    """A frozen dataclass, every field with a default and a docstring under it; it refuses values with ValueError."""
    presets: Mapping[str, Any] = field(default_factory=dict)
    """Settings by preset name; a preset named like the base model is its default."""
    paper: str = ""
    """arXiv id."""
    cost: Callable[[Any, Shape, Workload], Cost | None] | None = None
    """What it costs: (settings, base model, what is read and asked); None where no formula is known at all, or for
    these settings."""
    retired: Mapping[str, Json] = field(default_factory=dict)
    """Settings of earlier versions, with the one value that there is now: stored runs name them."""
