"""Gradient steps on what is read: one on each document, where methods differ in what its tokens weigh, or several
passes over all documents (`cpt`)."""

from __future__ import annotations

from ttabench.methods.online.cost import camels_cost, cost, cpt_cost
from ttabench.methods.online.settings import (
    CAMELS_PRESETS,
    CPT_PRESETS,
    RECIPES,
    SALIENT_PRESETS,
    UNIFORM_PRESETS,
    CamelsSettings,
    CptSettings,
    SalientSettings,
    UniformSettings,
)
from ttabench.methods.spec import MethodSpec

UNIFORM = MethodSpec(
    name="uniform",
    summary="weights finetuned on each document, every token alike",
    where="ttabench.methods.online.method:Uniform",
    Settings=UniformSettings,
    presets=UNIFORM_PRESETS,
    growth="constant",
    cost=cost,
    # a larger eps: Adam would blow float noise in gradients near zero up to the rate
    checked=UniformSettings(rank=2, lr=1e-2, eps=1e-3, pad_len=32),
    paper="2305.15076",
)
SALIENT_SPANS = MethodSpec(
    name="salient_spans",
    summary="weights finetuned on the named entities of each document",
    where="ttabench.methods.online.salient:SalientSpans",
    Settings=SalientSettings,
    presets=SALIENT_PRESETS,
    growth="constant",
    cost=cost,
    checked=SalientSettings(rank=2, lr=1e-2, eps=1e-3, pad_len=32, spans="rule"),
    paper="2305.15076",
)
CAMELS = MethodSpec(
    name="camels",
    summary="weights finetuned on each document, tokens weighed by a small trained LM",
    where="ttabench.methods.online.camels:Camels",
    Settings=CamelsSettings,
    presets=CAMELS_PRESETS,
    recipes=RECIPES,
    growth="constant",
    trainable=True,
    cost=camels_cost,
    checked=CamelsSettings(rank=2, lr=1e-2, eps=1e-3, pad_len=32, kl_tokens=8),
    paper="2305.15076",
)
CPT = MethodSpec(
    name="cpt",
    summary="weights finetuned in several passes over all documents",
    where="ttabench.methods.online.cpt:Cpt",
    Settings=CptSettings,
    presets=CPT_PRESETS,
    growth="constant",
    cost=cpt_cost,
    checked=CptSettings(rank=2, lr=1e-2, eps=1e-3, epochs=2, batch=2),
    paper="2411.05877",
)
METHODS = (UNIFORM, SALIENT_SPANS, CAMELS, CPT)
