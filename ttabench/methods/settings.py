"""Method settings from typed values, presets and stored JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

from ttabench.core.declared import parse_value, type_name
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Json
from ttabench.methods.spec import MethodSpec

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MAX_SETTING = 2**40
"""Largest absolute value of an integer setting: above any width, rank or token count."""


def resolve_preset(spec: MethodSpec, preset: str, model: str) -> str:
    """Return the requested preset, else the one with the name of the model, else ""."""
    if preset and preset not in spec.presets:
        if not spec.presets:
            raise UserError(f"{spec.name} has no presets.", "Remove --preset.")
        raise UnknownName("preset", preset, sorted(spec.presets))
    return preset or (model if model in spec.presets else "")


def parse_settings(spec: MethodSpec, changes: Mapping[str, Json]) -> dict[str, Json]:
    """Convert typed texts and values to values of the settings' types."""
    hints = get_type_hints(spec.Settings)
    values: dict[str, Json] = {}
    for text, value in changes.items():
        if (key := resolve_key(text, hints)) not in hints:
            _reject_key(spec, key, list(hints))
        values[key] = parse_value(value, hints[key], f"--set {key} of {spec.name}")
    return values


def resolve_key(text: str, known: Collection[str]) -> str:
    """Return the name of a setting. A part's setting may be typed `rag.top` or `rag_top`."""
    key = text.replace(".", "_", 1)
    return key if text not in known and key in known else text


def build_settings(spec: MethodSpec, changes: Mapping[str, Json], preset: str = "") -> Any:
    """Apply changes to a method's preset (see `resolve_preset`) or defaults."""
    try:
        _check_numbers(changes)
        return replace(spec.presets[preset] if preset else spec.Settings(), **changes)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"Settings of {spec.name}: {error}.", f"See `ttabench list methods {spec.name}`."
        ) from None


def restore_settings(spec: MethodSpec, stored: Mapping[str, Json]) -> Any:
    """Restore settings from JSON, without deprecated ones at their default.

    Raises:
        ValueError: a value has a wrong type.
        TypeError: a setting is unknown.
    """
    types = _type_adapters(spec.Settings)  # type: ignore[arg-type]  # a class can be hashed
    deprecated = spec.deprecated_settings
    stored = {
        key: value
        for key, value in stored.items()
        if key not in deprecated or value != deprecated[key]
    }
    for key, value in stored.items():
        try:
            if key in types:
                types[key].validate_json(json.dumps(value), strict=True)
        except ValueError:
            raise ValueError(f"{key} is {json.dumps(value)[:40]}") from None
    _check_numbers(stored)
    return spec.Settings(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()}
    )


@cache
def _type_adapters(settings: type[Any]) -> dict[str, TypeAdapter[Any]]:
    from pydantic import TypeAdapter

    hints = get_type_hints(settings)
    return {field.name: TypeAdapter(hints[field.name]) for field in fields(settings)}


def _check_numbers(values: Mapping[str, Json]) -> None:
    """Raise ValueError for infinite, NaN and oversized numbers."""
    for key, value in values.items():
        for part in value if isinstance(value, list | tuple) else (value,):
            if isinstance(part, float) and not math.isfinite(part):
                raise ValueError(f"{key} must be a finite number, got {part}")
            if isinstance(part, int) and abs(part) > MAX_SETTING:
                raise ValueError(f"{key} must be at most 2**40, got {str(part)[:24]}")


def default_settings(spec: MethodSpec) -> dict[str, Json]:
    """Return the default settings as JSON values, or {} if a setting has no valid default."""
    try:
        return {**json_values(asdict(spec.Settings())), **spec.deprecated_settings}
    except (ValueError, TypeError):
        return {}


def json_values(settings: Mapping[str, Any]) -> dict[str, Json]:
    """Convert settings to JSON values."""
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()
    }


def _reject_key(spec: MethodSpec, key: str, known: list[str]) -> None:
    if not known:
        raise UserError(
            f"{spec.name} has no settings, so --set {key} has no effect.", f"Remove --set {key}."
        )
    parts = getattr(spec, "parts", ())
    if candidates := [name for name in known if parts and name.endswith(f"_{key}")]:
        fault = f"Setting {key!r} of {spec.name} does not name a part."
        raise UserError(fault, f"Use {' or '.join(candidates)}.")
    raise UnknownName(f"setting of {spec.name}", key, known)


def describe_settings(spec: MethodSpec) -> list[tuple[str, str, Json]]:
    """Return (key, type, default) of every setting, for `list methods` and the dry run."""
    hints = get_type_hints(spec.Settings)
    defaults = spec.Settings()
    names = [field.name for field in fields(spec.Settings)]
    return [(name, type_name(hints[name]), getattr(defaults, name)) for name in names]
