"""Faults of cards, settings and rows in one line: what pydantic complains of, and values short enough to be shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from ttabench.core.errors import UnknownName

UNKNOWN = "extra_forbidden"
"""Pydantic's name of a field that a model does not have."""


def first_fault(error: ValidationError, where: str, model: type[BaseModel]) -> tuple[str, str]:
    """(what, hint) of one of pydantic's complaints, on one line each, for a `UserError`.

    It is the first, but a field that there is not goes before all others: it may be why another is missing.
    """
    faults = error.errors()
    fault = next((one for one in faults if one["type"] == UNKNOWN), faults[0])
    if fault["type"] == UNKNOWN:
        *above, name = fault["loc"]
        unknown = UnknownName("field", str(name), fields_at(model, above))
        return ": ".join([where, *filter(None, [_dotted(above)]), unknown.what]), unknown.hint
    message = fault["msg"].removeprefix("Value error, ")
    in_message = fault["type"] == "value_error" and brief(fault["input"]) in message
    received = "" if in_message or fault["type"] == "missing" else f", received {brief(fault['input'])}"
    more = f" ({len(faults) - 1} more faults)" if len(faults) > 1 else ""
    return f"{where}: {_dotted(fault['loc']) or 'top level'}: {message}{received}{more}.", "Mend that field."


def _dotted(place: Iterable[int | str]) -> str:
    return ".".join(map(str, place))


def fields_at(kind: Any, place: Iterable[int | str]) -> list[str]:
    """Names of the fields of the model that is at a place of another: `("splits", "test")` of a card."""
    for part in place:
        kind = kind.model_fields[part].annotation if hasattr(kind, "model_fields") else get_args(kind)[-1]
        if get_origin(kind) is UnionType:  # or None
            kind = get_args(kind)[0]
    return list(kind.model_fields)


def brief(value: object, limit: int = 60) -> str:
    """`repr` of a value on one short line, for error messages."""
    text = repr(value if not isinstance(value, str) else value[: limit + 1])
    return text if len(text) <= limit else text[: limit - 3] + "..."


def reasons(dropped: Mapping[str, int]) -> str:
    """Counts by reason, in words."""
    return ", ".join(f"{reason}: {count:,}" for reason, count in dropped.items())
