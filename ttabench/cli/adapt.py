"""`ttabench adapt` as it is typed; `adapt_state` does what was said. Nothing heavy is imported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ttabench.cli import options as o
from ttabench.cli.declaring import takes, typed_names
from ttabench.cli.ending import bounded
from ttabench.core.declared import RUN
from ttabench.core.progress import say_loading
from ttabench.run.request import READING_FIELDS, RunRequest

READING = (*READING_FIELDS, "device", "dtype")
"""Options of `eval` that say how files are read, and where."""
Context = Annotated[list[Path] | None, typer.Option("--context", "-c", help="Text file to read; more may follow.")]
Pieces = Annotated[str, typer.Option(help="What one piece of context is: file, paragraphs or lines.")]
More = Annotated[list[Path] | None, typer.Argument(help="More files to read, in order.", metavar="FILE...")]
StateOut = Annotated[Path, typer.Option("--out", "-o", help="Folder the state is written to.")]
ReadState = Annotated[
    Path | None,
    typer.Option(
        "--state",
        help="Continue from a state that `adapt` wrote, by its own method unless --method is given.",
        rich_help_panel=RUN,
    ),
]
Added = Annotated[
    list[Path] | None,
    typer.Option("--add", help="Add another state of the same method; repeat for more.", rich_help_panel=RUN),
]
Replace = Annotated[
    bool, typer.Option("--force", help="Replace the state in --out; other files there are never replaced.")
]


@takes("request", RunRequest, only=READING, method="icl", task="streamingqa")
def adapt(
    command: typer.Context,
    request: RunRequest,
    more: More = None,
    context: Context = None,
    out: StateOut = Path("state"),
    state: ReadState = None,
    add: Added = None,
    pieces: Pieces = "file",
    threads: o.Threads = None,
    memory_limit: o.MemoryLimit = "",
    force: Replace = False,
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Read files and write the adapted state for `ask`; --state continues an earlier one, --add puts another to it.

    Without --method, an earlier state is continued by the method, settings and model that it was made with.

    --task chooses the shipped checkpoint, and whether the files are read in the model's chat template.
    """
    if earlier := state or next(iter(add or ()), None):
        from ttabench.run.state_request import as_it_was_made

        request = as_it_was_made(request, earlier, typed_names(command))
    say_loading(request.base_name, json or quiet)
    from ttabench.cli import adapt_state
    from ttabench.cli.reading import Reading
    from ttabench.cli.showing import Showing, Storing

    reading = Reading(files=(*(context or []), *(more or [])), pieces=pieces, added=tuple(add or ()))
    storing = Storing(out=out, force=force)
    bounded(threads, memory_limit, request.device)
    adapt_state.adapt(replace(request, state=state), reading, storing, Showing(json=json, quiet=quiet))
