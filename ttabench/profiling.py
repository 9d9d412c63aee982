"""What adapting and asking cost at one context length, measured: latency, peak memory, state bytes.

    profile(lm, icl, Load(context_tokens=1024))  ->  Profile(adapt_seconds=..., ask_ms=..., ...)

The text is synthetic (cost does not depend on what it says): numbered sentences cut into pieces of `piece_tokens`
tokens of the base model. The first pass warms caches and kernels up and is not counted; of the others the median is
reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from statistics import median
from typing import Any

import torch

from ttabench.answering import answer
from ttabench.errors import UserError
from ttabench.lm import LM
from ttabench.meter import Meter
from ttabench.methods.base import BaseMethod
from ttabench.patching import encoded
from ttabench.progress import Tick, no_tick
from ttabench.types import Ask, Observe


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is read and asked.

    Raises:
        UserError: a size below 1.
    """

    context_tokens: int = 1024
    piece_tokens: int = 256
    prompt_tokens: int = 32
    new_tokens: int = 16
    asks: int = 8
    """Queries answered together."""
    repeat: int = 3

    def __post_init__(self) -> None:
        for name in ("context_tokens", "piece_tokens", "prompt_tokens", "new_tokens", "asks", "repeat"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}.", "Give 1 or more.")


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Medians over the repeats; bytes are the largest seen."""

    context_tokens: int
    """As the base model's tokenizer counts the text that was read."""
    pieces: int
    adapt_seconds: float
    encode_seconds: float
    """Reading the patch's own tokens, where it has some."""
    ask_ms: float
    """A query, of a batch of `Load.asks`."""
    state_bytes: int
    patch_bytes: int
    adapt_peak_memory_bytes: int
    ask_peak_memory_bytes: int


def profile(lm: LM, method: BaseMethod[Any], load: Load, tick: Tick = no_tick) -> Profile:
    """Measure one method at one context length.

    Raises:
        UserError: the context does not fit the model.
    """
    pieces = [Observe(text=text, key=f"piece{number}") for number, text in enumerate(texts(lm, load))]
    question = lm.decode(lm.encode(_sentences(load.prompt_tokens), load.prompt_tokens))
    asks = [Ask(prompt=question, key=f"q{i}", answers=("",), max_new_tokens=load.new_tokens) for i in range(load.asks)]
    runs = []
    for number in range(load.repeat + 1):
        runs.append(_once(lm, method, pieces, asks))
        tick("profiled", number + 1, load.repeat + 1)
    counted = runs[1:]
    return Profile(
        context_tokens=sum(len(lm.encode(piece.text + piece.joiner)) for piece in pieces),
        pieces=len(pieces),
        adapt_seconds=median(run.adapt_seconds for run in counted),
        encode_seconds=median(run.encode_seconds for run in counted),
        ask_ms=median(run.ask_ms for run in counted),
        state_bytes=runs[0].state_bytes,
        patch_bytes=runs[0].patch_bytes,
        adapt_peak_memory_bytes=max(run.adapt_peak for run in runs),
        ask_peak_memory_bytes=max(run.ask_peak for run in runs),
    )


@dataclass(frozen=True, kw_only=True)
class _Pass:
    adapt_seconds: float
    encode_seconds: float
    ask_ms: float
    state_bytes: int
    patch_bytes: int
    adapt_peak: int
    ask_peak: int


def _once(lm: LM, method: BaseMethod[Any], pieces: list[Observe], asks: list[Ask]) -> _Pass:
    meter = Meter(lm.device.type)
    state = method.begin(1)
    with meter.phase("adapt"):
        state = method.adapt_many(state, [[piece] for piece in pieces])
    with torch.no_grad():
        shared = None
        if not method.looks_at_question:
            with meter.phase("encode"):
                shared = encoded(lm, method.patch(state, asks[:1]))
        with meter.phase("ask"):
            patch = shared if shared is not None else encoded(lm, method.patch(state, asks))
            answer(lm, patch, asks, method.num_beams)
    return _Pass(
        adapt_seconds=meter.seconds["adapt"],
        encode_seconds=meter.seconds["encode"],
        ask_ms=meter.seconds["ask"] * 1000 / len(asks),
        state_bytes=state.nbytes,
        patch_bytes=patch.nbytes,
        adapt_peak=max(meter.peak_bytes["adapt"], meter.peak_bytes["encode"]),
        ask_peak=meter.peak_bytes["ask"],
    )


def texts(lm: LM, load: Load) -> list[str]:
    """Pieces of `piece_tokens` tokens each (joiner included, within a token or two), together `context_tokens`."""
    pieces: list[str] = []
    left = load.context_tokens
    joiner = len(lm.encode(Observe(text="").joiner))
    while left > joiner:
        room = min(load.piece_tokens, left)
        ids = lm.encode(_sentences(load.piece_tokens, start=len(pieces) * 1000), max(1, room - joiner))
        pieces.append(lm.decode(ids))
        left -= room
    return pieces or [lm.decode(lm.encode(_sentences(1), 1))]


def _sentences(tokens: int, start: int = 0) -> str:
    """More than `tokens` tokens of text in any tokenizer: each sentence has at least eight."""
    numbers = (number for number, _ in zip(count(start), range(tokens // 8 + 2), strict=False))
    return " ".join(f"Entry {number} of the log says that nothing happened on day {number}." for number in numbers)
