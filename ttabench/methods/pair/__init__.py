"""Methods together: `--method rag+mac`. All of them read, and their patches are put on the model at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import Any, get_args, get_type_hints

from ttabench.core.errors import UserError
from ttabench.core.types import Growth, Json
from ttabench.cost.load import Cost, Workload, closed_book
from ttabench.cost.shape import Shape
from ttabench.methods.parts.amount import Amount
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
        return {
            f"{label}_{field.name}": (place, field.name)
            for place, (label, part) in enumerate(zip(self.labels, self.parts, strict=True))
            for field in fields(part.Settings)
        }

    def settings_of_parts(self, settings: Any) -> list[Any]:
        """The settings of each part, in order."""
        return parted(settings, self.labels, self.parts)

    def load(self) -> type[Any]:
        """A class of its own, which the parts are instances within."""
        made: type[Any] = import_module("ttabench.methods.pair.method").pair_class(self)
        return made


def label_of(name: str) -> str:
    """The name of a method as the beginning of other names: kvpress_SnapKVPress."""
    return re.sub(r"\W+", "_", name.partition("?")[0]).strip("_")


def parted(settings: Any, labels: Sequence[str], parts: Sequence[MethodSpec]) -> list[Any]:
    """The settings of each part, out of those of all."""
    return [
        part.Settings(**{field.name: getattr(settings, f"{label}_{field.name}") for field in fields(part.Settings)})
        for label, part in zip(labels, parts, strict=True)
    ]


def joined(labels: Sequence[str], settings: Sequence[Any]) -> dict[str, Any]:
    """The settings of all parts by their common names."""
    return {
        f"{label}_{field.name}": getattr(own, field.name)
        for label, own in zip(labels, settings, strict=True)
        for field in fields(own)
    }


def pair_of(parts: Sequence[MethodSpec]) -> PairSpec:
    """The methods together."""
    name = SIGN.join(part.name for part in parts)
    labels = [label_of(part.name) for part in parts]
    if twice := next((label for label in labels if labels.count(label) > 1), ""):
        raise UserError(f"{name} names {twice} twice, and one text is read once.", "Name each method once.")
    settings = _settings_class(labels, parts)
    presets = {preset: None for part in parts for preset in part.presets}
    return PairSpec(
        name=name,
        parts=tuple(parts),
        summary=" and ".join(part.name for part in parts) + ": both read, and their patches are merged",
        Settings=settings,
        presets={
            preset: settings(**joined(labels, [part.presets.get(preset) or part.Settings() for part in parts]))
            for preset in presets
        },
        growth=max((part.growth for part in parts), key=BY_SIZE.index),
        piece_shares=partial(_tells, tuple(labels), tuple(parts)),
        keep=partial(_kept, tuple(labels), tuple(parts)) if any(part.keep for part in parts) else None,
        looks_at_question=any(part.looks_at_question for part in parts),
        checked=settings(**joined(labels, [part.checked or part.Settings() for part in parts])),
        paper=", ".join(dict.fromkeys(part.paper for part in parts if part.paper)),
        origin=", ".join(part.origin for part in parts if part.origin),
        cost=partial(_cost, tuple(labels), tuple(parts)) if all(part.cost for part in parts) else None,
        most=partial(_most, tuple(labels), tuple(parts)),
    )


def _settings_class(labels: Sequence[str], parts: Sequence[MethodSpec]) -> type[Any]:
    """A frozen dataclass of the fields of all parts, which refuses what a part refuses."""
    described = []
    for label, part in zip(labels, parts, strict=True):
        hints, own = get_type_hints(part.Settings), part.Settings()
        for setting in fields(part.Settings):
            value = getattr(own, setting.name)
            described.append(
                (f"{label}_{setting.name}", hints[setting.name], field(default_factory=partial(_same, value)))
            )

    def check(self: Any) -> None:
        parted(self, labels, parts)

    space = {"__post_init__": check, "__doc__": f"Settings of {SIGN.join(labels)}.", "MADE_OF": _made_of(labels, parts)}
    return make_dataclass("Settings", described, namespace=space, frozen=True, kw_only=True)


def _same(value: Any) -> Any:
    return value


def _made_of(labels: Sequence[str], parts: Sequence[MethodSpec]) -> tuple[tuple[str, type[Any]], ...]:
    """Settings of the parts by label: where the meaning of each field is written."""
    return tuple((label, part.Settings) for label, part in zip(labels, parts, strict=True))


def _tells(labels: Sequence[str], parts: Sequence[MethodSpec], settings: Any) -> bool:
    """Whether a part tells which pieces it looks at."""
    return any(part.piece_shares(own) for part, own in zip(parts, parted(settings, labels, parts), strict=True))


def _kept(labels: Sequence[str], parts: Sequence[MethodSpec], amount: Amount) -> dict[str, Json]:
    """The settings of every part that has a budget."""
    kept = [(label, part.keep(amount)) for label, part in zip(labels, parts, strict=True) if part.keep]
    return {f"{label}_{key}": value for label, own in kept for key, value in own.items()}


def _cost(
    labels: Sequence[str], parts: Sequence[MethodSpec], settings: Any, shape: Shape, work: Workload
) -> Cost | None:
    """The sum of the parts beyond the closed book, and the closed book once; None where a part has none."""
    bare, costs = closed_book(shape, work), []
    for part, own in zip(parts, parted(settings, labels, parts), strict=True):
        cost_of_part = part.cost(own, shape, work) if part.cost else None
        if cost_of_part is None:
            return None
        costs.append(cost_of_part)
    return Cost(
        **{
            field.name: getattr(bare, field.name)
            + sum(getattr(one, field.name) - getattr(bare, field.name) for one in costs)
            for field in fields(Cost)
        }
    )


def _most(labels: Sequence[str], parts: Sequence[MethodSpec], settings: Any, positions: int) -> int | None:
    """The least of what the parts read."""
    pairs = zip(parts, parted(settings, labels, parts), strict=True)
    limits = [most for part, own in pairs if part.most and (most := part.most(own, positions)) is not None]
    return min(limits, default=None)
