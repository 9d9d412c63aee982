"""What compressing pieces into a few slots costs.

    16 pieces, the last of 50 tokens, prompt and answer of 50, 8 COMP tokens (Llama-7B, 4-byte numbers, 1 MiB a slot):
    concat peaks at 16 x 8 + 50 = 178 slots (while answering), merge at 8 + 50 + 8 = 66 (while compressing)

Kim et al., arXiv 2312.03414: figure 5 and table 3 for what is alive when. Their "MB" are MiB at 4 bytes a number, and
they count no BOS. Merging is two operations a number and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from ttabench.cost.load import INTEGER, SINGLE, Cost, Workload, answer, closed_book
from ttabench.cost.lowrank import Factors, targeted
from ttabench.cost.shape import LEARNED_POSITIONS, Shape
from ttabench.methods.ccm.settings import AttentionLora, CcmSettings, CompressiveSettings, GistingSettings


@dataclass(frozen=True)
class _Read:
    """Operations and slots of compressing."""

    flops: int
    peak: int
    kept: int
    positions: int
    """Beyond the text read; compressing tokens take none of their own."""
    integers: int = 1
    """Places and token ids in the state."""


def ccm(settings: CcmSettings, shape: Shape, work: Workload) -> Cost:
    """CCM (arXiv 2312.03414, equations 1 to 3)."""
    factors, comp = _factors(settings, shape), settings.comp_tokens
    if not work.pieces:
        return _closed(settings, shape, work)
    if settings.window is not None:
        return _streamed(settings, settings.window, shape, work)
    sink = shape.starts if settings.sink else 0
    held = peak = 0
    flops = _begun(settings, shape)
    for number, piece in enumerate(work.pieces):
        behind = shape.starts if not number else held if settings.recursive else sink
        flops += shape.forward(piece + comp, behind) + factors.forward(_adapted(settings, shape, piece))
        peak = max(peak, behind + piece + comp)
        held = comp + (held if settings.update == "concat" and number else sink)
    return _with_comp_tokens(settings, shape, work, _Read(flops, peak, held, comp))


def _streamed(settings: CcmSettings, window: int, shape: Shape, work: Workload) -> Cost:
    """A stream: padded to its window, with the place of every slot."""
    factors, comp, first = _factors(settings, shape), settings.comp_tokens, max(1, shape.starts)
    left, held, memory, flops, peak = shape.starts + work.tokens, 0, 0, 0, 0
    everywhere = 0 if settings.conditional else factors.forward(left)
    while left:
        part = min(left, window + 1 - held)
        flops, left, held = flops + shape.forward(part, held), left - part, held + part
        peak = max(peak, held)
        if held <= window:
            break
        read = first + memory + settings.piece
        if settings.compress:
            flops += shape.forward(comp, read) + factors.forward(comp)
        more = min(settings.memory, memory + comp) - memory
        held, memory = held - settings.piece + more, memory + more
    cost = _with_comp_tokens(settings, shape, work, _Read(flops + everywhere, peak, held, 0))
    padded = shape.slot_floats * window
    moved = shape.model_type not in LEARNED_POSITIONS
    return replace(
        cost,
        state_floats=padded,
        state_bytes=padded * work.value_bytes + SINGLE * window + INTEGER,
        positions=max(peak, held + work.asked) if moved else shape.starts + work.tokens + work.asked,
    )


def gisting(settings: GistingSettings, shape: Shape, work: Workload) -> Cost:
    """Gisting (arXiv 2304.08467, as in 2312.03414, section 4): whatever is read on, everything is compressed again."""
    factors, comp = _factors(settings, shape), settings.comp_tokens
    if not work.pieces:
        return _closed(settings, shape, work)
    flops = 0
    for text in accumulate(work.runs):
        flops += _begun(settings, shape) + shape.forward(text + comp, shape.starts)
        flops += factors.forward(_adapted(settings, shape, text))
    peak, integers = shape.starts + work.tokens + comp, 2 + work.tokens
    return _with_comp_tokens(settings, shape, work, _Read(flops, peak, comp, comp, integers))


def gisting_online(settings: GistingSettings, shape: Shape, work: Workload) -> Cost:
    """Gisting, each piece alone (arXiv 2312.03414, section 4); what begins the text stands before the first.

    Slots that wait beside a piece being compressed are not counted, as in the paper.
    """
    factors, comp = _factors(settings, shape), settings.comp_tokens
    if not work.pieces:
        return _closed(settings, shape, work)
    behind = [shape.starts, *[0] * (len(work.pieces) - 1)]
    flops = _begun(settings, shape) + sum(
        shape.forward(piece + comp, before) + factors.forward(_adapted(settings, shape, piece))
        for piece, before in zip(work.pieces, behind, strict=True)
    )
    peak = max(piece + comp + before for piece, before in zip(work.pieces, behind, strict=True))
    return _with_comp_tokens(settings, shape, work, _Read(flops, peak, comp * len(work.pieces), comp))


def compressive(settings: CompressiveSettings, shape: Shape, work: Workload) -> Cost:
    """Compressive Transformer (arXiv 1911.05507), pieces pooled as `compressive` does; means are left out."""
    factors = _factors(settings, shape)
    taps = settings.ratio if settings.pool == "conv" else 0
    added = factors.size + 2 * shape.layers * taps * shape.head_dim**2
    if not work.pieces:
        return replace(closed_book(shape, work), added_parameters=added)
    held, peak, flops = 0, 0, shape.forward(shape.starts)
    for number, piece in enumerate(work.pieces):
        behind = held if number else shape.starts
        slots = min(settings.slots, piece) if settings.slots else -(-piece // settings.ratio)
        flops += shape.forward(piece, behind) + factors.forward(piece)
        flops += 2 * slots * taps * shape.head_dim * shape.slot_floats
        peak = max(peak, behind + piece)
        held += slots
    return _kept(shape, work, _Read(flops, peak, held, 0), added)


def _factors(settings: AttentionLora, shape: Shape) -> Factors:
    maps = targeted(settings.targets, shape) if settings.targets else list(shape.attention_linears)
    return Factors(shape, settings.rank, maps)


def _begun(settings: GistingSettings, shape: Shape) -> int:
    """Operations of reading what begins a text."""
    adapted = 0 if settings.conditional else _factors(settings, shape).forward(shape.starts)
    return shape.forward(shape.starts) + adapted


def _adapted(settings: GistingSettings, shape: Shape, text: int) -> int:
    """Tokens of text and COMP that pass the factors; what is computed for the text, too, may then be left out."""
    return settings.comp_tokens if settings.conditional and not shape.dense else text + settings.comp_tokens


def _with_comp_tokens(settings: GistingSettings, shape: Shape, work: Workload, done: _Read) -> Cost:
    """With the embeddings of COMP tokens, and questions under the factors where these act at every token."""
    factors = _factors(settings, shape)
    cost = _kept(shape, work, done, factors.size + settings.comp_tokens * shape.hidden)
    return cost if settings.conditional else _under_factors(cost, factors, work.asked)


def _closed(settings: GistingSettings, shape: Shape, work: Workload) -> Cost:
    """Where nothing was read."""
    factors = _factors(settings, shape)
    cost = replace(closed_book(shape, work), added_parameters=factors.size + settings.comp_tokens * shape.hidden)
    return cost if settings.conditional else _under_factors(cost, factors, shape.starts + work.asked)


def _under_factors(cost: Cost, factors: Factors, tokens: int) -> Cost:
    """Questions and answers are read under the factors, too."""
    return replace(cost, ask_flops=cost.ask_flops + factors.forward(tokens))


def _kept(shape: Shape, work: Workload, done: _Read, added: int) -> Cost:
    """The cost where what is kept are slots; `added`: parameters trained beforehand."""
    floats = shape.slot_floats * done.kept
    return Cost(
        parameters=shape.parameters,
        added_parameters=added,
        state_floats=floats,
        state_bytes=floats * work.value_bytes + INTEGER * done.integers,
        adapt_slots=done.peak,
        ask_slots=done.kept + work.asked,
        adapt_flops=done.flops,
        ask_flops=answer(shape, work, done.kept, begun=True),
        positions=shape.starts + work.tokens + max(done.positions, work.asked),
    )
