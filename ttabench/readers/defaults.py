"""What the options of a task are where neither its card nor anybody says otherwise."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from types import ModuleType

from pydantic import BaseModel

from ttabench.core.plugins import offered
from ttabench.core.types import Json
from ttabench.readers import GROUP, READERS
from ttabench.readers.cards import Card
from ttabench.readers.generators import arguments_of, generator_of


def defaults(card: Card, source: str) -> dict[str, Json]:
    """Defaults of the protocol, and under `mini` of the generator's arguments, as JSON values.

    They are those of the reader, the model `Settings` of its module, and not those of the card: a card that is changed
    asks for other settings. Options without a default, and all of a reader that has no such model, are left out.
    """
    settings = getattr(_module(card.reader), "Settings", None)
    if not (isinstance(settings, type) and issubclass(settings, BaseModel)):
        return {}
    values: dict[str, Json] = settings.model_construct().model_dump(mode="json")
    if source != "mini" or card.twin is None:
        return values
    parameters = inspect.signature(generator_of(card)).parameters
    given = {name: parameters[name].default for name in arguments_of(card)}
    return {name: value for name, value in given.items() if value is not inspect.Parameter.empty} | values


def known_options(card: Card, source: str) -> list[str] | None:
    """Names of the options of a task: of its protocol, and under `mini` of its generator; None where nobody knows."""
    settings = getattr(_module(card.reader), "Settings", None)
    if not (isinstance(settings, type) and issubclass(settings, BaseModel)):
        return None
    return [*settings.model_fields, *(arguments_of(card) if source == "mini" and card.twin is not None else ())]


def _module(reader: str) -> ModuleType | None:
    if reader in READERS:
        return import_module(READERS[reader].partition(":")[0])
    if reader in offered(GROUP):
        return sys.modules.get(getattr(offered(GROUP)[reader].load(), "__module__", ""))
    return None
