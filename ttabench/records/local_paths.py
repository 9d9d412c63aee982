"""Records without the paths of the machine they were made on: of every path its last part stays."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from ttabench.core.types import Json

FIELDS = ("source", "checkpoint", "base_checkpoint", "state", "model")
"""Of a configuration, what may be a path."""
KINDS = re.compile(r"(?:file|folder):")
"""Beginning of the name of a source that is read from files."""
_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_ABSOLUTE = re.compile(r"(?<![\w/\\.<>-])(?:~\w*|[A-Za-z]:|\\)?(?:[/\\](?![/\\])[^\s/\\:;,\"'()<>|]+){2,}")


def without_paths(record: Mapping[str, Json]) -> dict[str, Json]:
    """A record as JSON, every text in it and every name without its paths: what is absolute, and what the configuration
    names as one."""
    config = record.get("config", {})
    named = {KINDS.sub("", str(config.get(name) or ""), count=1) for name in FIELDS}
    paths = sorted((text for text in named if re.search(r"[/\\]", text) and not _HUB.fullmatch(text)), key=len)

    def without(text: str) -> str:
        for path in reversed(paths):  # the longest first
            text = text.replace(path, _last(path))
        return source_name(text) if KINDS.match(text) else without_homes(text)

    changed: dict[str, Json] = _changed(record, without)
    return changed


def _changed(value: Json, change: Callable[[str], str]) -> Json:
    """A value with every text in it changed, names too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(key)): _changed(part, change) for key, part in value.items()}
    return [_changed(part, change) for part in value] if isinstance(value, list | tuple) else value


def without_homes(text: str) -> str:
    """A text with the last part of every absolute path in it."""
    return _ABSOLUTE.sub(lambda match: _last(match[0]), text)


def source_name(source: str) -> str:
    """Where rows came from, without the folders above: `folder:/home/ada/pg19` becomes `folder:pg19`."""
    kind = KINDS.match(source)
    return kind[0] + _last(source[kind.end() :]) if kind else source


def _last(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]
