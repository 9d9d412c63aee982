"""A task's settings from its card, its twin, the papers' quirks and the user's options, in that order.

    resolve(card, Request(source="mini", options={"documents": "16", "questions": "2"}), Settings)
        -> Settings(documents=16, ...), {"questions": 2, "facts": 4}

Options that a mini generator takes as arguments (here `questions`) are told from protocol settings by its signature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.sizes import tokens_in
from ttabench.readers.cards import Card, Scalar, Twin
from ttabench.readers.faults import brief, first_fault
from ttabench.readers.generators import arguments_of
from ttabench.readers.sources import Request


def _count(value: object) -> object:
    """`"16k"` as 16,384."""
    if isinstance(value, str):
        count = tokens_in(value)
        if count is None:
            raise ValueError(f"{value!r} is no number of tokens such as 512 or 16k")
        return count
    return value


def _counts(value: object) -> object:
    """`"4k,16k"` as (4096, 16384); all at once, so that a fault is one fault."""
    given = value.split(",") if isinstance(value, str) else (value,) if isinstance(value, int) else value
    if not given:
        raise ValueError("no length is given")
    return tuple(map(_count, given)) if isinstance(given, list | tuple) else given


def _listed(value: object) -> object:
    return tuple(value.split(",")) if isinstance(value, str) else value


TokenCount = Annotated[int, BeforeValidator(_count), Field(gt=0)]
"""A number of tokens in the settings of a protocol, also as `16k`."""
TokenLimit = Annotated[int, BeforeValidator(_count), Field(ge=0)]
"""The same, where 0 means no limit."""
TokenCounts = Annotated[tuple[TokenCount, ...], BeforeValidator(_counts)]
"""Several, also as `4k,16k`."""
StepCounts = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), BeforeValidator(_listed)]
"""Pieces after which something is asked, also as `1,2,4`."""


class ProtocolSettings(BaseModel):
    """Base of the settings of every reader."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    paper_quirks: bool = False
    """Switch on the card's `quirks` together: deviations of the papers' own code from their text."""


S = TypeVar("S", bound=ProtocolSettings)


def resolve(card: Card, request: Request, model: type[S]) -> tuple[S, dict[str, Scalar]]:
    """(protocol settings, arguments of the mini generator).

    Raises:
        UserError: an option means nothing here or has the wrong type; the card's protocol does not fit its reader; the
            limit leaves nothing to ask.
    """
    if request.limit is not None and request.limit < 1:
        raise UserError(f"A limit of {request.limit} questions leaves nothing to ask.", "Give --limit 1 or more.")
    twin = _twin(card) if request.source == "mini" else None
    known = {key: hint for key, hint in arguments_of(card).items() if key not in model.model_fields} if twin else {}
    options = {key: value for key, value in request.options.items() if key not in known}
    for key in options:
        if key not in model.model_fields:
            raise UnknownName(f"setting of task {card.name}", key, [*model.model_fields, *known])
    base = {**card.protocol, **(twin.protocol if twin else {})}
    settings = _validated(card, model, base, options)
    if settings.paper_quirks:
        settings = _validated(card, model, {**base, **card.quirks}, options)
    arguments = _of_card(card, twin, known) if twin else {}
    for key, hint in known.items():
        if key in request.options:
            arguments[key] = _argument(f"--task-set {key} of {card.name}", request.options[key], hint)
    return settings, arguments


def _of_card(card: Card, twin: Twin, known: Mapping[str, Any]) -> dict[str, Scalar]:
    where = f"The task card {card.name}: twin.arguments"
    for key in twin.arguments:
        if key not in known:
            raise UserError(f"{where}.{key} is no argument of {twin.generator}.", f"Known: {', '.join(known)}.")
    return {key: _argument(f"{where}.{key}", value, known[key]) for key, value in twin.arguments.items()}


def _validated(card: Card, model: type[S], base: Mapping[str, object], options: Mapping[str, object]) -> S:
    try:
        return model.model_validate({**base, **options})
    except ValidationError as error:
        by_user = [str(fault["loc"][0]) for fault in error.errors() if fault["loc"] and fault["loc"][0] in options]
        where = f"--task-set of {card.name}" if by_user else f"protocol of the task card {card.name}"
        what, hint = first_fault(error, where)
        raise UserError(what, f"Give another with --task-set {by_user[0]}=VALUE." if by_user else hint) from None


def _twin(card: Card) -> Twin:
    if card.twin is None:
        raise UserError(f"The task {card.name} has no miniature twin.", "Give --source hub, or the path of the data.")
    return card.twin


def _argument(where: str, value: object, hint: Any) -> Scalar:
    try:
        checked: Scalar = TypeAdapter(hint).validate_python(value)
    except ValidationError:
        kind = " or ".join(map(repr, get_args(hint))) or getattr(hint, "__name__", str(hint))
        raise UserError(f"{where} takes {kind}, got {brief(value)}.", "Give that.") from None
    return checked
