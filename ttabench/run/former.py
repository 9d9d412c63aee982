"""Runs of earlier versions: under which id they are found today.

    where_stored(Path("runs"), plan.config)       OUT/<id>, once what earlier versions left there is brought up to date

In schema 1 an id was a hash of the whole configuration, defaults included; so every new setting gave all runs new ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ttabench.core.errors import UserError
from ttabench.core.identity import hashed, text_of
from ttabench.core.types import Json
from ttabench.methods.registry import known_settings
from ttabench.readers.cards import load_card
from ttabench.readers.defaults import defaults as task_defaults
from ttabench.records import migrate
from ttabench.records.migrate import NameOf, Wanted
from ttabench.records.store import RUNS
from ttabench.run.config import RunConfig

FIRST_FIELDS = (
    "verb", "method", "task", "model", "source", "split", "seed", "limit", "preset", "settings", "task_options",
    "dtype", "batch_size", "random_weights", "ask_only", "state_of", "bos", "chat_template", "inputs",
)  # fmt: skip
"""What was hashed in schema 1."""


def where_stored(out: Path, config: RunConfig, *, force: bool = False) -> Path:
    """The folder of a run, see `migrate.where_stored`; with `force` for one that is made anew."""
    wanted = Wanted(name=config.identity(), before=_first(config), force=force)
    return migrate.where_stored(out, RUNS, wanted, naming(config))


def naming(own: RunConfig | None = None) -> NameOf:
    """What says the id of today of a stored run: None where its method or its task is not known.

    Args:
        own: a configuration whose defaults are those of its method and task; of others they are looked up.
    """

    @cache
    def settings(method: str, origin: str) -> Mapping[str, Json]:
        if own and (own.method, own.inputs.get("method", "")) == (method, origin):
            return own.defaults["settings"]
        return known_settings(method, origin)

    @cache
    def options(task: str, source: str) -> Mapping[str, Json]:
        of_own = own and (own.task, own.source == "mini") == (task, source == "mini")
        return own.defaults["task_options"] if own and of_own else task_defaults(load_card(task), source)

    def name_of(content: Mapping[str, Json]) -> str | None:
        try:
            config = content["config"]
            defaults = {
                "settings": settings(config["method"], config.get("inputs", {}).get("method", "")),
                "task_options": options(config["task"], config["source"]),
            }
            return RunConfig(**{**config, "defaults": defaults}).identity()
        except (UserError, KeyError, TypeError, AttributeError):
            return None

    return name_of


def _first(config: RunConfig) -> str:
    """The id in schema 1."""
    differing = config.differing()
    said = config.to_json() | {key: differing[key] for key in ("source", "model") if key in differing}
    kept = {key: said[key] for key in FIRST_FIELDS if key != "state_of" or config.state_of != "own"}
    return hashed(text_of(kept))
