"""`ttabench export`: write runs to a single file."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

from ttabench.cli import options as o
from ttabench.core.declared import EXECUTION_GROUP
from ttabench.core.errors import UserError
from ttabench.terminal import render

DEFAULT_FILE = Path("submission.parquet")


def export(
    runs: o.Runs = None,
    task: o.Tasks = None,
    method: o.Methods = None,
    model: o.Models = None,
    save: Annotated[
        Path, o.option(EXECUTION_GROUP, "File to write (.parquet).", "--save", "-o")
    ] = DEFAULT_FILE,
    hub: Annotated[
        Path | None,
        o.folder(
            EXECUTION_GROUP,
            "Write a dataset for a hub to this folder instead: Parquet files and a README.md.",
            "--hub",
        ),
    ] = None,
    out: o.OutOnly = o.DEFAULT_OUT,
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Export runs to one file to share, without texts and paths.

    The file has configurations, versions, costs, and scores of runs and queries.
    Others use it like a folder of runs: `ttabench compare results/mine submission.parquet`
    """
    from ttabench.cli.compare import describe_skipped
    from ttabench.records.schema import SUBMISSION_SUFFIX, is_submission
    from ttabench.records.submissions import (
        QUERIES_FILE,
        ExportedRun,
        export_run,
        write_dataset,
        write_submission,
    )
    from ttabench.report.pictures import check_output_path
    from ttabench.report.selection import refuse_all_damaged, select_runs

    if hub is None:  # packed suites have the same suffix, so `is_submission` protects them
        check_output_path(save, (SUBMISSION_SUFFIX,), "submission", is_submission)
    elif save != DEFAULT_FILE:
        raise UserError("--save and --hub exclude each other.", "Use one of them.")
    selection = select_runs(runs or (), out, {"task": task, "method": method, "model": model})
    if not selection.runs:
        raise UserError(
            "There are no runs to export.", "Run `ttabench eval` first, or use other paths or ids."
        )
    exported, damaged = dict[str, ExportedRun](), list(selection.damaged)
    for folder, record in selection.runs:
        try:
            exported.setdefault(record.id, export_run(folder, record))
        except UserError as error:
            damaged.append(str(error))
    refuse_all_damaged(len(exported), damaged)
    for line in (
        *describe_skipped(selection, runs or ()),
        *(f"Left out: {line}" for line in damaged),
    ):
        render.print_note(line)
    hint = (
        "The file has no texts and no paths. "
        "Runs without stored answers have no scores per query, so no paired tests."
    )
    if hub is None:
        write_submission(save, list(exported.values()))
    else:
        write_dataset(hub, list(exported.values()))
        save = hub / QUERIES_FILE
        hint += f"\nUpload: hf upload USER/NAME {quote(str(hub))} . --repo-type dataset"
    scored = [len(scores) for _, scores in exported.values() if scores is not None]
    o.show_result(
        "exported",
        {
            "file": str(save),
            "bytes": save.stat().st_size,
            "runs": len(exported),
            "without_queries": len(exported) - len(scored),
            "queries": sum(scored),
        },
        hint,
        json=json,
        quiet=quiet,
    )
