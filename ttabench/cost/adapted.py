"""What methods cost that turn a context into weights: by gradient steps, or by a network that writes deltas.

    generative_adapter(settings, shape, work).ask_flops     a closed book's: the delta is merged into the weights

A backward pass costs two forward passes; where the base is frozen, one for its linear maps (no weight gradients) and
two for attention (arXiv 2204.02311, appendix B, has 6 N + 12 L d c for a step that trains all weights). Optimiser steps
and norms are left out. Deltas, moments and states are float32.
"""

from __future__ import annotations

from dataclasses import replace

from ttabench.architectures import ARCHITECTURES
from ttabench.cost.load import INTEGER, SINGLE, Cost, Settings, Workload, answer, closed_book
from ttabench.cost.shape import Shape, shape_from

SVD = 21
"""Operations of a full singular value decomposition of an n x n matrix, in n^3 (Golub and Van Loan, Matrix
Computations, 4th edition, section 8.6: 4 m^2 n + 8 m n^2 + 9 n^3)."""
WEIGHT_HEAD = 128
"""Inner width of the head of CaMeLS's weight model."""


def _low_rank(rank: int, shape: Shape) -> int:
    """Parameters of a low-rank delta of every linear map."""
    return rank * shape.layers * sum(linear.ends for linear in shape.linears)


def lora(settings: Settings, shape: Shape, work: Workload) -> Cost:
    """LoRA (arXiv 2106.09685), trained beforehand and merged: the context is not read."""
    return replace(closed_book(shape, work), added_parameters=_low_rank(settings["rank"], shape))


def templora(settings: Settings, shape: Shape, work: Workload) -> Cost:
    """Temp-LoRA (arXiv 2401.11504, section 3): gradient steps of a LoRA on every unit, behind `prefix` tokens."""
    units = [size for piece in work.pieces for size in _cut(piece, settings["unit"])]
    factors, flops, peak, before = _low_rank(settings["rank"], shape), 0, 0, 0
    for unit in units:
        tokens = min(settings["prefix"], before) + unit
        pass_ = 2 * shape.forward(tokens) + shape.attention(shape.pairs(tokens)) + 2 * shape.head(unit)
        flops += settings["steps"] * (pass_ + 6 * factors * tokens)
        peak, before = max(peak, tokens), before + unit
    floats = 3 * factors if units else 0  # the factors and two moments of Adam
    bare = closed_book(shape, work)
    return replace(
        bare,
        state_floats=floats,
        state_bytes=floats * SINGLE,
        adapt_slots=peak,
        adapt_flops=flops,
        positions=max(peak, bare.positions),
    )


def sft(settings: Settings, shape: Shape, work: Workload) -> Cost:
    """Full fine-tuning on questions beforehand (arXiv 2411.05877, section 4.2), a second set of weights; with
    `document_epochs` after next-token training on the documents (its continual pretraining)."""
    bare = replace(closed_book(shape, work), added_parameters=shape.parameters)
    epochs = settings["document_epochs"]
    if not epochs or not work.pieces:
        return bare
    flops = sum(3 * (shape.forward(piece) + shape.head(piece)) for piece in work.pieces)
    # the context is in the weights now
    floats, longest = shape.parameters, max(work.pieces)
    return replace(
        bare,
        added_parameters=0,
        state_floats=floats,
        state_bytes=floats * SINGLE,
        adapt_slots=longest,
        adapt_flops=epochs * flops,
        positions=max(longest, bare.positions),
    )


def camels(settings: Settings, shape: Shape, work: Workload) -> Cost:
    """CaMeLS (arXiv 2305.15076, section 3): one step of all weights a document; its token weights by a DistilGPT2."""
    known = ARCHITECTURES["distilgpt2"]
    judge = shape_from(known.config, known.model_type)
    head = judge.hidden * WEIGHT_HEAD + 2 * WEIGHT_HEAD + 1
    learned = settings["weights"] == "camels"
    documents = [min(piece, settings["document_tokens"]) for piece in work.pieces]
    flops = sum(3 * (shape.forward(tokens) + shape.head(tokens)) for tokens in documents)
    if learned:
        flops += sum(judge.forward(tokens) + 2 * head * tokens for tokens in documents)
    floats = 3 * shape.parameters if documents else 0  # a dense delta and two moments of Adam
    bare, longest = closed_book(shape, work), max(documents, default=0)
    return replace(
        bare,
        added_parameters=judge.parameters + head if learned else 0,
        state_floats=floats,
        state_bytes=floats * SINGLE,
        adapt_slots=longest,
        adapt_flops=flops,
        positions=max(longest, bare.positions),
    )


