"""CCM, compressed context memory, and what it is compared with: a text becomes keys and values of a few slots."""

from __future__ import annotations

from dataclasses import replace

from ttabench.methods.ccm import cost
from ttabench.methods.ccm.settings import (
    COMPRESSIVE_PRESETS,
    GISTING_PRESETS,
    OTHER_RECIPES,
    PRESETS,
    RECIPES,
    CcmSettings,
    CompressiveSettings,
    GistingSettings,
)
from ttabench.methods.spec import MethodSpec

CCM = MethodSpec(
    name="ccm",
    summary="keys and values of a few COMP tokens that read each piece",
    where="ttabench.methods.ccm.method:Ccm",
    Settings=CcmSettings,
    presets=PRESETS,
    recipes=RECIPES,
    growth="linear",
    trainable=True,
    cost=cost.ccm,
    checked=CcmSettings(comp_tokens=2, rank=2),
    paper="2312.03414",
)
GISTING = MethodSpec(
    name="gisting",
    summary="keys and values of a few COMP tokens that read everything at once",
    where="ttabench.methods.ccm.gisting:Gisting",
    Settings=GistingSettings,
    presets=GISTING_PRESETS,
    recipes=OTHER_RECIPES,
    growth="linear",
    trainable=True,
    cost=cost.gisting,
    checked=GistingSettings(comp_tokens=2, rank=2),
    paper="2304.08467",
)
GISTING_ONLINE = replace(
    GISTING,
    name="gisting_online",
    summary="Gisting, each piece by itself",
    where="ttabench.methods.ccm.gisting:GistingOnline",
    trained_as="gisting",
    cost=cost.gisting_online,
)
COMPRESSIVE = MethodSpec(
    name="compressive",
    summary="keys and values of each piece, pooled: Compressive Transformer",
    where="ttabench.methods.ccm.compressive:Compressive",
    Settings=CompressiveSettings,
    presets=COMPRESSIVE_PRESETS,
    recipes=OTHER_RECIPES,
    growth="linear",
    trainable=True,
    cost=cost.compressive,
    checked=CompressiveSettings(rank=2, ratio=4),
    paper="1911.05507",
)
METHODS = (CCM, GISTING, GISTING_ONLINE, COMPRESSIVE)
