"""The settings a formula depends on: its defaults, those of a preset named like the model, and what the user changes.

overlaid("snapkv", FORMULAS["snapkv"], "nano", {"window": "0.1"})      {"budget": 256, "window": 0.1, ...}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.registry import parse_value
from ttabench.core.types import Json
from ttabench.cost.load import Formula, Settings

SHARES = {("snapkv", "budget"), ("snapkv", "window"), ("h2o", "heavy"), ("h2o", "recent"), ("window", "recent")}
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
LEAST = {"hierarchy": 2, "bank_cap": 2, "n_sink": 0, "comp_tokens": 0, "prefix": 0, "pad_to": 0, "question_pad_to": 0,
         "epochs": 0, "document_epochs": 0}  # fmt: skip
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
        UserError: a value of another type, a number that is too small, no share, settings that exclude each other.
    """
    typed = {}
    for key, value in changes.items():
        if key not in formula.settings:
            raise UnknownName(f"setting in the cost of {method}", key, list(formula.settings))
        where = f"Setting {key} of {method}"
        hint = _hint(method, key, formula.settings[key])
        typed[key] = parse_value(value, hint, where) if isinstance(value, str) else value
        _check(where, key, typed[key])
    found = {**formula.settings, **formula.presets.get(model, {}), **typed}
    if fault := _EXCLUDED.get(method, _nothing)(found):
        raise UserError(f"Settings of {method}: {fault}.", "Change one of them.")
    return found


def _hint(method: str, key: str, default: Json) -> Any:
    if (method, key) in SHARES:
        return int | float
    if key in CHOICES:
        return CHOICES[key]
    return {type(None): int | None, tuple: tuple[str, ...]}.get(type(default), type(default))


def _check(where: str, key: str, value: Json) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    least = LEAST.get(key, 1)
    if isinstance(value, float):
        if not 0 < value <= 1:
            raise UserError(f"{where} is {value}.", "Give a share of more than 0 and at most 1, or whole tokens.")
    elif value < least:
        raise UserError(f"{where} is {value}.", f"Give {least} or more.")


def _nothing(_: Settings) -> str:
    return ""


def _snapkv(settings: Settings) -> str:
    window, budget = settings["window"], settings["budget"]
    within = type(window) is not type(budget) or window < budget
    return "" if within else f"window must be smaller than the budget {budget}, got {window}"


def _window(settings: Settings) -> str:
    mode, recent, positions = settings["mode"], settings["recent"], settings["positions"]
    if isinstance(recent, float) and mode != "postprefill":
        return f"a share needs mode=postprefill: a stream has no length yet, got recent={recent}"
    if mode == "stride" and recent < 2:
        return f"mode=stride keeps recent - 1 tokens, got recent={recent}"
    refused = {"stride": ("original", "cache"), "postprefill": ("cache",)}
    return f"mode={mode} has no positions={positions}" if positions in refused.get(mode, ()) else ""


def _streamadapter(settings: Settings) -> str:
    window, stride, chunk = settings["window"], settings["stride"], settings["chunk"]
    if window is None:
        return ""
    if window <= stride:
        return f"window must be larger than the stride {stride}, got {window}"
    if chunk > window:
        return f"chunk must be no larger than the window {window}, got {chunk}"
    return f"stride must be whole chunks of {chunk}, got {stride}" if stride % chunk else ""


_EXCLUDED: Mapping[str, Callable[[Settings], str]] = {
    "snapkv": _snapkv,
    "window": _window,
    "streamadapter": _streamadapter,
}
"""What settings exclude each other, of methods where some do: those that the method itself refuses."""
