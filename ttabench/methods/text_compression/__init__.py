"""Text compression: a shorter text is read before each query instead of the context."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ttabench.core.amounts import CHARS_PER_TOKEN
from ttabench.core.errors import require_at_least
from ttabench.cost import (
    FLOAT32_BYTES,
    INT64_BYTES,
    Cost,
    Shape,
    Workload,
    closed_book_cost,
    window_cost,
)
from ttabench.methods.eviction.spec import split_evenly
from ttabench.methods.parts.settings import Amount, as_budget, check_amount, text_tokens
from ttabench.methods.spec import MethodSpec

SELF_INFORMATION = "self_information"


@dataclass(frozen=True, kw_only=True)
class TextBudget:
    """Settings of every method that compresses text."""

    budget: Amount = 0.2
    """Tokens of the text before each query, or their share of the tokens read. BOS or the opening
    of a chat counts."""

    def __post_init__(self) -> None:
        check_amount("budget", self.budget)

    def kept_tokens(self, read: int, starts: int) -> int:
        """Return the maximum tokens of the text, after `read` tokens, see `text_tokens`."""
        return min(read, text_tokens(self.budget, read, starts))


@dataclass(frozen=True, kw_only=True)
class RandomTextSettings(TextBudget):
    """Settings of `random_text`."""

    seed: int = 0
    """Seed of the choice."""


@dataclass(frozen=True, kw_only=True)
class PromptCompressionSettings(TextBudget):
    """Settings of `prompt_compression`."""

    scorer: str = SELF_INFORMATION
    """Score of words: self_information (Selective Context, with the base model), or a token
    classifier of LLMLingua-2 by folder or hub id
    (microsoft/llmlingua-2-xlm-roberta-large-meetingbank)."""
    chunk: int = 2048
    """Maximum tokens that the base model scores at once; fewer if it has too few positions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, chunk=self.chunk)
        if not self.scorer:
            raise ValueError(f"scorer must be {SELF_INFORMATION}, a folder or a hub id")

    def parts(self, tokens: int, positions: int | None, starts: int) -> list[range]:
        """Return the token ranges of a text that are scored one by one."""
        limit = self.chunk if positions is None else min(self.chunk, positions - max(1, starts))
        return split_evenly(tokens, limit)


@dataclass(frozen=True, kw_only=True)
class SummarySettings(TextBudget):
    """Settings of `summary`."""

    prompt: str = "\n\nSummarize the facts of the text above in at most {words} words.\n\nSummary:"
    """Request after the context. {words} becomes the number of words that fit the budget."""


def text_cost(
    settings: TextBudget, shape: Shape, work: Workload, *, has_scores: bool = True
) -> Cost:
    """Compute the cost of a text within the budget, without the cost of making it.

    Args:
        has_scores: True if the state has a score per token, by which later words compete.
    """
    if not work.chunk_tokens:
        return closed_book_cost(shape, work)
    kept = settings.kept_tokens(work.tokens, shape.bos_tokens)
    scores = kept if has_scores else 0
    return window_cost(
        shape,
        work,
        shape.bos_tokens + kept,
        state_floats=scores,
        state_bytes=INT64_BYTES * (kept + 1) + FLOAT32_BYTES * scores,
    )


def prompt_compression_cost(
    settings: PromptCompressionSettings, shape: Shape, work: Workload
) -> Cost | None:
    """Compute the cost of scoring by self-information, None for a classifier."""
    if settings.scorer != SELF_INFORMATION:
        return None
    cost = text_cost(settings, shape, work)
    parts = settings.parts(work.tokens, shape.positions, shape.bos_tokens)
    # the last token of a part is never read: it is only predicted
    flops = sum(shape.forward_flops(len(part)) + shape.head_flops(len(part)) for part in parts)
    longest = max(map(len, parts), default=0)
    return replace(
        cost,
        adapt_flops=cost.adapt_flops + flops,
        adapt_slots=max(cost.adapt_slots, longest),
        positions=max(cost.positions, longest),
    )


def summary_cost(settings: SummarySettings, shape: Shape, work: Workload) -> Cost:
    """Compute the cost of one summary of the budget's length, at four characters per token."""
    cost = text_cost(settings, shape, work, has_scores=False)
    kept = settings.kept_tokens(work.tokens, shape.bos_tokens)
    if kept == work.tokens:
        return cost
    read = shape.bos_tokens + work.tokens + len(settings.prompt) // CHARS_PER_TOKEN
    # a generated token attends to all slots: nothing is masked
    generated = replace(shape, counts_masked_pairs=False).forward_flops(kept - 1, read)
    flops = shape.forward_flops(read) + generated + shape.head_flops(kept)
    slots = read + kept - 1
    return replace(
        cost,
        adapt_flops=cost.adapt_flops + flops,
        adapt_slots=slots,
        positions=cost.positions if shape.positions is None else min(slots, shape.positions),
    )


RANDOM_TEXT = MethodSpec(
    name="random_text",
    summary="random words: a control for compressed text",
    import_path="ttabench.methods.text_compression.method:RandomText",
    Settings=RandomTextSettings,
    growth="linear",
    cost=text_cost,
    keep=as_budget,
)
PROMPT_COMPRESSION = replace(
    RANDOM_TEXT,
    name="prompt_compression",
    summary="the words that are hardest to predict: Selective Context, LLMLingua-2",
    import_path="ttabench.methods.text_compression.method:PromptCompression",
    Settings=PromptCompressionSettings,
    cost=prompt_compression_cost,
    paper="2310.06201",
)
SUMMARY = replace(
    RANDOM_TEXT,
    name="summary",
    summary="a summary that the base model writes",
    import_path="ttabench.methods.text_compression.summary:Summary",
    Settings=SummarySettings,
    cost=summary_cost,
)
METHODS = (PROMPT_COMPRESSION, SUMMARY, RANDOM_TEXT)
