"""From what a suite says to its runs, one cell each: methods x tasks x models x seeds x whatever else is a list.

What is said of all, of a model, a task and a method comes together in this order, later ones winning, settings key by
key. What stands with a method has to mean something to it; what is said of all goes to those that know it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import product
from math import prod
from pathlib import Path
from typing import NamedTuple

from ttabench.core.architectures import NANO
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.progress import no_word
from ttabench.core.types import Json
from ttabench.methods import registry
from ttabench.methods.settings import key_of
from ttabench.methods.spec import MethodSpec
from ttabench.readers.cards import load_card
from ttabench.readers.formats import readable
from ttabench.readers.protocol_options import known_options
from ttabench.readers.sources import usual_source
from ttabench.records.run_fields import STATES_OF
from ttabench.run.request import OWN_QUESTIONS, RunRequest
from ttabench.sweep.options import ASSIGNED, AXES, BUDGETS, SWAP, Value, requested, text_of
from ttabench.sweep.suite import checked

MOST = 10_000
"""Runs of a suite."""
OF_SOME = ("preset", "checkpoint", *BUDGETS)
"""Options that not every method takes."""


class Cell(NamedTuple):
    """One run, as it was asked for."""

    request: RunRequest
    seed: int


@dataclass(frozen=True, eq=False)
class _Layer:
    """The values at one place of a suite."""

    values: Mapping[str, Json]
    strict: frozenset[str] = frozenset()
    """Of `method` and `task`: whose settings these must be."""


@dataclass
class _ForSome:
    """Something that was said of all, and goes to the methods or tasks that know it."""

    name: str
    word: str
    takers: dict[str, None] = field(default_factory=dict)
    others: dict[str, None] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    """Settings or presets that one of them has."""

    @property
    def remark(self) -> str:
        """Who takes it, and who does not; empty where all do."""
        if not self.others:
            return ""
        once = ", which run once without it" if self.name in BUDGETS else ""
        return f"{self.word} goes to {', '.join(self.takers)}; not to {', '.join(self.others)}{once}."

    def fault(self) -> UserError:
        """What is wrong where none takes it; the closest one that is known is named."""
        whose = "tasks" if self.name == "task_set" else "methods"
        if self.known:
            kind = "preset" if self.name == "preset" else "setting"
            return UnknownName(f"{kind} of these {whose}", self.word.removeprefix("preset "), sorted(self.known))
        return UserError(f"None of these {whose} takes {self.word}.", "Leave it out.")


@dataclass
class _Grid:
    """The cells of a suite as they are found, and what was said for nothing so far."""

    for_some: dict[tuple[_Layer, str, str], _ForSome] = field(default_factory=dict)
    """By where it was said: the layer, the option, and the key of a setting."""
    count: int = 0
    """Cells that were counted, before they were made."""

    def combined(
        self, layers: Mapping[str, Sequence[_Layer]], seeds: Sequence[int], common: Sequence[_Layer]
    ) -> Iterator[tuple[dict[str, Json], Cell]]:
        """The cells of methods x tasks x models x seeds: what each says in words, and the cell."""
        refuse_more(self.count + prod(map(len, layers.values())) * len(seeds))
        for model, task, method in product(layers["model"], layers["task"], layers["method"]):
            order = [common[0], model, task, method, *common[1:]]
            spec, card, known = self._known(method, task, model, order)
            flat = {
                (name, key): value
                for layer in order
                for name, key, value in _settings(layer)
                if self._goes(layer, name, key, value, (spec, card, known.get(name)))
            }
            names = {axis: str(one.values[axis]) for axis, one in zip(AXES, (method, task, model), strict=False)}
            self.count += prod(len(value) for value in flat.values() if isinstance(value, list)) * len(seeds)
            refuse_more(self.count)
            for chosen in _choices(flat):
                swapped = chosen.pop(SWAP, False)
                for state in STATES_OF if swapped else ("own",):
                    request = requested({**names, **chosen}, state)
                    for seed in seeds:
                        yield {**names, **chosen, SWAP: swapped, "seed": seed}, Cell(request, seed)

    def _known(
        self, method: _Layer, task: _Layer, model: _Layer, order: Sequence[_Layer]
    ) -> tuple[MethodSpec, str, dict[str, Collection[str] | None]]:
        """The method, the name of the task, and names that may be set by option; None where nobody knows."""
        spec, name = registry.find(str(method.values["method"])), str(task.values["task"])
        card = load_card(OWN_QUESTIONS if readable(Path(name)) else name)
        usual = usual_source(card, nano=model.values["model"] == NANO)
        sources = [usual, *(layer.values["source"] for layer in order if layer.values.get("source"))]
        own = [field.name for field in fields(spec.Settings)]
        return spec, card.name, {"set": own, "task_set": known_options(card, str(sources[-1])), "preset": spec.presets}

    def _goes(
        self, layer: _Layer, name: str, key: str, value: Json, of: tuple[MethodSpec, str, Collection[str] | None]
    ) -> bool:
        """Whether what a layer says is for this method and task; of a list of presets one is enough."""
        whose = "task" if name == "task_set" else "method" if name in ("set", *OF_SOME) else ""
        if whose in ("", *layer.strict):
            return True
        spec, task, known = of
        if name in ASSIGNED:
            fits = known is None or key_of(key, known) in known
        elif name == "preset":
            fits = any(preset in spec.presets for preset in (value if isinstance(value, list) else [value]))
        else:
            fits = _keeps(spec, name) if name in BUDGETS else spec.trainable
        word = key or (f"--{name.replace('_', '-')}" if name in BUDGETS else f"{name} {text_of(value)}")
        one = self.for_some.setdefault((layer, name, key), _ForSome(name, word))
        (one.takers if fits else one.others)[task if whose == "task" else spec.name] = None
        one.known.update(known or ())
        return fits


def _keeps(spec: MethodSpec, name: str) -> bool:
    """Whether a method has a budget of this kind, a share or tokens."""
    with suppress(ValueError):
        return spec.keep is not None and bool(spec.keep(0.5 if name == "keep" else 1024))
    return False


def refuse_more(count: int) -> None:
    """Refuse a suite of more runs than are made of one, by their number alone."""
    if count > MOST:
        fault = f"The suite asks for {count:,} runs, and {MOST:,} are the most of one."
        raise UserError(fault, "Shorten its lists, or write several suites.")


def cells(data: Json, notify: Callable[[str], None] = no_word) -> list[Cell]:
    """The runs of a suite in their order: model by model, then task by task."""
    suite = checked(data)
    grid = _Grid()
    axes = {axis: _entries(axis, suite.get(plural, [])) for axis, plural in AXES.items() if axis != "seed"}
    axes["model"] = axes["model"] or [_Layer({"model": NANO})]
    seeds = suite.get("seeds", [0])
    top = _Layer({key: value for key, value in suite.items() if key not in _LISTS})
    whole = list(grid.combined(axes, seeds, [top]))
    for pattern in suite.get("exclude", []):
        kept = [(words, cell) for words, cell in whole if not matches(pattern, words)]
        if len(kept) == len(whole):
            raise UserError(f"exclude: {pattern} excludes no run.", "Mend it, or leave it out.")
        whole = kept
    all_cells = [cell for _, cell in whole]
    for more in suite.get("include", []):
        all_cells += _included(grid, more, axes, seeds, top)
    for one in grid.for_some.values():
        if not one.takers:
            raise one.fault()
    if not all_cells:
        raise UserError("The suite names no run.", "Give methods and tasks.")
    for remark in dict.fromkeys(one.remark for one in grid.for_some.values()):
        if remark:
            notify(remark)
    return all_cells


_LISTS = {*AXES.values(), "include", "exclude"}


def _entries(axis: str, entries: Sequence[Mapping[str, Json]]) -> list[_Layer]:
    return [_Layer(entry, strict=frozenset([axis])) for entry in entries]


def _included(
    grid: _Grid, more: Mapping[str, Json], axes: Mapping[str, Sequence[_Layer]], seeds: Sequence[int], top: _Layer
) -> Iterator[Cell]:
    """The cells that an entry of `include` adds: what it does not name of method, task, model, seed is the suite's."""
    named = {axis: value if isinstance(value, list) else [value] for axis, value in more.items() if axis in AXES}
    own = {axis: [_Layer({axis: name}) for name in named[axis]] if axis in named else axes[axis] for axis in axes}
    for axis, layers in own.items():
        if not layers:
            raise UserError(f"include: {more} names no {axis}, and neither does the suite.", f"Add {axis}.")
    options = {name: value for name, value in more.items() if name not in AXES}
    layer = _Layer(options, strict=frozenset(named) - {"seed"})
    return (cell for _, cell in grid.combined(own, named.get("seed", seeds), [top, layer]))


