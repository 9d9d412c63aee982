"""Tables with a line a method and a column a value of a task option, or a column a sub-task; from the records alone.

by_option(records, "ratio", quality)   | task | method | 0.1 | 0.2 | ... |
by_part(records)                       | method | boolq | cb | ... | hellaswag | ... |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean

from ttabench.compare import pooled
from ttabench.records import Row, RunRecord, load_record, runs_in
from ttabench.render import plus_minus, size

METHODS = ("none", "icl", "snapkv", "h2o", "window")
"""Their order in a table; others follow."""
Cell = Callable[[Sequence[RunRecord]], str]
"""What a table shows of the runs of one cell, which differ in their seed only."""


def records(folder: Path) -> list[RunRecord]:
    """Every run of a suite."""
    return [load_record(found) for found in runs_in(folder)]


def quality(runs: Sequence[RunRecord]) -> str:
    """The main metric over all queries, in per cent."""
    return _percent([row for run in runs if (row := run.value(run.main_metric)) is not None])


def state(runs: Sequence[RunRecord]) -> str:
    """Mean bytes of state."""
    return size(fmean(int(run.cost["state_bytes"] or 0) for run in runs))


def by_option(runs: Sequence[RunRecord], option: str, cell: Cell) -> str:
    """A line a task and method, a column a value of the option."""
    cells: dict[tuple[str, str], dict[float, list[RunRecord]]] = {}
    for run in _ordered(runs):
        line = (str(run.config["task"]), str(run.config["method"]))
        cells.setdefault(line, {}).setdefault(float(run.config["task_options"][option]), []).append(run)
    columns = sorted({value for line in cells.values() for value in line})
    shown = [
        (*line, *(cell(found[value]) if value in found else "" for value in columns)) for line, found in cells.items()
    ]
    return table(("task", "method", *(f"{option}={value:g}" for value in columns)), shown, 2)


def by_part(runs: Sequence[RunRecord]) -> str:
    """A line a method, a column a sub-task, or a task that has only one."""
    cells: dict[str, dict[str, list[Row]]] = {}
    for run in _ordered(runs):
        rows = [row for row in run.rows if row.metric == run.main_metric and row.step is None]
        parts = [row for row in rows if row.part not in (None, "mean")]
        for row in parts or rows:
            line = cells.setdefault(str(run.config["method"]), {})
            line.setdefault(row.part or str(run.config["task"]), []).append(row)
    columns = sorted({name for line in cells.values() for name in line})
    shown = [(line, *(_percent(found.get(name, [])) for name in columns)) for line, found in cells.items()]
    return table(("method", *columns), shown, 1)


def table(columns: Sequence[str], lines: Iterable[Sequence[str]], words: int) -> str:
    """Markdown; the first `words` columns stand left, the others right."""
    rule = ["---"] * words + ["---:"] * (len(columns) - words)
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, rule, *lines)) + "\n"


def _ordered(runs: Sequence[RunRecord]) -> list[RunRecord]:
    places = {name: place for place, name in enumerate(METHODS)}
    return sorted(runs, key=lambda run: places.get(str(run.config["method"]), len(places)))


def _percent(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    value, stderr, _ = pooled(rows)
    return plus_minus(value, stderr, 100.0)
