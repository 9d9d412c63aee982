"""What can be said of a run in a suite: the options of `ttabench eval`, each once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from ttabench.core.declared import Field, declared
from ttabench.core.typed import assignments
from ttabench.core.types import Json
from ttabench.records.run_fields import SWAPPED
from ttabench.run.request import RunRequest

Value: TypeAlias = str | int | float | bool | None
"""Of a setting; a list of them stands for a run each."""
AXES = {"method": "methods", "task": "tasks", "model": "models", "seed": "seeds"}
"""What a grid is made of, and what each is called at the top of a suite."""
RENAMED = {"settings": "set", "task_options": "task_set"}
"""Fields of a request that have another name as options."""
ASSIGNED = frozenset(RENAMED.values())
_FIELDS = {option: name for name, option in RENAMED.items()}
SWAP = "swap_state"
"""Three runs in place of one: `state_of` of a request is not said otherwise."""
AUTO = "auto"
BUDGETS = ("keep", "keep_tokens")


def _kind(field: Field) -> Any:
    """The annotation of a value, without None: what is not said is left out."""
    if field.name in RENAMED:
        return dict[str, Value | list[Value]]
    plain = next((kind for kind in get_args(field.kind) if kind is not type(None)), field.kind)
    if field.said.parse is not None:
        return plain | Literal["auto"]
    return str if plain is Path else plain


OPTIONS: Mapping[str, tuple[Any, str]] = {
    **{RENAMED.get(name, name): (_kind(field), field.said.help)
       for name, field in declared(RunRequest).items() if name not in AXES},
    SWAP: (bool, SWAPPED),
}  # fmt: skip
"""Type of a value, as an annotation, and help, by name."""


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
            value = tuple(f"{key}={text_of(part)}" for key, part in value.items())
        elif name == "batch_size":
            value = 0 if value == AUTO else value
        elif name == "state":
            value = Path(value) if value else None
        values[_FIELDS.get(name, name)] = value
    return RunRequest(**values, state_of=state_of)


def text_of(value: Value) -> str:
    """A value as it would be typed: true, none, 0.2."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
