"""A field that is declared once: what it holds, what it is called where it is typed, and whether it counts; and values
of fields from `key=value` texts, by the annotations of a settings class, and back.

limit: Annotated[int | None, Declared("Ask at most this many queries.", WHAT)] = None
assignments(["a=1", "b=x"])                    {"a": "1", "b": "x"}
parse_value("0.2", int | float, "--set a")     0.2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, wraps
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from ttabench.core.amounts import tokens_in
from ttabench.core.errors import UserError
from ttabench.core.types import Json

if TYPE_CHECKING:
    from pydantic import BaseModel

P = ParamSpec("P")
T = TypeVar("T")
RUN, WHAT, HOW = "What runs", "What is asked of it", "How it runs and shows"
RECIPE = "Recipe (defaults: those of the preset)"


@dataclass(frozen=True)
class Declared:
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
    hashed: bool = True


@dataclass(frozen=True)
class Field:
    """A declared field of a dataclass."""

    name: str
    kind: Any
    """Its type."""
    default: Any
    said: Declared

    @property
    def flags(self) -> list[str]:
        """How it is typed; of a switch, second, also how it is turned off."""
        return (self.said.flags[0] if self.said.flags else f"--{self.name.replace('_', '-')}").split("/")

    def words(self, value: Any) -> list[str]:
        """The words that set a field to a value on the command line; none for the default."""
        if value == self.default:
            return []
        if isinstance(value, bool):
            return [self.flags[not value]]
        return [self.flags[0], "auto" if self.said.parse is not None and not value else str(value)]


@cache
def declared(kind: type) -> Mapping[str, Field]:
    """The declared fields of a dataclass by name, in order."""
    hints, by_name = get_type_hints(kind, include_extras=True), dict[str, Field]()
    for field in fields(kind):
        if get_origin(hints[field.name]) is Annotated:
            held, said = get_args(hints[field.name])
            by_name[field.name] = Field(name=field.name, kind=held, default=field.default, said=said)
    return by_name


def model_of(kinds: Mapping[str, Any]) -> type[BaseModel]:
    """A strict pydantic model of optional fields, from their annotations by name."""
    from pydantic import ConfigDict, create_model

    optional: dict[str, Any] = {name: (kind, None) for name, kind in kinds.items()}
    strict = ConfigDict(strict=True, arbitrary_types_allowed=True, revalidate_instances="always")
    return create_model("Group", __config__=strict, **optional)


def check_types(where: str, kinds: Mapping[str, Any], values: Mapping[str, Any], hint: str) -> None:
    """Refuse the first value that its annotation does not allow."""
    from pydantic import ValidationError

    try:
        model_of(kinds).model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        what = fault["msg"].removeprefix("Value error, ")
        raise UserError(f"{where}: {fault['loc'][0]}: {what}, got {fault['input']!r:.40}.", hint) from None


def checked_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """A function that refuses, with a `UserError`, arguments that its annotations do not allow, and files that the
    system refuses."""

    @wraps(function)
    def call(*given: P.args, **named: P.kwargs) -> T:
        kinds = get_type_hints(function, include_extras=True)
        kinds.pop("return", None)
        values = signature(function).bind(*given, **named).arguments
        check_types(function.__qualname__, kinds, values, "Fix that argument.")
        try:
            return function(*given, **named)
        except OSError as error:
            if error.filename is None:
                raise
            fault = f"{error.filename}: {error.strerror}."
            raise UserError(fault, "Choose another path, or fix its rights.") from error

    return call


def assignments(texts: Sequence[str], flag: str = "--set") -> dict[str, str]:
    """`["a=1", "b=x"]` as a dictionary; a later assignment of one key wins."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UserError(f"{flag} {text!r} is not an assignment.", f"Write {flag} key=value.")
        pairs[key.strip()] = value.strip()
    return pairs


def as_typed(value: Json) -> str:
    """A value as it is typed: `1,2`, `true`, `none`."""
    if isinstance(value, list | tuple):
        return ",".join(map(as_typed, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def parse_value(text: str, hint: Any, where: str) -> Json:
    """A text as a value of an annotated type: numbers, booleans, literals, optional values, comma-separated tuples.

    A whole number may be written as a size: `16k` is 16,384.
    """
    from pydantic import TypeAdapter, ValidationError

    arguments = getattr(hint, "__args__", ())
    raw: Json = None if text.lower() in ("none", "null") and type(None) in arguments else text
    if isinstance(raw, str) and getattr(hint, "__origin__", None) in (tuple, list):
        raw = raw.split(",") if raw else []
    if isinstance(raw, str) and int in (hint, *arguments) and (size := tokens_in(text)) is not None:
        raw = size
    if {int, float} <= set(arguments) and "." in text:
        hint = float  # pydantic reads "1.0" as the integer 1, but a share of all and one token are not the same
    try:
        return TypeAdapter(hint).validate_python(raw)
    except ValidationError:
        several = getattr(hint, "__origin__", None) in (tuple, list)
        mend = "Give values of that type with commas between them: a,b,c." if several else "Give a value of that type."
        raise UserError(f"{where} takes {type_name(hint)}, got {text!r}.", mend) from None


def type_name(hint: Any) -> str:
    """An annotation for people: `int`, `int or None`, `'prefix' or 'lora'`."""
    origin = getattr(hint, "__origin__", None)
    arguments = getattr(hint, "__args__", ())
    if str(origin) == "typing.Literal":
        return " or ".join(repr(argument) for argument in arguments)
    if arguments and origin not in (tuple, list):
        return " or ".join("None" if argument is type(None) else type_name(argument) for argument in arguments)
    return getattr(hint, "__name__", str(hint)) if not arguments else str(hint)
