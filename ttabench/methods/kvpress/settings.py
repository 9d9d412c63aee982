"""Settings of a press of kvpress."""

from __future__ import annotations

from dataclasses import dataclass

from ttabench.methods.parts.amount import Amount, check_amount


@dataclass(frozen=True, kw_only=True)
class KvPressSettings:
    """Settings of a press that can be told how much to keep; its own arguments stand behind its name."""

    budget: Amount = 1024
    """Tokens kept in every layer: a number, or a share of the tokens read. Its compression_ratio follows from it."""

    def __post_init__(self) -> None:
        check_amount("budget", self.budget)
