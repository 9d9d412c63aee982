"""The command line. Everything heavy is imported inside the commands, so `--help` answers at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from ttabench.cli.adapt import adapt
from ttabench.cli.ask import ask
from ttabench.cli.check import check, new
from ttabench.cli.compare import compare
from ttabench.cli.ending import ended
from ttabench.cli.eval import eval_
from ttabench.cli.export import export
from ttabench.cli.paper import paper
from ttabench.cli.profile import profile
from ttabench.cli.report import report
from ttabench.cli.show import list_, show
from ttabench.cli.sweep import sweep
from ttabench.cli.train import train
from ttabench.core import __version__

app = typer.Typer(
    name="ttabench",
    help="Benchmark of test-time adaptation: a frozen language model reads a context in pieces; what does it then know,"
    " and what did knowing it cost?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"ttabench {__version__}")
        raise typer.Exit


for _command in (eval_, sweep, train, adapt, ask, compare, report, export, paper, show, list_, check, new, profile):
    app.command(_command.__name__.rstrip("_"))(_command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code, see `ending`."""
    # what the hub's client logs about its retries, and bars beside our own, would stand around our one line
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    words = sys.argv[1:] if arguments is None else list(arguments)
    return ended(lambda: app(args=words, prog_name="ttabench", standalone_mode=False))


def main() -> None:
    """Entry point of the `ttabench` command."""
    sys.exit(run())
