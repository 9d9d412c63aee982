"""Suites and their runs: methods x tasks x models x seeds x other options that are lists.

A suite is a YAML file or typed options, validated by pydantic models. An option is one of `ttabench
eval`, with one value or a list of values. Options of the suite, a model, a task and a method are
merged in this order. The later value wins, and settings are merged by key. Budgets and task options
of the whole suite apply only to the methods and tasks that support them.

A layer holds the options of one level. A cell is one run before it is planned. A job is a planned
run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, groupby, islice, product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, Field, PositiveInt, create_model

from ttabench.core.architectures import NANO
from ttabench.core.declared import (
    OptionField as Option,
    format_assignments,
    format_setting,
    option_fields,
    validate_model,
)
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.files import reading_file
from ttabench.core.types import Json
from ttabench.methods import registry
from ttabench.methods.settings import resolve_key
from ttabench.methods.spec import MethodSpec
from ttabench.readers.cards import STRICT_CONFIG, load_card, read_checked_yaml
from ttabench.readers.formats import is_readable
from ttabench.readers.sources import default_source, known_options
from ttabench.records.run_fields import ANSWERING_STATES
from ttabench.report.groups import STATE_SUFFIXES
from ttabench.run.evaluation import base_model_key
from ttabench.run.plan import Plan, PlanCache, make_plan
from ttabench.run.request import OWN_QUESTIONS_TASK, RunRequest
from ttabench.sweep.engines import Job

SUITE_KIND = "suite of runs"
SEED = Annotated[int, Field(ge=0)]
Key = Annotated[str, Field(pattern=r"^[^=\s]+$")]
Value: TypeAlias = str | int | float | bool | None
"""Value of a setting; a list of values stands for one run each."""
AXES = {"method": "methods", "task": "tasks", "model": "models", "seed": "seeds"}
"""Axes of a grid, and their names at the top level of a suite."""
OPTION_OF_FIELD = {"settings": "set", "task_options": "task_set"}
"""Request fields that have another name as options."""
FIELD_OF_OPTION = {option: name for name, option in OPTION_OF_FIELD.items()}
SWAP_OPTION = "swap_state"
"""Option that replaces a run by three runs, one per `state_of`; the only way to set `state_of`."""
AUTO = "auto"
BUDGET_OPTIONS = ("keep", "keep_tokens")
LABELLED_OPTIONS = (*BUDGET_OPTIONS, "bits", "preset", "checkpoint")
"""Options that the label of a run names."""


def _option_type(field: Option) -> Any:
    """Return the type annotation of an option's value, without `None`."""
    if field.name in OPTION_OF_FIELD:
        return dict[Key, Value | list[Value]]
    plain = next((kind for kind in get_args(field.kind) if kind is not type(None)), field.kind)
    if field.name == "batch_size":
        return plain | Literal["auto"]
    return str if plain is Path else plain


OPTIONS: Mapping[str, Any] = {
    **{
        OPTION_OF_FIELD.get(name, name): _option_type(field)
        for name, field in option_fields(RunRequest).items()
        if name not in AXES
    },
    SWAP_OPTION: bool,
}
"""Type annotation of a value by option name."""


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML loader that refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Json]:
        """Construct the mapping of a node."""
        keys = [key.value for key, _ in node.value]
        for number, (key, _) in enumerate(node.value):
            if key.value in keys[:number]:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value} is a duplicate", problem_mark=key.start_mark
                )
        return super().construct_mapping(node, deep)


def read_suite(path: Path) -> Json:
    """Load the YAML data of a suite file."""
    with reading_file(path):
        return _UniqueKeyLoader(read_checked_yaml(path, SUITE_KIND)).get_single_data()


def to_suite_options(typed: Mapping[str, Any]) -> dict[str, Json]:
    """Convert typed request fields to suite options."""
    options: dict[str, Json] = {}
    for name, value in typed.items():
        if name == "batch_size":
            value = value or AUTO
        options[OPTION_OF_FIELD.get(name, name)] = str(value) if isinstance(value, Path) else value
    return options


def make_request(typed: Mapping[str, Json], state_of: str = "own") -> RunRequest:
    """Build a request from suite options."""
    values: dict[str, Any] = {}
    for name, value in typed.items():
        if name == "batch_size":
            value = 0 if value == AUTO else value
        elif name == "state":
            value = Path(value) if value else None
        values[FIELD_OF_OPTION.get(name, name)] = value
    return RunRequest(**values, state_of=state_of)


