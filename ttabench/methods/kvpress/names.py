"""Presses of NVIDIA's kvpress by name: `AdaKVPress(SnapKVPress?window_size=32)?alpha_safeguard=0.1`."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, get_args, get_origin, get_type_hints

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.typed import assignments, parse_value

INSTALL = "pip install --no-deps kvpress==0.5.5 cachetools==5.5.2 fire==0.7.1 termcolor==3.3.0"
"""kvpress asks for an older transformers, so its dependencies cannot be resolved; these are what importing it takes."""
DEEPEST = 20
"""Presses within each other."""
ABSTRACT = ("BasePress", "ScorerPress")

OVER_ALL = {"KVzipPress": True, "KVgradPress": True, "FastKVzipPress": True, "KVComposePress": False}
"""Presses that decide when all layers were read, after further passes or none, and share their budget out over all
layers and heads; whether they count the slots that go, not those that stay (see `removed_share`)."""


@dataclass(frozen=True, kw_only=True)
class Press:
    """A press as it was typed."""

    name: str
    wrapped: tuple[Press, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)

    def all(self) -> list[Press]:
        """This press and all it wraps."""
        return [self, *(inner for press in self.wrapped for inner in press.all())]


def parse(text: str) -> Press:
    """A press as it was typed, with those it wraps and their arguments."""
    head, *queries = _split(text, "?")
    match = re.fullmatch(r"(\w+)\s*(?:\((.*)\))?", head.strip())
    if match is None or len(queries) > 1:
        fault = f"{text!r} is not the name of a press." if text.strip() else "kvpress needs the name of a press."
        raise UserError(
            fault, "Write --method 'kvpress:SnapKVPress?window_size=32', or 'kvpress:AdaKVPress(SnapKVPress)'."
        )
    typed = [part for part in queries[0].split("&") if part] if queries else []
    wrapped = () if match[2] is None else tuple(parse(part) for part in _split(match[2], ","))
    return Press(name=match[1], wrapped=wrapped, arguments=assignments(typed, f"{match[1]}?"))


def _split(text: str, separator: str) -> list[str]:
    """The parts between separators that stand in no brackets."""
    parts, depth = [""], 0
    for symbol in text:
        depth += {"(": 1, ")": -1}.get(symbol, 0)
        if depth > DEEPEST:
            raise UserError(f"{text[:40]}... has more than {DEEPEST} presses inside each other.", "Use fewer.")
        if depth < 0:
            break
        if symbol == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += symbol
    if depth:
        raise UserError(f"The brackets of {text!r} do not match.", "Write --method 'kvpress:AdaKVPress(SnapKVPress)'.")
    return parts


def known_presses() -> dict[str, type[Any]]:
    """The presses that kvpress has, by name."""
    try:
        kvpress = import_module("kvpress")
    except ImportError as error:
        raise UserError(f"kvpress cannot be imported ({error}).", f"Install it: {INSTALL}") from None
    logging.getLogger("kvpress").setLevel(logging.ERROR)  # it warns whenever a press is made: for every text here
    named = {name: getattr(kvpress, name) for name in kvpress.__all__ if name not in ABSTRACT}
    return {name: cls for name, cls in named.items() if issubclass(cls, kvpress.BasePress)}


def build(wanted: Press, known: Mapping[str, type[Any]]) -> Any:
    """A new press."""
    cls = _class_of(wanted, known)
    taken = [name for name in inspect.signature(cls).parameters if not name.startswith("_")]
    hints = get_type_hints(cls.__init__)
    places = [name for name in taken if _takes_a_press(hints[name], tuple(known.values()))]
    plain = [name for name in taken if name not in places]
    presses = [build(press, known) for press in wanted.wrapped]
    listed = len(places) == 1 and get_origin(hints[places[0]]) is list
    if len(presses) > len(places) and not listed:
        takes = f"{len(places)} press" if places else "no other press"
        fault = f"{wanted.name} takes {takes} in its brackets, got {len(presses)}."
        raise UserError(fault, "Write the press alone, or one in its brackets.")
    given: dict[str, Any] = {places[0]: presses} if listed and presses else dict(zip(places, presses, strict=False))
    for key, text in wanted.arguments.items():
        if key not in plain:
            raise UnknownName(f"argument of {wanted.name}", key, plain)
        given[key] = parse_value(text, hints[key], f"{key} of {wanted.name}")
    try:
        return cls(**given)
    except (AssertionError, TypeError, ValueError) as error:
        inside = "(SnapKVPress)" if places else "?key=value"
        hint = f"Write 'kvpress:{wanted.name}{inside}', and see kvpress's documentation."
        raise UserError(f"{wanted.name}: {' '.join(str(error).split())}.", hint) from None


def _class_of(wanted: Press, known: Mapping[str, type[Any]]) -> type[Any]:
    """The class of a press."""
    if wanted.name not in known:
        raise UnknownName("press", wanted.name, sorted(known))
    return known[wanted.name]


def _takes_a_press(hint: Any, presses: Sequence[type[Any]]) -> bool:
    """Whether an annotation is a press, may be one, or is a list of them."""
    if isinstance(hint, type) and not get_args(hint):
        return any(issubclass(press, hint) for press in presses)
    return any(_takes_a_press(part, presses) for part in get_args(hint))


def check_passes(wanted: Press, known: Mapping[str, type[Any]]) -> None:
    """Whether ttabench can have a text read as these presses want it."""
    for press in wanted.all():
        cls = _class_of(press, known)
        first = next(parent for parent in reversed(cls.__mro__) if "__call__" in vars(parent))
        if vars(first)["__call__"] is cls.__call__ or (press is wanted and press.name in OVER_ALL):
            continue
        fault = f"{press.name} reads in a way of its own, which does not run here, or not within another press."
        raise UserError(fault, "Choose another press, or use kvpress's own pipeline.")


def takes_a_budget(press: Any) -> bool:
    """Whether a press can be told which share of the tokens to remove."""
    try:
        before = press.compression_ratio
        press.compression_ratio = before
    except (AttributeError, AssertionError, ValueError):  # so presses say that they cannot
        return False
    return isinstance(before, int | float)
