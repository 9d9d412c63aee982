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
from ttabench.run.config import STATES_OF
from ttabench.run.request import OWN_QUESTIONS, RunRequest
from ttabench.sweep.file import Place, Read
from ttabench.sweep.options import ASSIGNED, AXES, BUDGETS, SWAP, Value, requested, text_of
from ttabench.sweep.suite import checked

MOST = 10_000
"""Runs of a suite."""
LACKS = {"preset": "has presets", "checkpoint": "is trained", **dict.fromkeys(BUDGETS, "has a budget")}
"""Options that not every method takes, and what is not true of those that do not."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run, as it was asked for."""

    request: RunRequest
    seed: int
    said: Mapping[Place, str]
    """Where something was said that decides it, and the word: a key, an option, a name."""


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """The values at one place of a suite."""

    place: Place
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
        """Who takes it, and who does not; empty where all do, or none does."""
        if not self.others or not self.takers:
            return ""
        once = ", which run once without it" if self.name in BUDGETS else ""
        return f"{self.word} goes to {', '.join(self.takers)}; not to {', '.join(self.others)}{once}."

    def fault(self) -> UserError:
        """What is wrong where none takes it; the closest one that is known is named."""
        kind, whose = (
            "preset" if self.name == "preset" else "setting",
            "tasks" if self.name == "task_set" else "methods",
        )
        if self.known:
            return UnknownName(f"{kind} of these {whose}", self.word.removeprefix("preset "), sorted(self.known))
        lacking = LACKS.get(self.name, f"has {kind}s")
        return UserError(f"None of these {whose} {lacking}, so {self.word} means nothing.", "Leave it out.")


@dataclass
class _Grid:
    """The cells of a suite as they are found, and what was said for nothing so far."""

    read: Read
    for_some: dict[Place, _ForSome] = field(default_factory=dict)
    count: int = 0
    """Cells that were counted, before they were made."""

    def combined(
        self, layers: Mapping[str, Sequence[_Layer]], seeds: Sequence[tuple[Place, int]], common: Sequence[_Layer]
    ) -> Iterator[tuple[dict[str, Json], Cell]]:
        """The cells of methods x tasks x models x seeds: what each says in words, and the cell."""
        refuse_more(self.count + prod(map(len, layers.values())) * len(seeds))
        for model, task, method in product(layers["model"], layers["task"], layers["method"]):
            order = [common[0], model, task, method, *common[1:]]
            spec, card, known = self._known(method, task, model, order)
            flat: dict[tuple[str, str], Json] = {}
            assigned: dict[Place, str] = {method.place: str(method.values["method"])}
            for layer in order:
                for name, key, value, place in _settings(layer):
                    if self._goes(layer, name, key, value, place, (spec, card, known.get(name))):
                        flat[name, key] = value
                        assigned[place] = key or name
            names = {axis: str(one.values[axis]) for axis, one in zip(AXES, (method, task, model), strict=False)}
            assigned |= {one.place: names[axis] for axis, one in zip(AXES, (method, task, model), strict=False)}
            self.count += prod(len(value) for value in flat.values() if isinstance(value, list)) * len(seeds)
            refuse_more(self.count)
            for chosen in _choices(flat):
                swapped = chosen.pop(SWAP, False)
                for state in STATES_OF if swapped else ("own",):
                    try:
                        request = requested({**names, **chosen}, state)
                    except UserError as error:
                        raise self.read.placed(error, assigned) from None
                    for place, seed in seeds:
                        words = {**names, **chosen, SWAP: swapped, "seed": seed}
                        yield words, Cell(request=request, seed=seed, said={**assigned, place: "Seed"})

    def _known(
        self, method: _Layer, task: _Layer, model: _Layer, order: Sequence[_Layer]
    ) -> tuple[MethodSpec, str, dict[str, Collection[str] | None]]:
        """The method, the name of the task, and names that may be set by option; None where nobody knows."""
        with self.read.at(method.place):
            spec = registry.find(str(method.values["method"]))
        name = str(task.values["task"])
        with self.read.at(task.place):
            card = load_card(OWN_QUESTIONS if readable(Path(name)) else name)
        usual = usual_source(card, nano=model.values["model"] == NANO)
        sources = [usual, *(layer.values["source"] for layer in order if layer.values.get("source"))]
        own = [field.name for field in fields(spec.Settings)]
        return spec, card.name, {"set": own, "task_set": known_options(card, str(sources[-1])), "preset": spec.presets}

    def _goes(
        self, layer: _Layer, name: str, key: str, value: Json, place: Place,
        of: tuple[MethodSpec, str, Collection[str] | None],
    ) -> bool:  # fmt: skip
        """Whether what a layer says is for this method and task; of a list of presets one is enough."""
        whose = "task" if name == "task_set" else "method" if name in ("set", *LACKS) else ""
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
        one = self.for_some.setdefault(place, _ForSome(name, word))
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


