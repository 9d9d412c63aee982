"""Values of lines that a killed process wrote (see `journal`): their types are checked before they count.

typed(Sample, line["value"])                    ->  a Sample, or ValueError
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import TypeAdapter

MOST_SECONDS = 1e9
"""No process works longer than 30 years."""
T = TypeVar("T")
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def seconds(line: dict[str, Any]) -> tuple[float, float]:
    """(wall seconds, CPU seconds) that a line says its process took since the one before; (0, 0) where it says none."""
    pair = line.get("seconds")
    if not isinstance(pair, list) or len(pair) != 2:
        return 0.0, 0.0
    wall, cpu = (number if isinstance(number, int | float) and 0 <= number < MOST_SECONDS else 0.0 for number in pair)
    return float(wall), float(cpu)


def typed(cls: type[T], value: object) -> T:
    """A dataclass from JSON values that has each of its fields, with values of their types, and no others."""
    names = cls.__dataclass_fields__.keys()  # type: ignore[attr-defined]  # a dataclass, by the line above
    if not isinstance(value, dict) or value.keys() != names:
        raise ValueError(f"not the fields of a {cls.__name__}")
    # by way of JSON, strict mode takes a mapping for a dataclass and still refuses a text for a number
    checked: T = _adapter(cls).validate_json(json.dumps(value), strict=True)
    return checked


def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    if cls not in _ADAPTERS:
        _ADAPTERS[cls] = TypeAdapter(cls)
    return _ADAPTERS[cls]
