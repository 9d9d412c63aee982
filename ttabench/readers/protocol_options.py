"""A task's settings from its card, its twin and the user's options, in that order.

    resolve(card, Request(source="mini", options={"documents": "16", "questions": "2"}), Settings)
        -> Settings(documents=16, ...), {"questions": 2, "facts": 4}

Options that a mini generator takes as arguments (here `questions`) are told from protocol settings by its signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ttabench.core.amounts import tokens_in
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.plugins import offered
from ttabench.core.types import Json
from ttabench.readers.cards import Card, Scalar
from ttabench.readers.formats import first_fault
from ttabench.readers.sources import Request, arguments_of

GROUP = "ttabench.readers"
"""Entry points of other packages: functions of a card and a request."""
READERS = (
    "qa_stream", "demonstrations", "metaicl", "book", "dialogue", "sessions", "lamp", "recall", "shared_context",
    "ruler", "lm_eval",
)  # fmt: skip
"""Modules here, each with a function `read`."""


def reader_of(name: str) -> Callable[[Card, Request], Any]:
    """The function that binds a card of this reader to its data."""
    if name not in READERS and name not in offered(GROUP):
        raise UnknownName("reader", name, sorted([*READERS, *offered(GROUP)]))
    own = import_module(f"ttabench.readers.{name}").read if name in READERS else offered(GROUP)[name].load()
    read: Callable[[Card, Request], Any] = own
    return read


def origin(reader: str) -> str:
    """Of what package, in what state, a reader is; "" for those here."""
    return "" if reader in READERS or reader not in offered(GROUP) else offered(GROUP)[reader].origin


def _count(value: object) -> object:
    """`"16k"` as 16,384."""
    if isinstance(value, str):
        count = tokens_in(value)
        if count is None:
            raise ValueError(f"{value!r} is no number of tokens such as 512 or 16k")
        return count
    return value


def listed(value: object) -> object:
    """`"1,2,4"` or one number as a tuple."""
    return tuple(value.split(",")) if isinstance(value, str) else (value,) if isinstance(value, int) else value


def _counts(value: object) -> object:
    """`"4k,16k"` as (4096, 16384); all at once, so that a fault is one fault."""
    given = listed(value)
    return tuple(map(_count, given)) if isinstance(given, list | tuple) else given


TokenCount = Annotated[int, BeforeValidator(_count), Field(gt=0)]
"""A number of tokens in the settings of a protocol, also as `16k`."""
TokenLimit = Annotated[int, BeforeValidator(_count), Field(ge=0)]
"""The same, where 0 means no limit."""
TokenCounts = Annotated[tuple[TokenCount, ...], Field(min_length=1), BeforeValidator(_counts)]
"""Several, also as `4k,16k`."""
StepCounts = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), BeforeValidator(listed)]
"""Pieces after which something is asked, also as `1,2,4`."""


class ProtocolSettings(BaseModel):
    """Base of the settings of every reader."""

    model_config = ConfigDict(extra="forbid", frozen=True)


S = TypeVar("S", bound=ProtocolSettings)
M = TypeVar("M", bound=BaseModel)


def resolve(card: Card, request: Request, model: type[S]) -> tuple[S, dict[str, Scalar]]:
    """(protocol settings, arguments of the mini generator)."""
    if request.limit is not None and request.limit < 1:
        raise UserError(f"A limit of {request.limit} questions leaves nothing to ask.", "Give --limit 1 or more.")
    twin = card.twin if request.source == "mini" else None
    if request.source == "mini" and twin is None:
        hint = "Give --source hub, or the path of the data."
        raise UserError(f"The task {card.name} has no miniature twin.", hint)
    inputs = arguments_of(card, request.source)
    known = [key for key in inputs.model_fields if key not in model.model_fields]
    options = {key: value for key, value in request.options.items() if key not in known}
    if unknown := next((key for key in options if key not in model.model_fields), None):
        raise UnknownName(f"setting of task {card.name}", unknown, [*model.model_fields, *known])
    base = {**card.protocol, **(twin.protocol if twin else {})}
    settings = _validated(card, "protocol", model, base, options)
    steps = len(set(getattr(settings, "steps", None) or ()))
    if request.limit is not None and request.limit < steps:
        fault = f"A limit of {request.limit} questions is less than one at each of {steps} steps."
        raise UserError(fault, f"Give --limit {steps} or more.")
    if prompt := getattr(settings, "prompt", None):
        card.prompt.check(card.name, prompt, getattr(settings, "examples", 0))
    more = {key: value for key, value in request.options.items() if key in known}
    arguments = _validated(card, "twin.arguments", inputs, twin.arguments if twin else {}, more)
    return settings, arguments.model_dump(exclude_unset=True)


def _validated(card: Card, place: str, model: type[M], base: Mapping[str, object], options: Mapping[str, object]) -> M:
    try:
        return model.model_validate({**base, **options})
    except ValidationError as error:
        by_user = [str(fault["loc"][0]) for fault in error.errors() if fault["loc"] and fault["loc"][0] in options]
        where = f"--task-set of {card.name}" if by_user else f"{place} of the task card {card.name}"
        what, hint = first_fault(error, where, model)
        raise UserError(what, f"Give another with --task-set {by_user[0]}=VALUE." if by_user else hint) from None


FORMER: Mapping[str, Mapping[str, Json]] = {
    "qa_stream": {"downsample": "contexts", "dedupe": True, "document_tokens": 512, "question_tokens": 128,
                  "answer_tokens": 24},
    "demonstrations": {"copa_single_blank": False},
    "metaicl": {"protocol": "ccm", "layout": "ccm", "answer": "choose", "pmi": False, "max_new_tokens": 10,
                "too_long": "cut", "omit": "", "pmi_tasks": "", "drop_last": False},
    "book": {"protocol": "strides", "unit": 1024, "score_first": False},
    "dialogue": {"speakers": "same", "wording": "plain", "eval_split": "test", "context_at_12": 12},
    "sessions": {"session": None, "include_current": False, "window_turns": 16},
    "lamp": {"least_kept": 0.9},
    "recall": {"every": 0, "ask": "question"},
}  # fmt: skip
"""Defaults of options that readers of earlier versions had, which stand in the records of their runs."""


def defaults(card: Card, source: str) -> dict[str, Json]:
    """Defaults of the protocol, of earlier versions too, and under `mini` of the generator's arguments, as JSON."""
    settings = _settings_of(card.reader)
    if settings is None:
        return {}
    values: dict[str, Json] = settings.model_construct().model_dump(mode="json")
    former = {"paper_quirks": False, **FORMER.get(card.reader, {})}
    return {**former, **arguments_of(card, source).model_construct().model_dump(), **values}


def known_options(card: Card, source: str) -> list[str] | None:
    """Names of the options of a task: of its protocol, and under `mini` of its generator; None where nobody knows."""
    settings = _settings_of(card.reader)
    return None if settings is None else [*settings.model_fields, *arguments_of(card, source).model_fields]


def _settings_of(reader: str) -> type[BaseModel] | None:
    """The model `Settings` of a reader's module, if it has one."""
    if reader not in READERS and reader not in offered(GROUP):
        return None
    settings = getattr(import_module(reader_of(reader).__module__), "Settings", None)
    return settings if isinstance(settings, type) and issubclass(settings, BaseModel) else None
