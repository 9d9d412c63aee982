"""`ttabench sweep --dry-run`: which runs there are, which are stored, and how long the others should take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ttabench.cli.eval_runs import expected
from ttabench.cli.showing import Showing
from ttabench.core.errors import UserError
from ttabench.core.progress import in_words
from ttabench.core.types import Json
from ttabench.records.schema import is_stored
from ttabench.run.plan import make_plan
from ttabench.run.room import refuse_on_paper
from ttabench.sweep.planning import Run
from ttabench.terminal import render

if TYPE_CHECKING:
    from ttabench.cli.duration import Estimate


def dry_run(runs: Sequence[Run], out: Path, showing: Showing, *, threads: int | None = None) -> None:
    """List the runs; nothing is run, and no model is loaded."""
    known: dict[tuple[str, str, str], Estimate | None] = {}
    rows = [_row(run, out, known, threads) for run in runs]
    if showing.json:
        render.print_json({"runs": rows, "time": _total(rows)})
        return
    if showing.quiet:
        for run, row in zip(runs, rows, strict=True):
            if not row["stored"]:
                render.print_line(run.id)
        return
    columns = ("run", "method", "task", "model", "#seed", "what is to do")
    cells = tuple((row["id"], row["method"], row["task"], row["model"], str(row["seed"]), _to_do(row)) for row in rows)
    render.show([render.Table(title=f"Runs for {out}", columns=columns, rows=cells, caption=_caption(rows),
                              names=("run",), spare=("model", "run"))])  # fmt: skip


def _row(
    run: Run, out: Path, known: dict[tuple[str, str, str], Estimate | None], threads: int | None
) -> dict[str, Json]:
    """One run; what differs in its seed only should take as long."""
    stored = is_stored(out / run.id)
    row: dict[str, Json] = {"id": run.id, "method": run.method, "task": run.task, "seed": run.seed,
                            "model": run.request.base_name, "stored": stored, "reason": "", "time": None}  # fmt: skip
    if stored:
        return row
    plan = make_plan(run.request, run.seed)
    try:
        refuse_on_paper(plan)
    except UserError as error:
        return {**row, "reason": str(error)}
    alike = (run.base, run.method, run.task)
    if alike not in known:
        known[alike] = expected([plan], threads)[1]
    estimate_of_run = known[alike]
    return {**row, "time": asdict(estimate_of_run) if estimate_of_run else None}


def _to_do(row: dict[str, Json]) -> str:
    if row["stored"]:
        return "stored"
    if row["reason"]:
        return f"would fail: {row['reason']}"
    if row["time"] is None:
        return "to run"
    return f"to run, {'at least' if row['time']['at_least'] else 'about'} {in_words(row['time']['seconds'])}"


def _total(rows: Sequence[dict[str, Json]]) -> dict[str, Json]:
    """Seconds of all of them, one after the other, and for how many no time is known."""
    times = [row["time"] for row in rows if row["time"]]
    unknown = sum(not (row["stored"] or row["reason"] or row["time"]) for row in rows)
    return {
        "seconds": sum(time["seconds"] for time in times),
        "at_least": bool(unknown) or any(time["at_least"] for time in times),
        "unknown": unknown,
    }


def _caption(rows: Sequence[dict[str, Json]]) -> str:
    stored, failing = sum(row["stored"] for row in rows), sum(bool(row["reason"]) for row in rows)
    counts = [(stored, "stored"), (len(rows) - stored - failing, "to run"), (failing, "would fail")]
    sentence = f"{len(rows)} runs: {', '.join(f'{count} {state}' for count, state in counts if count)}."
    total = _total(rows)
    if total["seconds"]:
        how = "at least" if total["at_least"] else "about"
        sentence += f" One after the other they should take {how} {in_words(total['seconds'])} on this machine."
    return sentence
