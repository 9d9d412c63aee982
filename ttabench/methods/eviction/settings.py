"""Settings of the methods that throw keys and values away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ttabench.core.bounds import at_least
from ttabench.methods.parts.amount import Amount, check_amount

Pool: TypeAlias = Literal["max", "avg"]
Group: TypeAlias = Literal["mean", "max", "sum", "per_query"]
STREAM_BLOCK = 512
"""Tokens a block of a stream has when `chunk` is not given, or as many as the model's positions allow."""


@dataclass(frozen=True, kw_only=True)
class ReadingSettings:
    """Settings of every method that evicts."""

    join: bool = True
    """What is read between two questions is one text, evicted from once; false: evict after every piece."""
    chunk: int | None = None
    """Evict after at most so many tokens (a text is cut into equal parts): bounds peak memory and positions."""
    positions: Literal["auto", "original", "cache"] = "original"
    """Kept keys stay at their places in the text, or move up to slots 0, 1, ... of the cache (rotary models only);
    auto: cache where the model is rotary."""

    def __post_init__(self) -> None:
        at_least(1, chunk=self.chunk)


@dataclass(frozen=True, kw_only=True)
class WindowSettings(ReadingSettings):
    """Settings of `window`; the defaults are StreamingLLM's."""

    n_sink: int = 4
    """First tokens of the text that always stay, BOS included; 0 is a plain sliding window. None with mode=stride."""
    recent: Amount = 512
    """Last tokens that stay; with mode=postprefill also their share of the tokens read."""
    mode: Literal["stream", "postprefill", "stride"] = "stream"
    """Evict while reading; read everything with full attention and drop the middle afterwards; or read again what
    stays, from position 0."""
    evict: Literal["before", "after"] = "before"
    """A token of a stream sees `recent` tokens of the band with itself; or besides itself (the perplexity loop of the
    released code evicts after the token has been seen)."""
    positions: Literal["auto", "original", "cache"] = "auto"
    """As in every evicting method; auto: cache where the model is rotary, and original with mode=postprefill."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, n_sink=self.n_sink)
        check_amount("recent", self.recent)
        if isinstance(self.recent, float) and self.mode != "postprefill":
            raise ValueError(f"a share needs mode=postprefill: a stream has no length yet, got recent={self.recent}")
        if self.mode == "postprefill" and self.positions == "cache":
            raise ValueError("mode=postprefill keeps original positions, got positions=cache")
        if self.mode == "stride" and self.recent < 2:
            raise ValueError(f"mode=stride keeps recent - 1 tokens, got recent={self.recent}")
        if self.mode == "stride" and self.positions != "auto":
            raise ValueError(f"mode=stride keeps no cache that has positions, got positions={self.positions}")


@dataclass(frozen=True, kw_only=True)
class SnapKVSettings(ReadingSettings):
    """Settings of `snapkv`; window, kernel and pool default to the paper's LongBench configuration."""

    budget: Amount = 1024
    """Tokens kept in every layer, the window included; or their share of the tokens read."""
    window: Amount = 32
    """Last tokens of the context (or their share of it), which observe and always stay. A last piece that is shorter
    observes with all its tokens."""
    kernel: int = 7
    """Slots whose scores are pooled around each one; odd."""
    pool: Pool = "max"
    """How they are pooled; averages count zeros beyond the ends."""
    group: Group = "mean"
    """How the query heads of one key/value head are heard. per_query (as released: one cache a query head) needs a
    model without grouped queries, where all ways are alike."""
    query_aware: bool = False
    """The question is read behind the context before anything is evicted: its tokens end the window, and those it
    leaves free are the context's last, which stay. The state is then the full cache, and grows with the context;
    budget and shares are still those of the context."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_amount("budget", self.budget)
        check_amount("window", self.window)
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, got {self.kernel}")
        if type(self.window) is type(self.budget) and self.window >= self.budget:
            raise ValueError(f"window must be smaller than the budget {self.budget}, got {self.window}")


@dataclass(frozen=True, kw_only=True)
class H2OSettings(ReadingSettings):
    """Settings of `h2o`; the defaults are the released code's."""

    heavy: Amount = 0.1
    """Heavy hitters kept in every layer and head; or their share of the tokens read."""
    recent: Amount = 0.1
    """Last tokens kept; or their share of the tokens read."""
    evict_decode: bool = True
    """Evict after the prompt, then one slot a token of the answer, as published; shares are those of context and
    prompt. false: prompt and answer are appended and evict nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_amount("heavy", self.heavy)
        check_amount("recent", self.recent)
