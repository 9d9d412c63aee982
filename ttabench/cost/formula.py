"""A method on paper: its settings, its presets, and its cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ttabench.core.types import Json
from ttabench.cost.load import Cost, Workload
from ttabench.cost.shape import Shape


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """Settings of a method that has none."""


@dataclass(frozen=True, kw_only=True)
class Formula:
    """A method on paper."""

    name: str
    Settings: type[Any] = NoSettings
    """A frozen dataclass, every field with a default and a docstring under it; it refuses values with ValueError."""
    presets: Mapping[str, Any] = field(default_factory=dict)
    """Settings by preset name; a preset named like the base model is its default."""
    paper: str = ""
    """arXiv id."""
    cost: Callable[[Any, Shape, Workload], Cost | None] | None = None
    """What it costs: (settings, base model, what is read and asked); None where no formula is known at all, or for
    these settings."""
    retired: Mapping[str, Json] = field(default_factory=dict)
    """Settings of earlier versions, with the one value that there is now: stored runs name them."""
