"""What a stored run was told: all of it, and what of it is no default.

changes(record.config)              {"hierarchy": 16, "documents": 8}
told(record)                        "hierarchy=16, documents=8"
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache

from ttabench.core.declared import as_typed
from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.methods.registry import known_settings
from ttabench.readers.cards import load_card
from ttabench.readers.protocol_options import defaults as task_defaults
from ttabench.records.run_fields import RunConfig
from ttabench.records.schema import RunRecord

NAMED = ("verb", "method", "task", "model", "source", "seed", "inputs", "state_of", "random_weights")
"""Fields that a line of a list shows in columns of their own."""


def whole(config: Mapping[str, Json]) -> RunConfig:
    """The configuration of a record with the defaults it is held against, as far as method and task are here."""
    known = {field.name for field in fields(RunConfig)} - {"defaults"}
    values = {"method": "", **{key: value for key, value in config.items() if key in known}}
    return RunConfig(**values, defaults=_defaults(values))


def with_defaults(config: Mapping[str, Json]) -> dict[str, Json]:
    """A configuration and the defaults of what it does not name: earlier versions knew fewer fields, and others, which
    say nothing where they are empty."""
    plain = _plain(str(config.get("method")))
    values = {**plain, **{key: value for key, value in config.items() if key in plain or value not in ("", None)}}
    return values | {name: {**known, **values[name]} for name, known in _defaults(values).items()}


def _defaults(config: Mapping[str, Json]) -> dict[str, Mapping[str, Json]]:
    origin = str(config.get("inputs", {}).get("method", ""))
    return {
        "settings": _known_settings(str(config.get("method")), origin),
        "task_options": _known_options(str(config.get("task")), str(config.get("source"))),
    }


@lru_cache(maxsize=256)
def _plain(method: str) -> dict[str, Json]:
    return RunConfig(method=method).to_json()


@lru_cache(maxsize=256)
def _known_settings(method: str, origin: str) -> Mapping[str, Json]:
    with suppress(UserError):  # a method that is not here
        return known_settings(method, origin)
    return {}


@lru_cache(maxsize=256)
def _known_options(task: str, source: str) -> Mapping[str, Json]:
    with suppress(UserError):  # a card that is not here
        return task_defaults(load_card(task), source)
    return {}


def flat(config: Mapping[str, Json]) -> dict[str, Json]:
    """Settings and task options beside all else; where both have a name, the task's is said to be the task's."""
    plain = {key: value for key, value in config.items() if not isinstance(value, Mapping)}
    settings, options = config.get("settings", {}), config.get("task_options", {})
    return {**plain, **settings, **{f"task {key}" if key in settings else key: options[key] for key in options}}


def changes(config: Mapping[str, Json]) -> dict[str, Json]:
    """Options that are no defaults, in one level, digests of files and names of the run aside."""
    return {key: value for key, value in flat(whole(config).differing()).items() if key not in NAMED}


def told(record: RunRecord) -> str:
    """Options that are no defaults, presets and checkpoints that do not ship included: `preset book, budget=0.5`."""
    preset, checkpoint = (str(record.config.get(name) or "") for name in ("preset", "checkpoint"))
    words = [f"preset {preset}"] * bool(preset)
    words += [f"{key}={as_typed(value)}" for key, value in changes(record.config).items() if key != "checkpoint"]
    if checkpoint and not checkpoint.startswith("shipped:"):
        words.append(f"checkpoint={checkpoint.rstrip('/').rpartition('/')[2]}")
    elif not checkpoint and record.method.get("parameters"):
        words.append("untrained")
    return ", ".join(words)
