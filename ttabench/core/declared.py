"""A field that is declared once: what it holds, what it is called where it is typed, and whether it counts.

limit: Annotated[int | None, Declared("Ask at most this many queries.", WHAT)] = None
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

RUN, WHAT, HOW = "What runs", "What is asked of it", "How it runs and shows"
RECIPE = "Recipe (defaults: those of the preset)"


@dataclass(frozen=True)
class Declared:
    """How an option is presented: its help, group, flags and default.

    Attributes:
        help: one sentence, as `--help` shows it.
        group: the heading that it stands under.
        flags: how it is typed; none means `--` and its name.
        default: whether help shows the default.
        kind: the type that is typed, where the field holds another.
        parse: makes the value of a text, for kinds that no type says.
        metavar: what stands for the value in help.
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
    def flag(self) -> str:
        """How it is typed."""
        return self._flags[0]

    @property
    def _flags(self) -> tuple[str, str]:
        """Of a switch also how it is turned off."""
        on, _, off = (self.said.flags[0] if self.said.flags else f"--{self.name.replace('_', '-')}").partition("/")
        return on, off

    def words(self, value: Any) -> list[str]:
        """The words that set a field to a value on the command line; none for the default."""
        if value == self.default:
            return []
        if isinstance(value, bool):
            return [self._flags[not value]]
        return [self.flag, "auto" if self.said.parse is not None and not value else str(value)]


@cache
def declared(kind: type) -> Mapping[str, Field]:
    """The declared fields of a dataclass by name, in order."""
    hints, by_name = get_type_hints(kind, include_extras=True), dict[str, Field]()
    for field in fields(kind):
        hint = hints[field.name]
        declaration = next((part for part in get_args(hint)[1:] if isinstance(part, Declared)), None)
        if get_origin(hint) is Annotated and declaration is not None:
            by_name[field.name] = Field(
                name=field.name, kind=get_args(hint)[0], default=field.default, said=declaration
            )
    return by_name
