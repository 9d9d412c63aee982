"""A field that is declared once: what it holds, what it is called where it is typed, and whether it counts; and values
of fields from `key=value` texts, by the annotations of a settings class, and back.

limit: Annotated[int | None, Declared("Ask at most this many queries.", WHAT)] = None
assignments(["a=1", "b=x"])                    {"a": "1", "b": "x"}
parse_value("0.2", int | float, "--set a")     0.2
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, wraps
from inspect import signature
from typing import Annotated, Any, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model

from ttabench.core.amounts import parse_tokens
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Json

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
RUN_GROUP, QUERY_GROUP, EXECUTION_GROUP = (
    "What runs",
    "What is asked of it",
    "How it runs and shows",
)
RECIPE_GROUP = "Recipe (defaults: those of the preset)"


@dataclass(frozen=True)
class OptionInfo:
    """How an option is presented: its help, group, flags and default.

    Attributes:
        flags: how it is typed; none means `--` and its name.
        default: whether help shows the default.
        kind: the type that is typed, where the field holds another.
        parse: makes the value of a text, for kinds that no type says.
        hashed: part of a run's identity.
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
    """A declared field of a dataclass."""

    name: str
    kind: Any
    """Its type."""
    default: Any
    info: OptionInfo

    @property
    def flags(self) -> list[str]:
        """How it is typed; of a switch, second, also how it is turned off."""
        return (
            self.info.flags[0] if self.info.flags else f"--{self.name.replace('_', '-')}"
        ).split("/")

    def cli_arguments(self, value: Any) -> list[str]:
        """The words that set a field to a value on the command line; none for the default."""
        if value == self.default:
            return []
        if isinstance(value, bool):
            return [self.flags[not value]]
        return [self.flags[0], "auto" if self.info.parse is not None and not value else str(value)]


@cache
def option_fields(kind: type) -> Mapping[str, OptionField]:
    """The declared fields of a dataclass by name, in order."""
    hints, by_name = get_type_hints(kind, include_extras=True), dict[str, OptionField]()
    for field in fields(kind):
        if get_origin(hints[field.name]) is Annotated:
            annotation, info = get_args(hints[field.name])
            by_name[field.name] = OptionField(
                name=field.name, kind=annotation, default=field.default, info=info
            )
    return by_name


UNKNOWN_FIELD_ERROR = "extra_forbidden"
"""Pydantic's name of a field that a model does not have."""
TYPE_LOCATION = re.compile(r"int|float|bool|str|constrained-.*|.*\[.*")
"""Pydantic's names of the types that a field may have, which stand in the place of a fault behind the field."""


def first_validation_error(
    error: ValidationError, where: str, model: type[BaseModel]
) -> tuple[str, str]:
    """(what, hint) of one of pydantic's complaints, on one line each, for a `UserError`.

    It is the first, but a field that there is not goes before all others: it may be why another is missing.
    """
    faults = error.errors()
    fault = next((one for one in faults if one["type"] == UNKNOWN_FIELD_ERROR), faults[0])
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
    return f"{where}: {place}: {message}{received}.", "Fix it."


def short_repr(value: object, limit: int = 60) -> str:
    """`repr` of a value on one short line, for error messages."""
    text = repr(value if not isinstance(value, str) else value[: limit + 1])
    return text if len(text) <= limit else text[: limit - 3] + "..."


def validate_model(model: type[M], values: object, where: str) -> M:
    """An instance of a pydantic model; a UserError of the first value that does not fit."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UserError(*first_validation_error(error, where, model)) from None


def create_fields_model(kinds: Mapping[str, Any]) -> type[BaseModel]:
    """A strict pydantic model of optional fields, from their annotations by name."""
    optional: dict[str, Any] = {name: (kind, None) for name, kind in kinds.items()}
    strict = ConfigDict(strict=True, arbitrary_types_allowed=True, revalidate_instances="always")
    return create_model("Group", __config__=strict, **optional)


def validate_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """A function that refuses, with a `UserError`, arguments that its annotations do not allow, and files that the
    system refuses."""

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
            raise UserError(fault, "Choose another path, or fix its rights.") from error

    return call


def parse_assignments(texts: Sequence[str], flag: str = "--set") -> dict[str, str]:
    """`["a=1", "b=x"]` as a dictionary; a later assignment of one key wins."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UserError(f"{flag} {text!r} is not an assignment.", f"Write {flag} key=value.")
        pairs[key.strip()] = value.strip()
    return pairs


def format_setting(value: Json) -> str:
    """A value as it is typed: `1,2`, `true`, `none`."""
    if isinstance(value, list | tuple):
        return ",".join(map(format_setting, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def parse_value(text: str, hint: Any, where: str) -> Json:
    """A text as a value of an annotated type: numbers, booleans, literals, optional values, comma-separated tuples.

    A whole number may be written as a size: `16k` is 16,384.
    """
    arguments = getattr(hint, "__args__", ())
    raw: Json = None if text.lower() in ("none", "null") and type(None) in arguments else text
    if isinstance(raw, str) and getattr(hint, "__origin__", None) in (tuple, list):
        raw = raw.split(",") if raw else []
    if (
        isinstance(raw, str)
        and int in (hint, *arguments)
        and (size := parse_tokens(text)) is not None
    ):
        raw = size
    if {int, float} <= set(arguments) and "." in text:
        hint = float  # pydantic reads "1.0" as the integer 1, but a share of all and one token are not the same
    try:
        return TypeAdapter(hint).validate_python(raw)
    except ValidationError:
        several = getattr(hint, "__origin__", None) in (tuple, list)
        hint_text = (
            "Give values of that type with commas between them: a,b,c."
            if several
            else "Give a value of that type."
        )
        raise UserError(f"{where} takes {type_name(hint)}, got {text!r}.", hint_text) from None


def type_name(hint: Any) -> str:
    """An annotation for people: `int`, `int or None`, `'prefix' or 'lora'`."""
    origin = getattr(hint, "__origin__", None)
    arguments = getattr(hint, "__args__", ())
    if str(origin) == "typing.Literal":
        return " or ".join(repr(argument) for argument in arguments)
    if arguments and origin not in (tuple, list):
        return " or ".join(
            "None" if argument is type(None) else type_name(argument) for argument in arguments
        )
    return getattr(hint, "__name__", str(hint)) if not arguments else str(hint)
