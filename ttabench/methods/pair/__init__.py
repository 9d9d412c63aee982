"""Combinations of methods (`--method rag+mac`): all read the context; patches are merged."""

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
"""Growth of states in ascending order: none, constant, linear."""


@dataclass(frozen=True, kw_only=True)
class PairSpec(MethodSpec):
    """Description of a combination of methods."""

    parts: tuple[MethodSpec, ...]
    """The methods, in the order of their tokens in the window."""

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Prefixes of the settings and tensors of each part."""
        return tuple(part_label(part.name) for part in self.parts)

    def load(self) -> type[Any]:
        """Create a subclass of `Pair` for this combination."""
        pair = import_module("ttabench.methods.pair.method").Pair
        name = f"Pair[{PAIR_SEPARATOR.join(self.labels)}]"
        return type(name, (pair,), {"spec": self, "__doc__": self.summary})


def part_label(name: str) -> str:
    """Convert a method name to a prefix for other names: kvpress_SnapKVPress."""
    return re.sub(r"\W+", "_", name.partition("?")[0]).strip("_")


def join_by_label(labels: Sequence[str], by_part: Iterable[Any]) -> dict[str, Any]:
    """Merge mappings or settings of all parts into one mapping, with prefixed names."""
    joined: dict[str, Any] = {}
    for label, values in zip(labels, by_part, strict=True):
        if not isinstance(values, Mapping):
            values = {setting.name: getattr(values, setting.name) for setting in fields(values)}
        joined |= {f"{label}_{key}": value for key, value in values.items()}
    return joined


def split_settings(
    parts: Sequence[MethodSpec], values: Mapping[str, Any]
) -> list[tuple[MethodSpec, dict[str, Any]]]:
    """Return each part with its values among those of the pair."""
    return [
        (
            part,
            {
                setting.name: values[key]
                for setting in fields(part.Settings)
                if (key := f"{part_label(part.name)}_{setting.name}") in values
            },
        )
        for part in parts
    ]


def make_pair_spec(parts: Sequence[MethodSpec]) -> PairSpec:
    """Create the spec of a combination.

    Raises:
        UserError: a method occurs twice.
    """
    name = PAIR_SEPARATOR.join(part.name for part in parts)
    labels = [part_label(part.name) for part in parts]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"{name} contains {label} twice.", "Use each method once.")

    settings_class = _settings_class(labels, parts)
    presets = {}
    for preset in dict.fromkeys(preset for part in parts for preset in part.presets):
        settings = [part.presets.get(preset) or part.Settings() for part in parts]
        presets[preset] = settings_class(**join_by_label(labels, settings))
    names = " and ".join(part.name for part in parts)
    return PairSpec(
        name=name,
        parts=tuple(parts),
        summary=f"{names}: both read, and their patches are merged",
        Settings=settings_class,
        presets=presets,
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
    """Create a frozen dataclass with the fields of all parts, validated by each part.

    `MADE_OF` has the settings classes of the parts by label, which document the fields.
    """
    columns = []
    for label, part in zip(labels, parts, strict=True):
        hints, defaults = get_type_hints(part.Settings), part.Settings()
        for setting in fields(part.Settings):
            value = field(default_factory=partial(getattr, defaults, setting.name))
            columns.append((f"{label}_{setting.name}", hints[setting.name], value))
    namespace = {
        "__post_init__": lambda settings: [
            part.Settings(**values) for part, values in split_settings(parts, vars(settings))
        ],
        "__doc__": f"Settings of {PAIR_SEPARATOR.join(labels)}.",
        "MADE_OF": tuple((label, part.Settings) for label, part in zip(labels, parts, strict=True)),
    }
    return make_dataclass("Settings", columns, namespace=namespace, frozen=True, kw_only=True)
