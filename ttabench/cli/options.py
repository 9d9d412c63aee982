"""The options of the command line: what each is called, takes and says. Nothing heavy is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ttabench.cli.completion import (
    DEFAULT_OUT as DEFAULT_OUT,
)
from ttabench.cli.completion import (
    complete_method,
)
from ttabench.core.bounds import MOST_THREADS
from ttabench.core.declared import HOW, RUN, WHAT
from ttabench.records.run_fields import SWAPPED

Checked = Annotated[
    str, typer.Argument(help="A method: a name, or a file of Python (./mine.py).", autocompletion=complete_method)
]
NewWhat = Annotated[str, typer.Argument(help="What to begin: method.")]
NewName = Annotated[str, typer.Argument(help="Its name: lower-case letters, digits and _.")]
NewOut = Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.", rich_help_panel=HOW)]
Seed = Annotated[int, typer.Option(help="Seed of data order and of everything random.", rich_help_panel=WHAT)]
Seeds = Annotated[
    str,
    typer.Option(help="Several seeds, one run each: 0,1,2.", show_default=False, rich_help_panel=WHAT),
]
SwapState = Annotated[
    bool,
    typer.Option("--swap-state", rich_help_panel=WHAT, help=SWAPPED),
]
Out = Annotated[
    Path, typer.Option("--out", "-o", envvar="TTABENCH_OUT", help="Folder of the runs.", rich_help_panel=HOW)
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the resolved configuration and cost, run nothing.", rich_help_panel=HOW)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.", rich_help_panel=HOW)]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only where the result was stored.", rich_help_panel=HOW)
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, max=MOST_THREADS, metavar="N", show_default=False, rich_help_panel=HOW,
                 help="CPU threads; not part of a run's identity. (default: torch's own choice)"),
]  # fmt: skip
Force = Annotated[bool, typer.Option("--force", help="Run again even if it is stored.", rich_help_panel=HOW)]
Form = Annotated[str, typer.Option("--format", "-f", help="table, markdown, csv or json.")]
MEASURED = "What is measured"
Methods = Annotated[
    str,
    typer.Option("--methods", "-m", help="Methods, separated by commas. (default: all)", show_default=False,
                 autocompletion=complete_method, rich_help_panel=RUN),
]  # fmt: skip
ProfileSet = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", rich_help_panel=RUN,
                 help="key=value for every method that has the setting, method.key=value for one; repeat for more."),
]  # fmt: skip
ProfilePreset = Annotated[
    str,
    typer.Option("--preset", show_default=False, rich_help_panel=RUN,
                 help="Named settings, of methods that have them. (default: stream, else those of the model's name)"),
]  # fmt: skip
ProfileCheckpoint = Annotated[
    str,
    typer.Option("--checkpoint", show_default=False, rich_help_panel=RUN,
                 help="Checkpoint of the one trained method, or none. (default: the one shipped for --task, or none)"),
]  # fmt: skip
ShippedFor = Annotated[
    str, typer.Option("--task", "-t", help="Task whose shipped checkpoint trained methods use.", rich_help_panel=RUN)
]
Prefill = Annotated[
    str, typer.Option(help="Tokens of context, separated by commas: 1k,4k,64k,1m.", rich_help_panel=MEASURED)
]
Generate = Annotated[int, typer.Option(help="Tokens written after the prompt.", rich_help_panel=MEASURED)]
Repeat = Annotated[int, typer.Option(help="Measured repetitions; medians are reported.", rich_help_panel=MEASURED)]
PieceTokens = Annotated[int, typer.Option(help="Tokens of one piece of context.", rich_help_panel=MEASURED)]
Throughput = Annotated[
    bool,
    typer.Option("--throughput", help="Samples/s at growing batches, and the largest that fits.",
                 rich_help_panel=MEASURED),
]  # fmt: skip
Analytic = Annotated[
    bool,
    typer.Option("--analytic", help="Cost on paper, from published shapes: no weights, at once, any model and length.",
                 rich_help_panel=MEASURED),
]  # fmt: skip
Queries = Annotated[
    int, typer.Option(help="With --analytic: queries in the total of operations.", rich_help_panel=MEASURED)
]
ProfileTraining = Annotated[
    bool,
    typer.Option("--training", help="Milliseconds per training sample, and memory of adapting one document.",
                 rich_help_panel=MEASURED),
]  # fmt: skip
MemoryLimit = Annotated[
    str,
    typer.Option(help="Memory a process may use, like 4GiB. (default: all)", show_default=False, rich_help_panel=HOW),
]
RowSeconds = Annotated[
    float,
    typer.Option(help="Stop repeating a row (with --throughput, a batch) after so many seconds.",
                 rich_help_panel=HOW),
]  # fmt: skip
TimeLimit = Annotated[
    float | None,
    typer.Option(help="Leave out rows where one pass should take longer than this many seconds. (default: no limit)",
                 show_default=False, rich_help_panel=HOW),
]  # fmt: skip
ProfilePlot = Annotated[
    Path | None,
    typer.Option("--plot", help="Also draw latency and memory by length: a .png or .svg file.", show_default=False,
                 rich_help_panel=HOW),
]  # fmt: skip
Version = Annotated[bool, typer.Option("--version", help="Print the version.")]
