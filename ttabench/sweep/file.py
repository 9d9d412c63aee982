"""A suite as a file: YAML whose every value knows its line.

Plain words are texts, but for true, false, null and numbers as JSON writes them: `12:24` is no time of day.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import yaml

from ttabench.core.checked_file import reading
from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.readers.cards import checked

Place: TypeAlias = tuple[str | int, ...]
"""Where a value stands: keys and numbers from the top on."""
KIND = "suite of runs"


class _Loader(yaml.SafeLoader):
    """Values as JSON has them."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  # as yaml has it


for _tag, _pattern, _first in (
    ("null", r"~|null|", ["~", "n", ""]),
    ("bool", r"true|false", list("tf")),
    ("int", r"-?(?:0|[1-9]\d*)", list("-0123456789")),
    ("float", r"-?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?", list("-.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)


@dataclass(frozen=True)
class Read:
    """A suite as it was written."""

    data: Json
    path: Path | None = None
    lines: Mapping[Place, int] = field(default_factory=dict)

    def where(self, place: Place) -> str:
        """`suite.yaml line 3`, of the innermost value that is known; the file for none; nothing where there is none."""
        for length in range(len(place), 0, -1):
            if line := self.lines.get(place[:length]):
                return f"{self.path} line {line}"
        return str(self.path) if self.path is not None else ""

    @contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Faults within are told with their place."""
        try:
            yield
        except UserError as error:
            if not (where := self.where(place)):
                raise
            raise UserError(f"{where}: {error.what}", error.hint) from None

    def placed(self, error: UserError, faults: Mapping[Place, str]) -> UserError:
        """The fault with the line of the word that it names, the innermost first; else of the first that was said."""
        inside = sorted(faults.items(), key=lambda place: -len(place[0]))
        named = [place for place, word in inside if _names(error.what, word)]
        where = self.where(named[0] if named else next(iter(faults), ()))
        return UserError(f"{where}: {error.what}", error.hint) if where else error


def _names(kind: str, word: str) -> bool:
    text = re.escape(word)
    return re.search(rf"(?<![\w-])(?:--)?(?:{text}|{text.replace('_', '-')})(?![\w-])", kind) is not None


def read(path: Path) -> Read:
    """A suite."""
    with reading(path):
        loader = _Loader(checked(path, KIND))
        try:
            node = loader.get_single_node()
            lines = dict(_lines(node, (), path)) if node is not None else {}
            data = loader.construct_document(node) if node is not None else None
        finally:
            loader.dispose()
    return Read(data, path, lines)


def _lines(node: yaml.Node, place: Place, path: Path) -> Iterator[tuple[Place, int]]:
    """Every place below a node, and its line; of a value in a mapping, that of its key."""
    if isinstance(node, yaml.SequenceNode):
        for number, node_below in enumerate(node.value):
            yield (*place, number), node_below.start_mark.line + 1
            yield from _lines(node_below, (*place, number), path)
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or not key.value:
                raise UserError(f"{path} line {line}: a key is a word.", "Mend that line.")
            if key.value in seen:
                raise UserError(f"{path} line {line}: {key.value} stands there twice.", "Write it once.")
            seen.add(key.value)
            yield (*place, key.value), line
            yield from _lines(value, (*place, key.value), path)
