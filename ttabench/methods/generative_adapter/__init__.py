"""Generative Adapter: hidden states of a context, summed as outer products, become low-rank weight deltas."""

from __future__ import annotations

from dataclasses import replace

from ttabench.cost.load import SINGLE, Cost, Workload, closed_book
from ttabench.cost.lowrank import Factors, targeted
from ttabench.cost.shape import Shape
from ttabench.methods.generative_adapter.settings import PRESETS, RECIPES, GenerativeAdapterSettings
from ttabench.methods.spec import MethodSpec


def svd_flops(rows: int, columns: int) -> int:
    """Operations of all singular values and vectors of a matrix: 21 n^3 of a square one."""
    long, short = max(rows, columns), min(rows, columns)
    return 4 * long**2 * short + 8 * long * short**2 + 9 * short**3


def _directions(settings: GenerativeAdapterSettings) -> int:
    """Operations of the first singular vectors of one sum."""
    inner, keys, rank = settings.inner, settings.keys, settings.rank
    if settings.svd == "exact":
        return svd_flops(inner, keys)
    products = 2 * inner * keys * rank * (2 + 2 * settings.niter)  # the longer side is the one that is sampled
    return products + svd_flops(rank, min(inner, keys)) + 2 * max(inner, keys) * rank * rank


def cost(settings: GenerativeAdapterSettings, shape: Shape, work: Workload) -> Cost | None:
    """Generative Adapter (arXiv 2411.05877): later chunks are read by the weights adapted so far; the state is the sum
    of every map and its deltas, whatever the length."""
    s = settings
    maps = targeted(s.targets, shape) if s.targets else [shape.attention_linears[-1]]
    if s.norm != "svd":
        return None
    deltas, count = Factors(shape, s.delta_rank, maps), shape.layers * len(maps)
    inputs, outputs = (shape.layers * sum(getattr(one, end) for one in maps) for end in ("inputs", "outputs"))
    networks = s.inner * outputs + s.keys * inputs + count * (s.inner + s.keys + 1) * shape.hidden
    bare, summed = replace(closed_book(shape, work), added_parameters=networks), count * s.inner * s.keys
    texts = work.runs if s.buffer else work.pieces  # what begins a text stands in the first
    chunks = [size for at, text in enumerate(texts) for size in s.cut(text + (0 if at else shape.starts))]
    if not chunks:
        return bare
    times = len(chunks) if s.strategy == "sequential" else 1
    read = 2 * (count * (s.inner + s.keys) * shape.hidden + summed)
    flops = sum(shape.forward(size) + read * size for size in chunks)
    flops += deltas.forward(sum(chunks[1:])) if s.strategy == "sequential" else 0
    flops += times * (count * _directions(s) + 2 * s.rank * (s.keys * inputs + s.inner * outputs))
    if s.merge:
        flops += 2 * shape.layers * s.delta_rank * sum(one.size for one in maps)
    floats = deltas.size + (0 if s.finalize else summed)
    return replace(
        bare,
        state_floats=floats,
        state_bytes=SINGLE * floats,
        adapt_slots=max(chunks),
        adapt_flops=int(flops),
        ask_flops=bare.ask_flops + (0 if s.merge else deltas.forward(shape.starts + work.asked)),
        positions=max(*chunks, bare.positions),
    )


GENERATIVE_ADAPTER = MethodSpec(
    name="generative_adapter",
    summary="low-rank deltas from summed outer products of hidden states",
    where="ttabench.methods.generative_adapter.method:GenerativeAdapter",
    Settings=GenerativeAdapterSettings,
    presets=PRESETS,
    recipes=RECIPES,
    growth="constant",
    trainable=True,
    cost=cost,
    checked=GenerativeAdapterSettings(inner=8, rank=4, chunk=16, scale=1.0),
    paper="2411.05877",
)
METHODS = (GENERATIVE_ADAPTER,)
