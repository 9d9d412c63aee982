"""The command line: `ttabench eval | sweep | train | adapt | ask | compare | report | export | show ...`.

Commands only hand over what was typed; everything heavy is imported inside them, so `--help` answers at once. A
fault of the user's is one line on standard error and exit code 2, see `ending`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from ttabench.cli import options as o
from ttabench.cli.adapt import adapt
from ttabench.cli.ask import ask
from ttabench.cli.compare import compare
from ttabench.cli.declaring import takes
from ttabench.cli.ending import ended
from ttabench.cli.eval import eval_
from ttabench.cli.export import export
from ttabench.cli.paper import paper
from ttabench.cli.profile import profile
from ttabench.cli.report import report
from ttabench.cli.show import list_, show
from ttabench.cli.sweep import sweep
from ttabench.cli.train import train
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.progress import say_loading
from ttabench.core.version import __version__
from ttabench.run.request import RunRequest


class Commands(TyperGroup):
    """The commands; one that there is not is told as other names are."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names."""
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise UnknownName("command", args[0], list(self.commands))
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="ttabench",
    cls=Commands,
    help="Benchmark of test-time adaptation: a frozen language model reads a context in pieces; what does it then know,"
    " and what did knowing it cost?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(version: o.Version = False) -> None:
    if version:
        typer.echo(f"ttabench {__version__}")
        raise typer.Exit


app.command("eval")(eval_)
app.command()(sweep)
app.command()(train)
app.command()(adapt)
app.command()(ask)
app.command()(compare)
app.command()(report)
app.command()(export)
app.command()(paper)
app.command()(show)
app.command("list")(list_)


@app.command()
@takes("typed", RunRequest, only=("preset", "settings", "model", "device", "dtype"), typed_only=True)
def check(typed: Mapping[str, Any], method: o.Checked = "", json: o.AsJson = False) -> None:
    """Check that a method keeps the promises of the contract; or, with --model alone, what methods give on a model.

    One verdict a line; exit code 1 if a promise is broken, or a method neither right nor refused.
    """
    from ttabench.cli import contract

    if bool(method) == ("model" in typed):
        raise UserError(
            "`check` takes a method or --model, one of them.", "Run `ttabench check mac`, or --model FOLDER."
        )
    if method:
        say_loading("models of two layers", json)
        kept = contract.check(method, typed.get("preset", ""), typed.get("settings", ()), json=json)
    else:
        say_loading(f"the base model {typed['model']}", json)
        kept = contract.check_model(typed["model"], typed.get("device", "auto"), typed.get("dtype", "auto"), json=json)
    if not kept:
        raise typer.Exit(1)


@app.command()
def new(what: o.NewWhat, name: o.NewName, out: o.NewOut = Path()) -> None:
    """Write a working method to begin from, and its test: `ttabench new method NAME`."""
    from ttabench.cli import contract

    contract.new(what, name, out)


app.command()(profile)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code, see `ending`."""
    # what the hub's client logs about its retries would stand around our one line
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    words = sys.argv[1:] if arguments is None else list(arguments)
    return ended(lambda: app(args=words, prog_name="ttabench", standalone_mode=False), words[0] if words else "")


def main() -> None:
    """Entry point of the `ttabench` command."""
    sys.exit(run())
