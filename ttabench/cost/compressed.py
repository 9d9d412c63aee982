"""What methods cost that compress a context into a few keys and values: Gisting, Compressive Transformer, CCM.

    16 pieces, the last of 50 tokens, prompt and answer of 50, 8 COMP tokens (Llama-7B, 4-byte numbers, 1 MiB a slot):
    concat peaks at 16 x 8 + 50 = 178 slots (while answering), merge at 8 + 50 + 8 = 66 (while compressing)

Kim et al., arXiv 2312.03414: figure 5 and table 3 for what is alive when. Their "MB" are MiB at 4 bytes a number, and
they count no BOS. Merging is two operations a number and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ttabench.core.bounds import at_least
from ttabench.cost.formula import Formula
from ttabench.cost.load import INTEGER, Cost, Workload, answer, closed_book
from ttabench.cost.shape import Shape


@dataclass(frozen=True, kw_only=True)
class CompressedSettings:
    """What these methods compress a piece into."""

    comp_tokens: int = 8
    """COMP tokens, or pooled slots, of a piece."""
    lora_rank: int = 8
    """Rank of the LoRA on the attention's maps."""

    def __post_init__(self) -> None:
        at_least(0, comp_tokens=self.comp_tokens)
        at_least(1, lora_rank=self.lora_rank)


@dataclass(frozen=True, kw_only=True)
class GistingSettings(CompressedSettings):
    """Settings of Gisting."""

    online: bool = False
    """Compress each piece alone rather than the whole context at once."""


@dataclass(frozen=True)
class Compression:
    """What compressing took and left."""

    flops: int
    peak: int
    kept: int
    positions: int
    """Beyond the text read; compressing tokens take none of their own."""


def _conditional_lora(settings: CompressedSettings, shape: Shape) -> int:
    """Parameters of the LoRA on the attention's maps; it acts on COMP tokens only."""
    ends = sum(linear.ends for linear in shape.attention_linears)
    return int(settings.lora_rank * shape.layers * ends)


def kept_slots(shape: Shape, work: Workload, done: Compression, added: int) -> Cost:
    """The cost where what is kept are slots; `added`: parameters trained beforehand."""
    floats = shape.slot_floats * done.kept
    return Cost(
        parameters=shape.parameters,
        added_parameters=added,
        state_floats=floats,
        state_bytes=floats * work.value_bytes + INTEGER,
        adapt_slots=done.peak,
        ask_slots=done.kept + work.asked,
        adapt_flops=done.flops,
        ask_flops=answer(shape, work, done.kept, begun=True),
        positions=shape.starts + work.tokens + max(done.positions, work.asked),
    )


def untouched(shape: Shape, work: Workload, added: int) -> Cost:
    """The cost where nothing was read."""
    return replace(closed_book(shape, work), added_parameters=added)


def gisting(settings: GistingSettings, shape: Shape, work: Workload) -> Cost:
    """Gisting (arXiv 2304.08467, as in 2312.03414, section 4): the whole context at once, or with `online` each piece
    alone. Not online, a further piece means to compress everything again."""
    added = _conditional_lora(settings, shape) + int(settings.comp_tokens * shape.hidden)
    if not work.pieces:
        return untouched(shape, work, added)
    comp = settings.comp_tokens
    texts = work.pieces if settings.online else (work.tokens,)
    reads = [text + comp + (0 if number else shape.starts) for number, text in enumerate(texts)]
    flops = sum(shape.forward(read) for read in reads) + 2 * _conditional_lora(settings, shape) * comp * len(reads)
    return kept_slots(shape, work, Compression(flops, max(reads), comp * len(reads), comp), added)


def compressive(settings: CompressedSettings, shape: Shape, work: Workload) -> Cost:
    """Compressive Transformer (arXiv 1911.05507, as in 2312.03414): each piece's slots are pooled into `comp_tokens`.
    The paper says no more than how much memory that takes; its LoRA budget is that of CCM."""
    if not work.pieces:
        return untouched(shape, work, _conditional_lora(settings, shape))
    held = flops = peak = 0
    for number, piece in enumerate(work.pieces):
        read = piece + (0 if number else shape.starts)
        flops += shape.forward(read, held) + shape.slot_floats * read
        peak = max(peak, held + read)
        held += min(read, settings.comp_tokens)
    return kept_slots(shape, work, Compression(flops, peak, held, 0), _conditional_lora(settings, shape))


def break_even_tokens(shape: Shape, comp_tokens: int, piece_tokens: int) -> float:
    """Tokens of prompts and answers from which on compressing a piece saves operations (arXiv 2312.03414, table 12).

    A COMP token costs 2 operations a parameter of the layers; a slot less saves attention to every later token. This
    is the paper's own rule, by which its table can be computed again; `table.break_even` compares whole costs instead.
    """
    saved = shape.attention(piece_tokens - comp_tokens)
    return comp_tokens * 2 * shape.body / saved


FORMULAS = (
    Formula(name="gisting", Settings=GistingSettings, cost=gisting, paper="2304.08467"),
    Formula(name="compressive", Settings=CompressedSettings, cost=compressive, paper="1911.05507"),
)