def _settings(layer: _Layer) -> Iterator[tuple[str, str, Json]]:
    """(option, key, value) of all that a layer says but names; the key is empty but of settings."""
    for name, value in layer.values.items():
        if name in ASSIGNED:
            yield from ((name, key, part) for key, part in value.items())
        elif name not in AXES:
            yield name, "", value


def _choices(flat: Mapping[tuple[str, str], Json]) -> Iterator[dict[str, Json]]:
    """Options with one value each, for every choice of those that have several."""
    for values in product(*(value if isinstance(value, list) else [value] for value in flat.values())):
        chosen: dict[str, Json] = {}
        for (name, key), value in zip(flat, values, strict=True):
            if key:
                chosen.setdefault(name, {})[key] = value
            else:
                chosen[name] = value
        yield chosen


def matches(pattern: Mapping[str, Json], words: Mapping[str, Json]) -> bool:
    """Whether a run, in words, is one of those that a pattern names: an entry of `exclude`, say."""
    for name, wanted in pattern.items():
        if name in ASSIGNED:
            own = words.get(name, {})
            if not all(key in own and _among(own[key], value) for key, value in wanted.items()):
                return False
        elif name not in words or not _among(words[name], wanted):
            return False
    return True


def _among(value: Value, wanted: Json) -> bool:
    return text_of(value) in map(text_of, wanted if isinstance(wanted, list) else [wanted])
