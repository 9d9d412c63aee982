"""The generators of miniature twins that cards name: found, checked and called; a card's fault is one line.

generated(card, list, "test", 0, 16, questions=2)   ->  [{"text": ..., "question": ..., "answers": ...}, ...]
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar, get_type_hints

from ttabench.core.errors import UserError
from ttabench.readers.cards import Card
from ttabench.readers.faults import brief

T = TypeVar("T")
MOST_ROWS, MOST_TOKENS = 10**6, 2**26
"""What a twin makes at most: rows, or whatever its arguments count, multiplied; and tokens of running text."""


def generator_of(card: Card) -> Callable[..., Any]:
    """The function that the card names as "ttabench.mini.module:function".

    Raises:
        UserError: there is no such function, or it makes no rows from a split and a seed.
    """
    assert card.twin is not None, "mini was accepted for a card without a twin"
    module, _, function = card.twin.generator.partition(":")
    try:
        generator: Any = getattr(import_module(module), function)
        names = inspect.signature(generator).parameters
    except (ImportError, AttributeError, TypeError, ValueError):
        raise _fault(card, "there is no such function") from None
    if not {"split", "seed"} <= names.keys():
        raise _fault(card, "it makes no rows from a split and a seed")
    return generator  # type: ignore[no-any-return]  # its signature is looked at above


def arguments_of(card: Card) -> dict[str, Any]:
    """Arguments of the card's generator beyond split, seed and documents, with their types."""
    function = generator_of(card)
    hints = get_type_hints(function)
    names = [name for name in inspect.signature(function).parameters if name not in ("split", "seed", "documents")]
    return {name: hints.get(name, str) for name in names}


def generated(card: Card, kind: type[T], *place: object, **arguments: object) -> T:
    """What the card's generator makes: `kind` is list (rows) or dict (rows by name).

    Args:
        place: split, seed and how many texts, for generators that begin so.

    Raises:
        UserError: it does not take these arguments, refuses their values, or makes something else.
    """
    function = generator_of(card)
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*place, **arguments)
    except TypeError as error:
        raise _fault(card, f"it does not fit this card's reader ({error})") from None
    check_size(card, bound.arguments)
    if place and list(signature.parameters)[:2] != ["split", "seed"]:
        raise _fault(card, "it does not fit this card's reader")
    try:
        made = function(*place, **arguments)
    except ValueError as error:
        given = {key: value for key, value in arguments.items() if key not in ("task", "split", "seed")}
        raise UserError(f"The twin of {card.name} refuses {given} ({error}).", "Change --task-set.") from None
    if not isinstance(made, kind):
        raise _fault(card, "it makes rows for another reader")
    return made


def check_size(card: Card, arguments: Mapping[str, object]) -> None:
    """Whether a twin may be asked for so much."""
    counts = {key: n for key, n in arguments.items() if key != "seed" and isinstance(n, int) and n > 0}
    rows = math.prod(n for key, n in counts.items() if key != "tokens")
    if rows > MOST_ROWS or rows * counts.get("tokens", 1) > MOST_TOKENS:
        asked = ", ".join(f"{key}={brief(n, 20)}" for key, n in counts.items())
        raise UserError(f"The twin of {card.name} would make too much with {asked}.", "Ask for less with --task-set.")


def _fault(card: Card, why: str) -> UserError:
    assert card.twin is not None
    return UserError(f"The task card {card.name}: twin.generator {card.twin.generator!r}: {why}.", "Mend that field.")
