"""Command-line options declared on dataclass fields, and validation and parsing of values.

limit: Annotated[int | None, OptionInfo("Maximum number of queries.", QUERY_GROUP)] = None
parse_assignments(["a=1", "b=x"])              {"a": "1", "b": "x"}
parse_value("0.2", int | float, "--set a")     0.2
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache, wraps
from inspect import signature
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model

from ttabench.core.amounts import parse_tokens
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Json

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
RUN_GROUP, QUERY_GROUP, EXECUTION_GROUP = ("Run", "Queries", "Execution and output")
RECIPE_GROUP = "Recipe (defaults: those of the preset)"


@dataclass(frozen=True)
class OptionInfo:
    """Presentation of an option: help, group, flags and default.

    Attributes:
        flags: names on the command line. Empty for `--` and the field name.
        default: True if the help shows the default.
        kind: type on the command line, if it differs from the type of the field.
        parse: conversion of the text, for types without a standard one.
        in_run_id: True if the value is part of the run id.
    """

    help: str
    group: str
    flags: tuple[str, ...] = ()
    default: bool = True
    kind: Any = None
    parse: Callable[[Any], Any] | None = None
    metavar: str | None = None
    in_run_id: bool = True


@dataclass(frozen=True)
class OptionField:
    """Dataclass field with an `OptionInfo`."""

    name: str
    kind: Any
    default: Any
    info: OptionInfo

    @property
    def flags(self) -> list[str]:
        """Names on the command line. For a switch, the second name turns it off."""
        return (
            self.info.flags[0] if self.info.flags else f"--{self.name.replace('_', '-')}"
        ).split("/")

    def cli_arguments(self, value: Any) -> list[str]:
        """Return the command-line arguments that set the field to a value; none for the default."""
        if value == self.default:
            return []
        if isinstance(value, bool):
            return [self.flags[not value]]
        if isinstance(value, Mapping):
            return [word for pair in format_assignments(value) for word in (self.flags[0], pair)]
        return [self.flags[0], "auto" if self.info.parse is not None and not value else str(value)]


@cache
def option_fields(kind: type) -> Mapping[str, OptionField]:
    """Return the fields of a dataclass that have an `OptionInfo`, by name and in order."""
    hints, by_name = get_type_hints(kind, include_extras=True), dict[str, OptionField]()
    for field in fields(kind):
        if get_origin(hints[field.name]) is Annotated:
            annotation, info = get_args(hints[field.name])
            make = field.default_factory
            default = field.default if make is MISSING else make()
            by_name[field.name] = OptionField(
                name=field.name, kind=annotation, default=default, info=info
            )
    return by_name


UNKNOWN_FIELD_ERROR = "extra_forbidden"
"""Pydantic error type for an unknown field."""
TYPE_LOCATION = re.compile(r"int|float|bool|str|constrained-.*|.*\[.*")
"""Type names that pydantic appends to the location of an error."""


def first_validation_error(
    error: ValidationError, where: str, model: type[BaseModel]
) -> tuple[str, str]:
    """Return the arguments (what, hint) of a `UserError`, on one line each.

    An unknown field is reported before other errors: a typo may explain a missing field.
    """
    errors = error.errors()
    fault = next((one for one in errors if one["type"] == UNKNOWN_FIELD_ERROR), errors[0])
    place = (
        ".".join(str(part) for part in fault["loc"] if not TYPE_LOCATION.fullmatch(str(part)))
        or "top level"
    )
    if fault["type"] == UNKNOWN_FIELD_ERROR:
        unknown = UnknownName("field", str(fault["loc"][-1]), list(model.model_fields))
        return f"{where}: {place}: {unknown.what}", unknown.hint
    message = fault["msg"].removeprefix("Value error, ")
    received = (
        ""
        if fault["type"] in ("missing", "value_error")
        else f", received {short_repr(fault['input'])}"
    )
    return f"{where}: {place}: {message}{received}.", "Fix the value."


def short_repr(value: object, limit: int = 60) -> str:
    """Return the `repr` of a value, cut to `limit` characters, for error messages."""
    text = repr(value if not isinstance(value, str) else value[: limit + 1])
    return text if len(text) <= limit else text[: limit - 3] + "..."


def validate_model(model: type[M], values: object, where: str) -> M:
    """Create an instance of a pydantic model. Raises a UserError for the first invalid value."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UserError(*first_validation_error(error, where, model)) from None


