"""CCM, compressed context memory, and what it is compared with: a text becomes keys and values of a few slots."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from ttabench.core.types import Json
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
from ttabench.methods.parts.amount import Amount
from ttabench.methods.spec import MethodSpec


def _gists(amount: Amount) -> dict[str, Json]:
    """All of the text becomes one group of COMP tokens, which is trained with its size."""
    if isinstance(amount, float):
        raise ValueError("COMP tokens are a number, whatever is read")
    return {"comp_tokens": amount}


def _compresses(amount: Amount) -> dict[str, Json]:
    """So many tokens become one slot; a convolution is trained with its size."""
    if not isinstance(amount, float):
        raise ValueError("slots are a share of each piece, however many are read")
    return {"ratio": ceil(1 / amount), "slots": None}


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
    keep=lambda amount: {"held": amount},  # COMP tokens are as trained; the oldest groups go
    checked=CcmSettings(comp_tokens=2, rank=2),
    paper="2312.03414",
)
GISTING = replace(
    CCM,
    name="gisting",
    summary="keys and values of a few COMP tokens that read everything at once",
    where="ttabench.methods.ccm.method:Gisting",
    Settings=GistingSettings,
    presets=GISTING_PRESETS,
    recipes=OTHER_RECIPES,
    cost=cost.gisting,
    keep=_gists,
    checked=GistingSettings(comp_tokens=2, rank=2),
    paper="2304.08467",
)
GISTING_ONLINE = replace(
    GISTING,
    name="gisting_online",
    summary="Gisting, each piece by itself",
    where="ttabench.methods.ccm.method:GistingOnline",
    trained_as="gisting",
    cost=cost.gisting_online,
    keep=None,
)
COMPRESSIVE = replace(
    GISTING,
    name="compressive",
    summary="keys and values of each piece, pooled: Compressive Transformer",
    where="ttabench.methods.ccm.compressive:Compressive",
    Settings=CompressiveSettings,
    presets=COMPRESSIVE_PRESETS,
    cost=cost.compressive,
    keep=_compresses,
    checked=CompressiveSettings(rank=2, ratio=4),
    paper="1911.05507",
)
METHODS = (CCM, GISTING, GISTING_ONLINE, COMPRESSIVE)
