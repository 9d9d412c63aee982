"""Removal of machine-specific paths from records: only the last part of each path is kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from ttabench.core.types import Json

PATH_FIELDS = ("source", "checkpoint", "base_checkpoint", "state", "model")
"""Fields of a configuration that may be a path."""
SOURCE_KIND = re.compile(r"(?:file|folder):")
"""Prefix of the name of a source that is read from files."""
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_ABSOLUTE_PATH = re.compile(
    r"(?<![\w/\\.<>-])(?:~\w*|[A-Za-z]:|\\)?(?:[/\\](?![/\\])[^\s/\\:;,\"'()<>|]+){2,}"
)


def remove_paths(record: Mapping[str, Json]) -> dict[str, Json]:
    """Convert a record to JSON with shortened paths in all texts and keys.

    Shortened are absolute paths and the paths in `PATH_FIELDS` of the configuration.
    """
    config = record.get("config", {})
    path_texts = {SOURCE_KIND.sub("", str(config.get(name) or ""), count=1) for name in PATH_FIELDS}
    paths = sorted(
        (text for text in path_texts if re.search(r"[/\\]", text) and not _HUB_ID.fullmatch(text)),
        key=len,
    )

    def shorten(text: str) -> str:
        for path in reversed(paths):  # longest first, as one may contain another
            text = text.replace(path, _last_part(path))
        return source_name(text) if SOURCE_KIND.match(text) else shorten_paths(text)

    shortened: dict[str, Json] = _map_texts(record, shorten)
    return shortened


def _map_texts(value: Json, change: Callable[[str], str]) -> Json:
    """A value with `change` applied to every text in it, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(key)): _map_texts(part, change) for key, part in value.items()}
    return (
        [_map_texts(part, change) for part in value] if isinstance(value, list | tuple) else value
    )


def shorten_paths(text: str) -> str:
    """Replace every absolute path in a text by its last part."""
    return _ABSOLUTE_PATH.sub(lambda match: _last_part(match[0]), text)


def source_name(source: str) -> str:
    """Remove the parent folders of a source: `folder:/home/ada/pg19` becomes `folder:pg19`."""
    kind = SOURCE_KIND.match(source)
    return kind[0] + _last_part(source[kind.end() :]) if kind else source


def _last_part(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]
