"""Kinds of what stands in the groups of a record, so that a damaged one is refused before it is computed with.

Any name may be missing, and one that is not listed may hold any JSON value: earlier versions, and others' methods and
tasks, tell other things. What the options of a run are kept as is declared in `run_fields`.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, get_type_hints

from pydantic import AfterValidator, ConfigDict, TypeAdapter, create_model

from ttabench.core.types import Json
from ttabench.records.run_fields import StoredConfig
from ttabench.stats.varying import Varying


class Method:
    """The method in use."""

    name: str
    settings: dict[str, Json]
    preset: str
    parameters: int


class Model:
    """The base model."""

    name: str
    parameters: int
    positions: int
    fingerprint: str
    tokenizer: str
    device: str
    dtype: str
    stands_on: dict[str, Json]


class Task:
    """The task and its material."""

    task: str
    reader: str
    unit: Varying
    main_metric: str
    chance: float | None
    protocol: dict[str, Json]
    arguments: dict[str, Json]


class Hardware:
    """The machine."""

    memory_bytes: int | None


def kinds_of(group: type[Any]) -> AfterValidator:
    """A check that the values of a group are of the kinds that a class declares; the group stays as it is."""
    hints = get_type_hints(group)
    model = create_model(group.__name__, __config__=ConfigDict(strict=True), **{n: (k, None) for n, k in hints.items()})  # type: ignore[call-overload]
    check: TypeAdapter[Any] = TypeAdapter(model)

    def checked(values: dict[str, Json]) -> dict[str, Json]:
        check.validate_python(values)
        return values

    return AfterValidator(checked)


ConfigGroup: TypeAlias = Annotated[dict[str, Json], kinds_of(StoredConfig)]
MethodGroup: TypeAlias = Annotated[dict[str, Json], kinds_of(Method)]
ModelGroup: TypeAlias = Annotated[dict[str, Json], kinds_of(Model)]
TaskGroup: TypeAlias = Annotated[dict[str, Json], kinds_of(Task)]
HardwareGroup: TypeAlias = Annotated[dict[str, Json], kinds_of(Hardware)]
