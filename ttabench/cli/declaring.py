"""Options of a command from fields that are declared once, see `core.declared`.

    @takes("request", RunRequest, without=("split",), method="icl", task="streamingqa")
    def adapt(request, out: Out = ...): ...

The command has an option for every declared field of `RunRequest`, and is handed one request.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import wraps
from typing import Annotated, Any, get_origin

import typer

from ttabench.cli.completion import complete_method, complete_model, complete_task
from ttabench.core.declared import Field, declared

_COMPLETES = {"method": complete_method, "task": complete_task, "model": complete_model}
Command = Callable[..., None]
FIRST = ("method", "task")
"""Options that help lists before all others."""


def takes(
    name: str, kind: type, *, without: Collection[str] = (), only: Collection[str] = (), typed_only: bool = False,
    **defaults: Any,
) -> Callable[[Command], Command]:  # fmt: skip
    """Options for the declared fields of a dataclass; the command gets an instance as its argument `name`.

    Args:
        name: of the argument.
        kind: the dataclass.
        without: fields that the command has no option for.
        only: the fields that it has, where these are few.
        typed_only: hand over a mapping of what was typed; options have no default then, and what is left out is not in
            it.
        defaults: of options, where they are others than the field's.
    """
    chosen = [
        option for option in declared(kind).values() if option.name not in without and (not only or option.name in only)
    ]
    chosen.sort(key=lambda option: (*FIRST, option.name).index(option.name))

    def decorate(command: Command) -> Command:
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.name != name
        ]
        options = [_parameter(parameter, typed_only, defaults) for parameter in chosen]

        @wraps(command)
        def wrapper(**typed: Any) -> None:
            values = {option.name: _held(option, typed.pop(option.name)) for option in chosen}
            given = {key: value for key, value in values.items() if value not in (None, "", ())}
            command(**{name: given if typed_only else kind(**values)}, **typed)

        wrapper.__signature__ = inspect.Signature([*options, *own])  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in (*options, *own)}
        return wrapper

    return decorate


def typed_names(context: typer.Context) -> frozenset[str]:
    """Names of the options that stand on the command line, not those of the environment or left at their default."""
    sources = {param.name: context.get_parameter_source(param.name or "") for param in context.command.params}
    return frozenset(name for name, source in sources.items() if name and source and source.name == "COMMANDLINE")


def _held(field: Field, typed: Any) -> Any:
    """A list that was typed, or nothing, as the field holds it."""
    return tuple(typed or ()) if _is_list(field) else typed


def _is_list(field: Field) -> bool:
    return get_origin(field.kind) is tuple and field.said.kind is None


def _parameter(field: Field, typed_only: bool, defaults: dict[str, Any]) -> inspect.Parameter:
    """The parameter that Typer makes an option of."""
    spec, kind = field.said, field.said.kind or field.kind
    default = defaults.get(field.name, None if typed_only or _is_list(field) else field.default)
    if _is_list(field):
        kind = list[str]
    if default is None and kind in (bool, str, int, float, list[str]):
        kind = kind | None
    option = typer.Option(
        *(spec.flags or (field.flag,)), help=spec.help, rich_help_panel=spec.group, show_default=spec.default,
        autocompletion=_COMPLETES.get(spec.completes), parser=_parser(spec.parse), metavar=spec.metavar,
    )  # fmt: skip
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def _parser(parse: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    """The parser of a value, whose fault is reported as one of an option."""
    if parse is None:
        return None

    def parser(typed: Any) -> Any:
        try:
            return parse(typed)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parser
