"""Presses of NVIDIA's kvpress, an optional package."""

from __future__ import annotations

from ttabench.methods.kvpress.settings import KvPressSettings
from ttabench.methods.spec import MethodFamily, MethodSpec

KVPRESS = MethodSpec(
    name="kvpress:<Press>",
    summary="the cache, compressed by a press of kvpress",
    where="ttabench.methods.kvpress.method:KvPress",
    Settings=KvPressSettings,
    presets={"nano": KvPressSettings(budget=256)},
    growth="constant",
    checked=KvPressSettings(budget=12),
    paper="2510.00636",
)
FAMILIES = (MethodFamily(name="kvpress", stands_for=KVPRESS, where="ttabench.methods.kvpress.method:spec_of"),)
