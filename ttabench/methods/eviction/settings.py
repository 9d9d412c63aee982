"""Settings of the methods that throw keys and values away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ttabench.core.errors import at_least
from ttabench.methods.parts.settings import Amount, check_amount, in_tokens

STREAM_BLOCK = 512
"""Tokens a block of a stream has when `chunk` is not given, or as many as the model's positions allow."""


@dataclass(frozen=True, kw_only=True)
class ReadingSettings:
    """Settings of every method that evicts."""

    chunk: int | None = None
    """Evict after at most so many tokens (a text is cut into equal parts): bounds peak memory and positions."""
    positions: Literal["auto", "original", "cache"] = "original"
    """Kept keys stay at their places in the text, or move up to slots 0, 1, ... of the cache (rotary models only);
    auto: cache where the model is rotary."""

    def __post_init__(self) -> None:
        at_least(1, chunk=self.chunk)

    def kept(self, read: int) -> int:
        """Tokens that stay of so many that were read."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class BudgetSettings(ReadingSettings):
    """Settings of methods with one budget."""

    budget: Amount = 0.2
    """Tokens that stay in every layer and head, or their share of the tokens read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_amount("budget", self.budget)

    def kept(self, read: int) -> int:
        """The budget in tokens."""
        return in_tokens(self.budget, read)


@dataclass(frozen=True, kw_only=True)
class WindowSettings(ReadingSettings):
    """Settings of `window`; the defaults are StreamingLLM's."""

    n_sink: int = 4
    """First tokens of the text that always stay, BOS included; 0 is a plain sliding window. None with mode=stride."""
    recent: Amount = 512
    """Last tokens that stay; with mode=postprefill also their share of the tokens read."""
    budget: Amount | None = None
    """Slots in all, sinks included: `recent` is then what the sinks leave, which take half of it at most."""
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
        name, amount = ("recent", self.recent) if self.budget is None else ("budget", self.budget)
        check_amount(name, amount)
        if isinstance(amount, float) and self.mode != "postprefill":
            raise ValueError(f"a share needs mode=postprefill: a stream has no length yet, got {name}={amount}")
        if self.mode == "stride" and amount < 2:
            raise ValueError(f"mode=stride keeps {name} - 1 tokens, got {name}={amount}")
        if (self.mode, self.positions) in (("postprefill", "cache"), ("stride", "cache"), ("stride", "original")):
            raise ValueError(f"mode={self.mode} keeps no cache with positions={self.positions}")

    def amounts(self, read: int) -> tuple[int, int]:
        """Sinks and recent tokens that stay of so many that were read."""
        if self.budget is None:
            return self.n_sink, in_tokens(self.recent, read)
        kept = in_tokens(self.budget, read)
        sinks = 0 if self.mode == "stride" else min(self.n_sink, kept // 2)
        return sinks, kept - sinks

    def kept(self, read: int) -> int:
        """Sinks and recent tokens; with mode=stride one fewer, since the query brings one."""
        sinks, recent = self.amounts(read)
        return recent - 1 if self.mode == "stride" else recent + sinks


@dataclass(frozen=True, kw_only=True)
class SnapKVSettings(BudgetSettings):
    """Settings of `snapkv`; window, kernel and pool default to the paper's LongBench configuration."""

    budget: Amount = 1024
    """Tokens kept in every layer, the window included; or their share of the tokens read."""
    window: Amount = 32
    """Last tokens of the context (or their share of it), which observe and always stay. A last piece that is shorter
    observes with all its tokens."""
    window_share: float = 1.0
    """Largest share of the budget that the window takes."""
    kernel: int = 7
    """Slots whose scores are pooled around each one; odd."""
    pool: Literal["max", "avg"] = "max"
    """How they are pooled; averages count zeros beyond the ends."""
    query_aware: bool = False
    """The question is read behind the context before anything is evicted: its tokens end the window, and those it
    leaves free are the context's last, which stay. The state is then the full cache, and grows with the context;
    budget and shares are still those of the context."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_amount("window", self.window)
        check_amount("window_share", float(self.window_share))
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, got {self.kernel}")
        if self.window_share == 1.0 and type(self.window) is type(self.budget) and self.window >= self.budget:
            raise ValueError(f"window must be smaller than the budget {self.budget}, got {self.window}")

    def amounts(self, read: int) -> tuple[int, int]:
        """Budget and window in tokens, of so many that were read."""
        budget = self.kept(read)
        return budget, min(in_tokens(self.window, read), in_tokens(float(self.window_share), budget))


@dataclass(frozen=True, kw_only=True)
class H2OSettings(ReadingSettings):
    """Settings of `h2o`; the defaults are the released code's.

    It evicts after the prompt, too, then one slot a token of the answer; shares are those of context and prompt.
    """

    heavy: Amount = 0.1
    """Heavy hitters kept in every layer and head; or their share of the tokens read."""
    recent: Amount = 0.1
    """Last tokens kept; or their share of the tokens read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_amount("heavy", self.heavy)
        check_amount("recent", self.recent)

    def amounts(self, read: int) -> tuple[int, int]:
        """Heavy hitters and recent tokens that stay of so many that were read."""
        return in_tokens(self.heavy, read), in_tokens(self.recent, read)

    def kept(self, read: int) -> int:
        """Both."""
        return sum(self.amounts(read))


@dataclass(frozen=True, kw_only=True)
class RandomSlotsSettings(BudgetSettings):
    """Settings of `random_slots`."""

    budget: Amount = 0.2
    """Slots kept in every layer and head, the first token of the text always; or their share of the tokens read."""
    seed: int = 0
    """Of the choice."""


@dataclass(frozen=True, kw_only=True)
class KVzipSettings(BudgetSettings):
    """Settings of `kvzip` and `attention_matching`; the defaults are the released code's."""

    budget: Amount = 0.2
    """Slots kept, as their share of the tokens read or as a number of tokens, of all layers and heads together."""
    repeat_chunk: int = 2048
    """Tokens of the text that are repeated at once; fewer where the model's positions leave no room."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, repeat_chunk=self.repeat_chunk)
        if self.positions != "original":
            raise ValueError(f"keys stay where they stood in the text, got positions={self.positions}")
