"""Methods together: `--method rag+mac`. All of them read, and their patches are put on the model at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import Any, get_args, get_type_hints

from ttabench.core.errors import UserError
from ttabench.core.types import Growth
from ttabench.methods.spec import MethodSpec

SIGN = "+"
BY_SIZE: tuple[Growth, ...] = get_args(Growth)
"""How states grow, from nothing to most: none, constant, linear."""


@dataclass(frozen=True, kw_only=True)
class PairSpec(MethodSpec):
    """Methods that read together."""

    parts: tuple[MethodSpec, ...]
    """The methods, in the order in which their tokens stand in the window."""

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Beginnings of the names of settings and tensors of each part."""
        return tuple(label_of(part.name) for part in self.parts)

    @cached_property
    def owners(self) -> Mapping[str, tuple[int, str]]:
        """Place of the part, and its own name of the setting, by setting."""
        named = enumerate(zip(self.labels, self.parts, strict=True))
        return {f"{label}_{one.name}": (n, one.name) for n, (label, part) in named for one in fields(part.Settings)}

    def load(self) -> type[Any]:
        """A class of its own, which the parts are instances within."""
        pair = import_module("ttabench.methods.pair.method").Pair
        return type(f"Pair[{SIGN.join(self.labels)}]", (pair,), {"spec": self, "__doc__": self.summary})


def label_of(name: str) -> str:
    """The name of a method as the beginning of other names: kvpress_SnapKVPress."""
    return re.sub(r"\W+", "_", name.partition("?")[0]).strip("_")


def joined(labels: Sequence[str], by_part: Iterable[Any]) -> dict[str, Any]:
    """What is told of all parts by their common names: settings, or values by the name of a setting."""
    told = (own if isinstance(own, Mapping) else {one.name: getattr(own, one.name) for one in fields(own)}
            for own in by_part)  # fmt: skip
    return {f"{label}_{key}": value for label, own in zip(labels, told, strict=True) for key, value in own.items()}


def parted(parts: Sequence[MethodSpec], settings: Any) -> list[tuple[MethodSpec, Any]]:
    """Each part with its settings, out of those of all."""
    own = [{one.name: getattr(settings, f"{label_of(part.name)}_{one.name}") for one in fields(part.Settings)}
           for part in parts]  # fmt: skip
    return [(part, part.Settings(**values)) for part, values in zip(parts, own, strict=True)]


def pair_of(parts: Sequence[MethodSpec]) -> PairSpec:
    """The methods together."""
    name = SIGN.join(part.name for part in parts)
    labels = [label_of(part.name) for part in parts]
    if twice := next((label for label in labels if labels.count(label) > 1), ""):
        raise UserError(f"{name} names {twice} twice, and one text is read once.", "Name each method once.")

    made = _settings_class(labels, parts)
    presets = {preset: None for part in parts for preset in part.presets}
    return PairSpec(
        name=name,
        parts=tuple(parts),
        summary=" and ".join(part.name for part in parts) + ": both read, and their patches are merged",
        Settings=made,
        presets={
            preset: made(**joined(labels, (part.presets.get(preset) or part.Settings() for part in parts)))
            for preset in presets
        },
        growth=max((part.growth for part in parts), key=BY_SIZE.index),
        looks_at_question=any(part.looks_at_question for part in parts),
        checked=made(**joined(labels, (part.checked or part.Settings() for part in parts))),
        paper=", ".join(dict.fromkeys(part.paper for part in parts if part.paper)),
        retired=joined(labels, (part.retired for part in parts)),
        origin=", ".join(part.origin for part in parts if part.origin),
    )


def _settings_class(labels: Sequence[str], parts: Sequence[MethodSpec]) -> type[Any]:
    """A frozen dataclass of the fields of all parts, which refuses what a part refuses; `MADE_OF`: settings of the
    parts by label, where the meaning of each field is written."""
    described = []
    for label, part in zip(labels, parts, strict=True):
        hints, own = get_type_hints(part.Settings), part.Settings()
        for setting in fields(part.Settings):
            value = field(default_factory=partial(getattr, own, setting.name))
            described.append((f"{label}_{setting.name}", hints[setting.name], value))
    space = {
        "__post_init__": lambda settings: parted(parts, settings) and None,
        "__doc__": f"Settings of {SIGN.join(labels)}.",
        "MADE_OF": tuple((label, part.Settings) for label, part in zip(labels, parts, strict=True)),
    }
    return make_dataclass("Settings", described, namespace=space, frozen=True, kw_only=True)
