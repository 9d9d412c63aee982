"""Cost of methods that keep some keys and values of the context.

An eviction is followed part by part (see `evicting`), so states agree to the byte with those measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ttabench.cost.load import INTEGER, SINGLE, Cost, Workload, answer, closed_book, read_again
from ttabench.cost.shape import LEARNED_POSITIONS, Shape
from ttabench.methods.eviction.settings import (
    STREAM_BLOCK,
    H2OSettings,
    ReadingSettings,
    SnapKVSettings,
    WindowSettings,
)
from ttabench.methods.parts.amount import Amount


@dataclass(frozen=True)
class _Eviction:
    """How a method reads a part and what it leaves of it."""

    budget: Callable[[int], int]
    """Slots that stay, by tokens read so far."""
    watching: Callable[[int, int, int], int]
    """Operations of watching: tokens of the part, slots before it, tokens read so far."""
    carried: int = 0
    """float32 numbers that a slot of a layer and head carries along."""
    by_head: bool = True
    """Whether layers and heads keep different slots."""
    band: int | None = None
    """Positions a token attends to at most."""


def _parts(settings: ReadingSettings, shape: Shape, work: Workload, chunk: int | None) -> list[int]:
    """Tokens of the parts after which something is evicted, as `EvictingMethod` cuts them."""
    first, *others = work.runs if settings.join else work.pieces
    parts = []
    for text in (first + shape.starts, *others):
        count = 1 if chunk is None else -(-text // chunk)
        parts += [text * (number + 1) // count - text * number // count for number in range(count)]
    return parts


def _evicting(shape: Shape, work: Workload, parts: list[int], rule: _Eviction, moved: bool) -> Cost:
    """Read part after part on top of what is left. `moved`: kept keys move up to slots 0, 1, ..."""
    kept = read = flops = peak = 0
    shared = True
    for part in parts:
        read += part
        flops += shape.forward(part, kept, rule.band) + rule.watching(part, kept, read)
        peak = max(peak, kept + part)
        budget = rule.budget(read)
        shared = shared and (not rule.by_head or kept + part <= budget)
        kept = min(kept + part, budget)
    heads = shape.layers * shape.kv_heads
    floats = shape.slot_floats * kept
    places = kept * (1 if shared else heads)
    scores = rule.carried * heads * kept
    return Cost(
        parameters=shape.parameters,
        state_floats=floats + scores,
        state_bytes=floats * work.value_bytes + SINGLE * (places + scores) + INTEGER,
        adapt_slots=peak,
        ask_slots=kept + work.asked,
        adapt_flops=flops,
        ask_flops=answer(shape, work, kept, begun=True),
        positions=max(peak, kept + work.asked) if moved else read + work.asked,
    )


def _amount(amount: Amount, tokens: int) -> int:
    return max(1, int(amount * tokens)) if isinstance(amount, float) else amount


def _watched(shape: Shape, queries: int, context: int) -> int:
    """Scores of these queries once more, and their sum over queries (`methods/eviction/scores.py`)."""
    return shape.layers * shape.heads * (2 * shape.head_dim + 2) * shape.pairs(queries, context)


def snapkv(settings: SnapKVSettings, shape: Shape, work: Workload) -> Cost:
    """SnapKV (arXiv 2404.14469, section 4): full attention, and that of the last `window` tokens once more."""
    if not work.pieces:
        return closed_book(shape, work)

    def watching(part: int, kept: int, read: int) -> int:
        window = min(part, *(_amount(setting, read) for setting in (settings.window, settings.budget)))
        return _watched(shape, window, kept + part - window)

    parts, moved = _parts(settings, shape, work, settings.chunk), _moved(settings, shape)
    if settings.query_aware:
        return _looked_at(settings, shape, work, parts, moved)
    rule = _Eviction(budget=lambda read: _amount(settings.budget, read), watching=watching)
    return _evicting(shape, work, parts, rule, moved)


def _looked_at(settings: SnapKVSettings, shape: Shape, work: Workload, parts: list[int], moved: bool) -> Cost:
    """A full cache; every question is read behind it, and what it looks at is kept for its answer."""
    read, question = sum(parts), work.prompt_tokens
    budget, window = (_amount(setting, read) for setting in (settings.budget, settings.window))
    watching = min(window, budget, question)
    whole = _evicting(shape, work, parts, _Eviction(lambda read: read, lambda *_: 0, by_head=False), moved)
    looking = shape.forward(question, read) + _watched(shape, watching, read + question - watching)
    return replace(
        whole,
        ask_slots=max(read + question, min(budget, read) + work.asked),
        ask_flops=looking + answer(shape, work, min(budget, read), begun=True),
    )


def h2o(settings: H2OSettings, shape: Shape, work: Workload) -> Cost:
    """H2O (arXiv 2306.14048, algorithm 1): full attention, and all of it once more; a score stays with every slot.

    evict_decode: the same of the prompt, which is evicted from as a whole, and of every token that is written.
    """
    if not work.pieces:
        return closed_book(shape, work)

    def budget(read: int) -> int:
        return _amount(settings.heavy, read) + _amount(settings.recent, read)

    parts = _parts(settings, shape, work, settings.chunk)
    rule = _Eviction(budget=budget, watching=lambda part, kept, _: _watched(shape, part, kept), carried=1)
    cost = _evicting(shape, work, parts, rule, _moved(settings, shape))
    if not settings.evict_decode:
        return cost
    kept, prompt = cost.ask_slots - work.asked, work.prompt_tokens
    flops = shape.forward(prompt, kept) + _watched(shape, prompt, kept)
    most = budget(sum(parts) + prompt)
    slots, one = min(kept + prompt, most), replace(shape, dense=False)
    growing = min(max(0, most - slots), work.new_tokens - 1)
    for held in range(slots, slots + growing):
        flops += one.forward(1, held) + _watched(one, 1, held)
    slots += growing
    flops += (work.new_tokens - 1 - growing) * (one.forward(1, slots) + _watched(one, 1, slots))
    peak = max(kept + prompt, min(slots + 1, kept + work.asked))
    return replace(cost, ask_slots=peak, ask_flops=flops + shape.head(work.new_tokens))


def window(settings: WindowSettings, shape: Shape, work: Workload) -> Cost:
    """Sinks and recent tokens (arXiv 2309.17453, section 3.2): a token of a stream attends to no more than is kept."""
    if not work.pieces:
        return closed_book(shape, work)
    sinks, recent = settings.n_sink, settings.recent
    rule = _Eviction(budget=lambda read: sinks + _amount(recent, read), watching=lambda *_: 0, by_head=False)
    if settings.mode == "postprefill":
        return _evicting(shape, work, _parts(settings, shape, work, settings.chunk), rule, False)
    assert isinstance(recent, int), "a share needs mode=postprefill"
    if settings.mode == "stride":
        return read_again(shape, work, min(recent - 1, work.tokens))
    kept, moved, chunk = sinks + recent, _moved(settings, shape), settings.chunk or STREAM_BLOCK
    if moved and shape.positions is not None:
        chunk = min(chunk, max(1, shape.positions - kept))
    turned = 2 * shape.layers * shape.width * settings.n_sink if moved else 0  # scores of sinks, from turned queries
    band = kept + (settings.evict == "after")
    rule = replace(rule, band=band, watching=lambda part, *_: turned * part)
    return _evicting(shape, work, _parts(settings, shape, work, chunk), rule, moved)


def _moved(settings: ReadingSettings, shape: Shape) -> bool:
    rotary = shape.model_type not in LEARNED_POSITIONS
    return settings.positions == "cache" or (settings.positions == "auto" and rotary)
