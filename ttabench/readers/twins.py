"""Generators of the miniature world by the name a card gives, and how much they may be asked for."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from typing import Any

from ttabench.errors import UserError
from ttabench.readers.cards import brief

MOST_ROWS, MOST_TOKENS = 10**6, 2**26
"""What a twin makes at most: rows, or whatever its arguments count, multiplied; and tokens of running text."""


def twin_function(generator: str) -> Callable[..., list[Mapping[str, object]]]:
    """The generator named "ttabench.mini.module:function" on a card; what it makes is bounded.

    Raises:
        UserError: there is no such generator; the generator itself, where it is asked for too much.
    """
    module, _, function = generator.partition(":")
    try:
        found: Callable[..., list[Mapping[str, object]]] = getattr(import_module(module), function)
        parameters = inspect.signature(found).parameters.keys()
    except (ImportError, AttributeError, TypeError, ValueError):
        parameters = {}.keys()
    if not {"split", "seed"} <= parameters:
        raise UserError(f"{generator!r} is no generator of the miniature world.", "See twin.generator of `tasks/`.")

    @wraps(found)
    def bounded(*given: Any, **named: Any) -> list[Mapping[str, object]]:
        try:
            arguments = inspect.signature(found).bind(*given, **named).arguments
        except TypeError as error:
            what = f"{generator} makes nothing for this reader ({error})."
            raise UserError(what, "Name another on the card.") from None
        _check_size(generator, arguments)
        return found(*given, **named)

    return bounded


def _check_size(generator: str, arguments: Mapping[str, object]) -> None:
    counts = {key: n for key, n in arguments.items() if key != "seed" and isinstance(n, int) and n > 0}
    rows = math.prod(n for key, n in counts.items() if key != "tokens")
    if rows > MOST_ROWS or rows * counts.get("tokens", 1) > MOST_TOKENS:
        asked = ", ".join(f"{key}={brief(n, 20)}" for key, n in counts.items())
        raise UserError(f"{generator} would make too much with {asked}.", "Ask for less with --task-set.")
