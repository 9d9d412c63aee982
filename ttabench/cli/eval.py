"""`ttabench eval` as it is typed; `eval_runs` does what was said. Nothing heavy is imported."""

from __future__ import annotations

import typer

from ttabench.cli import options as o
from ttabench.cli.declaring import takes, typed_names
from ttabench.cli.ending import bounded
from ttabench.core.progress import say_loading
from ttabench.run.request import RunRequest


@takes("request", RunRequest, method="icl", task="streamingqa")
def eval_(
    command: typer.Context,
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
    """Run a method on a task and store the result; the same command again returns or resumes it.

    With --state and without --method, the method, settings and base model are those that the state was made with.
    """
    if request.state is not None:
        from ttabench.run.state_request import ASKING, as_it_was_made

        request = as_it_was_made(request, request.state, typed_names(command), but=ASKING)
    say_loading(request.base_name, json or quiet)
    from ttabench.cli import eval_runs
    from ttabench.cli.showing import Showing, Storing

    numbers = eval_runs.seed_list(seeds, seed)
    showing = Showing(json=json, quiet=quiet)
    if dry_run:
        eval_runs.dry_run(request, numbers, showing, swap=swap_state, threads=threads)
    else:
        bounded(threads, memory_limit, request.device)
        eval_runs.evaluate(request, numbers, Storing(out=out, force=force), showing, swap=swap_state)
