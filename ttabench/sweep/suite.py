"""What a suite may say, and its runs: methods x tasks x models x seeds x whatever else is a list.

Models of pydantic check a suite, which stands in a file of YAML or is typed: the options of `ttabench eval`, each once,
and lists of them. What is said of all, of a model, a task and a method comes together in this order, later ones
winning, settings key by key. Budgets and options of tasks that are said of all go to the methods and tasks that have
them."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, groupby, islice, product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias, get_args

import yaml
from pydantic import BaseModel, Field, create_model, model_validator

from ttabench.core.architectures import NANO
from ttabench.core.declared import Field as Option
from ttabench.core.declared import as_typed, assignments, declared, validated
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.files import reading
from ttabench.core.types import Json
from ttabench.methods import registry
from ttabench.methods.settings import key_of
from ttabench.methods.spec import MethodSpec
from ttabench.readers.cards import STRICT, load_card
from ttabench.readers.cards import checked as checked_yaml
from ttabench.readers.formats import readable
from ttabench.readers.sources import known_options, usual_source
from ttabench.records.run_fields import STATES_OF
from ttabench.report.blocks import STATES
from ttabench.run.evaluation import base_of
from ttabench.run.plan import Plan, Shared, make_plan
from ttabench.run.request import OWN_QUESTIONS, RunRequest
from ttabench.sweep.engines import Job

KIND = "suite of runs"
SEED = Annotated[int, Field(ge=0)]
Key = Annotated[str, Field(pattern=r"^[^=\s]+$")]
Value: TypeAlias = str | int | float | bool | None
"""Of a setting; a list of them stands for a run each."""
AXES = {"method": "methods", "task": "tasks", "model": "models", "seed": "seeds"}
"""What a grid is made of, and what each is called at the top of a suite."""
RENAMED = {"settings": "set", "task_options": "task_set"}
"""Fields of a request that have another name as options."""
ASSIGNED = {option: name for name, option in RENAMED.items()}
SWAP = "swap_state"
"""Three runs in place of one: `state_of` of a request is not said otherwise."""
AUTO = "auto"
BUDGETS = ("keep", "keep_tokens")


def _kind(field: Option) -> Any:
    """The annotation of a value, without None: what is not said is left out."""
    if field.name in RENAMED:
        return dict[Key, Value | list[Value]]
    plain = next((kind for kind in get_args(field.kind) if kind is not type(None)), field.kind)
    if field.said.parse is not None:
        return plain | Literal["auto"]
    return str if plain is Path else plain


OPTIONS: Mapping[str, Any] = {
    **{RENAMED.get(name, name): _kind(field) for name, field in declared(RunRequest).items() if name not in AXES},
    SWAP: bool,
}
"""Type of a value, as an annotation, by name."""


class _Loader(yaml.SafeLoader):
    """Values of YAML, and no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Json]:
        """The mapping of a node."""
        keys = [key.value for key, _ in node.value]
        for number, (key, _) in enumerate(node.value):
            if key.value in keys[:number]:
                raise yaml.MarkedYAMLError(problem=f"{key.value} stands there twice", problem_mark=key.start_mark)
        return super().construct_mapping(node, deep)


def read(path: Path) -> Json:
    """What a suite in a file says."""
    with reading(path):
        return _Loader(checked_yaml(path, KIND)).get_single_data()


def as_said(typed: Mapping[str, Any]) -> dict[str, Json]:
    """Fields of a request that were typed, as a suite says them."""
    options: dict[str, Json] = {}
    for name, value in typed.items():
        if name in RENAMED:
            options[RENAMED[name]] = dict(assignments(value, declared(RunRequest)[name].flags[0]))
        elif name == "batch_size":
            options[name] = value or AUTO
        else:
            options[name] = str(value) if isinstance(value, Path) else value
    return options


def requested(typed: Mapping[str, Json], state_of: str = "own") -> RunRequest:
    """The request that options ask for."""
    values: dict[str, Any] = {}
    for name, value in typed.items():
        if name in ASSIGNED:
            value = tuple(f"{key}={as_typed(part)}" for key, part in value.items())
        elif name == "batch_size":
            value = 0 if value == AUTO else value
        elif name == "state":
            value = Path(value) if value else None
        values[ASSIGNED.get(name, name)] = value
    return RunRequest(**values, state_of=state_of)


class _Named(BaseModel):
    """An entry of a list, which may be its name alone."""

    model_config = STRICT
    axis: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _of_name(cls, value: object) -> object:
        return {cls.axis: value} if isinstance(value, str) else value


