"""What methods that keep some keys and values of the context cost: an eviction is followed part by part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ttabench.core.sizes import CHARACTERS_A_TOKEN
from ttabench.cost.load import INTEGER, SINGLE, Cost, Workload, answer, closed_book, in_window, read_again
from ttabench.cost.shape import LEARNED_POSITIONS, Shape
from ttabench.methods.eviction.settings import (
    BEGINS_WITH,
    FIT_STEPS,
    STREAM_BLOCK,
    H2OSettings,
    KVzipSettings,
    MatchingSettings,
    RandomSlotsSettings,
    ReadingSettings,
    SnapKVSettings,
    WindowSettings,
)

Watching = Callable[[int, int, int], int]
"""Operations of watching: tokens of the part, slots before it, tokens read so far."""


def _parts(settings: ReadingSettings, shape: Shape, work: Workload, chunk: int | None) -> list[int]:
    """Tokens of the parts after which something is evicted, as `EvictingMethod` cuts them."""
    first, *others = work.runs if settings.join else work.pieces
    parts = []
    for text in (first + shape.starts, *others):
        count = 1 if chunk is None else -(-text // chunk)
        parts += [text * (number + 1) // count - text * number // count for number in range(count)]
    return parts


def _moved(settings: ReadingSettings, shape: Shape) -> bool:
    """Whether kept keys move up to slots 0, 1, ..."""
    rotary = shape.model_type not in LEARNED_POSITIONS
    return settings.positions == "cache" or (settings.positions == "auto" and rotary)


def _evicting(
    settings: ReadingSettings,
    shape: Shape,
    work: Workload,
    watching: Watching = lambda *_: 0,
    *,
    parts: list[int] | None = None,
    carried: int = 0,
    by_head: bool = True,
    band: int | None = None,
) -> Cost:
    """Read part after part on top of what is left. `carried`: float32 numbers that a slot of a layer and head
    carries along; `by_head`: whether layers and heads keep different slots; `band`: positions a token attends to at
    most."""
    if not work.pieces:
        return closed_book(shape, work)
    kept = read = flops = peak = 0
    shared, moved = True, _moved(settings, shape)
    for part in _parts(settings, shape, work, settings.chunk) if parts is None else parts:
        read += part
        flops += shape.forward(part, kept, band) + watching(part, kept, read)
        peak = max(peak, kept + part)
        shared = shared and (not by_head or kept + part <= settings.kept(read))
        kept = min(kept + part, settings.kept(read))
    heads, floats = shape.layers * shape.kv_heads, shape.slot_floats * kept
    places, scores = kept * (1 if shared else heads), carried * heads * kept
    return in_window(
        shape,
        work,
        kept,
        state_floats=floats + scores,
        state_bytes=floats * work.value_bytes + SINGLE * (places + scores) + INTEGER,
        adapt_slots=peak,
        adapt_flops=flops,
        positions=max(peak, kept + work.asked) if moved else read + work.asked,
    )


def _watched(shape: Shape, queries: int, context: int) -> int:
    """Scores of these queries once more, and their sum over queries (`methods/eviction/scores.py`)."""
    return shape.layers * shape.heads * (2 * shape.head_dim + 2) * shape.pairs(queries, context)


def snapkv(settings: SnapKVSettings, shape: Shape, work: Workload) -> Cost | None:
    """SnapKV (arXiv 2404.14469, section 4): full attention, and that of the last `window` tokens once more; of
    `query_aware` no cost is known."""
    if settings.query_aware:
        return None

    def watching(part: int, kept: int, read: int) -> int:
        window = min(part, settings.amounts(read)[1])
        return _watched(shape, window, kept + part - window)

    return _evicting(settings, shape, work, watching)


def h2o(settings: H2OSettings, shape: Shape, work: Workload) -> Cost:
    """H2O (arXiv 2306.14048, algorithm 1): full attention, and all of it once more; a score stays with every slot.

    evict_decode: the same of the prompt, which is evicted from as a whole, and of every token that is written.
    """
    cost = _evicting(settings, shape, work, lambda part, kept, _: _watched(shape, part, kept), carried=1)
    if not settings.evict_decode or not work.pieces:
        return cost
    kept, prompt, one = cost.ask_slots - work.asked, work.prompt_tokens, replace(shape, dense=False)
    flops = shape.forward(prompt, kept) + _watched(shape, prompt, kept)
    most = settings.kept(shape.starts + work.tokens + prompt)
    first, written = min(kept + prompt, most), work.new_tokens - 1
    growing = min(most - first, written)
    for held, times in [*((first + more, 1) for more in range(growing)), (first + growing, written - growing)]:
        flops += times * (one.forward(1, held) + _watched(one, 1, held))
    peak = max(kept + prompt, min(first + growing + 1, kept + work.asked))
    return replace(cost, ask_slots=peak, ask_flops=flops + shape.head(work.new_tokens))


def random_slots(settings: RandomSlotsSettings, shape: Shape, work: Workload) -> Cost:
    """Full attention, and a random choice that costs nothing."""
    return _evicting(settings, shape, work)


def window(settings: WindowSettings, shape: Shape, work: Workload) -> Cost:
    """Sinks and recent tokens (arXiv 2309.17453, section 3.2): a token of a stream attends to no more than is kept."""
    if not work.pieces:
        return closed_book(shape, work)
    if settings.mode == "postprefill":
        return _evicting(replace(settings, positions="original"), shape, work, by_head=False)
    sinks, kept = settings.amounts(work.tokens)[0], settings.kept(work.tokens)
    if settings.mode == "stride":
        return read_again(shape, work, min(kept, work.tokens))
    moved, chunk = _moved(settings, shape), settings.chunk or STREAM_BLOCK
    if moved and shape.positions is not None:
        chunk = min(chunk, max(1, shape.positions - kept))
    turned = 2 * shape.layers * shape.width * sinks if moved else 0  # scores of sinks, from turned queries
    parts, band = _parts(settings, shape, work, chunk), kept + (settings.evict == "after")
    return _evicting(settings, shape, work, lambda part, *_: turned * part, parts=parts, by_head=False, band=band)


def kvzip(settings: KVzipSettings, shape: Shape, work: Workload) -> Cost:
    """KVzip (arXiv 2505.23416, section 3): read, and read again behind all of it, with attention once more."""
    return _repeating(settings, shape, work, carried=1)


def attention_matching(settings: MatchingSettings, shape: Shape, work: Workload) -> Cost:
    """Attention Matching (arXiv 2602.16284, section 3): KVzip, and two least-squares problems a head."""
    cost = _repeating(settings, shape, work, carried=2)
    read = kept = flops = 0
    for part in _parts(settings, shape, work, settings.chunk) if work.pieces else ():
        read += part
        tokens = min(settings.query_tokens, sum(words for _, words in _repetitions(settings, part)))
        queries, slots, size = tokens * shape.heads // shape.kv_heads, kept + part, shape.head_dim
        kept = min(slots, settings.kept(read))
        attended = 2 * queries * slots * 2 * size
        fitted = 2 * queries * kept * (2 * kept + 2 * size + 1) + FIT_STEPS * 2 * kept * kept
        flops += shape.layers * shape.kv_heads * (attended + fitted + 2 * kept**3 // 3 + 2 * kept * kept * size)
    return replace(cost, adapt_flops=cost.adapt_flops + flops)


def _repetitions(settings: KVzipSettings, part: int) -> list[tuple[int, int]]:
    """Slots that compete in each chunk of a part, and the tokens of its repetition."""
    sizes = [min(settings.repeat_chunk, part - begin) for begin in range(0, part, settings.repeat_chunk)]
    first, later = (round(len(text) / CHARACTERS_A_TOKEN) + 1 for text in (settings.prompt, settings.prompt_later))
    # a later one begins with the last tokens of the chunk before
    return [
        (size + (settings.sinks if number else 0), size + (later + BEGINS_WITH if number else first))
        for number, size in enumerate(sizes)
    ]


def _repeating(settings: KVzipSettings, shape: Shape, work: Workload, carried: int) -> Cost:
    """Slots of all heads one after the other, with so many numbers each; they are as wide as the fullest head when
    asked, which may hold all that was read."""

    def watching(part: int, kept: int, _: int) -> int:
        return sum(
            shape.forward(words, kept + part)
            + shape.layers * shape.heads * 2 * shape.head_dim * shape.pairs(words, slots)
            for slots, words in _repetitions(settings, part)
        )

    cost = _evicting(settings, shape, work, watching, carried=carried)
    if not work.pieces:
        return cost
    kept, heads = cost.ask_slots - work.asked, shape.layers * shape.kv_heads
    parts = _parts(settings, shape, work, settings.chunk)
    read, again = sum(parts), max(words for part in parts for _, words in _repetitions(settings, part))
    held = kept if settings.uniform else read
    return replace(
        cost,
        state_bytes=shape.slot_floats * kept * work.value_bytes + SINGLE * heads * (kept * (1 + carried) + 1) + INTEGER,
        adapt_slots=cost.adapt_slots + again,
        ask_slots=held + work.asked,
        ask_flops=answer(shape, work, held, begun=True),
        positions=read + max(again, work.asked),
    )
