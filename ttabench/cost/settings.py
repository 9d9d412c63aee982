"""The settings a formula depends on: its defaults, those of a preset named like the model, and what the user changes.

overlaid("snapkv", FORMULAS["snapkv"], "nano", {"window": "0.1"})      {"budget": 256, "window": 0.1, ...}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ttabench.cost.load import Formula, Settings
from ttabench.errors import UnknownName, UserError
from ttabench.registry import parse_value
from ttabench.types import Json

SHARES = {("snapkv", "budget"), ("snapkv", "window"), ("h2o", "heavy"), ("h2o", "recent"), ("streamadapter", "ratio")}
"""Settings that may be a share of the context."""
CHOICES: Mapping[str, Any] = {
    "truncate": Literal["error", "left", "right"],
    "mode": Literal["stream", "postprefill", "stride"],
    "evict": Literal["before", "after"],
    "positions": Literal["auto", "original", "cache"],
    "modulation": Literal["prefix", "lora"],
    "bank_dtype": Literal["bfloat16", "float32"],
    "update": Literal["concat", "merge"],
    "weights": Literal["camels", "uniform", "salient", "tfidf"],
}
"""Settings that are one of a few words."""
LEAST = {"hierarchy": 2, "n_sink": 0, "comp_tokens": 0, "prefix": 0, "pad_to": 0, "question_pad_to": 0, "ratio": 0,
         "document_epochs": 0}  # fmt: skip
"""Smallest value of numbers where it is not 1 (or, of a share, more than 0)."""


def overlaid(method: str, formula: Formula, model: str, changes: Mapping[str, Json]) -> Settings:
    """All settings of a formula.

    Args:
        method: its name.
        formula: its defaults and presets.
        model: name of the base model.
        changes: what differs, as values or as the texts of them.

    Raises:
        UnknownName: a setting that the formula does not depend on.
        UserError: a value of another type, or a number that is too small.
    """
    typed = {}
    for key, value in changes.items():
        if key not in formula.settings:
            raise UnknownName(f"setting in the cost of {method}", key, list(formula.settings))
        where = f"Setting {key} of {method}"
        hint = _hint(method, key, formula.settings[key])
        typed[key] = parse_value(value, hint, where) if isinstance(value, str) else value
        _check(where, typed[key], LEAST.get(key, 1))
    return {**formula.settings, **formula.presets.get(model, {}), **typed}


def _hint(method: str, key: str, default: Json) -> Any:
    if (method, key) in SHARES:
        return int | float
    if key in CHOICES:
        return CHOICES[key]
    return {type(None): int | None, tuple: tuple[str, ...]}.get(type(default), type(default))


def _check(where: str, value: Json, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if value < least and not (isinstance(value, float) and value > 0):
        raise UserError(f"{where} is {value}.", f"Give {least} or more.")
