"""Presses of NVIDIA's kvpress, an optional package."""

from __future__ import annotations

from dataclasses import dataclass

from ttabench.methods.parts.settings import Amount, as_budget, check_amount
from ttabench.methods.spec import MethodSpec


@dataclass(frozen=True, kw_only=True)
class KvPressSettings:
    """Settings of a press with a budget. The press's own arguments follow its name."""

    budget: Amount = 1024
    """Tokens kept per layer and head (on average, for some presses), or their share of the tokens
    read. Determines compression_ratio."""

    def __post_init__(self) -> None:
        check_amount("budget", self.budget)


KVPRESS = MethodSpec(
    name="kvpress:<Press>",
    summary="the cache, compressed by a press of kvpress",
    import_path="ttabench.methods.kvpress.method:KvPress",
    Settings=KvPressSettings,
    presets={"nano": KvPressSettings(budget=256)},
    growth="constant",
    keep=as_budget,
    test_settings=KvPressSettings(budget=12),
    paper="2510.00636",
    family_factory="ttabench.methods.kvpress.method:make_spec",
)
FAMILIES = (KVPRESS,)
