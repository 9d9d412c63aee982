"""Command-line options: generated from declared fields (`add_options`), or shared by commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer

from ttabench.core.declared import (
    EXECUTION_GROUP,
    QUERY_GROUP,
    OptionField,
    option_fields,
    parse_assignments,
)
from ttabench.core.errors import MAX_THREADS
from ttabench.core.files import validate_path
from ttabench.records.run_fields import DEFAULT_OUT as DEFAULT_OUT, SWAP_STATE_HELP
from ttabench.run.request import READING_FIELDS
from ttabench.terminal import render

Command = Callable[..., None]
FIRST_OPTIONS = ("method", "task")
SELECTION_PANEL, OUTPUT_PANEL = "Run selection", "Comparison"
READING_OPTIONS = (*READING_FIELDS, "device", "dtype")
RUN_OPTIONS: Mapping[str, Collection[str]] = {
    "sweep": "preset settings checkpoint state base_checkpoint random_weights source split limit ask_only"
    " task_options metric chat_template device dtype batch_size batch_contexts bos max_context"
    " thinking boost bits".split(),
    "train": "method task model preset settings base_checkpoint random_weights source split task_options"
    " chat_template device dtype bos max_context thinking".split(),
    "adapt": READING_OPTIONS,
    "ask": READING_OPTIONS,
    "check": "preset settings model device dtype max_context".split(),
    "profile": "model base_checkpoint random_weights device dtype max_context bits".split(),
}
"""Options of `eval` that other commands have too: fields of `RunRequest` by command.

`eval`, suites and `ttabench.evaluate` have every field of `RunRequest`."""


def option(group: str, text: str, *flags: str, **more: Any) -> Any:
    """Create an option in the help group `group`, with help text `text`."""
    return typer.Option(*flags, help=text, rich_help_panel=group, **more)


def _option_parser(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap a parser so that its ValueError is reported as an error of the option."""

    def parser(typed: Any) -> Any:
        try:
            return parse(typed)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parser


def folder(group: str, text: str, *flags: str, **more: Any) -> Any:
    """Create an option for an output folder."""
    return option(group, text, *flags, parser=_option_parser(validate_path), metavar="DIR", **more)


Seeds = Annotated[
    str,
    option(
        QUERY_GROUP,
        "Random seed, including data order. For one run per seed: 0,1,2.",
        "--seed",
        "--seeds",
    ),
]
SwapState = Annotated[bool, option(QUERY_GROUP, SWAP_STATE_HELP, "--swap-state")]
Out = Annotated[
    Path, folder(EXECUTION_GROUP, "Folder of stored runs.", "--out", "-o", envvar="TTABENCH_OUT")
]
OutOnly = Annotated[
    Path, folder(EXECUTION_GROUP, "Folder of stored runs.", "--out", envvar="TTABENCH_OUT")
]
"""`--out` of commands that use `-o` for the output file."""
DryRun = Annotated[
    bool, option(EXECUTION_GROUP, "Print the resolved configuration, and run nothing.", "--dry-run")
]
AsJson = Annotated[bool, option(EXECUTION_GROUP, "Print JSON instead of tables.", "--json")]
Quiet = Annotated[
    bool, option(EXECUTION_GROUP, "Print only the path of the result.", "--quiet", "-q")
]
Force = Annotated[
    bool, option(EXECUTION_GROUP, "Run again, even if the result is stored.", "--force")
]
Form = Annotated[render.Format, option(EXECUTION_GROUP, "Table format.", "--format", "-f")]
Threads = Annotated[
    int | None,
    option(
        EXECUTION_GROUP,
        "Number of CPU threads. Does not change the run id. (default: chosen by torch)",
        min=1,
        max=MAX_THREADS,
        metavar="N",
    ),
]
Tracker = Annotated[
    str, option(EXECUTION_GROUP, "Also log to a tracker: trackio, wandb or mlflow.", "--log")
]
MemoryLimit = Annotated[
    str, option(EXECUTION_GROUP, "Maximum memory per process, such as 4GiB. (default: no limit)")
]
Context = Annotated[
    list[Path] | None,
    typer.Option("--context", "-c", help="Text file to read as context. Repeatable."),
]
Pieces = Annotated[
    str, typer.Option(help="How files are split into chunks: file (no split), paragraphs or lines.")
]
Runs = Annotated[
    list[str] | None,
    typer.Argument(
        help="Runs to use: folders, globs, run ids or their beginnings, exported files, or method "
        "names. (default: all runs in --out)",
        show_default=False,
    ),
]
Tasks = Annotated[
    list[str] | None,
    option(
        SELECTION_PANEL, "Use only these tasks, separated by commas. Repeatable.", "--task", "-t"
    ),
]
Methods = Annotated[
    list[str] | None,
    option(
        SELECTION_PANEL,
        "Use only these methods, separated by commas. Repeatable. kvpress means all its presses.",
        "--method",
        "-m",
    ),
]
Models = Annotated[
    list[str] | None,
    option(
        SELECTION_PANEL, "Use only these base models, separated by commas. Repeatable.", "--model"
    ),
]
Metric = Annotated[
    str, option(OUTPUT_PANEL, "Metric to compare. (default: the main metric of each task)")
]
AllPairs = Annotated[
    bool,
    option(
        OUTPUT_PANEL,
        "Test every pair of methods. (default: if there are more than four, only pairs with the "
        "best method, none or icl)",
        "--all-pairs",
    ),
]


def add_options(
    name: str, kind: type, *, only: Collection[str] = (), typed_only: bool = False, **defaults: Any
) -> Callable[[Command], Command]:
    """Add an option for each declared field of a dataclass to a command.

    Args:
        name: argument of the command that receives the instance.
        only: fields to include; all if empty.
        typed_only: pass a mapping of the typed values instead; the options have no defaults.
        defaults: defaults of options that differ from those of the fields.
    """
    fields = [field for field in option_fields(kind).values() if not only or field.name in only]
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
            for field in fields:
                if _is_list(field):
                    texts = tuple(values[field.name] or ())
                    values[field.name] = (
                        parse_assignments(texts, field.flags[0]) if _is_mapping(field) else texts
                    )
            nonempty = {
                key: value for key, value in values.items() if value not in (None, "", (), {})
            }
            command(**{name: nonempty if typed_only else kind(**values)}, **typed)

        wrapper.__signature__ = inspect.Signature([*options, *own_parameters])  # type: ignore[attr-defined]
        wrapper.__annotations__ = {
            parameter.name: parameter.annotation for parameter in (*options, *own_parameters)
        }
        return wrapper

    return decorate


def typed_names(context: typer.Context) -> frozenset[str]:
    """Return the names of the options given on the command line, not by environment or default."""
    names = (param.name or "" for param in context.command.params)
    return frozenset(
        name
        for name in names
        if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"
    )


def _is_list(field: OptionField) -> bool:
    is_tuple = get_origin(field.kind) is tuple and field.info.kind is None
    return is_tuple or _is_mapping(field)


def _is_mapping(field: OptionField) -> bool:
    return get_origin(field.kind) is Mapping


def _parameter(field: OptionField, typed_only: bool, defaults: dict[str, Any]) -> inspect.Parameter:
    """Build the parameter from which Typer creates the option."""
    spec = field.info
    kind = list[str] if _is_list(field) else spec.kind or field.kind
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
    """Print a result of one row as JSON, as its path, or as a table of names and values."""
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
            [render.Table(title=title, columns=("name", "#value"), rows=rows, caption=hint)]
        )
