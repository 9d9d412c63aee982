"""Types of a record's named fields: a damaged record is refused before anything is computed from it.

Names that are not listed may hold any JSON value: earlier versions, and others' methods and tasks, tell other things.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError, create_model
from typing_extensions import TypedDict

from ttabench.core.types import Json
from ttabench.records.run_fields import RunFields
from ttabench.stats.varying import Varying

_EXACT = ConfigDict(extra="allow", strict=True)


class Config(TypedDict, total=False):
    """Of `RunConfig`, beside the options that are kept as typed."""

    __pydantic_config__ = _EXACT  # type: ignore[misc]
    verb: str
    method: str
    task: str
    source: str
    seed: int
    preset: str
    settings: dict[str, Json]
    task_options: dict[str, Json]
    checkpoint: str
    state: str
    chat_template: bool
    inputs: dict[str, str]


class Method(TypedDict, total=False):
    """Of the method in use."""

    __pydantic_config__ = _EXACT  # type: ignore[misc]
    name: str
    settings: dict[str, Json]
    preset: str
    parameters: int


class Model(TypedDict, total=False):
    """Of the base model."""

    __pydantic_config__ = _EXACT  # type: ignore[misc]
    name: str
    parameters: int
    positions: int
    fingerprint: str
    tokenizer: str
    device: str
    dtype: str
    stands_on: dict[str, Json]


class Task(TypedDict, total=False):
    """Of the task and its material."""

    __pydantic_config__ = _EXACT  # type: ignore[misc]
    task: str
    reader: str
    unit: Varying
    main_metric: str
    chance: float | None
    protocol: dict[str, Json]
    arguments: dict[str, Json]


class Hardware(TypedDict, total=False):
    """Of the machine."""

    __pydantic_config__ = _EXACT  # type: ignore[misc]
    memory_bytes: int | None


class Known(TypedDict):
    """The groups of a record."""

    __pydantic_config__ = _EXACT  # type: ignore[misc]
    config: Config
    method: Method
    model: Model
    task: Task
    hardware: Hardware


_KNOWN: TypeAdapter[Known] = TypeAdapter(Known)
_HINTS = get_type_hints(RunFields)
_KEPT: TypeAdapter[Any] = TypeAdapter(
    create_model(  # type: ignore[call-overload]
        "Kept",
        __config__=ConfigDict(extra="ignore", strict=True),
        **{field.name: (_HINTS[field.name], field.default) for field in fields(RunFields)},
    )
)
"""The options of `RunFields`, any of which an earlier version may lack."""


def refuse_other_kinds(groups: Mapping[str, Mapping[str, Json]]) -> None:
    """See that what a record is known by is of its kind.

    Raises:
        ValueError: it is not; GROUP.NAME and what is expected.
    """
    for adapter, values, above in ((_KNOWN, groups, ()), (_KEPT, groups["config"], ("config",))):
        try:
            adapter.validate_python(values)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in (*above, *first["loc"]))
            raise ValueError(f"{place}: {first['msg']}") from None
