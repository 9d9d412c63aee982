"""Profiles of earlier versions: under which id they are found today.

In schema 1 an id was a hash of the whole configuration, defaults included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ttabench.core.errors import UserError
from ttabench.core.identity import hashed
from ttabench.core.types import Json
from ttabench.methods.registry import known_settings
from ttabench.profiling.job import identity
from ttabench.profiling.record import PROFILES
from ttabench.records import migrate
from ttabench.records.migrate import NameOf, Wanted

Defaults = Mapping[str, Mapping[str, Json]]


def where_stored(
    out: Path, config: Mapping[str, Json], machine: Mapping[str, Json], own: Defaults, *, force: bool = False
) -> Path:
    """The folder of a profile, see `migrate.where_stored`.

    Args:
        out: the folder of all profiles.
        config: see `Job.config`.
        machine: see `environment.hardware`.
        own: defaults of the settings of its methods, by name.
        force: it is made anew, and so always under its id.
    """
    wanted = Wanted(name=identity(config, machine, own), before=_first(config, machine), force=force)
    return migrate.where_stored(out, PROFILES, wanted, naming(own))


def naming(own: Defaults | None = None) -> NameOf:
    """What says the id of today of a stored profile: None where one of its methods is not known.

    Args:
        own: defaults of the settings of methods, by name; of others they are looked up.
    """

    @cache
    def defaults_of(method: str, origin: str) -> Mapping[str, Json]:
        return (own or {})[method] if not origin and method in (own or {}) else known_settings(method, origin)

    def name_of(content: Mapping[str, Json]) -> str | None:
        try:
            methods = content["config"]["methods"]
            return identity(
                content["config"],
                content["hardware"],
                {name: defaults_of(name, told.get("origin", "")) for name, told in methods.items()},
            )
        except (UserError, KeyError, TypeError, AttributeError):
            return None

    return name_of


def _first(config: Mapping[str, Json], machine: Mapping[str, Json]) -> str:
    """The id in schema 1."""
    known = {key: machine[key] for key in ("cpu", "cores", "threads", "gpu") if key in machine}
    methods = {name: {**each, "checkpoint": ""} for name, each in config["methods"].items()}
    return hashed(json.dumps({**config, "methods": methods, "machine": known}, sort_keys=True, separators=(",", ":")))
