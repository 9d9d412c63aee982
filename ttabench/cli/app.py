"""The `ttabench` command. Heavy imports are inside the commands, so that `--help` is fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from ttabench.cli.adapt import adapt
from ttabench.cli.ask import ask
from ttabench.cli.check import check
from ttabench.cli.compare import compare
from ttabench.cli.errors import run_command, sigterm_as_interrupt
from ttabench.cli.eval import eval_
from ttabench.cli.export import export
from ttabench.cli.new import new
from ttabench.cli.profile import profile
from ttabench.cli.report import report
from ttabench.cli.show import list_, show
from ttabench.cli.sweep import sweep
from ttabench.cli.train import train
from ttabench.core import __version__

app = typer.Typer(
    name="ttabench",
    help="Benchmark for test-time adaptation: measure how well a frozen language model answers"
    " questions about a context it was adapted to, and what the adaptation costs in memory, time"
    " and compute.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"ttabench {__version__}")
        raise typer.Exit


for _command in (
    eval_,
    sweep,
    train,
    adapt,
    ask,
    compare,
    report,
    export,
    show,
    list_,
    check,
    new,
    profile,
):
    app.command(_command.__name__.rstrip("_"))(_command)


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
