"""Tables of the suites of real data, from their records alone; what the README and the documentation show of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import exp, hypot, log
from pathlib import Path
from statistics import fmean, stdev

from english import FEW_SHOT, HERE, SUITES
from grids import markdown, spread, table

from ttabench.records.schema import Row, RunRecord, load_record
from ttabench.report.frames import crossed

ERRORS = """Mean ± standard error: over draws of documents and their questions; where all draws ask the same questions
(demonstrations), over draws and over questions; of a single run, over its questions or, of perplexities, its books.
Empty cells were not run."""
SHOWN = "squad-qa"
"""The suite whose table the README has."""
SHOWN_LINES = ("none", "icl", "window 20 %", "snapkv 20 %", "h2o 20 %", "h2o 50 %",
               "templora", "templora, another text's state")  # fmt: skip
TITLES = {"f1": "F1", "answer_nll": "Nats a token of the target answer", "ppl": "Perplexity"}


def write(folder: Path) -> None:
    """`README.md` of all suites of a folder that were run."""
    found = [written(name, folder) for name in SUITES if (folder / name / "index.json").is_file()]
    text = "\n".join([f"# Real English data under SmolLM2-135M\n\n{ERRORS}\n", *found])
    (folder / "README.md").write_text(text, encoding="utf-8")


def written(name: str, folder: Path) -> str:
    """The table of a suite, from its records alone."""
    suite, out = SUITES[name], folder / name
    index = json.loads((out / "index.json").read_text(encoding="utf-8"))
    runs = {(line, column): [load_record(out / each) for each in ids]
            for line, cells in index.items() for column, ids in cells.items()}  # fmt: skip
    columns = list(dict.fromkeys(column for _, column in runs))
    lengths = sorted({row.step for each in runs.values() for run in each for row in run.rows if row.step is not None})
    by_step = lengths if columns in ([""], ["1 to 16 shots"]) else []
    told = [f"## {name}\n\n{suite.about}.\n"]
    for metric in suite.metrics:
        found = (
            (line, step or column, figure(each, metric, step, suite.same_queries))
            for (line, column), each in runs.items()
            for step in by_step or [None]
        )
        grid = crossed(found, "".join)[by_step or columns]
        shown = markdown(grid.rename(columns="{:,}".format) if by_step else grid, "")
        shared = {metric or run.main_metric for each in runs.values() for run in each}
        told.append(f"{TITLES.get(min(shared), min(shared))}:\n\n{shown}")
    told.append(by_book({line: found for (line, _), found in runs.items()}))
    return "\n".join([*told, room(runs, columns, suite.same_queries)])


def side_by_side(names: Sequence[str], column: str, folder: Path) -> str:
    """The main metric of several suites in one column each, a line a method."""
    found = (
        (line, name, figure([load_record(folder / name / each) for each in cells[column]],
                            same_queries=SUITES[name].same_queries))
        for name in names
        for line, cells in json.loads((folder / name / "index.json").read_text(encoding="utf-8")).items()
        if column in cells
    )  # fmt: skip
    return markdown(crossed(found, "".join)[list(names)], "")


def shown_in_readme(folder: Path = HERE) -> str:
    """The README's table: the main metric of one suite, some of its lines, up to sixteen documents."""
    first = written(SHOWN, folder).split("\n\n")[3]
    head, rule, *lines = first.splitlines()
    kept = [line for line in lines if line.split(" | ")[0].removeprefix("| ") in SHOWN_LINES]
    return "\n".join([*(" | ".join(row.removesuffix(" |").split(" | ")[:4]) + " |" for row in (head, rule, *kept)), ""])


def shown_in_docs(folder: Path = HERE) -> str:
    """What the documentation shows of these suites: those that were run."""
    there = [name for name in SUITES if (folder / name / "index.json").is_file()]
    told = [written(name, folder).replace("## ", "### ", 1) for name in ("squad-qa", "pg19") if name in there]
    if few := [name for name in FEW_SHOT if name in there]:
        head = "### Ten demonstrations\n\nPer cent right."
        told.append(f"{head}\n\n{side_by_side(few, '10 shots', folder)}")
    return "\n".join([f"{ERRORS}\n", *told])


def figure(runs: Sequence[RunRecord], metric: str = "", step: int | None = None, same_queries: bool = False) -> str:
    """The figure of some runs with its error, see `ERRORS`."""
    rows = [row for run in runs if (row := value(run, metric or run.main_metric, step)) is not None]
    if not rows:
        return ""
    digits, scale = (3, 1) if rows[0].metric.startswith(("ppl", "answer")) else (1, 100)
    mean, error = scale * fmean(row.value for row in rows), error_of(rows, same_queries)
    return f"{mean:.{digits}f}" + ("" if error is None else f" ± {scale * error:.{digits}f}")


def error_of(rows: Sequence[Row], same_queries: bool) -> float | None:
    """Standard error of the mean of these rows, a draw each; None where nothing tells it."""
    asking = [row.stderr for row in rows if row.stderr is not None]
    if len(rows) == 1:
        return asking[0] if asking else None
    drawing = stdev(row.value for row in rows) / len(rows) ** 0.5
    return hypot(drawing, fmean(asking)) if same_queries and asking else drawing


def by_book(lines: Mapping[str, Sequence[RunRecord]], base: str = "window") -> str:
    """Differences from a method book by book, which is what books leave to compare; empty for other tasks."""
    books = {
        line: {row.subtask: log(row.value) for run in runs for row in run.rows
               if row.metric == "ppl" and row.step is None and row.subtask not in (None, "mean")}
        for line, runs in lines.items()
    }  # fmt: skip
    if not books.get(base):
        return ""
    shown = []
    for line, found in books.items():
        changes = [
            round(100 * (exp(found[book] - nats) - 1), 4) + 0.0 for book, nats in books[base].items() if book in found
        ]
        if line != base and changes:
            shown.append((line, spread(changes, 2), f"{sum(each < 0 for each in changes)} of {len(changes)}"))
    head = ("", f"perplexity from that of {base}, per cent", "books below it")
    return f"Paired by book, mean ± standard error over books:\n\n{table(head, shown, 1)}"


def value(run: RunRecord, metric: str, step: int | None = None) -> Row | None:
    """The row of a metric: of the mean over sub-tasks where there are several, of all books together."""
    rows = [row for row in run.rows if row.metric == metric and row.step == step and row.subtask in (None, "mean")]
    wanted = None if metric == "ppl" else "mean"
    return max(rows, key=lambda row: row.subtask == wanted, default=None)


def room(runs: Mapping[tuple[str, str], Sequence[RunRecord]], columns: Sequence[str], same_queries: bool) -> str:
    """How far the ceiling lies above the floor, and where a method could show nothing between them."""
    told = []
    for column in columns:
        floor, ceiling = (
            [found for run in runs.get((line, column), []) if (found := value(run, run.main_metric))]
            for line in ("none", "icl")
        )
        if len(floor) != len(ceiling) or len(floor) < 2 or floor[0].metric == "ppl":
            continue
        gains = [high.value - low.value for low, high in zip(floor, ceiling, strict=True)]
        error = stdev(gains) / len(gains) ** 0.5
        if same_queries:
            error = hypot(error, *(fmean(row.stderr or 0.0 for row in rows) for rows in (floor, ceiling)))
        nothing = ", so none to speak of" if fmean(gains) < 2 * error else ""
        told.append(f"{column}: {100 * fmean(gains):.1f} ± {100 * error:.1f}{nothing}")
    return f"Points from floor to ceiling: {'; '.join(told)}.\n" if told else ""
