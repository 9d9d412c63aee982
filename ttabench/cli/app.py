"""The `ttabench` command.

The module of a command is imported when the command is called. Heavy imports are inside the
commands, so that their `--help` is fast, too.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ttabench.cli.errors import run_command, sigterm_as_interrupt
from ttabench.core import __version__
from ttabench.core.files import read_text

COMMANDS = {
    "eval": "eval:eval_",
    "sweep": "sweep:sweep",
    "train": "train:train",
    "adapt": "adapt:adapt",
    "ask": "ask:ask",
    "compare": "compare:compare",
    "report": "report:report",
    "export": "export:export",
    "show": "show:show",
    "list": "show:list_",
    "rm": "show:remove",
    "check": "check:check",
    "new": "new:new",
    "profile": "profile:profile",
}
"""Module and function of each command, in the order of the help."""
SETTINGS: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class LazyCommand(TyperCommand):
    """Command that is imported when it is called. Its help is read from the source."""

    def __init__(self, name: str) -> None:
        self.module, _, self.function = COMMANDS[name].partition(":")
        source = read_text(Path(__file__).with_name(f"{self.module}.py"))
        (function,) = (
            node
            for node in ast.parse(source).body
            if isinstance(node, ast.FunctionDef) and node.name == self.function
        )
        super().__init__(name, help=ast.get_docstring(function), rich_markup_mode="rich")

    @cached_property
    def loaded(self) -> TyperCommand:
        """The command with its options."""
        function = getattr(import_module(f"ttabench.cli.{self.module}"), self.function)
        single = typer.Typer(add_completion=False, **SETTINGS)
        single.command(self.name)(function)
        command = typer.main.get_command(single)
        assert isinstance(command, TyperCommand), "one function is one command"
        return command

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse the arguments of the command."""
        return self.loaded.make_context(*args, **options)


class Group(TyperGroup):
    """All commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands.update({name: LazyCommand(name) for name in COMMANDS})


app = typer.Typer(
    cls=Group,
    name="ttabench",
    help="Benchmark for test-time adaptation: measure how well a frozen language model answers"
    " questions about a context it was adapted to, and what the adaptation costs in memory, time"
    " and compute.",
    no_args_is_help=True,
    **SETTINGS,
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"ttabench {__version__}")
        raise typer.Exit


RESUMABLE_COMMANDS = ("eval", "sweep", "profile")
"""Commands that store partial results; `train` has its own message on interruption."""


def run(arguments: Sequence[str] | None = None, signals: Sequence[int] = ()) -> int:
    """Run a command line and return its exit code, see `errors`.

    Signal handlers and environment variables are not changed.

    Args:
        arguments: words after `ttabench`; None for those of this process.
        signals: the list yielded by `sigterm_as_interrupt`.
    """
    command_words = sys.argv[1:] if arguments is None else list(arguments)
    resume_hint = ""
    if {*command_words[:1]} & {*RESUMABLE_COMMANDS}:
        resume_advice = (
            "With --force, the command starts over"
            if "--force" in command_words
            else "Repeat the command to resume"
        )
        resume_hint = f"Finished results are kept. {resume_advice}."
    return run_command(
        lambda: app(args=command_words, prog_name="ttabench", standalone_mode=False),
        resume_hint,
        signals,
    )


def main() -> None:
    """Run the `ttabench` command as the entry point of this process."""
    # log lines and progress bars of the hub client would mix with our single error line
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    with sigterm_as_interrupt() as signals:
        sys.exit(run(signals=signals))
