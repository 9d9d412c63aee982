"""Tables with a line a method and a column a value of a task option, or a column a sub-task; from the records alone.

by_option(records, "ratio", quality)   | task | method | 0.1 | 0.2 | ... |
by_part(records)                       | method | boolq | cb | ... | hellaswag | ... | mean |
by_length(records)                     | method | 16384 | 32768 | ... |
by_state(records)                      | state of | value | from other | from none |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from ttabench.core.render import size
from ttabench.records.schema import Row, RunRecord, load_record
from ttabench.report.compare import pooled
from ttabench.report.finding import runs_in
from ttabench.stats.estimate import estimate, single

METHODS = ("none", "icl", "snapkv", "h2o", "window", "templora", "lora", "streamadapter")
"""Their order in a table; others follow."""
LARGE = 1000
"""Figures from here on are shown in whole numbers."""
Cell = Callable[[Sequence[RunRecord]], str]
"""What a table shows of the runs of one cell, which differ in their seed only."""


def records(folder: Path) -> list[RunRecord]:
    """Every run of a suite."""
    return [load_record(found) for found in runs_in(folder)]


def quality(runs: Sequence[RunRecord]) -> str:
    """The main metric in per cent, mean over seeds."""
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
    cells = _parts(runs)
    columns = _columns(cells)
    shown = [
        (line, *(_percent(found.get(name, [])) for name in columns), _mean(found, columns))
        for line, found in cells.items()
    ]
    return table(("method", *columns, "mean"), shown, 1)


def over_tasks(suites: Mapping[str, Sequence[RunRecord]]) -> str:
    """A line a method, a column a suite: the mean over its sub-tasks or tasks, each with the same weight."""
    found = {suite: _parts(runs) for suite, runs in suites.items()}
    lines = list(dict.fromkeys(line for cells in found.values() for line in cells))
    shown = [(line, *(_mean(cells.get(line, {}), _columns(cells)) for cells in found.values())) for line in lines]
    return table(("method", *suites), shown, 1)


def _parts(runs: Sequence[RunRecord]) -> dict[str, dict[str, list[Row]]]:
    """The main metric by method and sub-task."""
    cells: dict[str, dict[str, list[Row]]] = {}
    names = _names(runs)
    for run in _ordered(runs):
        rows = [row for row in run.rows if row.metric == run.main_metric and row.step is None]
        parts = [row for row in rows if row.subtask not in (None, "mean")]
        for row in parts or rows:
            line = cells.setdefault(names[run.id], {})
            line.setdefault(row.subtask or str(run.config["task"]), []).append(row)
    return cells


def _columns(cells: Mapping[str, Mapping[str, object]]) -> list[str]:
    return sorted({name for line in cells.values() for name in line})


def by_length(runs: Sequence[RunRecord]) -> str:
    """A line a method, a column a length up to which texts were read: the main metric, mean over seeds."""
    cells: dict[str, dict[int, list[Row]]] = {}
    names = _names(runs)
    for run in _ordered(runs):
        for row in run.rows:
            if row.metric == run.main_metric and row.subtask is None and row.step is not None:
                cells.setdefault(names[run.id], {}).setdefault(row.step, []).append(row)
    columns = sorted({length for line in cells.values() for length in line})
    shown = [
        (line, *(spread(list(_by_seed(found.get(length, [])).values()), 3) for length in columns))
        for line, found in cells.items()
    ]
    return table(("method", *(f"{length:,}" for length in columns)), shown, 1)


def by_state(runs: Sequence[RunRecord]) -> str:
    """A line a state that answered: the main metric, and how far it is from that under the other states, by seed."""
    found: dict[str, dict[int, float]] = {}
    for run in runs:
        row = run.value(run.main_metric)
        if row is not None:
            found.setdefault(run.state_of, {})[row.seed] = row.value
    shown = []
    for state in (state for state in ("own", "other", "none") if state in found):
        values = found[state]
        apart = [
            spread([100 * (values[seed] / found[beside][seed] - 1) for seed in sorted(values)], 2)
            if beside in found and beside != state
            else ""
            for beside in ("other", "none")
        ]
        shown.append((state, spread(list(values.values()), 4), *apart))
    return table(("state of", "value", "from other, per cent", "from none, per cent"), shown, 1)


def table(columns: Sequence[str], lines: Iterable[Sequence[str]], words: int) -> str:
    """Markdown; the first `words` columns stand left, the others right."""
    rule = ["---"] * words + ["---:"] * (len(columns) - words)
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, rule, *lines)) + "\n"


def _ordered(runs: Sequence[RunRecord]) -> list[RunRecord]:
    places = {name: place for place, name in enumerate(METHODS)}
    return sorted(runs, key=lambda run: places.get(str(run.config["method"]), len(places)))


def _names(runs: Sequence[RunRecord]) -> dict[str, str]:
    """What a grid calls each run: its method, with what tells apart several of the method."""
    told: dict[str, dict[str, set[str]]] = {}
    for run in runs:
        for kind, word in _words(run).items():
            told.setdefault(str(run.config["method"]), {}).setdefault(kind, set()).add(word)
    found = {}
    for run in runs:
        method = str(run.config["method"])
        apart = [word for kind, word in _words(run).items() if len(told[method][kind]) > 1]
        found[run.id] = " ".join(filter(None, [method, *apart]))
    return found


def _words(run: RunRecord) -> dict[str, str]:
    ratio = run.config["task_options"].get("ratio", 1.0)
    return {
        "preset": str(run.config["preset"]),
        "checkpoint": Path(str(run.config["checkpoint"])).name,
        "ratio": f"ratio={ratio:g}",
        "split": str(run.config["split"]),
        "state": "" if run.state_of == "own" else f"state of: {run.state_of}",
    }


def _mean(found: Mapping[str, Sequence[Row]], columns: Sequence[str]) -> str:
    """Mean over all columns, each with the same weight; empty where one is missing."""
    if any(name not in found for name in columns):
        return ""
    draws = {name: _by_seed(found[name]) for name in columns}
    seeds = set.intersection(*(set(each) for each in draws.values()))
    told = estimate([single(str(s), 100 * each[s], name) for name, each in draws.items() for s in seeds])
    assert told is not None, "a mean of figures is a number"
    several = len(seeds) > 1 and told.stderr is not None
    return f"{told.mean:,.1f} ± {told.stderr:,.1f}" if several else f"{told.mean:,.1f}"


def _by_seed(rows: Sequence[Row]) -> dict[int, float]:
    """The figure over all queries of each seed."""
    seeds = sorted({row.seed for row in rows})
    return {seed: pooled([row for row in rows if row.seed == seed])[0] for seed in seeds}


def spread(values: Sequence[float], digits: int) -> str:
    """Mean over seeds with its standard error. Queries of one seed share rule, demonstrations or book: the error over
    queries would be several times too small for what another seed would give."""
    if not values:
        return ""
    digits = digits if max(values) < LARGE else 0
    error = f" ± {stdev(values) / math.sqrt(len(values)):,.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):,.{digits}f}{error}"


def _percent(rows: Sequence[Row]) -> str:
    return spread([100 * value for value in _by_seed(rows).values()], 1)
