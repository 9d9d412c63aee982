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

PAIR_SEPARATOR = "+"
GROWTHS_BY_SIZE: tuple[Growth, ...] = get_args(Growth)
"""How states grow, from nothing to most: none, constant, linear."""


@dataclass(frozen=True, kw_only=True)
class PairSpec(MethodSpec):
    """Methods that read together."""

    parts: tuple[MethodSpec, ...]
    """The methods, in the order in which their tokens stand in the window."""

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Beginnings of the names of settings and tensors of each part."""
        return tuple(part_label(part.name) for part in self.parts)

    @cached_property
    def setting_owners(self) -> Mapping[str, tuple[int, str]]:
        """Place of the part, and its own name of the setting, by setting."""
        named = enumerate(zip(self.labels, self.parts, strict=True))
        return {
            f"{label}_{one.name}": (n, one.name)
            for n, (label, part) in named
            for one in fields(part.Settings)
        }

    def load(self) -> type[Any]:
        """A class of its own, which the parts are instances within."""
        pair = import_module("ttabench.methods.pair.method").Pair
        return type(
            f"Pair[{PAIR_SEPARATOR.join(self.labels)}]",
            (pair,),
            {"spec": self, "__doc__": self.summary},
        )


def part_label(name: str) -> str:
    """The name of a method as the beginning of other names: kvpress_SnapKVPress."""
    return re.sub(r"\W+", "_", name.partition("?")[0]).strip("_")


def join_by_label(labels: Sequence[str], by_part: Iterable[Any]) -> dict[str, Any]:
    """What is told of all parts by their common names: settings, or values by the name of a setting."""
    by_key = (
        own
        if isinstance(own, Mapping)
        else {one.name: getattr(own, one.name) for one in fields(own)}
        for own in by_part
    )
    return {
        f"{label}_{key}": value
        for label, own in zip(labels, by_key, strict=True)
        for key, value in own.items()
    }


def split_settings(parts: Sequence[MethodSpec], settings: Any) -> list[tuple[MethodSpec, Any]]:
    """Each part with its settings, out of those of all."""
    own = [
        {
            one.name: getattr(settings, f"{part_label(part.name)}_{one.name}")
            for one in fields(part.Settings)
        }
        for part in parts
    ]
    return [(part, part.Settings(**values)) for part, values in zip(parts, own, strict=True)]


def make_pair_spec(parts: Sequence[MethodSpec]) -> PairSpec:
    """The methods together."""
    name = PAIR_SEPARATOR.join(part.name for part in parts)
    labels = [part_label(part.name) for part in parts]
    if duplicate := next((label for label in labels if labels.count(label) > 1), ""):
        raise UserError(
            f"{name} names {duplicate} twice, and one text is read once.", "Name each method once."
        )

    settings_class = _settings_class(labels, parts)
    presets = {preset: None for part in parts for preset in part.presets}
    return PairSpec(
        name=name,
        parts=tuple(parts),
        summary=" and ".join(part.name for part in parts)
        + ": both read, and their patches are merged",
        Settings=settings_class,
        presets={
            preset: settings_class(
                **join_by_label(
                    labels, (part.presets.get(preset) or part.Settings() for part in parts)
                )
            )
            for preset in presets
        },
        growth=max((part.growth for part in parts), key=GROWTHS_BY_SIZE.index),
        query_aware=any(part.query_aware for part in parts),
        test_settings=settings_class(
            **join_by_label(labels, (part.test_settings or part.Settings() for part in parts))
        ),
        paper=", ".join(dict.fromkeys(part.paper for part in parts if part.paper)),
        deprecated_settings=join_by_label(labels, (part.deprecated_settings for part in parts)),
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
        "__post_init__": lambda settings: split_settings(parts, settings) and None,
        "__doc__": f"Settings of {PAIR_SEPARATOR.join(labels)}.",
        "MADE_OF": tuple((label, part.Settings) for label, part in zip(labels, parts, strict=True)),
    }
    return make_dataclass("Settings", described, namespace=space, frozen=True, kw_only=True)
