"""The command line: `ttabench eval | train | adapt | ask | compare | show | profile | list | check | new`.

Commands only hand over what was typed; everything heavy is imported inside them, so `--help` answers at once. A
fault of the user's is one line on standard error and exit code 2, see `ending`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from ttabench.cli import options as o
from ttabench.cli.comparing import compare
from ttabench.cli.ending import ended, limit_memory
from ttabench.cli.profile import profile
from ttabench.core.progress import loading
from ttabench.core.version import __version__

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
def _root(version: o.Version = False) -> None:
    if version:
        typer.echo(f"ttabench {__version__}")
        raise typer.Exit


@app.command("eval")
def eval_(
    method: o.Method = "icl",
    task: o.Task = "streamingqa",
    model: o.Model = "nano",
    base_checkpoint: o.BaseCheckpoint = "",
    random_weights: o.RandomWeights = False,
    preset: o.Preset = "",
    set_: o.Set = None,
    checkpoint: o.Checkpoint = "",
    state: o.State = None,
    source: o.Source = "",
    split: o.Split = "test",
    task_set: o.TaskSet = None,
    limit: o.Limit = None,
    ask_only: o.AskOnly = False,
    swap_state: o.SwapState = False,
    seed: o.Seed = 0,
    seeds: o.Seeds = "",
    device: o.Device = "auto",
    threads: o.Threads = None,
    dtype: o.Dtype = "auto",
    memory_limit: o.MemoryLimit = "",
    batch_size: o.BatchSize = 32,
    bos: o.Bos = "auto",
    chat_template: o.ChatTemplate = None,
    out: o.Out = o.DEFAULT_OUT,
    force: o.Force = False,
    dry_run: o.DryRun = False,
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Run a method on a task and store the result; the same command again returns or resumes it."""
    _say_loading(model, json or quiet)
    from ttabench.cli import commands
    from ttabench.core.environment import use_threads
    from ttabench.run.resolve import RunRequest

    request = RunRequest(
        method=method, task=task, model=model, source=source, split=split, limit=limit, preset=preset,
        settings=tuple(set_ or ()), task_options=tuple(task_set or ()), checkpoint=checkpoint, state=state,
        ask_only=ask_only, device=device, dtype=dtype, batch_size=batch_size, random_weights=random_weights, bos=bos,
        chat_template=chat_template, base_checkpoint=base_checkpoint,
    )  # fmt: skip
    numbers = commands.seed_list(seeds, seed)
    showing = commands.Showing(json=json, quiet=quiet)
    if dry_run:
        commands.dry_run(request, numbers, showing, swap=swap_state, threads=threads)
    else:
        use_threads(threads)
        limit_memory(memory_limit, device)
        commands.evaluate(request, numbers, commands.Storing(out=out, force=force), showing, swap=swap_state)


