"""Settings of a method from `key=value` texts, from a preset, and from what was stored."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

from ttabench.core.declared import parse_assignments, parse_value, type_name
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Json
from ttabench.cost import Formula

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MAX_SETTING = 2**40
"""Of whole numbers: no width, rank or count of tokens comes near, and no product of two overflows unseen."""


def resolve_preset(spec: Formula, preset: str, model: str) -> str:
    """The preset in use: the one asked for, else the one named like the model, else none ("")."""
    if preset and preset not in spec.presets:
        if not spec.presets:
            raise UserError(f"{spec.name} has no presets.", "Leave --preset out.")
        raise UnknownName("preset", preset, sorted(spec.presets))
    return preset or (model if model in spec.presets else "")


def parse_settings(spec: Formula, texts: Sequence[str]) -> dict[str, Json]:
    """`key=value` texts as typed settings of a method."""
    return parse_values(spec, parse_assignments(texts))


def parse_values(spec: Formula, changes: Mapping[str, Json]) -> dict[str, Json]:
    """Settings of a method by key: texts become values of their type, values stay."""
    hints = get_type_hints(spec.Settings)
    typed: dict[str, Json] = {}
    for text, value in changes.items():
        if (key := resolve_key(text, hints)) not in hints:
            _reject_key(spec, key, list(hints))
        option_label = f"--set {key} of {spec.name}"
        typed[key] = (
            parse_value(value, hints[key], option_label) if isinstance(value, str) else value
        )
    return typed


def resolve_key(text: str, known: Collection[str]) -> str:
    """The setting that is meant: that of a part may be typed `rag.top` as well as `rag_top`."""
    return text if text in known or (key := text.replace(".", "_", 1)) not in known else key


def build_settings(spec: Formula, typed: Mapping[str, Json], preset: str = "") -> Any:
    """Settings of a method: its defaults or a preset (see `resolve_preset`), overlaid by typed settings."""
    try:
        _check_numbers(typed)
        return replace(spec.presets[preset] if preset else spec.Settings(), **typed)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"Settings of {spec.name}: {error}.", f"See `ttabench list methods {spec.name}`."
        ) from None


def restore_settings(spec: Formula, stored: Mapping[str, Json]) -> Any:
    """Settings as they were before they were written as JSON, without those that are gone at their default."""
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
    """Checks of the values of every setting of a class."""
    from pydantic import TypeAdapter

    hints = get_type_hints(settings)
    return {field.name: TypeAdapter(hints[field.name]) for field in fields(settings)}


def _check_numbers(values: Mapping[str, Json]) -> None:
    """Refuse numbers with which nothing can be computed."""
    for key, value in values.items():
        for part in value if isinstance(value, list | tuple) else (value,):
            if isinstance(part, float) and not math.isfinite(part):
                raise ValueError(f"{key} must be a finite number, got {part}")
            if isinstance(part, int) and abs(part) > MAX_SETTING:
                raise ValueError(f"{key} is larger than any model, {str(part)[:24]}")


def default_settings(spec: Formula) -> dict[str, Json]:
    """The settings of a method where nothing is said, as JSON values; none where it must be told some of them."""
    try:
        return {**json_values(asdict(spec.Settings())), **spec.deprecated_settings}
    except (ValueError, TypeError):
        return {}


def json_values(settings: Mapping[str, Any]) -> dict[str, Json]:
    """Settings as JSON values."""
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()
    }


def _reject_key(spec: Formula, key: str, known: list[str]) -> None:
    if not known:
        raise UserError(
            f"{spec.name} has no settings, so --set {key} means nothing.", "Leave it out."
        )
    if candidates := [
        name for name, (_, own) in getattr(spec, "setting_owners", {}).items() if own == key
    ]:
        fault = (
            f"{spec.name} has settings of its parts alone, and {key!r} says of none whose it is."
        )
        raise UserError(fault, f"Did you mean {' or '.join(candidates)}?")
    raise UnknownName(f"setting of {spec.name}", key, known)


def describe_settings(spec: Formula) -> list[tuple[str, str, Json]]:
    """(key, type, default) of every setting of a method, for `list methods` and the dry run."""
    hints, plain_settings = get_type_hints(spec.Settings), spec.Settings()
    names = [field.name for field in fields(spec.Settings)]
    return [(name, type_name(hints[name]), getattr(plain_settings, name)) for name in names]
