"""Samples and costs of a run in progress: one value for every answered query, one for every finished episode."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal

from ttabench.core.types import Answer, Ask, Json, Score
from ttabench.stats.aggregation import Unit


@dataclass(frozen=True, kw_only=True)
class AskCost:
    """The cost so far of asking one group of queries, under one patch or one after the other."""

    group: str
    """Key of the first query of the group."""
    encode_seconds: float = 0.0
    """To encode the patch that all of them share."""
    encode_cpu_seconds: float = 0.0
    encode_peak_bytes: int | None = 0
    """None, like all peaks, where the device does not tell."""
    patch_bytes: int = 0
    read_slots: int = 0
    """Keys and values of context that one query reads, in tokens."""
    held_bytes: int = 0
    """Keys and values that are kept between the queries."""
    ask_peak_bytes: int | None = 0


COLUMNS: dict[str, Literal["text", "number", "texts", "numbers"]] = {
    "episode": "text", "key": "text", "mode": "text", "step": "number", "context_tokens": "number",
    "source_key": "text", "prompt": "text", "prediction": "text", "answers": "texts", "ask_ms": "number",
    "ask_cpu_ms": "number", "logprobs": "numbers", "tokens": "numbers", "unconditional_logprobs": "numbers",
    "subtask": "text", "position": "number", "words": "number", "ended": "number",
    "gold_share": "number", "gold_rank": "number", "gold_age": "number", "kept_pieces": "number",
}  # fmt: skip
"""Of a table of samples, beside one of numbers a metric: what a sample, its query, what this wants, or its answer has
by that name, 0 where none of them has it; and what stands in a row, where a number may be missing."""


@dataclass(frozen=True, kw_only=True)
class Looked:
    """How a query looks at the piece of context that holds its answer, of a method that tells (`piece_shares`)."""

    gold_share: float = 0.0
    """Of all that it looks at, 0 to 1."""
    gold_rank: int = 0
    """1 where no other kept piece matches better; 0 where that piece is not kept."""
    gold_age: int = 0
    """Kept pieces that were read after it."""
    kept_pieces: int = 0
    """How many there are; 0 where the method tells nothing, too many pieces were read (`run.runner`), or nobody knows
    which one holds the answer."""


def kept(ask: Ask) -> Ask:
    """A query as samples keep it: without the pieces of its window, and without the stretch of a book to score."""
    want = ask.want
    if isinstance(want, Score):
        want = replace(want, continuation="" if want.ids else want.continuation, ids=(), prompt_ids=())
    return replace(ask, window=(), want=want)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One answered query."""

    episode: str
    ask: Ask
    """As `kept`."""
    answer: Answer
    metrics: dict[str, float]
    context_tokens: int | None
    """Tokens that its reader had read."""
    ask_ms: float
    """Its share of the batch it was answered in."""
    ask_cpu_ms: float | None = None
    """The same of the processor; None where it was not measured."""
    asked: AskCost | None = None
    """Cost of its group of queries when it was answered: a run that goes on counts it, too."""
    looked: Looked = Looked()

    @property
    def key(self) -> str:
        """Of the query."""
        return self.ask.key

    @property
    def step(self) -> int:
        """Where in the stream the query was asked, see `types.At`."""
        return self.ask.at.count

    def unit(self) -> Unit:
        """The stretch that this sample scored: of a text (`Score`), or the gold answer (`Generate`); not which text."""
        assert self.ask.mode != "choose", f"{self.key} was answered by choosing"
        words = self.ask.want.words if isinstance(self.ask.want, Score) else 0
        return Unit("", -self.answer.logprobs[0], self.answer.tokens[0], words)

    def answers_this(self, ask: Ask, metrics: Collection[str]) -> bool:
        """Whether it can be an answer to this query: it was asked the same, and the figures needed are there."""
        scored = ask.mode == "choose" or bool(self.answer.logprobs and self.answer.tokens)
        return self.ask == kept(ask) and scored and self.metrics.keys() == set(metrics)

    def flat(self) -> dict[str, Json]:
        """One level of columns: the metrics beside the rest."""
        assert not set(self.metrics) & set(COLUMNS), "a metric is named like a column"
        levels = (self, self.ask, self.ask.want, self.answer, self.looked)
        cells = {name: next((getattr(e, name) for e in levels if hasattr(e, name)), 0) for name in COLUMNS}
        row = {name: list(cell) if isinstance(cell, tuple) else cell for name, cell in cells.items()}
        return {**row, **self.metrics}


@dataclass(frozen=True, kw_only=True)
class EpisodeCost:
    """The cost of one finished episode: seconds, bytes, counts; bytes are peaks."""

    episode: str
    pieces: int
    tokens_read: int | None
    adapt_seconds: float
    encode_seconds: float
    state_bytes: int
    patch_bytes: int
    adapt_peak_bytes: int | None
    ask_peak_bytes: int | None
    slots: tuple[float, int] | None = None
    """Of a method with a budget: what it kept, in keys and values of one token, and what full context keeps (tokens
    read, with what begins a text)."""
    truncated: dict[str, int] = field(default_factory=dict)
    """Context that the method could not read, by its own counts ("truncated_tokens" ...)."""
    adapt_cpu_seconds: float | None = None
    """Of the processor, reading and encoding; None where it was not measured."""
    labels: dict[str, Json] = field(default_factory=dict)
