"""Table of suite `matched-bytes`: methods with equal slots per chunk, by training seed."""

from __future__ import annotations

from itertools import combinations, groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from grids import runs_of, spread, table

from ttabench.methods.checkpoints import training_seed
from ttabench.records.schema import RunRecord
from ttabench.stats.estimate import t_quantile_975

HERE = Path(__file__).resolve().parent
TASKS = {"streamingqa": "documents, F1 (%)", "msc": "sessions, F1 (%)", "pg19": "books, perplexity"}
BASELINES = ("none", "icl")


class Line(NamedTuple):
    """A row of the table: a method with a number of slots per chunk, or a baseline."""

    slots: int | None
    method: str


FULL_CONTEXT = Line(None, "icl")


class Scores(NamedTuple):
    """Scores of a line on a task, one per training seed, and the mean size of its states."""

    own: list[float]
    swapped: list[float]
    state_bytes: float


def line_of(run: RunRecord) -> Line:
    """Return the line of a run."""
    settings = run.method["settings"]
    slots = settings.get("comp_tokens", settings.get("slots"))
    return Line(slots, str(run.config["method"]))


def read() -> dict[Line, dict[str, Scores]]:
    """Load the scores of the suite, in per cent or as perplexities."""
    runs = [run for _, run in runs_of(HERE / "matched-bytes") if run.state_of != "none"]

    def key(run: RunRecord) -> tuple[int, str, str]:
        line = line_of(run)
        return line.slots or 0, line.method, str(run.config["task"])

    cells: dict[Line, dict[str, Scores]] = {}
    for (_, _, task), group in groupby(sorted(runs, key=key), key):
        members = sorted(group, key=lambda run: training_seed(run.method.get("training", {})) or 0)
        values: dict[str, list[float]] = {"own": [], "other": []}
        for run in members:
            row = run.value(run.main_metric)
            assert row is not None
            values[run.state_of].append(row.value if task == "pg19" else 100 * row.value)
        size = fmean(int(run.cost["state_bytes"] or 0) for run in members)
        cells.setdefault(line_of(members[0]), {})[task] = Scores(
            values["own"], values["other"], size
        )
    return cells


def scores() -> str:
    """Return the table of scores: mean ± standard error over trainings, and bytes."""
    cells = read()
    full = cells[FULL_CONTEXT]

    def cell(line: Line, task: str) -> str:
        own, swapped, size = cells[line][task]
        digits = 2 if task == "pg19" else 1
        if line.method in BASELINES:
            return f"{own[0]:.{digits}f}"
        kept = 100 * size / full[task].state_bytes
        return f"{spread(own, digits)} ({fmean(swapped):.{digits}f}), {kept:.1f} %"

    lines = [
        (str(line.slots or ""), line.method, *(cell(line, task) for task in TASKS))
        for line in cells
    ]
    return table(("slots per chunk", "method", *TASKS.values()), lines, 2)


def differences() -> str:
    """Return the table of differences between methods with equal slots, paired by training seed."""
    cells = read()
    numbers = sorted({line.slots for line in cells if line.slots})
    methods = sorted({line.method for line in cells if line.slots})

    def cell(first: Scores, second: Scores) -> str:
        deltas = [one - other for one, other in zip(first.own, second.own, strict=True)]
        mean, count = fmean(deltas), len(deltas)
        half = t_quantile_975(count - 1) * stdev(deltas) / count**0.5
        return f"{mean:.2f} [{mean - half:.2f}, {mean + half:.2f}]"

    lines = [
        (
            str(slots),
            f"{first} - {second}",
            *(
                cell(cells[Line(slots, first)][task], cells[Line(slots, second)][task])
                for task in TASKS
            ),
        )
        for slots in numbers
        for first, second in combinations(methods, 2)
    ]
    return table(("slots per chunk", "difference [95 %]", *TASKS.values()), lines, 2)


def tables() -> str:
    """Return both tables."""
    return f"{scores()}\n{differences()}"
