"""What compressing pieces into a few slots costs (Kim et al., arXiv 2312.03414, figure 5 and table 3).

Their "MB" are MiB at 4 bytes a number, and they count no BOS; merging and means are left out. Of COMP tokens whose
deltas act at every token (`conditional=false`) no cost is known.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from ttabench.cost.load import INTEGER, SINGLE, Cost, Workload, closed_book, in_window
from ttabench.cost.shape import LEARNED_POSITIONS, Factors, Shape, targeted
from ttabench.methods.ccm.settings import AttentionLora, CcmSettings, CompressiveSettings, GistingSettings


def ccm(settings: CcmSettings, shape: Shape, work: Workload) -> Cost | None:
    """CCM (arXiv 2312.03414, equations 1 to 3)."""
    if not settings.conditional or not work.pieces:
        return _closed(settings, shape, work)
    if settings.window is not None:
        return _streamed(settings, settings.window, shape, work)
    comp, sink = settings.comp_tokens, shape.starts if settings.sink else 0
    held = peak = 0
    flops = shape.forward(shape.starts)
    for number, (piece, read) in enumerate(zip(work.pieces, accumulate(work.pieces), strict=True)):
        behind = shape.starts if not number else held if settings.recursive else sink
        flops += shape.forward(piece + comp, behind) + _adapting(settings, shape, piece)
        peak = max(peak, behind + piece + comp)
        held = comp + (held if settings.update == "concat" and number else sink)
        if (groups := settings.groups(read + shape.starts)) is not None:
            held = min(held, sink + groups * comp)
    return _kept(shape, work, _added(settings, shape), flops, peak, held, comp)


def _streamed(settings: CcmSettings, window: int, shape: Shape, work: Workload) -> Cost:
    """A stream: padded to its window, with the place of every slot."""
    comp, first = settings.comp_tokens, settings.first_slots(shape.starts)
    left, held, memory, flops, peak = shape.starts + work.tokens, 0, 0, 0, 0
    while left:
        part = min(left, window + 1 - held)
        flops, left, held = flops + shape.forward(part, held), left - part, held + part
        peak = max(peak, held)
        if held <= window:
            break
        if settings.compress:
            read = first + memory + settings.piece
            flops += shape.forward(comp, read) + _factors(settings, shape).forward(comp)
        more = min(settings.memory, memory + comp) - memory
        held, memory = held - settings.piece + more, memory + more
    padded, moved = shape.slot_floats * window, shape.model_type not in LEARNED_POSITIONS
    return replace(
        _kept(shape, work, _added(settings, shape), flops, peak, held, 0),
        state_floats=padded,
        state_bytes=padded * work.value_bytes + SINGLE * window + INTEGER,
        positions=max(peak, held + work.asked) if moved else shape.starts + work.tokens + work.asked,
    )


def gisting(settings: GistingSettings, shape: Shape, work: Workload) -> Cost | None:
    """Gisting (arXiv 2304.08467, as in 2312.03414, section 4): whatever is read on, everything is compressed again."""
    if not settings.conditional or not work.pieces:
        return _closed(settings, shape, work)
    comp, flops = settings.comp_tokens, 0
    for text in accumulate(work.runs):
        flops += shape.forward(shape.starts) + shape.forward(text + comp, shape.starts)
        flops += _adapting(settings, shape, text)
    peak = shape.starts + work.tokens + comp
    return _kept(shape, work, _added(settings, shape), flops, peak, comp, comp, 2 + work.tokens)


def gisting_online(settings: GistingSettings, shape: Shape, work: Workload) -> Cost | None:
    """Gisting, each piece alone (arXiv 2312.03414, section 4); what begins the text stands before the first. Slots
    that wait beside a piece being compressed are not counted, as in the paper."""
    if not settings.conditional or not work.pieces:
        return _closed(settings, shape, work)
    comp, peak, flops, before = settings.comp_tokens, 0, shape.forward(shape.starts), shape.starts
    for piece in work.pieces:
        flops += shape.forward(piece + comp, before) + _adapting(settings, shape, piece)
        peak, before = max(peak, piece + comp + before), 0
    return _kept(shape, work, _added(settings, shape), flops, peak, comp * len(work.pieces), comp)


def compressive(settings: CompressiveSettings, shape: Shape, work: Workload) -> Cost:
    """Compressive Transformer (arXiv 1911.05507), pieces pooled as `compressive` does."""
    factors = _factors(settings, shape)
    taps = settings.ratio if settings.pool == "conv" else 0
    added = factors.size + 2 * shape.layers * taps * shape.head_dim**2
    if not work.pieces:
        return replace(closed_book(shape, work), added_parameters=added)
    held, peak, flops, behind = 0, 0, shape.forward(shape.starts), shape.starts
    for piece in work.pieces:
        slots = min(settings.slots, piece) if settings.slots else -(-piece // settings.ratio)
        flops += shape.forward(piece, behind) + factors.forward(piece)
        flops += 2 * slots * taps * shape.head_dim * shape.slot_floats
        peak, held = max(peak, behind + piece), held + slots
        behind = held
    return _kept(shape, work, added, flops, peak, held, 0)


def _factors(settings: AttentionLora, shape: Shape) -> Factors:
    maps = targeted(settings.targets, shape) if settings.targets else list(shape.attention_linears)
    return Factors(shape, settings.rank, maps)


def _adapting(settings: GistingSettings, shape: Shape, text: int) -> int:
    """Operations of the factors at COMP tokens; `dense` counts those of text, too, which are computed and left out."""
    return _factors(settings, shape).forward(settings.comp_tokens + (text if shape.dense else 0))


def _added(settings: GistingSettings, shape: Shape) -> int:
    return _factors(settings, shape).size + settings.comp_tokens * shape.hidden


def _closed(settings: GistingSettings, shape: Shape, work: Workload) -> Cost | None:
    bare = replace(closed_book(shape, work), added_parameters=_added(settings, shape))
    return bare if settings.conditional else None


def _kept(
    shape: Shape, work: Workload, added: int, flops: int, peak: int, kept: int, beyond: int, integers: int = 1
) -> Cost:
    """The cost where what is kept are slots; `beyond`: positions behind the text read, `integers`: in the state."""
    floats = shape.slot_floats * kept
    own = {"added_parameters": added, "state_floats": floats, "adapt_slots": peak, "adapt_flops": flops}
    size, positions = (
        floats * work.value_bytes + INTEGER * integers,
        shape.starts + work.tokens + max(beyond, work.asked),
    )
    return in_window(shape, work, kept, **own, state_bytes=size, positions=positions)
