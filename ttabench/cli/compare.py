"""`ttabench compare`: which runs, which tables, in which form, and where to."""

from __future__ import annotations

import gc
import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ttabench.cli import options as o
from ttabench.core.declared import HOW
from ttabench.core.errors import UserError

if TYPE_CHECKING:
    from ttabench.report.compare import Comparison
    from ttabench.report.finding import Loaded, Wanted
    from ttabench.terminal.render import Format
    from ttabench.terminal.table import Table

MOST_BLOCKS = 12
"""Of more, people are shown the first lines and one table, unless they ask for all."""
ENDINGS = {".md": "markdown", ".csv": "csv", ".json": "json"}
"""Of files to save to, and the form that each asks for."""


def compare(
    runs: o.Runs = None,
    task: o.Tasks = None,
    method: o.Methods = None,
    model: o.Models = None,
    submissions: o.Submissions = None,
    metric: o.Metric = "",
    all_pairs: o.AllPairs = False,
    diff: Annotated[
        bool, o.option(o.SAID, "Show the settings, options, data and versions that differ.", "--diff")
    ] = False,
    strict: Annotated[
        bool,
        o.option(o.SAID, "Exit code 1 if a pair of a block is not paired, a run is set aside or damaged, a seed or the"
                 " metric is missing, or data or bases differ; the texts of answers are not looked at.", "--strict"),
    ] = False,
    summary: Annotated[
        bool,
        o.option(o.SAID, "Show only the first lines and the first table; the default with more than 12 blocks.",
                 "--summary"),
    ] = False,
    every: Annotated[
        bool, o.option(o.SAID, "Show every block, also when there are more than 12.", "--all")
    ] = False,
    form: Annotated[
        str, o.option(HOW, "table, markdown, csv or json.", "--format", "-f")
    ] = "table",
    save: Annotated[Path | None, o.option(HOW, "Write it to a file instead: .md, .csv or .json.")] = None,
    plot: Annotated[
        Path | None,
        o.option(HOW, "Also draw quality by step and by bytes of state, a panel a block: a .png, .svg or .pdf file."),
    ] = None,
    out: o.Out = o.DEFAULT_OUT,
    json: o.AsJson = False,
) -> None:  # fmt: skip
    """Compare runs: who leads, quality beside cost, and every difference, paired, with its interval.

    One block a task, source and base model. `compare mac icl --task streamingqa` compares those methods.
    """
    from ttabench.report.finding import Wanted
    from ttabench.terminal import render

    if plot is not None:
        from ttabench.report.pictures import NEEDED, check_path, refuse_missing

        check_path(plot)
        refuse_missing("A picture", NEEDED)
    form = _form("json" if json else form, save)
    if summary and every:
        raise UserError("Both --summary and --all are given.", "Give one of them.")
    wanted = Wanted(task, method, model)
    comparison, remarks = compared(runs or (), out, wanted, submissions or (), metric, all_pairs=all_pairs)
    for line in remarks:
        render.remark(line)
    if plot is not None:
        from ttabench.report.charts import plot as draw

        draw(comparison, plot)
    more: list[Table] = []
    if diff:
        from ttabench.report.comparison_tables import differing

        more.append(differing(comparison))
    blocks, for_people = len(comparison.blocks), form == "table" and save is None
    short = summary or (for_people and blocks > MOST_BLOCKS and not (every or all_pairs))
    _deliver(comparison, form, save, more, short=short)
    if for_people and short and not summary:
        render.remark(
            f"{blocks} blocks in one table: --all shows each; --task, --method and names of runs choose some."
        )
    if strict:
        from ttabench.report.cautions import problems

        faults = problems(comparison)
        for line in faults:
            render.remark(f"Strict: {line}.")
        if faults:
            raise typer.Exit(1)


def _form(form: str, save: Path | None) -> Format:
    """The form, that of the file where one is named."""
    from ttabench.report.pictures import check_path
    from ttabench.terminal.render import known_format

    if save is not None:
        check_path(save, "--save", tuple(ENDINGS), "table")
        form = ENDINGS[save.suffix.lower()]
    return known_format(form)


def compared(
    names: Sequence[str], out: Path, wanted: Wanted, submissions: Sequence[Path], metric: str, *, all_pairs: bool
) -> tuple[Comparison, list[str]]:
    """The comparison of the runs that were asked for, and a remark for each thing that was left out of it."""
    from ttabench.report.compare import compared as of_runs
    from ttabench.report.finding import selected

    was_on = gc.isenabled()
    gc.disable()  # of so many small values, none of them garbage, it takes a third of the time
    try:
        chosen = selected(names, out, wanted, submissions)
        comparison = of_runs(chosen.runs, metric, all_pairs=all_pairs, damaged=chosen.damaged)
    finally:
        if was_on:
            gc.enable()
    remarks = [*skipped(chosen, names), *chosen.alike, *(f"Left out: {line}" for line in comparison.damaged)]
    if lacking := len(comparison.without_metric):
        lack = "lacks" if lacking == 1 else "lack"
        remarks.append(f"Left out {lacking} of {len(chosen.runs)} runs, which {lack} the metric.")
    return comparison, remarks


def skipped(chosen: Loaded, names: Sequence[str]) -> list[str]:
    """A line for names that hold no run; none where all hold some."""
    if not chosen.skipped:
        return []
    some = ", ".join(chosen.skipped[:3]) + (", ..." if len(chosen.skipped) > 3 else "")
    return [f"Skipped {len(chosen.skipped)} of {len(names)} names, which hold no runs: {some}"]


def _deliver(comparison: Comparison, form: Format, save: Path | None, more: Sequence[Table], *, short: bool) -> None:
    """Print the comparison, or write it to a file."""
    from ttabench.core.files import write_atomically
    from ttabench.terminal import render

    if save is None:
        _print(comparison, form, more, short=short)
        return
    with redirect_stdout(io.StringIO()) as text:
        _print(comparison, form, more, short=short)
    write_atomically(save, text.getvalue().encode("utf-8", "backslashreplace"))
    render.remark(f"Saved in {save}.")


def _print(comparison: Comparison, form: Format, more: Sequence[Table], *, short: bool) -> None:
    from ttabench.core.errors import printable
    from ttabench.report.comparison_tables import comparison_data, comparison_tables
    from ttabench.report.verdict import sentences, verdict
    from ttabench.terminal import render

    if form in ("json", "csv"):
        data = [*comparison_data(comparison)[: 1 if short else None], *more]
        if form == "csv":
            render.show(data, "csv")
            return
        rows = {table.title: [dict(row) for row in table.data] for table in data}
        render.print_json({"verdict": verdict(comparison), **rows})
        return
    if form == "table":
        render.say(sentences(comparison))
    else:
        sys.stdout.write(printable("\n\n".join([*sentences(comparison), ""])))
    render.show([*comparison_tables(comparison, summary=short), *more], form)