def cells(read: Read, notify: Callable[[str], None] = no_word) -> list[Cell]:
    """The runs of a suite in their order: model by model, then task by task."""
    suite = checked(read)
    grid = _Grid(read)
    axes = {axis: _entries(suite, axis, plural) for axis, plural in AXES.items() if axis != "seed"}
    axes["model"] = axes["model"] or [_Layer(place=(), values={"model": NANO})]
    seeds: list[tuple[Place, int]] = [(("seeds", at), seed) for at, seed in enumerate(suite.get("seeds", [0]))]
    top = _Layer(place=(), values={key: value for key, value in suite.items() if key not in _LISTS})
    whole = list(grid.combined(axes, seeds, [top]))
    for number, pattern in enumerate(suite.get("exclude", [])):
        kept = [(words, cell) for words, cell in whole if not matches(pattern, words)]
        if len(kept) == len(whole):
            with read.at(("exclude", number)):
                raise UserError("This excludes no run.", "Mend it, or leave it out.")
        whole = kept
    all_cells = [cell for _, cell in whole]
    for number, more in enumerate(suite.get("include", [])):
        all_cells += _included(grid, more, ("include", number), axes, seeds, top)
    for place, one in grid.for_some.items():
        if not one.takers:
            with read.at(place):
                raise one.fault()
    if not all_cells:
        raise UserError(f"{read.where(()) or 'The suite'} names no run.", "Give methods and tasks.")
    for remark in dict.fromkeys(one.remark for one in grid.for_some.values()):
        if remark:
            notify(remark)
    return all_cells


_LISTS = {*AXES.values(), "include", "exclude"}


def _entries(suite: Mapping[str, Json], axis: str, plural: str) -> list[_Layer]:
    return [
        _Layer(place=(plural, number), values=entry, strict=frozenset([axis]))
        for number, entry in enumerate(suite.get(plural, []))
    ]


def _included(
    grid: _Grid,
    more: Mapping[str, Json],
    place: Place,
    axes: Mapping[str, Sequence[_Layer]],
    seeds: Sequence[tuple[Place, int]],
    top: _Layer,
) -> Iterator[Cell]:
    """The cells that an entry of `include` adds: what it does not name of method, task, model, seed is the suite's."""
    own = dict(axes)
    named = {axis: more[axis] if isinstance(more[axis], list) else [more[axis]] for axis in axes if axis in more}
    for axis in axes:
        if axis in named:
            own[axis] = [_Layer(place=(*place, axis), values={axis: name}) for name in named[axis]]
        elif not own[axis]:
            with grid.read.at(place):
                raise UserError(f"It names no {axis}, and neither does the suite.", f"Add {axis}.")
    if "seed" in more:
        numbers = more["seed"] if isinstance(more["seed"], list) else [more["seed"]]
        seeds = [((*place, "seed"), number) for number in numbers]
    options = {name: value for name, value in more.items() if name not in AXES}
    layer = _Layer(place=place, values=options, strict=frozenset(named))
    return (cell for _, cell in grid.combined(own, seeds, [top, layer]))


def _settings(layer: _Layer) -> Iterator[tuple[str, str, Json, Place]]:
    """(option, key, value, place) of all that a layer says but names; the key is empty but of settings."""
    for name, value in layer.values.items():
        if name in ASSIGNED:
            yield from ((name, key, part, (*layer.place, name, key)) for key, part in value.items())
        elif name not in AXES:
            yield name, "", value, (*layer.place, name)


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
