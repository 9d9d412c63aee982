"""`ttabench compare`: compare stored runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ttabench.cli import options as o
from ttabench.core.errors import escape_control_characters
from ttabench.terminal import render

if TYPE_CHECKING:
    from ttabench.report.compare import Comparison
    from ttabench.report.selection import LoadedRuns, RunFilters

MAX_FULL_BLOCKS = 12
"""Maximum number of comparison groups shown in full without --all."""


def compare(
    runs: o.Runs = None,
    task: o.Tasks = None,
    method: o.Methods = None,
    model: o.Models = None,
    metric: o.Metric = "",
    all_pairs: o.AllPairs = False,
    every: Annotated[
        bool,
        o.option(
            o.OUTPUT_PANEL, "Show every comparison group, even if there are more than 12.", "--all"
        ),
    ] = False,
    form: o.Form = "table",
    plot: Annotated[
        Path | None,
        o.option(
            o.OUTPUT_PANEL,
            "Also plot the tested differences with intervals to this file (.png, .svg or .pdf).",
        ),
    ] = None,
    out: o.Out = o.DEFAULT_OUT,
    json: o.AsJson = False,
) -> None:
    """Compare runs: scores, costs, and paired differences with confidence intervals.

    There is one comparison group per task, data source and base model.
    Example: `ttabench compare mac icl --task streamingqa`
    """
    from ttabench.report.comparison_tables import comparison_data, comparison_tables
    from ttabench.report.pictures import check_output_path
    from ttabench.report.verdict import make_verdict

    if plot is not None:
        check_output_path(plot)
    output_form: render.Format = "json" if json else form
    filters = {"task": task, "method": method, "model": model}
    comparison, _ = compared(runs or (), out, filters, metric, all_pairs=all_pairs)
    verdict = make_verdict(comparison)
    groups = len(comparison.groups)
    is_short = output_form == "table" and groups > MAX_FULL_BLOCKS and not (every or all_pairs)
    if output_form == "json":
        rows = {
            table.title: [dict(row) for row in table.data] for table in comparison_data(comparison)
        }
        render.print_json({"verdict": str(verdict), "notes": list(verdict.notes), **rows})
    elif output_form == "csv":
        render.print_tables(comparison_data(comparison), output_form)
    else:
        _print_sentences(verdict.sentences, output_form)
        render.print_tables(comparison_tables(comparison, summary=is_short), output_form)
        _print_sentences(verdict.notes, output_form)
    if is_short:
        render.print_note(
            f"Summary of {groups} comparison groups. "
            "Use --all to show each, or --task and --method to select some."
        )
    if plot is not None:  # last, so that a failing plot does not hide the results
        from ttabench.report.forest import draw_differences

        draw_differences(comparison, plot)
        render.print_note(f"Plot: {plot}")


def _print_sentences(sentences: Sequence[str], output_form: render.Format) -> None:
    if output_form == "table":
        render.print_sentences(sentences)
    else:
        sys.stdout.write(
            "".join(
                escape_control_characters(render.format_prose([line], output_form)) + "\n"
                for line in sentences
            )
        )


def compared(
    names: Sequence[str], out: Path, filters: RunFilters, metric: str, *, all_pairs: bool
) -> tuple[Comparison, list[str]]:
    """Compare the selected runs; print and return remarks on what was left out."""
    from ttabench.report.compare import compare_runs
    from ttabench.report.selection import select_runs

    selection = select_runs(names, out, filters)
    comparison = compare_runs(
        selection.runs, metric, all_pairs=all_pairs, damaged=selection.damaged
    )
    remarks = [
        *describe_skipped(selection, names),
        *(f"Left out: {line}" for line in comparison.damaged),
    ]
    if lacking := len(comparison.runs_without_metric):
        remarks.append(f"Left out {lacking} of {len(selection.runs)} runs without the metric.")
    for line in remarks:
        render.print_note(line)
    return comparison, remarks


def describe_skipped(selection: LoadedRuns, names: Sequence[str]) -> list[str]:
    """Describe the names that matched no run, in one line; no line if all matched."""
    examples = ", ".join(selection.skipped[:3]) + (", ..." if len(selection.skipped) > 3 else "")
    line = f"Skipped {len(selection.skipped)} of {len(names)} names without runs: {examples}"
    return [line] if selection.skipped else []