@app.command()
def train(
    method: o.Method = "mac",
    task: o.Task = "streamingqa",
    model: o.Model = "nano",
    base_checkpoint: o.BaseCheckpoint = "",
    random_weights: o.RandomWeights = False,
    preset: o.Preset = "",
    set_: o.Set = None,
    checkpoint: o.TrainFrom = "none",
    source: o.Source = "",
    split: o.Split = "train",
    task_set: o.TaskSet = None,
    documents: o.Documents = "",
    rounds: o.Rounds = None,
    questions: o.Questions = None,
    batch_documents: o.BatchDocuments = None,
    steps: o.Steps = None,
    lr: o.Lr = None,
    warmup: o.Warmup = None,
    schedule: o.Schedule = "",
    beta2: o.Beta2 = None,
    clip: o.Clip = None,
    decay: o.Decay = None,
    accumulate: o.Accumulate = 1,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    threads: o.Threads = None,
    dtype: o.Dtype = "auto",
    memory_limit: o.MemoryLimit = "",
    bos: o.Bos = "auto",
    chat_template: o.ChatTemplate = None,
    out: o.TrainOut = None,
    save_every: o.SaveEvery = 500,
    validate_every: o.ValidateEvery = 100,
    stored: o.Stored = "float32",
    resume: o.Resume = False,  # noqa: ARG001  # what it asks for is done anyway
    force: o.Overwrite = False,
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Train a method on a task and write a checkpoint that `eval --checkpoint` takes; the same command resumes."""
    _say_loading(model, json or quiet)
    from ttabench.cli import commands
    from ttabench.cli import train as train_command
    from ttabench.core.environment import use_threads
    from ttabench.run.resolve import RunRequest

    request = RunRequest(
        method=method, task=task, model=model, source=source, split=split, preset=preset, settings=tuple(set_ or ()),
        task_options=tuple(task_set or ()), checkpoint=checkpoint, device=device, dtype=dtype,
        random_weights=random_weights, bos=bos, chat_template=chat_template, base_checkpoint=base_checkpoint,
    )  # fmt: skip
    changes = {
        "documents": documents, "questions": questions, "batch_documents": batch_documents, "steps": steps, "lr": lr,
        "warmup": warmup, "schedule": schedule, "beta2": beta2, "clip": clip, "decay": decay, "rounds": rounds,
    }  # fmt: skip
    training = train_command.Training(
        seed=seed, save_every=save_every, dtype=stored, resume=not force, accumulate=accumulate,
        validate_every=validate_every,
    )  # fmt: skip
    storing, showing = commands.Storing(out=out, force=force), commands.Showing(json=json, quiet=quiet)
    use_threads(threads)
    limit_memory(memory_limit, device)
    train_command.train(request, changes, training, storing, showing)


@app.command()
def adapt(
    more: o.More = None,
    context: o.Context = None,
    out: o.StateOut = Path("state"),
    state: o.ReadState = None,
    method: o.Method = "icl",
    model: o.Model = "nano",
    base_checkpoint: o.BaseCheckpoint = "",
    random_weights: o.RandomWeights = False,
    preset: o.Preset = "",
    set_: o.Set = None,
    checkpoint: o.Checkpoint = "",
    task: o.Task = "streamingqa",
    pieces: o.Pieces = "file",
    device: o.Device = "auto",
    threads: o.Threads = None,
    dtype: o.Dtype = "auto",
    memory_limit: o.MemoryLimit = "",
    bos: o.Bos = "auto",
    chat_template: o.ChatTemplate = None,
    force: o.Replace = False,
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Read files and write the adapted state for `ask`; --state continues an earlier one.

    --task chooses the shipped checkpoint, and whether the files are read in the model's chat template.
    """
    _say_loading(model, json or quiet)
    from ttabench.cli import adapting, commands
    from ttabench.cli.reading import Reading
    from ttabench.core.environment import use_threads
    from ttabench.run.resolve import RunRequest

    request = RunRequest(
        method=method, task=task, model=model, preset=preset, settings=tuple(set_ or ()), checkpoint=checkpoint,
        device=device, dtype=dtype, random_weights=random_weights, bos=bos, chat_template=chat_template,
        base_checkpoint=base_checkpoint, state=state,
    )  # fmt: skip
    reading = Reading(files=(*(context or []), *(more or [])), pieces=pieces)
    storing = commands.Storing(out=out, force=force)
    use_threads(threads)
    limit_memory(memory_limit, device)
    adapting.adapt(request, reading, storing, commands.Showing(json=json, quiet=quiet))


@app.command()
def ask(
    questions: o.Asked = None,
    file: o.QuestionFile = None,
    state: o.AskedState = None,
    context: o.Context = None,
    pieces: o.Pieces = "file",
    method: o.AskMethod = None,
    model: o.AskModel = None,
    base_checkpoint: o.BaseCheckpoint = "",
    random_weights: o.RandomWeights = False,
    preset: o.Preset = "",
    set_: o.Set = None,
    checkpoint: o.Checkpoint = "",
    task: o.AskTask = None,
    options: o.Options = "",
    max_new_tokens: o.MaxNewTokens = None,
    compare: o.Beside = False,
    device: o.Device = "auto",
    threads: o.Threads = None,
    dtype: o.Dtype = "auto",
    bos: o.Bos = "auto",
    chat_template: o.ChatTemplate = None,
    json: o.AsJson = False,
    quiet: o.QuietAnswers = False,
) -> None:
    """Ask questions of your own about your own files: of what `adapt` has read, or of --context FILE."""
    _say_loading(model or "the model", json or quiet)
    from ttabench.cli import asking, commands
    from ttabench.cli.reading import Reading
    from ttabench.core.environment import use_threads

    said = {
        "method": method, "model": model, "task": task, "preset": preset, "settings": tuple(set_ or ()),
        "checkpoint": checkpoint, "base_checkpoint": base_checkpoint, "random_weights": random_weights,
        "chat_template": chat_template, "bos": "" if bos == "auto" else bos,
        "device": "" if device == "auto" else device, "dtype": "" if dtype == "auto" else dtype,
    }  # fmt: skip
    typed = {name: value for name, value in said.items() if value or (name == "chat_template" and value is False)}
    given = asking.Given(state=state, reading=Reading(files=tuple(context or ()), pieces=pieces), typed=typed)
    wanted = asking.Asking(
        questions=tuple(questions or ()), file=file, options=options, max_new_tokens=max_new_tokens, compare=compare
    )
    use_threads(threads)
    asking.ask(given, wanted, commands.Showing(json=json, quiet=quiet))


app.command()(compare)


@app.command()
def show(
    run_: o.OneRun,
    everything: o.Everything = False,
    page: o.Page = None,
    per_page: o.PerPage = 4,
    wrong: o.Wrong = False,
    differs: o.Differs = "",
    grep: o.Grep = "",
    out: o.Out = o.DEFAULT_OUT,
    form: o.Form = "table",
    json: o.AsJson = False,
) -> None:
    """Show one stored run: its command, settings, figures and costs, then what it was asked and answered."""
    from ttabench.report import show as report

    chosen = report.Samples(page=page, per_page=per_page, wrong=wrong, differs=differs, grep=grep)
    report.show(run_, out, chosen, "json" if json else form, everything=everything)


@app.command("list")
def list_(
    what: o.What = "",
    name: o.Name = "",
    method: o.OfMethod = "",
    task: o.OfTask = "",
    model: o.ForModel = "nano",
    preset: o.ShownPreset = "",
    out: o.Out = o.DEFAULT_OUT,
    json: o.AsJson = False,
) -> None:
    """List methods, tasks, models or runs."""
    from ttabench.report import listing

    wanted = listing.Wanted(out=out, method=method, task=task, model=model, preset=preset)
    listing.show(what, name, wanted, json)


@app.command()
def check(method: o.Checked, preset: o.Preset = "", set_: o.Set = None, json: o.AsJson = False) -> None:
    """Check that a method keeps the promises of the contract, one verdict a line; exit code 1 if one is broken."""
    _say_loading("models of two layers", json)
    from ttabench.cli import contract

    if not contract.check(method, preset, tuple(set_ or ()), json=json):
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


def _say_loading(model: str, silent: bool) -> None:
    """The first thing somebody sees: importing what is needed takes seconds."""
    if not silent:
        loading(f"libraries and {Path(model).name or model}")


def main() -> None:
    """Entry point of the `ttabench` command."""
    sys.exit(run())