def _value_or_list_fields(kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return pydantic fields that accept one value or a list of values each."""
    return {
        name: (
            kind if name in FIELD_OF_OPTION else kind | Annotated[list[kind], Field(min_length=1)],  # type: ignore[valid-type]
            None,
        )
        for name, kind in kinds.items()
    }


def _make_entries_type(axis: str) -> Any:
    """Create the type of a list of names on one axis, each with options of its runs or alone."""
    entry: Any = create_model(
        axis.capitalize(),
        __config__=STRICT_CONFIG,
        **{axis: (str, ...), **_value_or_list_fields(OPTIONS)},
    )
    expand = BeforeValidator(lambda value: {axis: value} if isinstance(value, str) else value)
    return list[Annotated[entry, expand]]


RunPattern = create_model(
    "Some",
    __config__=STRICT_CONFIG,
    **_value_or_list_fields({**dict.fromkeys(AXES, str), "seed": SEED, **OPTIONS}),
)
"""Option values that select runs, such as an entry of `include` or `exclude`."""


class TaskSizes(BaseModel):
    """Mean sizes of a task, from which `--dry-run --gpu` estimates costs without its data."""

    model_config = STRICT_CONFIG

    contexts: PositiveInt
    chunks: PositiveInt
    """Chunks of a context."""
    chunk_tokens: PositiveInt
    queries: PositiveInt
    """Queries about a context; for a choice, its options."""
    prompt_tokens: PositiveInt
    new_tokens: PositiveInt
    """Tokens of an answer."""


_suite_fields: dict[str, Any] = {
    **{AXES[axis]: (_make_entries_type(axis), []) for axis in ("method", "task", "model")},
    "seeds": (list[SEED], [0]),
    "include": (list[RunPattern], []),  # type: ignore[valid-type]
    "exclude": (list[RunPattern], []),  # type: ignore[valid-type]
    "sizes": (dict[str, TaskSizes], {}),
    **_value_or_list_fields(OPTIONS),
}
Suite = create_model("Suite", __config__=STRICT_CONFIG, **_suite_fields)
"""A grid of runs: methods x tasks x models x seeds, without `exclude`, plus `include`."""


def check_suite(data: Json) -> dict[str, Json]:
    """Validate a suite, and convert entries that are plain strings. Defaults are not filled in."""
    if not isinstance(data, dict):
        raise UserError(
            f"This is not a {SUITE_KIND}.",
            "Use a mapping at the top level: methods, tasks, models, seeds ...",
        )
    values: dict[str, Json] = validate_model(Suite, data, "The suite").model_dump(
        mode="json", exclude_unset=True
    )
    return values


def task_sizes(data: Json) -> dict[str, TaskSizes]:
    """Return the sizes of tasks that a suite states, by name of the task."""
    sizes: dict[str, TaskSizes] = validate_model(Suite, data, "The suite").sizes
    return sizes


MAX_RUNS = 10_000
"""Limit for the runs of a suite."""


class Cell(NamedTuple):
    """Request and seed of one run."""

    request: RunRequest
    seed: int


@dataclass(frozen=True, eq=False)
class _Layer:
    """Options from one level of a suite."""

    values: Mapping[str, Json]
    strict_axes: frozenset[str] = frozenset()
    """Axes on which an unsupported option is an error, not ignored: "method", "task" or both."""


@dataclass
class _Grid:
    """Expansion of a suite to cells. It tracks which suite-wide options are supported anywhere.

    Both fields identify an option by (option, setting key); the key is "" for plain options.
    """

    options_by_key: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """Task options that the tasks know, by suite-wide option, for error messages."""
    accepted: set[tuple[str, str]] = field(default_factory=set)
    """Suite-wide options that at least one method or task accepts."""

    def expand(
        self, layers: Mapping[str, Sequence[_Layer]], seeds: Sequence[int], common: Sequence[_Layer]
    ) -> Iterator[tuple[dict[str, Json], Cell]]:
        """Yield (option values, cell) for methods x tasks x models x seeds."""
        for model, task, method in product(layers["model"], layers["task"], layers["method"]):
            names = {
                axis: str(layer.values[axis])
                for axis, layer in zip(AXES, (method, task, model), strict=False)
            }
            spec = registry.find_method(names["method"])
            layers_in_order = [common[0], model, task, method, *common[1:]]
            options = _task_options(names, layers_in_order)
            values_by_key = {
                (name, key): value
                for layer in layers_in_order
                for name, key, value in _layer_items(layer)
                if self._applies(layer, name, key, spec, options)
            }
            for chosen in _expand_choices(values_by_key):
                swapped = chosen.pop(SWAP_OPTION, False)
                for state in ANSWERING_STATES if swapped else ("own",):
                    request = make_request({**names, **chosen}, state)
                    for seed in seeds:
                        yield (
                            {**names, **chosen, SWAP_OPTION: swapped, "seed": seed},
                            Cell(request, seed),
                        )

    def _applies(
        self, layer: _Layer, name: str, key: str, spec: MethodSpec, options: Collection[str] | None
    ) -> bool:
        """Return True if an option of a layer applies to this method and task.

        `options`: option names that the task knows; None if they are unknown.
        """
        if name == "task_set" and "task" not in layer.strict_axes:
            is_accepted = options is None or resolve_key(key, options) in options
        elif name in BUDGET_OPTIONS and "method" not in layer.strict_axes:
            is_accepted = _has_budget(spec, name)
        else:
            return True
        self.options_by_key.setdefault((name, key), set()).update(options or ())
        if is_accepted:
            self.accepted.add((name, key))
        return is_accepted

    def refuse_unaccepted(self) -> None:
        """Raise an error for suite-wide options that no method or task accepts."""
        for name, key in self.options_by_key.keys() - self.accepted:
            if key:
                raise UnknownName(
                    "setting of these tasks", key, sorted(self.options_by_key[name, key])
                )
            raise UserError(
                f"None of these methods supports --{name.replace('_', '-')}.", "Remove it."
            )


def _task_options(
    names: Mapping[str, str], layers_in_order: Sequence[_Layer]
) -> Collection[str] | None:
    """Return the options that a task knows with the last given source; None if unknown."""
    card = load_card(OWN_QUESTIONS_TASK if is_readable(Path(names["task"])) else names["task"])
    sources = [layer.values["source"] for layer in layers_in_order if layer.values.get("source")]
    return known_options(
        card, str(sources[-1] if sources else default_source(card, nano=names["model"] == NANO))
    )


def _has_budget(spec: MethodSpec, name: str) -> bool:
    """Return True if a method supports this budget option (`keep`: a share, `keep_tokens`)."""
    with suppress(ValueError):
        return spec.keep is not None and bool(spec.keep(0.5 if name == "keep" else 1024))
    return False


def expand_suite(data: Json) -> list[Cell]:
    """List the runs of a suite, ordered by model, then by task."""
    suite = check_suite(data)
    grid = _Grid()
    axes = {
        axis: [
            _Layer(entry, strict_axes=frozenset([axis])) for entry in _unique(suite.get(plural, []))
        ]
        for axis, plural in AXES.items()
        if axis != "seed"
    }
    axes["model"] = axes["model"] or [_Layer({"model": NANO})]
    seeds = _unique(suite.get("seeds", [0]))
    top = _Layer({key: value for key, value in suite.items() if key not in _NOT_OPTIONS})
    run_cells = _limit_runs(grid.expand(axes, seeds, [top]))
    for pattern in suite.get("exclude", []):
        kept = [
            (options, cell) for options, cell in run_cells if not matches_pattern(pattern, options)
        ]
        if len(kept) == len(run_cells):
            raise UserError(f"exclude: {pattern} matches no run.", "Fix or remove it.")
        run_cells = kept
    for addition in suite.get("include", []):
        run_cells = _limit_runs(chain(run_cells, _included_cells(grid, addition, axes, seeds, top)))
    grid.refuse_unaccepted()
    if not run_cells:
        raise UserError("The suite has no runs.", "Add methods and tasks.")
    return _unique([cell for _, cell in run_cells])


_NOT_OPTIONS = {*AXES.values(), "include", "exclude", "sizes"}


def _limit_runs(runs: Iterator[tuple[dict[str, Json], Cell]]) -> list[tuple[dict[str, Json], Cell]]:
    """Return the runs as a list. Raises a UserError if there are more than `MAX_RUNS`."""
    first_runs = list(islice(runs, MAX_RUNS + 1))
    if len(first_runs) > MAX_RUNS:
        raise UserError(
            f"The suite has more than {MAX_RUNS:,} runs.", "Use shorter lists, or several suites."
        )
    return first_runs


def _included_cells(
    grid: _Grid,
    addition: Mapping[str, Json],
    axes: Mapping[str, Sequence[_Layer]],
    seeds: Sequence[int],
    top: _Layer,
) -> Iterator[tuple[dict[str, Json], Cell]]:
    """Expand an entry of `include`. Axes that it does not name come from the suite."""
    named_axes = {axis: _as_list(value) for axis, value in addition.items() if axis in AXES}
    axis_layers = {
        axis: [_Layer({axis: name}) for name in named_axes[axis]]
        if axis in named_axes
        else axes[axis]
        for axis in axes
    }
    for axis, layers in axis_layers.items():
        if not layers:
            raise UserError(
                f"include: {addition} has no {axis}, and neither has the suite.", f"Add {axis}."
            )
    options = {name: value for name, value in addition.items() if name not in AXES}
    layer = _Layer(options, strict_axes=frozenset(named_axes) - {"seed"})
    return grid.expand(axis_layers, named_axes.get("seed", seeds), [top, layer])


def _layer_items(layer: _Layer) -> Iterator[tuple[str, str, Json]]:
    """Yield (option, setting key, value) of a layer, without axes; key "" for plain options."""
    for name, value in layer.values.items():
        if name in FIELD_OF_OPTION:
            yield from ((name, key, part) for key, part in value.items())
        elif name not in AXES:
            yield name, "", value


def _expand_choices(values_by_key: Mapping[tuple[str, str], Json]) -> Iterator[dict[str, Json]]:
    """Yield options with one value each, for every combination of listed values."""
    for values in product(*map(_as_list, values_by_key.values())):
        chosen: dict[str, Json] = {}
        for (name, key), value in zip(values_by_key, values, strict=True):
            if key:
                chosen.setdefault(name, {})[key] = value
            else:
                chosen[name] = value
        yield chosen


def _as_list(value: Json) -> list[Json]:
    return _unique(value) if isinstance(value, list) else [value]


def _unique(values: Sequence[Any]) -> list[Any]:
    """Remove duplicates, in order. 1, 1.0 and True are different values."""
    return list({repr(value): value for value in values}.values())


def matches_pattern(pattern: Mapping[str, Json], words: Mapping[str, Json]) -> bool:
    """Return True if option values (`words`) match a pattern, such as an entry of `exclude`."""
    for name, expected in pattern.items():
        present, expected_settings = (
            (words.get(name, {}), expected)
            if name in FIELD_OF_OPTION
            else (words, {name: expected})
        )
        if not all(
            key in present and format_setting(present[key]) in map(format_setting, _as_list(value))
            for key, value in expected_settings.items()
        ):
            return False
    return True


def plan_jobs(cells: Sequence[Cell]) -> list[Job]:
    """Plan the jobs of cells, without duplicates, grouped by base model."""
    jobs: dict[int, Job] = {}

    def rows_key(number: int) -> tuple[str, int]:
        return cells[number].request.task, cells[number].seed

    # cells that read the same rows are adjacent, so that only one set of rows is in memory
    for _, group in groupby(sorted(range(len(cells)), key=rows_key), rows_key):
        cache = PlanCache()
        for number in group:
            jobs[number] = _make_job(
                cells[number], make_plan(cells[number].request, cells[number].seed, cache)
            )
    unique: dict[str, Job] = {}
    for number in range(len(cells)):
        unique.setdefault(jobs[number].id, jobs[number])
    bases = [job.base for job in unique.values()]
    return sorted(unique.values(), key=lambda job: bases.index(job.base))


def select_shard(runs: Sequence[Job], part: str) -> list[Job]:
    """Select the runs of `--shard 2/5`: every fifth run, starting with the second.

    The same suite gives the same shards on every machine.
    """
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", part)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError(f"--shard {part[:40]!r} is invalid.", "Use --shard 1/4 to 4/4.")
    return list(runs[int(match[1]) - 1 :: int(match[2])])


def method_label(request: RunRequest, method: str) -> str:
    """Return the method of a run with its settings, labelled options and state."""
    labelled = {name: getattr(request, name) for name in LABELLED_OPTIONS}
    labels = [f"{name}={value}" for name, value in labelled.items() if value not in (None, "")]
    words = [method, *format_assignments(request.settings), *labels]
    return " ".join(words) + STATE_SUFFIXES[request.state_of]


def task_label(request: RunRequest, task: str) -> str:
    """Return the task of a run with its options."""
    return " ".join([task, *format_assignments(request.task_options)])


def _make_job(cell: Cell, plan: Plan) -> Job:
    request, config = cell.request, plan.config
    return Job(
        id=config.identity(),
        request=request,
        seed=cell.seed,
        base=repr(base_model_key(request, chat_template=config.chat_template)),
        method=method_label(request, config.method),
        task=task_label(request, config.task),
        notes=tuple(plan.resolved.notes()),
    )
