"""What a suite may say, as models of pydantic: the options of `ttabench eval`, each once, and lists of them.

The models check a suite, which stands in a file of YAML or is typed.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args

import yaml
from pydantic import BaseModel, Field, ValidationError, create_model, model_validator

from ttabench.core.architectures import NANO
from ttabench.core.declared import Field as Option
from ttabench.core.declared import as_typed, assignments, declared
from ttabench.core.errors import UserError
from ttabench.core.files import reading
from ttabench.core.types import Json
from ttabench.readers import cards
from ttabench.readers.cards import STRICT
from ttabench.readers.formats import first_fault
from ttabench.run.request import RunRequest

KIND = "suite of runs"
SEED = Annotated[int, Field(ge=0)]
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
        return dict[str, Value | list[Value]]
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
        return _Loader(cards.checked(path, KIND)).get_single_data()


def as_said(typed: Mapping[str, Any]) -> dict[str, Json]:
    """Fields of a request that were typed, as a suite says them."""
    options: dict[str, Json] = {}
    for name, value in typed.items():
        if name in RENAMED:
            options[RENAMED[name]] = dict(assignments(value, declared(RunRequest)[name].flag))
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
    try:
        suite = Suite.model_validate(data)
    except ValidationError as error:
        raise UserError(*first_fault(error, "The suite", Suite)) from None
    return suite.model_dump(mode="json", exclude_unset=True)
