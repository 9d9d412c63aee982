"""`ttabench export`: which runs, and the file that is written of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ttabench.cli.compare import Methods, Models, Runs, Tasks
from ttabench.cli.options import DEFAULT_OUT, AsJson, Quiet
from ttabench.core.declared import HOW
from ttabench.core.errors import UserError

if TYPE_CHECKING:
    from ttabench.records.submitting import Part

Save = Annotated[
    Path, typer.Option("--save", "-o", help="File to write: it ends in .parquet.", rich_help_panel=HOW),
]  # fmt: skip
Folder = Annotated[Path, typer.Option("--out", envvar="TTABENCH_OUT", help="Folder of the runs.", rich_help_panel=HOW)]


def export(
    runs: Runs = None,
    task: Tasks = None,
    method: Methods = None,
    model: Models = None,
    save: Save = Path("submission.parquet"),
    out: Folder = DEFAULT_OUT,
    json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write runs as one file for others: configuration, versions, figures, costs, scores by query; no text, no path.

    They read it with `ttabench compare --with submission.parquet`, or `report`: your runs then stand beside theirs.
    """
    from ttabench.cli.compare_runs import Asked, skipped_names
    from ttabench.records.submission import SUFFIX
    from ttabench.records.submitting import Part, part_of, write_submission
    from ttabench.report.loading import refuse_all_damaged
    from ttabench.report.pictures import check_path
    from ttabench.report.selecting import Wanted, selected
    from ttabench.terminal import render

    asked = Asked(names=runs or (), out=out, wanted=Wanted.typed(task, method, model))
    check_path(save, "--save", (SUFFIX,), "submission")
    _refuse_foreign(save)
    chosen = selected(asked.names, asked.out, asked.wanted)
    if not chosen.runs:
        raise UserError("There are no runs to export.", "Run `ttabench eval` first, or give paths or ids.")
    parts, damaged = dict[str, Part](), list(chosen.damaged)
    for folder, record in chosen.runs:
        try:
            parts.setdefault(record.id, part_of(folder, record))
        except UserError as error:
            damaged.append(str(error))
    refuse_all_damaged(len(parts), damaged)
    for line in (*skipped_names(chosen, asked), *(f"Left out: {line}" for line in damaged)):
        render.remark(line)
    write_submission(save, list(parts.values()))
    _tell(save, list(parts.values()), json=json, quiet=quiet)


def _refuse_foreign(save: Path) -> None:
    """See that no file is replaced that is no submission: suites are packed in files of that ending.

    Raises:
        UserError: one would be.
    """
    from ttabench.records.submission import is_submission

    if save.exists() and not is_submission(save):
        raise UserError(f"{save} is not a submission, and is not replaced.", "Give another name, or remove it.")


def _tell(save: Path, parts: Sequence[Part], *, json: bool, quiet: bool) -> None:
    from ttabench.core import amounts
    from ttabench.terminal import render

    queries = sum(len(part.scores) for part in parts if part.scores is not None)
    bare = sum(part.scores is None for part in parts)
    length = save.stat().st_size
    if json:
        summary = {"file": str(save), "bytes": length, "runs": len(parts), "without_queries": bare, "queries": queries}
        render.print_json(summary)
    elif quiet:
        render.print_line(str(save))
    else:
        runs = f"{len(parts):,} run{'s' * (len(parts) != 1)}"
        scores = f"scores and digests of {queries:,} {'query' if queries == 1 else 'queries'}"
        render.print_line(f"{save}: {runs} with configuration, versions, figures and costs; {scores}; no text, no path "
                          f"of this machine. {amounts.size(length)}.")  # fmt: skip
        if bare:
            has, lacks = ("has", "its") if bare == 1 else ("have", "their")
            render.remark(
                f"{bare} of them {has} only figures, because {lacks} answers are not stored: no paired tests."
            )
