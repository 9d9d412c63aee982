"""What is kept of a run while it goes on: one value for every answered query, one for every episode that is done."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace

from ttabench.core.types import Ask, Json
from ttabench.stats.aggregation import Unit


@dataclass(frozen=True, kw_only=True)
class AskCost:
    """What asking one group of queries, under one patch or one after the other, has cost so far."""

    group: str
    """Key of the first query of the group."""
    encode_seconds: float = 0.0
    """To encode the patch that all of them share."""
    encode_cpu_seconds: float = 0.0
    """The same of the processor."""
    encode_peak_bytes: int = 0
    patch_bytes: int = 0
    held_bytes: int = 0
    """Keys and values that are kept between the queries."""
    ask_peak_bytes: int = 0

    def answered(self, patch_bytes: int, peak_bytes: int) -> AskCost:
        """The same after one more batch of queries."""
        patch, peak = max(self.patch_bytes, patch_bytes), max(self.ask_peak_bytes, peak_bytes)
        return replace(self, patch_bytes=patch, ask_peak_bytes=peak)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One answered query."""

    episode: str
    key: str
    mode: str
    step: int
    context_tokens: int | None
    about: str
    prompt: str
    prediction: str
    answers: list[str]
    metrics: dict[str, float]
    ask_ms: float
    """Its share of the batch it was answered in."""
    ask_cpu_ms: float | None = None
    """The same of the processor; None where it was not measured."""
    logprobs: list[float] = field(default_factory=list)
    """Summed log-probability of each option (`choose`), of the continuation (`score`) or of the gold answer
    (`generate`)."""
    tokens: list[int] = field(default_factory=list)
    """Number of tokens of each of them."""
    blank: list[float] = field(default_factory=list)
    """Summed log-probability of each option without the question, where the task wants it."""
    part: str = ""
    """Sub-task or book, where the task has several."""
    position: int = 0
    """Tokens of the text in front of a scored stretch of it."""
    words: int = 0
    """Words that begin in it."""
    ended: bool = True
    """Whether a generated answer came to an end of its own."""
    asked: AskCost | None = None
    """What its group of queries had cost when it was answered: a run that goes on counts it, too."""

    def unit(self) -> Unit:
        """The stretch that this sample scored: of a text (`score`), or the gold answer (`generate`); not which text."""
        assert self.mode != "choose", f"{self.key} was answered by choosing"
        return Unit("", -self.logprobs[0], self.tokens[0], self.words)

    def answers_this(self, ask: Ask, metrics: Collection[str]) -> bool:
        """Whether it can be an answer to this query: their places in the task agree, the figures needed are there."""
        ours = (self.mode, self.step, self.part, self.position, self.words)
        scored = self.mode == "choose" or bool(self.logprobs and self.tokens)
        theirs = (ask.mode, ask.step, ask.part, ask.position, ask.words)
        return ours == theirs and scored and self.metrics.keys() == set(metrics)

    def flat(self) -> dict[str, Json]:
        """One level of columns: the metrics beside the rest."""
        row = asdict(self)
        del row["metrics"], row["asked"]
        assert not set(self.metrics) & set(row), "a metric is named like a column"
        return {**row, **self.metrics}


@dataclass(frozen=True, kw_only=True)
class EpisodeCost:
    """What one episode cost, once all its queries are answered. Seconds, bytes, counts; bytes are peaks."""

    episode: str
    pieces: int
    tokens_read: int | None
    adapt_seconds: float
    encode_seconds: float
    state_bytes: int
    patch_bytes: int
    adapt_peak_bytes: int
    ask_peak_bytes: int
    truncated: dict[str, int] = field(default_factory=dict)
    """What of the context the method could not take in, by its own counts ("truncated_tokens" ...)."""
    adapt_cpu_seconds: float | None = None
    """Of the processor, reading and encoding; None where it was not measured."""
    labels: dict[str, Json] = field(default_factory=dict)
    """See `State.labels`."""
