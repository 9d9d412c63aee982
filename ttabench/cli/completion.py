"""Completions for the shell: names of methods, tasks and models, and ids of runs. Nothing heavy is imported."""

from __future__ import annotations

from pathlib import Path

import typer

from ttabench.core.architectures import names as model_names

DEFAULT_OUT = Path("results/scratch")
"""Where runs are stored and looked for."""


def _starting(names: list[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def complete_method(incomplete: str) -> list[str]:
    """Shell completion of `--method`."""
    from ttabench.methods.registry import methods

    return _starting(sorted(methods()), incomplete)


def complete_model(incomplete: str) -> list[str]:
    """Shell completion of `--model`."""
    return _starting(model_names(), incomplete)


def complete_task(incomplete: str) -> list[str]:
    """Shell completion of `--task`."""
    from ttabench.readers.cards import names

    return _starting(names(), incomplete)


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Shell completion of a run: ids in `--out`, or those of SUITE/."""
    from ttabench.report.finding import completed

    return completed(incomplete, Path(ctx.params.get("out") or DEFAULT_OUT))


def complete_list(incomplete: str) -> list[str]:
    """Shell completion of what can be listed."""
    from ttabench.report.listing import WHAT as LISTS

    return _starting(list(LISTS), incomplete)


def complete_paper(incomplete: str) -> list[str]:
    """Shell completion of what `paper` shows."""
    from ttabench.papers.declared import names

    return _starting(["list", "claims", *names()], incomplete)
