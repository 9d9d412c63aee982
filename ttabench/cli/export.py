"""`ttabench export`: which runs, and the file that is written of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ttabench.cli import options as o
from ttabench.core.declared import HOW
from ttabench.core.errors import UserError
from ttabench.terminal import render


def export(
    runs: o.Runs = None,
    task: o.Tasks = None,
    method: o.Methods = None,
    model: o.Models = None,
    save: Annotated[Path, o.option(HOW, "File to write, a .parquet.", "--save", "-o")] = Path("submission.parquet"),
    out: o.OutOnly = o.DEFAULT_OUT,
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Write runs as one file for others: configuration, versions, figures, costs, scores by query; no text, no path.

    They name it as a folder of runs, `ttabench compare results/mine submission.parquet`: yours stand beside theirs.
    """
    from ttabench.cli.compare import skipped
    from ttabench.records.schema import SUFFIX, is_submission
    from ttabench.records.submissions import Part, part_of, write_submission
    from ttabench.report.finding import refuse_all_damaged, selected
    from ttabench.report.pictures import check_path

    check_path(save, (SUFFIX,), "submission", is_submission)  # suites are packed in files of that ending
    chosen = selected(runs or (), out, {"task": task, "method": method, "model": model})
    if not chosen.runs:
        raise UserError("There are no runs to export.", "Run `ttabench eval` first, or give paths or ids.")
    parts, damaged = dict[str, Part](), list(chosen.damaged)
    for folder, record in chosen.runs:
        try:
            parts.setdefault(record.id, part_of(folder, record))
        except UserError as error:
            damaged.append(str(error))
    refuse_all_damaged(len(parts), damaged)
    for line in (*skipped(chosen, runs or ()), *(f"Left out: {line}" for line in damaged)):
        render.remark(line)
    write_submission(save, list(parts.values()))
    scored = [len(scores) for _, scores in parts.values() if scores is not None]
    o.show_result(
        "exported",
        {"file": str(save), "bytes": save.stat().st_size, "runs": len(parts),
         "without_queries": len(parts) - len(scored), "queries": sum(scored)},
        "No text, no path of this machine. Runs whose answers are not stored have only figures: no paired tests.",
        json=json, quiet=quiet,
    )  # fmt: skip
