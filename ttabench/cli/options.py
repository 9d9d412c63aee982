"""Options of the command line: of declared fields (`add_options`), shared by several commands; light."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer

from ttabench.core.declared import EXECUTION_GROUP, QUERY_GROUP, OptionField, option_fields
from ttabench.core.errors import MAX_THREADS
from ttabench.core.files import validate_path
from ttabench.records.run_fields import DEFAULT_OUT as DEFAULT_OUT
from ttabench.records.run_fields import SWAP_STATE_HELP
from ttabench.terminal import render

Command = Callable[..., None]
FIRST_OPTIONS = ("method", "task")
SELECTION_PANEL, OUTPUT_PANEL = "Which runs", "What is said of them"


def option(group: str, text: str, *flags: str, **more: Any) -> Any:
    """An option under the heading `group`; `text` is its help."""
    return typer.Option(*flags, help=text, rich_help_panel=group, **more)


def _option_parser(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The parser of a value, whose fault is reported as one of an option."""

    def parser(typed: Any) -> Any:
        try:
            return parse(typed)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parser


def folder(group: str, text: str, *flags: str, **more: Any) -> Any:
    """An option for a folder to write in."""
    return option(group, text, *flags, parser=_option_parser(validate_path), metavar="DIR", **more)


Seeds = Annotated[
    str,
    option(
        QUERY_GROUP,
        "Seed of data order and of everything random; several, one run each: 0,1,2.",
        "--seed",
        "--seeds",
    ),
]
SwapState = Annotated[bool, option(QUERY_GROUP, SWAP_STATE_HELP, "--swap-state")]
Out = Annotated[
    Path, folder(EXECUTION_GROUP, "Folder of the runs.", "--out", "-o", envvar="TTABENCH_OUT")
]
OutOnly = Annotated[
    Path, folder(EXECUTION_GROUP, "Folder of the runs.", "--out", envvar="TTABENCH_OUT")
]
"""Where -o names a file to write."""
DryRun = Annotated[
    bool,
    option(EXECUTION_GROUP, "Print the resolved configuration and cost, run nothing.", "--dry-run"),
]
AsJson = Annotated[bool, option(EXECUTION_GROUP, "Print JSON instead of tables.", "--json")]
Quiet = Annotated[
    bool, option(EXECUTION_GROUP, "Print only where the result was stored.", "--quiet", "-q")
]
Force = Annotated[bool, option(EXECUTION_GROUP, "Run again even if it is stored.", "--force")]
Form = Annotated[render.Format, option(EXECUTION_GROUP, "Form of the tables.", "--format", "-f")]
Threads = Annotated[
    int | None,
    option(
        EXECUTION_GROUP,
        "CPU threads; not part of a run's identity. (default: torch's own choice)",
        min=1,
        max=MAX_THREADS,
        metavar="N",
    ),
]
MemoryLimit = Annotated[
    str, option(EXECUTION_GROUP, "Memory a process may use, like 4GiB. (default: all)")
]
Context = Annotated[
    list[Path] | None, typer.Option("--context", "-c", help="Text file to read; more may follow.")
]
Pieces = Annotated[
    str, typer.Option(help="What one piece of context is: file, paragraphs or lines.")
]
Runs = Annotated[
    list[str] | None,
    typer.Argument(
        help="Runs: folders, globs, (beginnings of) ids, exported files; methods. None for all in --out."
    ),
]
Tasks = Annotated[
    list[str] | None,
    option(SELECTION_PANEL, "Only these tasks: a list with commas, or repeat.", "--task", "-t"),
]
Methods = Annotated[
    list[str] | None,
    option(
        SELECTION_PANEL,
        "Only these methods; kvpress stands for all of its presses.",
        "--method",
        "-m",
    ),
]
Models = Annotated[list[str] | None, option(SELECTION_PANEL, "Only these base models.", "--model")]
Metric = Annotated[str, option(OUTPUT_PANEL, "Metric compared. (default: the task's main one)")]
AllPairs = Annotated[
    bool,
    option(
        OUTPUT_PANEL,
        "Test every pair. (default above four lines: those with floor, ceiling or the leader)",
        "--all-pairs",
    ),
]


def add_options(
    name: str,
    kind: type,
    *,
    without: Collection[str] = (),
    only: Collection[str] = (),
    typed_only: bool = False,
    **defaults: Any,
) -> Callable[[Command], Command]:
    """Options for the declared fields of a dataclass; the command gets an instance as its argument `name`.

    Args:
        without: fields that the command has no option for.
        only: the fields that it has, where these are few.
        typed_only: hand over a mapping of what was typed instead; options have no default then.
        defaults: of options, where they are others than the field's.
    """
    declared_fields = [field for field in option_fields(kind).values() if field.name not in without]
    fields = [field for field in declared_fields if not only or field.name in only]
    fields.sort(key=lambda field: (*FIRST_OPTIONS, field.name).index(field.name))

    def decorate(command: Command) -> Command:
        own_parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.name != name
        ]
        options = [_parameter(field, typed_only, defaults) for field in fields]

        @wraps(command)
        def wrapper(**typed: Any) -> None:
            values = {field.name: typed.pop(field.name) for field in fields}
            values |= {
                field.name: tuple(values[field.name] or ()) for field in fields if _is_list(field)
            }
            nonempty = {key: value for key, value in values.items() if value not in (None, "", ())}
            command(**{name: nonempty if typed_only else kind(**values)}, **typed)

        wrapper.__signature__ = inspect.Signature([*options, *own_parameters])  # type: ignore[attr-defined]
        wrapper.__annotations__ = {
            parameter.name: parameter.annotation for parameter in (*options, *own_parameters)
        }
        return wrapper

    return decorate


def typed_names(context: typer.Context) -> frozenset[str]:
    """Names of the options that stand on the command line, not those of the environment or left at their default."""
    sources = {
        param.name: context.get_parameter_source(param.name or "")
        for param in context.command.params
    }
    return frozenset(
        name for name, source in sources.items() if name and source and source.name == "COMMANDLINE"
    )


def _is_list(field: OptionField) -> bool:
    return get_origin(field.kind) is tuple and field.info.kind is None


def _parameter(field: OptionField, typed_only: bool, defaults: dict[str, Any]) -> inspect.Parameter:
    """The parameter that Typer makes an option of."""
    spec, kind = field.info, list[str] if _is_list(field) else field.info.kind or field.kind
    default = defaults.get(field.name, None if typed_only or _is_list(field) else field.default)
    if default is None and kind in (bool, str, int, float, list[str]):
        kind = kind | None
    typer_option = option(
        spec.group,
        spec.help,
        *(spec.flags or field.flags),
        show_default=spec.default,
        parser=spec.parse and _option_parser(spec.parse),
        metavar=spec.metavar,
    )
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, typer_option],
    )


def show_result(
    title: str, result: Mapping[str, Any], hint: str, *, json: bool, quiet: bool
) -> None:
    """A result of one row, its names as they stand in records."""
    from ttabench.core import amounts

    if json:
        render.print_json(dict(result))
    elif quiet:
        render.print_line(str(result.get("folder") or result.get("file", "")))
    else:
        rows = tuple(
            (name.replace("_", " "), amounts.format_figure(name, value))
            for name, value in result.items()
        )
        render.print_tables(
            [render.Table(title=title, columns=("what", "#value"), rows=rows, caption=hint)]
        )
