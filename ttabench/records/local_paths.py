"""Records without the paths of the machine they were made on: of every path its last part stays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ttabench.core.types import Json

FIELDS = ("source", "checkpoint", "base_checkpoint", "state", "model")
"""Of a configuration, what may be a path."""
KINDS = re.compile(r"(?:file|folder):")
"""Beginning of the name of a source that is read from files."""
_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_ABSOLUTE = re.compile(r"(?<![\w/\\.<>-])(?:~\w*|[A-Za-z]:|\\)?(?:[/\\](?![/\\])[^\s/\\:;,\"'()<>|]+){2,}")
_HOME = re.compile(rf"~\w*|{re.escape(str(Path.home()))}(?![^/])|[/\\](?:home|Users)[/\\][^/\\]+")
_LONGEST = 4096


def without_paths(record: Mapping[str, Json]) -> dict[str, Json]:
    """A record as JSON, every text in it and every name without its paths."""
    named = {text for text in _named(record) if _is_path(text)}
    inside = sorted(named, key=len, reverse=True)
    paths = _told(record, inside)
    assert isinstance(paths, dict), "a record is an object"
    return paths


def without_homes(text: str) -> str:
    """A text whose paths are relative to the working folder, and of those below a home folder the last part."""
    return _ABSOLUTE.sub(lambda match: _from_here(match[0]), text)


def _from_here(path: str) -> str:
    here = f"{Path.cwd()}/"
    if path.startswith(here):
        return path.removeprefix(here)
    home = _HOME.search(path)
    return path if home is None else _last(path) if path[home.end() :] else "~"


def source_name(source: str) -> str:
    """Where rows came from, without the folders above: `folder:/home/ada/pg19` becomes `folder:pg19`."""
    kind = KINDS.match(source)
    return kind[0] + _last(source[kind.end() :]) if kind else source


def _named(record: Mapping[str, Json]) -> Iterator[str]:
    """Paths that the configuration may name, and every text that leads somewhere here."""
    config = record.get("config", {})
    yield from (KINDS.sub("", str(config.get(name) or ""), count=1) for name in FIELDS)
    yield from (text for text in _texts(record) if len(text) < _LONGEST and _leads_somewhere(text))


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key in value:
            yield from (*_texts(key), *_texts(value[key]))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def _is_path(text: str) -> bool:
    if "/" not in text and "\\" not in text:
        return False
    return _HUB.fullmatch(text) is None or _leads_somewhere(text)


def _leads_somewhere(text: str) -> bool:
    try:
        return ("/" in text or "\\" in text) and Path(text).exists()
    except (OSError, ValueError):
        return False


def _told(value: Json, named: list[str]) -> Json:
    if isinstance(value, str):
        return _without(value, named)
    if isinstance(value, Mapping):
        return {_without(str(key), named): _told(part, named) for key, part in value.items()}
    return [_told(part, named) for part in value] if isinstance(value, list | tuple) else value


def _without(text: str, named: list[str]) -> str:
    for path in named:
        text = text.replace(path, _last(path))
    if KINDS.match(text):
        return source_name(text)
    return _ABSOLUTE.sub(lambda match: _last(match[0]), text)


def _last(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]
