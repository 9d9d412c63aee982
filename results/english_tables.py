"""Tables of the suites of real data, from their records only, also for the README and the
documentation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import TypeAlias

from english import FEW_SHOT, HERE, SUITES
from grids import crossed, markdown, spread, table

from ttabench.core.amounts import format_number
from ttabench.records.samples import has_samples
from ttabench.records.schema import load_record
from ttabench.report.compare import compare_runs
from ttabench.report.method_rows import pool_rows
from ttabench.report.stored import StoredRun, load_values
from ttabench.stats.estimate import difference
from ttabench.stats.metrics import metric_or_default

ERRORS = """Mean over all queries ± standard error, as in `ttabench compare`. Several draws are
clustered by draw and by the documents or questions that they share, a single run by its documents,
questions or books. Without stored scores per query, the errors of draws and of queries are added
up, which is too wide. Empty cells were not run."""
SHOWN_DIGITS = 2
"""Digits of the per cent by which a perplexity is lower. Smaller differences count as none."""
Runs: TypeAlias = Mapping[tuple[str, str], Sequence[StoredRun]]
"""Runs by row and column. The runs of a cell differ in their seed."""
TITLES = {"f1": "F1", "answer_nll": "Answer NLL (nats/token)", "ppl": "Perplexity"}


def write(folder: Path) -> None:
    """Write `README.md` for all suites of a folder with runs."""
    sections = [
        written(name, folder) for name in SUITES if (folder / name / "index.json").is_file()
    ]
    text = "\n".join([f"# Real English data under SmolLM2-135M\n\n{ERRORS}\n", *sections])
    (folder / "README.md").write_text(text, encoding="utf-8")


def written(name: str, folder: Path) -> str:
    """Return the table of a suite, from its records only."""
    suite, runs = SUITES[name], runs_of(folder / name)
    columns = list(dict.fromkeys(column for _, column in runs))
    whole = [row for each in runs.values() for _, run in each for row in run.rows]
    lengths = sorted({row.step for row in whole if row.step is not None})
    by_step = lengths if columns in ([""], ["1 to 16 shots"]) else []
    lines = [f"## {name}\n\n{suite.about}.\n"]
    for metric in suite.metrics:
        found = (
            (line, step or column, figure(each, metric, step))
            for (line, column), each in runs.items()
            for step in by_step or [None]
        )
        grid = crossed(found, "".join)[by_step or columns]
        table = markdown(grid.rename(columns="{:,}".format) if by_step else grid, "")
        shared = {metric or run.main_metric for each in runs.values() for _, run in each}
        lines.append(f"{TITLES.get(min(shared), min(shared))}:\n\n{table}")
    lines.append(by_book({line: found for (line, _), found in runs.items()}))
    return "\n".join([*lines, improvement(runs, columns)])


def runs_of(suite: Path) -> dict[tuple[str, str], list[StoredRun]]:
    """Load every cell of a suite."""
    index = json.loads((suite / "index.json").read_text(encoding="utf-8"))
    return {
        (_row_name(line), column): [(suite / run_id, load_record(suite / run_id)) for run_id in ids]
        for line, cells in index.items()
        for column, ids in cells.items()
    }


def _row_name(stored: str) -> str:
    """Return the name of a row: indexes on disk have names of earlier versions."""
    name = stored.replace(", another text's state", " (swapped state)")
    return name.replace(", empty state", " (empty state)")


def side_by_side(names: Sequence[str], column: str, folder: Path) -> str:
    """Return the main metric of several suites, one column per suite and one row per method."""
    cells = (
        (line, name, figure(runs))
        for name in names
        for (line, own), runs in runs_of(folder / name).items()
        if own == column
    )
    return markdown(crossed(cells, "".join)[list(names)], "")


def shown_in_reading(folder: Path = HERE) -> str:
    """Return the tables of books and few-shot tasks that were run."""
    with_runs = [name for name in SUITES if (folder / name / "index.json").is_file()]
    sections = [
        written(name, folder).replace("## ", "### ", 1) for name in ("pg19",) if name in with_runs
    ]
    if few := [name for name in FEW_SHOT if name in with_runs]:
        head = "### Ten demonstrations\n\nAccuracy (%)."
        sections.append(f"{head}\n\n{side_by_side(few, '10 shots', folder)}")
    return "\n".join([f"{ERRORS}\n", *sections])


def figure(runs: Sequence[StoredRun], metric: str = "", step: int | None = None) -> str:
    """Format the score of some runs with its error, see `ERRORS`. Empty without a score."""
    if not any(run.value(metric or run.main_metric) for _, run in runs):
        return ""
    (method_row,) = compare_runs(runs, metric).method_rows
    if step is not None and step not in method_row.steps:
        return ""
    value, error, _ = (
        (method_row.value, method_row.stderr, method_row.n)
        if step is None
        else method_row.steps[step]
    )
    digits, scale = (3, 1) if method_row.metric.startswith(("ppl", "answer")) else (1, 100)
    return f"{scale * value:.{digits}f}" + (
        "" if error is None else f" ± {scale * error:.{digits}f}"
    )


def by_book(lines: Mapping[str, Sequence[StoredRun]], base: str = "window") -> str:
    """Return the table of differences from a base method, paired by book. Empty for other tasks."""
    books = {
        line: {
            row.subtask: log(row.value)
            for _, run in runs
            for row in run.rows
            if row.metric == "ppl" and row.step is None and row.subtask not in (None, "mean")
        }
        for line, runs in lines.items()
    }
    if not books.get(base):
        return ""
    rows = []
    for line, values in books.items():
        changes = [
            round(100 * (exp(values[book] - nats) - 1), 4) + 0.0
            for book, nats in books[base].items()
            if book in values
        ]
        if line != base and changes:
            below = sum(round(change, SHOWN_DIGITS) < 0 for change in changes)
            rows.append((line, spread(changes, SHOWN_DIGITS), f"{below} of {len(changes)}"))
    head = ("", f"perplexity vs. {base} (%)", f"books below {base}")
    return f"Paired by book, mean ± standard error over books:\n\n{table(head, rows, 1)}"


def improvement(runs: Runs, columns: Sequence[str]) -> str:
    """Return the improvement of full context over no context, and the tasks where it is not significant."""
    sentences, tested = [], True
    for column in columns:
        no_context, full_context = (runs.get((line, column), []) for line in ("none", "icl"))
        if (
            len(no_context) != len(full_context)
            or len(no_context) < 2
            or no_context[0][1].main_metric == "ppl"
        ):
            continue
        gain, ends = gained(full_context, no_context)
        interval = (
            f" [{format_number(100 * ends[0])}, {format_number(100 * ends[1])}]" if ends else ""
        )
        sentences.append(
            f"{column}: {format_number(100 * gain)}{interval}"
            + (", not significant" if ends and ends[0] <= 0 else "")
        )
        tested &= ends is not None
    how = "95 % intervals" if tested else "95 % intervals if scores per query are stored"
    return (
        f"Improvement of icl over none in points, with {how}: {'; '.join(sentences)}.\n"
        if sentences
        else ""
    )


def gained(
    left: Sequence[StoredRun], right: Sequence[StoredRun]
) -> tuple[float, tuple[float, float] | None]:
    """Return the difference of the main metric and its 95 % interval, paired by query.

    The interval is None without stored scores per query, because the overlap of the runs is then
    unknown.
    """
    metric = left[0][1].main_metric
    if all(has_samples(folder) for folder, _ in (*left, *right)):
        ours, theirs = (load_values(side, metric) for side in (left, right))
        shared = [query for query in ours if query in theirs]
        paired = difference(
            *([side[query] for query in shared] for side in (ours, theirs)),
            metric_or_default(metric).figure,
        )
        assert paired is not None, "a difference of means is a number"
        if paired.ci_low is None or paired.ci_high is None:
            return paired.value, None
        return paired.value, (paired.ci_low, paired.ci_high)
    (one, *_), (other, *_) = (
        pool_rows([row for _, run in side if (row := run.value(metric))]) for side in (left, right)
    )
    return one - other, None