def create_fields_model(kinds: Mapping[str, Any]) -> type[BaseModel]:
    """Create a strict pydantic model of optional fields from annotations by name."""
    optional: dict[str, Any] = {name: (kind, None) for name, kind in kinds.items()}
    strict = ConfigDict(strict=True, arbitrary_types_allowed=True, revalidate_instances="always")
    return create_model("Group", __config__=strict, **optional)


def validate_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Check the arguments of a function against its annotations.

    The decorated function raises a `UserError` for invalid arguments and for files it cannot open.
    """

    @wraps(function)
    def call(*positionals: P.args, **keywords: P.kwargs) -> T:
        kinds = get_type_hints(function, include_extras=True)
        kinds.pop("return", None)
        values = signature(function).bind(*positionals, **keywords).arguments
        validate_model(create_fields_model(kinds), values, function.__qualname__)
        try:
            return function(*positionals, **keywords)
        except OSError as error:
            if error.filename is None:
                raise
            fault = f"{error.filename}: {error.strerror}."
            raise UserError(fault, "Use another path, or fix its permissions.") from error

    return call


def parse_assignments(texts: Sequence[str], flag: str = "--set") -> dict[str, str]:
    """Parse `key=value` texts into a dictionary. The last value of a key wins."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UserError(f"{flag} {text!r} is not an assignment.", f"Use {flag} key=value.")
        pairs[key.strip()] = value.strip()
    return pairs


def format_assignments(values: Mapping[str, Json]) -> list[str]:
    """Format a mapping as `key=value` texts."""
    return [f"{key}={format_setting(value)}" for key, value in values.items()]


def format_setting(value: Json) -> str:
    """Format a value as on the command line: `1,2`, `true`, `none`."""
    if isinstance(value, list | tuple):
        return ",".join(map(format_setting, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def parse_value(value: Json, hint: Any, where: str) -> Json:
    """Parse a text into a value of an annotated type, or check a value of another type.

    Supports numbers, booleans, literals, optional values and comma-separated tuples.
    An integer may be written as a size: `16k` is 16,384.
    """
    arguments = get_args(hint)
    several = get_origin(hint) in (tuple, list)
    raw = tuple(value) if isinstance(value, list) and several else value
    if isinstance(value, str):
        if type(None) in arguments and value.lower() in ("none", "null"):
            raw = None
        elif several:
            raw = value.split(",") if value else []
        elif int in (hint, *arguments) and (size := parse_tokens(value)) is not None:
            raw = size
        if {int, float} <= set(arguments) and "." in value:
            hint = float  # pydantic parses "1.0" as 1, but a share of 1.0 is not one token
    try:
        return TypeAdapter(hint).validate_python(raw, strict=not isinstance(value, str))
    except ValidationError:
        hint_text = (
            "Use values of that type, separated by commas: a,b,c."
            if several
            else "Use a value of that type."
        )
        raise UserError(f"{where} takes {type_name(hint)}, got {value!r}.", hint_text) from None


def type_name(hint: Any) -> str:
    """Format an annotation for messages: `int`, `int or None`, `'prefix' or 'lora'`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(repr(argument) for argument in arguments)
    if arguments and origin not in (tuple, list):
        return " or ".join(
            "None" if argument is type(None) else type_name(argument) for argument in arguments
        )
    return getattr(hint, "__name__", str(hint)) if not arguments else str(hint)
