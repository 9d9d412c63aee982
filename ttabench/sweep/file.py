"""A suite as a file in YAML.

Plain words are texts, but for true, false, null and numbers as JSON writes them: `12:24` is no time of day.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path

import yaml

from ttabench.core.checked_file import reading
from ttabench.core.types import Json
from ttabench.readers.cards import checked

KIND = "suite of runs"


class _Loader(yaml.SafeLoader):
    """Values as JSON has them, and no key twice."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  # as yaml has it

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Json]:
        """The mapping of a node."""
        keys = [key.value for key, _ in node.value]
        for number, (key, _) in enumerate(node.value):
            if key.value in keys[:number]:
                raise yaml.MarkedYAMLError(problem=f"{key.value} stands there twice", problem_mark=key.start_mark)
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in (
    ("null", r"~|null|", ["~", "n", ""]),
    ("bool", r"true|false", list("tf")),
    ("int", r"-?(?:0|[1-9]\d*)", list("-0123456789")),
    ("float", r"-?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?", list("-.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)


def read(path: Path) -> Json:
    """What a suite says."""
    with reading(path):
        loader = _Loader(checked(path, KIND))
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
