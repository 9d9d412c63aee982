"""Generative Adapter: hidden states of a context, summed as outer products, become low-rank weight deltas."""

from __future__ import annotations

from ttabench.methods.generative_adapter.cost import cost
from ttabench.methods.generative_adapter.settings import PRESETS, RECIPES, GenerativeAdapterSettings
from ttabench.methods.spec import MethodSpec

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
