"""Faults of cards, settings and rows in one line: what pydantic complains of, and values short enough to be shown."""

from __future__ import annotations

from pydantic import ValidationError


def first_fault(error: ValidationError, where: str) -> tuple[str, str]:
    """(what, hint) of the first of pydantic's complaints, on one line each, for a `UserError`."""
    fault = error.errors()[0]
    place = ".".join(str(part) for part in fault["loc"]) or "top level"
    message = fault["msg"].removeprefix("Value error, ")
    in_message = fault["type"] == "value_error" and brief(fault["input"]) in message
    received = "" if in_message or fault["type"] == "missing" else f", received {brief(fault['input'])}"
    more = f" ({len(error.errors()) - 1} more faults)" if len(error.errors()) > 1 else ""
    return f"{where}: {place}: {message}{received}{more}.", "Mend that field."


def brief(value: object, limit: int = 60) -> str:
    """`repr` of a value on one short line, for error messages."""
    text = repr(value if not isinstance(value, str) else value[: limit + 1])
    return text if len(text) <= limit else text[: limit - 3] + "..."