def _fields(kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a model: each one value or a list."""
    lists = {name: kind | Annotated[list[kind], Field(min_length=1)] for name, kind in kinds.items()}  # type: ignore[valid-type]
    return {name: (kinds[name] if name in ASSIGNED else kind, None) for name, kind in lists.items()}


def _entry(axis: str) -> type[_Named]:
    """The entry of a method, a task or a model: it, and options of its runs."""
    made: type[_Named] = create_model(axis.capitalize(), __base__=_Named, **{axis: (str, ...), **_fields(OPTIONS)})
    made.axis = axis
    return made


Method, Task, Model = _entry("method"), _entry("task"), _entry("model")
Some = create_model("Some", __config__=STRICT, **_fields({**dict.fromkeys(AXES, str), "seed": SEED, **OPTIONS}))
"""Runs, by any of their options."""
Suite = create_model(
    "Suite",
    __config__=STRICT,
    methods=(list[Method], []),  # type: ignore[valid-type]
    tasks=(list[Task], []),  # type: ignore[valid-type]
    models=(list[Model], [{"model": NANO}]),  # type: ignore[valid-type]
    seeds=(list[SEED], [0]),
    include=(list[Some], []),  # type: ignore[valid-type]
    exclude=(list[Some], []),  # type: ignore[valid-type]
    **_fields(OPTIONS),
)
"""A grid of runs: methods x tasks x models x seeds, without `exclude`, and those of `include`."""


def checked(data: Json) -> dict[str, Json]:
    """What a suite says, the names of its entries written out, and nothing that it does not say."""
    if not isinstance(data, dict):
        raise UserError(f"This is not a {KIND}.", "Its top level must be a mapping: methods, tasks, models, seeds ...")
    values: dict[str, Json] = validated(Suite, data, "The suite").model_dump(mode="json", exclude_unset=True)
    return values


MOST = 10_000
"""Runs of a suite."""


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
class _Grid:
    """The cells of a suite as they are found, and what was said of all: by option, and key of a setting."""

    known: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """Options that tasks have there."""
    taken: set[tuple[str, str]] = field(default_factory=set)
    """What means something to a method or a task."""

    def combined(
        self, layers: Mapping[str, Sequence[_Layer]], seeds: Sequence[int], common: Sequence[_Layer]
    ) -> Iterator[tuple[dict[str, Json], Cell]]:
        """The cells of methods x tasks x models x seeds: what each says in words, and the cell."""
        for model, task, method in product(layers["model"], layers["task"], layers["method"]):
            names = {axis: str(one.values[axis]) for axis, one in zip(AXES, (method, task, model), strict=False)}
            spec, order = registry.find(names["method"]), [common[0], model, task, method, *common[1:]]
            options = _task_options(names, order)
            flat = {
                (name, key): value
                for layer in order
                for name, key, value in _settings(layer)
                if self._goes(layer, name, key, spec, options)
            }
            for chosen in _choices(flat):
                swapped = chosen.pop(SWAP, False)
                for state in STATES_OF if swapped else ("own",):
                    request = requested({**names, **chosen}, state)
                    for seed in seeds:
                        yield {**names, **chosen, SWAP: swapped, "seed": seed}, Cell(request, seed)

    def _goes(self, layer: _Layer, name: str, key: str, spec: MethodSpec, options: Collection[str] | None) -> bool:
        """Whether what a layer says is for this method and a task of these options."""
        if name == "task_set" and "task" not in layer.strict:
            fits = options is None or key_of(key, options) in options
        elif name in BUDGETS and "method" not in layer.strict:
            fits = _keeps(spec, name)
        else:
            return True
        self.known.setdefault((name, key), set()).update(options or ())
        self.taken |= {(name, key)} if fits else set()
        return fits

    def refuse_untaken(self) -> None:
        """Refuse what was said of all and means nothing to any."""
        for name, key in self.known.keys() - self.taken:
            if key:
                raise UnknownName("setting of these tasks", key, sorted(self.known[name, key]))
            raise UserError(f"None of these methods takes --{name.replace('_', '-')}.", "Leave it out.")


def _task_options(names: Mapping[str, str], order: Sequence[_Layer]) -> Collection[str] | None:
    """Options that a task has, by the source that is said last; None where nobody knows."""
    card = load_card(OWN_QUESTIONS if readable(Path(names["task"])) else names["task"])
    sources = [layer.values["source"] for layer in order if layer.values.get("source")]
    return known_options(card, str(sources[-1] if sources else usual_source(card, nano=names["model"] == NANO)))


def _keeps(spec: MethodSpec, name: str) -> bool:
    """Whether a method has a budget of this kind, a share or tokens."""
    with suppress(ValueError):
        return spec.keep is not None and bool(spec.keep(0.5 if name == "keep" else 1024))
    return False


def cells(data: Json) -> list[Cell]:
    """The runs of a suite in their order: model by model, then task by task."""
    suite = checked(data)
    grid = _Grid()
    axes = {
        axis: [_Layer(entry, strict=frozenset([axis])) for entry in _unique(suite.get(plural, []))]
        for axis, plural in AXES.items()
        if axis != "seed"
    }
    axes["model"] = axes["model"] or [_Layer({"model": NANO})]
    seeds = _unique(suite.get("seeds", [0]))
    top = _Layer({key: value for key, value in suite.items() if key not in _LISTS})
    whole = _few(grid.combined(axes, seeds, [top]))
    for pattern in suite.get("exclude", []):
        kept = [(words, cell) for words, cell in whole if not matches(pattern, words)]
        if len(kept) == len(whole):
            raise UserError(f"exclude: {pattern} excludes no run.", "Mend it, or leave it out.")
        whole = kept
    for more in suite.get("include", []):
        whole = _few(chain(whole, _included(grid, more, axes, seeds, top)))
    grid.refuse_untaken()
    if not whole:
        raise UserError("The suite names no run.", "Give methods and tasks.")
    return _unique([cell for _, cell in whole])


_LISTS = {*AXES.values(), "include", "exclude"}


def _few(runs: Iterator[tuple[dict[str, Json], Cell]]) -> list[tuple[dict[str, Json], Cell]]:
    """These runs; more than are made of one suite are refused."""
    made = list(islice(runs, MOST + 1))
    if len(made) > MOST:
        raise UserError(f"The suite asks for more than {MOST:,} runs.", "Shorten its lists, or write several suites.")
    return made


def _included(
    grid: _Grid, more: Mapping[str, Json], axes: Mapping[str, Sequence[_Layer]], seeds: Sequence[int], top: _Layer
) -> Iterator[tuple[dict[str, Json], Cell]]:
    """The cells that an entry of `include` adds: what it does not name of method, task, model, seed is the suite's."""
    named = {axis: _listed(value) for axis, value in more.items() if axis in AXES}
    own = {axis: [_Layer({axis: name}) for name in named[axis]] if axis in named else axes[axis] for axis in axes}
    for axis, layers in own.items():
        if not layers:
            raise UserError(f"include: {more} names no {axis}, and neither does the suite.", f"Add {axis}.")
    options = {name: value for name, value in more.items() if name not in AXES}
    layer = _Layer(options, strict=frozenset(named) - {"seed"})
    return grid.combined(own, named.get("seed", seeds), [top, layer])


def _settings(layer: _Layer) -> Iterator[tuple[str, str, Json]]:
    """(option, key, value) of all that a layer says but names; the key is empty but of settings."""
    for name, value in layer.values.items():
        if name in ASSIGNED:
            yield from ((name, key, part) for key, part in value.items())
        elif name not in AXES:
            yield name, "", value


def _choices(flat: Mapping[tuple[str, str], Json]) -> Iterator[dict[str, Json]]:
    """Options with one value each, for every choice of those that have several."""
    for values in product(*map(_listed, flat.values())):
        chosen: dict[str, Json] = {}
        for (name, key), value in zip(flat, values, strict=True):
            if key:
                chosen.setdefault(name, {})[key] = value
            else:
                chosen[name] = value
        yield chosen


def _listed(value: Json) -> list[Json]:
    return _unique(value) if isinstance(value, list) else [value]


def _unique(values: Sequence[Any]) -> list[Any]:
    """Each value once, in order; 1, 1.0 and True are three values."""
    return list({repr(value): value for value in values}.values())


def matches(pattern: Mapping[str, Json], words: Mapping[str, Json]) -> bool:
    """Whether a run, in words, is one of those that a pattern names: an entry of `exclude`, say."""
    for name, wanted in pattern.items():
        held, named = (words.get(name, {}), wanted) if name in ASSIGNED else (words, {name: wanted})
        if not all(
            key in held and as_typed(held[key]) in map(as_typed, _listed(value)) for key, value in named.items()
        ):
            return False
    return True


def planned(cells: Sequence[Cell]) -> list[Job]:
    """The runs of these cells, each once, in an order that keeps base models."""
    made: dict[int, Job] = {}

    def rows(run: tuple[int, Cell]) -> tuple[str, int]:
        return run[1].request.task, run[1].seed

    # those that read the same rows one after the other: rows are made once, and only theirs are kept
    for _, group in groupby(sorted(enumerate(cells), key=rows), rows):
        shared = Shared()
        made |= {number: _job(cell, make_plan(cell.request, cell.seed, shared)) for number, cell in group}
    runs: dict[str, Job] = {}
    for number in range(len(cells)):
        runs.setdefault(made[number].id, made[number])
    order = {base: place for place, base in enumerate(dict.fromkeys(run.base for run in runs.values()))}
    return sorted(runs.values(), key=lambda run: order[run.base])


def share(runs: Sequence[Job], part: str) -> list[Job]:
    """`--shard 2/5`: every fifth run, from the second on; the same ones wherever the same suite is given."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", part)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError(f"--shard {part[:40]!r} is no part.", "Write --shard 1/4 to 4/4.")
    return list(runs[int(match[1]) - 1 :: int(match[2])])


def _job(cell: Cell, plan: Plan) -> Job:
    request, config = cell.request, plan.config
    named = {name: getattr(request, name) for name in (*BUDGETS, "preset", "checkpoint")}
    more = [f"{name}={value}" for name, value in named.items() if value not in (None, "")]
    return Job(
        id=config.identity(),
        request=request,
        seed=cell.seed,
        base=repr(base_of(request, chat_template=config.chat_template)),
        method=" ".join([config.method, *request.settings, *more]) + STATES[config.state_of],
        task=" ".join([config.task, *request.task_options]),
        notes=tuple(plan.resolved.notes()),
    )
