"""Sliding window with attention sinks (StreamingLLM): settings, spec and cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ttabench.core.errors import require_at_least
from ttabench.cost import Cost, Shape, Workload, reread_cost
from ttabench.methods.eviction.spec import (
    DEPRECATED_JOIN,
    EvictionSettings,
    eviction_cost,
    eviction_spec,
    moves_keys,
)
from ttabench.methods.parts.settings import Amount, as_budget, check_amount, in_tokens

STREAM_BLOCK_TOKENS = 512
"""Maximum tokens per block of a stream if `chunk` is not set, fewer if positions are limited."""


@dataclass(frozen=True, kw_only=True)
class WindowSettings(EvictionSettings):
    """Settings of `window`; the defaults are StreamingLLM's."""

    n_sink: int = 4
    """First tokens of the text that are always kept, BOS included. 0: a plain sliding window.
    Unused with mode=stride."""
    recent: Amount = 512
    """Last tokens kept; with mode=postprefill also their share of the tokens read."""
    budget: Amount | None = None
    """Total slots, replaces `recent`. Sinks take at most half of them, recent tokens the rest."""
    mode: Literal["stream", "postprefill", "stride"] = "stream"
    """stream: evict while reading; postprefill: evict after reading with full attention; stride:
    read the kept tokens again from position 0."""
    evict: Literal["before", "after"] = "before"
    """A token of a stream sees `recent` tokens including itself (before), or excluding itself
    (after, as in the released perplexity loop)."""
    positions: Literal["auto", "original", "cache"] = "auto"
    """Positions of kept keys: original or cache; auto: cache for rotary models, original with
    mode=postprefill."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, n_sink=self.n_sink)
        name, amount = ("recent", self.recent) if self.budget is None else ("budget", self.budget)
        check_amount(name, amount)
        if isinstance(amount, float) and self.mode != "postprefill":
            raise ValueError(
                f"a share requires mode=postprefill, as a stream has no length, got {name}={amount}"
            )
        if self.mode == "stride" and amount < 2:
            raise ValueError(f"mode=stride keeps {name} - 1 tokens, got {name}={amount}")
        if (self.mode, self.positions) in (
            ("postprefill", "cache"),
            ("stride", "cache"),
            ("stride", "original"),
        ):
            raise ValueError(f"mode={self.mode} does not support positions={self.positions}")

    def amounts(self, read: int) -> tuple[int, int]:
        """Return the numbers of sinks and recent tokens kept of `read` tokens."""
        if self.budget is None:
            return self.n_sink, in_tokens(self.recent, read)
        kept = in_tokens(self.budget, read)
        sinks = 0 if self.mode == "stride" else min(self.n_sink, kept // 2)
        return sinks, kept - sinks

    def kept_tokens(self, read: int) -> int:
        """Return the number of sinks and recent tokens, with mode=stride one fewer."""
        sinks, recent = self.amounts(read)
        return recent - 1 if self.mode == "stride" else recent + sinks


def cost(settings: WindowSettings, shape: Shape, work: Workload) -> Cost:
    """Compute the cost of `window` (arXiv 2309.17453, section 3.2).

    A token of a stream attends to at most the kept slots.
    """
    if settings.mode == "postprefill":
        return eviction_cost(replace(settings, positions="original"), shape, work, by_head=False)
    sinks = settings.amounts(work.tokens)[0]
    kept = settings.kept_tokens(work.tokens)
    if settings.mode == "stride" and work.chunk_tokens:
        return reread_cost(shape, work, min(kept, work.tokens))
    moved = moves_keys(settings, shape)
    chunk = settings.chunk or STREAM_BLOCK_TOKENS
    if moved and shape.positions is not None:
        chunk = min(chunk, max(1, shape.positions - kept))
    # scores of sinks are recomputed from queries at other positions
    sink_flops = 2 * shape.layers * shape.width * sinks if moved else 0
    stream = replace(settings, chunk=chunk, mode="stream")
    band = kept + 1 if settings.evict == "after" else kept
    return eviction_cost(
        stream,
        shape,
        work,
        lambda _settings, _shape, part, *_: sink_flops * part,
        by_head=False,
        band=band,
    )


WINDOW = eviction_spec(
    "window",
    "the first and the last tokens: StreamingLLM",
    import_path="ttabench.methods.eviction.window.method:SlidingWindow",
    Settings=WindowSettings,
    presets={"book": WindowSettings(mode="stride", n_sink=0)},
    growth="constant",
    cost=cost,
    # a share needs the number of tokens, which is known after reading
    keep=lambda amount: (
        as_budget(amount) | ({"mode": "postprefill"} if isinstance(amount, float) else {})
    ),
    test_settings=WindowSettings(n_sink=2, recent=10),
    deprecated_settings=DEPRECATED_JOIN,
    paper="2309.17453",
)