def generative_adapter(settings: Settings, shape: Shape, work: Workload) -> Cost:
    """Generative Adapter (arXiv 2411.05877, equations 3 and 6-9): outer products of hidden states, summed, normalised
    by a singular value decomposition, and written into the output projection of every layer's attention."""
    inner, rank, target = settings["inner"], settings["rank"], shape.attention_linears[-1]
    generator = inner * (target.ends + 2 * shape.hidden) + shape.hidden
    factors, summed = rank * target.ends, inner**2
    written = SVD * inner**3 + 2 * inner * factors
    chunks = [size for piece in work.pieces for size in _cut(piece, settings["chunk"])]
    chunks[:1] = [shape.starts + size for size in chunks[:1]]
    flops = sum(shape.forward(size) + shape.layers * size * (4 * shape.hidden * inner + 2 * summed) for size in chunks)
    flops += shape.layers * written * len(chunks)
    flops += 2 * shape.layers * factors * sum(chunks[1:])  # later chunks are read by the weights adapted so far
    floats = shape.layers * (factors + (0 if settings["finalize"] else summed)) if chunks else 0
    bare, longest = closed_book(shape, work), max(chunks, default=0)
    return replace(
        bare,
        added_parameters=shape.layers * generator,
        state_floats=floats,
        state_bytes=floats * SINGLE,
        adapt_slots=longest,
        adapt_flops=flops + (2 * shape.layers * rank * target.size if chunks else 0),  # merged once
        positions=max(longest, bare.positions),
    )


def _cut(piece: int, size: int) -> list[int]:
    """Parts of like length, of at most `size`."""
    count = -(-piece // size)
    return [piece * (number + 1) // count - piece * number // count for number in range(count)]


def streamadapter(settings: Settings, shape: Shape, work: Workload) -> Cost:
    """StreamAdapter (arXiv 2411.09289, equations 4-8): the cache of the older pieces becomes a context state of every
    linear map, which becomes a delta; the newest pieces stay in the window. The projection of each head is shared over
    heads: only that reading gives the parameters of Table 5."""
    queries, down, heads = settings["queries"], settings["down"], shape.kv_heads
    size, state = shape.head_dim, shape.kv_heads * settings["down"]
    ends = [(linear.inputs, linear.outputs) for linear in shape.linears]
    shared = heads * queries * size + size * down + state + 1
    added = shape.layers * sum(shared + queries * outputs + inputs * state for inputs, outputs in ends)
    splits = settings["ratio"] < 1 and len(work.pieces) > 1
    stays = max(1, round((1 - settings["ratio"]) * len(work.pieces))) if splits else 0
    tokens = sum(work.pieces[: len(work.pieces) - stays])
    kept = shape.starts + work.tokens - tokens if stays else 0
    if not work.pieces:
        return replace(closed_book(shape, work), added_parameters=added)
    slots = shape.starts + tokens
    mapped = shape.layers * len(ends) * 2 * heads * (queries * (size + down) + size * down) * slots
    merged = shape.layers * sum(2 * queries * inputs * (state + outputs) for inputs, outputs in ends)
    waiting = shape.slot_floats * (slots % settings["chunk"])  # keys and values of the chunk that is not full yet
    floats = shape.layers * len(ends) * queries * state
    return Cost(
        parameters=shape.parameters,
        added_parameters=added,
        state_floats=floats + waiting,
        state_bytes=floats * SINGLE + waiting * work.value_bytes + INTEGER * (work.tokens - tokens),
        adapt_slots=max(slots, kept),
        ask_slots=(kept or shape.starts) + work.asked,
        adapt_flops=shape.forward(slots) + mapped + merged + shape.forward(kept),
        ask_flops=answer(shape, work, kept, begun=bool(kept)),
        positions=max(slots, (kept or shape.starts) + work.asked),
    )
