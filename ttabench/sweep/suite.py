"""What a suite may say, as models of pydantic: they check it, and its JSON schema follows from them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field, GetJsonSchemaHandler, ValidationError, create_model, model_validator
from pydantic_core import CoreSchema

from ttabench.core.architectures import NANO
from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.readers.cards import STRICT
from ttabench.readers.faults import first_fault
from ttabench.sweep.file import KIND
from ttabench.sweep.options import ASSIGNED, AXES, OPTIONS

SEED = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    model_config = STRICT


class _Named(_Part):
    """An entry of a list, which may be its name alone."""

    axis: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _of_name(cls, value: object) -> object:
        return {cls.axis: value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """A name, or an object."""
        whole = handler.resolve_ref_schema(handler(schema))
        return {"anyOf": [{"type": "string"}, {**whole, "title": cls.__name__}]}


def _fields(*, of_axes: bool) -> dict[str, Any]:
    """Fields of a model: all options, each one value or a list; and the axes, likewise."""
    axes: dict[str, tuple[Any, str | None]] = {axis: (SEED if axis == "seed" else str, None) for axis in AXES}
    kinds = {**(axes if of_axes else {}), **OPTIONS}
    return {
        name: (
            kind if name in ASSIGNED else kind | Annotated[list[kind], Field(min_length=1)],  # type: ignore[valid-type]
            Field(default=None, description=text),
        )
        for name, (kind, text) in kinds.items()
    }


def _entry(axis: str) -> type[_Named]:
    """The entry of a method, a task or a model."""
    own: dict[str, Any] = {axis: (str, ...), **_fields(of_axes=False)}
    made: type[_Named] = create_model(axis.capitalize(), __base__=_Named, **own)
    made.axis = axis
    made.__doc__ = f"A {axis}, and options of its runs."
    return made


Method, Task, Model = _entry("method"), _entry("task"), _entry("model")
Some = create_model("Some", __base__=_Part, __doc__="Runs, by any of their options.", **_fields(of_axes=True))
Suite = create_model(
    "Suite",
    __base__=_Part,
    __doc__="A grid of runs: methods x tasks x models x seeds, without `exclude`, and those of `include`.",
    methods=(list[Method], []),  # type: ignore[valid-type]
    tasks=(list[Task], []),  # type: ignore[valid-type]
    models=(list[Model], [{"model": NANO}]),  # type: ignore[valid-type]
    seeds=(list[SEED], [0]),
    include=(list[Some], []),  # type: ignore[valid-type]
    exclude=(list[Some], []),  # type: ignore[valid-type]
    **_fields(of_axes=False),
)


def checked(data: Json) -> dict[str, Json]:
    """What a suite says, the names of its entries written out, and nothing that it does not say."""
    if not isinstance(data, dict):
        hint = "Its top level must be a mapping; see `ttabench sweep --schema`."
        raise UserError(f"This is not a {KIND}.", hint)
    try:
        suite = Suite.model_validate(data)
    except ValidationError as error:
        raise UserError(*first_fault(error, "The suite", Suite)) from None
    values: dict[str, Json] = suite.model_dump(mode="json", exclude_unset=True)
    return values


def schema() -> dict[str, Json]:
    """The JSON schema of a suite."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Suite.model_json_schema()}
