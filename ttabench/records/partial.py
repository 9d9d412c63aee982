"""Reading back what a killed process wrote line by line: every line is checked before it counts.

lines(Path("partial.jsonl"), "3f0c2a9b71de")    ->  [{"kind": "sample", "value": {...}}, ...], 1 left out
typed(Sample, line["value"])                    ->  a Sample, or ValueError
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from ttabench.core.errors import UserError

PARTIAL_FILE = "partial.jsonl"
DIGITS = 18
"""Longest whole number that a line may hold: it fits into 64 bits."""
MOST_SECONDS = 1e9
"""No process works longer than 30 years."""
T = TypeVar("T")
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def lines(path: Path, run: str) -> tuple[list[dict[str, Any]], int]:
    """The lines of a run, and how many others there are: damaged, cut, or of another run.

    A last line that was cut in the middle of writing is removed from the file, so that what is appended stands apart.

    Raises:
        UserError: the file cannot be read.
    """
    if path.is_symlink():
        raise UserError(f"{path} is a link to another file.", "Remove it, or give another --out.")
    try:
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(path, len(whole))
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror or error}."
        raise UserError(what, "Remove it, or give another --out.") from None
    parsed = [_parsed(line) for line in whole.splitlines()]
    kept = [line for line in parsed if line.get("run") == run and "kind" in line and "value" in line]
    return kept, len(parsed) - len(kept) + (len(whole) < len(content))


def _parsed(line: bytes) -> dict[str, Any]:
    """The JSON object of a line; an empty one where it is none that can be stored."""
    try:
        found = json.loads(line, parse_int=_integer)
        json.dumps(found, ensure_ascii=False).encode("utf-8")  # half a surrogate pair is no text
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _integer(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError(f"a whole number of {len(text)} digits")
    return int(text)


def seconds(line: dict[str, Any]) -> tuple[float, float]:
    """(wall seconds, CPU seconds) that a line says its process took since the one before; (0, 0) where it says none."""
    found = line.get("seconds")
    if not isinstance(found, list) or len(found) != 2:
        return 0.0, 0.0
    wall, cpu = (each if isinstance(each, int | float) and 0 <= each < MOST_SECONDS else 0.0 for each in found)
    return float(wall), float(cpu)


def typed(cls: type[T], value: object) -> T:
    """A dataclass from JSON values that has each of its fields, with values of their types, and no others.

    Raises:
        ValueError: it does not.
    """
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
