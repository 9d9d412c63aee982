"""The command line: `ttabench eval | sweep | train | adapt | ask | compare | report | export | show ...`.

Commands only hand over what was typed; everything heavy is imported inside them, so `--help` answers at once. A
fault of the user's is one line on standard error and exit code 2, see `ending`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from ttabench.cli import asking_options as of_asking
from ttabench.cli import options as o
from ttabench.cli import showing_options as of_showing
from ttabench.cli.comparing import compare
from ttabench.cli.declaring import takes
from ttabench.cli.ending import bounded, ended
from ttabench.cli.exporting import export
from ttabench.cli.paper import paper
from ttabench.cli.profile import profile
from ttabench.cli.reporting import report
from ttabench.cli.sweep import sweep
from ttabench.cli.train import train
from ttabench.core.errors import UnknownName
from ttabench.core.progress import say_loading
from ttabench.core.version import __version__
from ttabench.run.request import READING_FIELDS, RunRequest

READING = (*READING_FIELDS, "device", "dtype")
"""Options of `eval` that say how files are read, and where."""


class Commands(TyperGroup):
    """The commands; one that there is not is told as other names are."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names.

        Raises:
            UnknownName: there is none.
        """
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


@app.command("eval")
@takes("request", RunRequest, method="icl", task="streamingqa")
def eval_(
    request: RunRequest,
    swap_state: o.SwapState = False,
    seed: o.Seed = 0,
    seeds: o.Seeds = "",
    threads: o.Threads = None,
    memory_limit: o.MemoryLimit = "",
    out: o.Out = o.DEFAULT_OUT,
    force: o.Force = False,
    dry_run: o.DryRun = False,
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Run a method on a task and store the result; the same command again returns or resumes it."""
    say_loading(request.base_name, json or quiet)
    from ttabench.cli import commands

    numbers = commands.seed_list(seeds, seed)
    showing = commands.Showing(json=json, quiet=quiet)
    if dry_run:
        commands.dry_run(request, numbers, showing, swap=swap_state, threads=threads)
    else:
        bounded(threads, memory_limit, request.device)
        commands.evaluate(request, numbers, commands.Storing(out=out, force=force), showing, swap=swap_state)


app.command()(sweep)
app.command()(train)


@app.command()
@takes("request", RunRequest, only=READING, method="icl", task="streamingqa")
def adapt(
    request: RunRequest,
    more: of_asking.More = None,
    context: of_asking.Context = None,
    out: of_asking.StateOut = Path("state"),
    state: of_asking.ReadState = None,
    add: of_asking.Added = None,
    pieces: of_asking.Pieces = "file",
    threads: o.Threads = None,
    memory_limit: o.MemoryLimit = "",
    force: of_asking.Replace = False,
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Read files and write the adapted state for `ask`; --state continues an earlier one, --add puts another to it.

    --task chooses the shipped checkpoint, and whether the files are read in the model's chat template.
    """
    say_loading(request.base_name, json or quiet)
    from ttabench.cli import adapting, commands
    from ttabench.cli.reading import Reading

    reading = Reading(files=(*(context or []), *(more or [])), pieces=pieces, added=tuple(add or ()))
    storing = commands.Storing(out=out, force=force)
    bounded(threads, memory_limit, request.device)
    adapting.adapt(replace(request, state=state), reading, storing, commands.Showing(json=json, quiet=quiet))


@app.command()
@takes("typed", RunRequest, only=READING, said=True)
def ask(
    typed: Mapping[str, Any],
    questions: of_asking.Asked = None,
    file: of_asking.QuestionFile = None,
    state: of_asking.AskedState = None,
    context: of_asking.Context = None,
    pieces: of_asking.Pieces = "file",
    options: of_asking.Options = "",
    max_new_tokens: of_asking.MaxNewTokens = None,
    compare: of_asking.Beside = False,
    attention: of_asking.Attention = None,
    threads: o.Threads = None,
    json: o.AsJson = False,
    quiet: of_asking.QuietAnswers = False,
) -> None:
    """Ask questions of your own about your own files: of what `adapt` has read, or of --context FILE."""
    say_loading(str(typed.get("model", "the model")), json or quiet)
    from ttabench.cli import asking, commands
    from ttabench.cli.reading import Reading

    said = {name: value for name, value in typed.items() if value != "auto"}
    given = asking.Given(state=state, reading=Reading(files=tuple(context or ()), pieces=pieces), typed=said)
    wanted = asking.Asking(
        questions=tuple(questions or ()), file=file, options=options, max_new_tokens=max_new_tokens, compare=compare,
        attention=attention,
    )  # fmt: skip
    bounded(threads)
    asking.ask(given, wanted, commands.Showing(json=json, quiet=quiet))


app.command()(compare)
app.command()(report)
app.command()(export)
app.command()(paper)


@app.command()
def show(
    run_: of_showing.OneRun,
    everything: of_showing.Everything = False,
    page: of_showing.Page = None,
    per_page: of_showing.PerPage = 4,
    wrong: of_showing.Wrong = False,
    differs: of_showing.Differs = "",
    grep: of_showing.Grep = "",
    out: o.Out = o.DEFAULT_OUT,
    form: o.Form = "table",
    json: o.AsJson = False,
) -> None:
    """Show one stored run: its command, settings, figures and costs, then what it was asked and answered."""
    from ttabench.report import show as showing

    chosen = showing.Samples(page=page, per_page=per_page, wrong=wrong, differs=differs, grep=grep)
    showing.show(run_, out, chosen, "json" if json else form, everything=everything)


@app.command("list")
def list_(
    what: of_showing.What = "",
    name: of_showing.Name = "",
    method: of_showing.OfMethod = "",
    task: of_showing.OfTask = "",
    model: of_showing.ForModel = "nano",
    preset: of_showing.ShownPreset = "",
    out: o.Out = o.DEFAULT_OUT,
    json: o.AsJson = False,
) -> None:
    """List methods, tasks, models, adapters or runs."""
    from ttabench.report import listing

    wanted = listing.Wanted(out=out, method=method, task=task, model=model, preset=preset)
    listing.show(what, name, wanted, json)


@app.command()
@takes("typed", RunRequest, only=("preset", "settings"), said=True)
def check(typed: Mapping[str, Any], method: o.Checked, json: o.AsJson = False) -> None:
    """Check that a method keeps the promises of the contract, one verdict a line; exit code 1 if one is broken."""
    say_loading("models of two layers", json)
    from ttabench.cli import contract

    if not contract.check(method, typed.get("preset", ""), typed.get("settings", ()), json=json):
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
