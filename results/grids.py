"""Tables with one row per method and one column per option value, sub-task or task; from the
records only.

by_option(runs, "ratio", quality)      | task | method | 0.1 | 0.2 | ... | by_part(records)
| method | boolq | cb | ... | hellaswag | ... | mean | by_task(runs)                          |
method | streamingqa (f1) | ... | pg19 (ppl) | ... | by_length(records)                     | method
| 16384 | 32768 | ... | by_documents(suites)                   | method | 4 documents | 16 documents
| ... | by_training(records)                   | task | state | mean of trainings | training seed 0
| ... | by_state(records)                      | state | value | vs. swapped | vs. empty |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from pandas import DataFrame

from ttabench.core.amounts import format_bytes
from ttabench.methods.checkpoints import trained_tasks, training_seed
from ttabench.records.schema import Row, RunRecord, load_record
from ttabench.report.compare import compare_runs
from ttabench.report.groups import STATE_SUFFIXES
from ttabench.report.listing import adapters_table
from ttabench.report.method_rows import format_value, pool_rows
from ttabench.report.selection import list_runs
from ttabench.report.stored import StoredRun
from ttabench.stats.clusters import Observation
from ttabench.stats.estimate import estimate

METHODS = ("none", "icl", "snapkv", "h2o", "window", "templora", "lora", "streamadapter", "mac")
"""Order of methods in a table; other methods follow."""
ADAPTERS = {
    "adapter": "adapter",
    "trained on": "trained_on",
    "chosen on": "chosen_on",
    "trained weights": "parameters",
    "chunks read": "pieces_read",
    "queries": "queries",
    "extra labels": "labels",
    "tokens": "tokens",
    "minutes on a shared machine": "minutes",
}
"""Columns of the table of adapters, and their keys in `ttabench list adapters`."""
NINE = (
    "streamingqa + squad_seq + archivalqa + superglue + metaicl + lamp + msc + dailydialog + pg19"
)
"""Tasks of the adapters trained on all families."""
LARGE = 1000
"""Figures from this value on have no decimals."""
Cell = Callable[[Sequence[StoredRun]], str]
"""Formatter of the runs of a cell, which differ in their seed only."""


def runs_of(folder: Path) -> list[StoredRun]:
    """Load every run of a suite, with its folder."""
    return [(folder_of_run, load_record(folder_of_run)) for folder_of_run in list_runs(folder)]


def records(folder: Path) -> list[RunRecord]:
    """Load the record of every run of a suite."""
    return [record for _, record in runs_of(folder)]


def quality(runs: Sequence[StoredRun]) -> str:
    """Format the main metric with its error, as in `ttabench compare`."""
    (method_row,) = compare_runs(runs).method_rows
    return format_value(method_row.metric, method_row.value, method_row.stderr)


def state(runs: Sequence[StoredRun]) -> str:
    """Format the mean size of the state."""
    return format_bytes(fmean(int(run.cost["state_bytes"] or 0) for _, run in runs))


def by_option(runs: Sequence[StoredRun], option: str, cell: Cell) -> str:
    """Return one row per task, method and state, one column per value of the option. Empty states
    are omitted.
    """
    triples = (
        (
            (str(run.config["task"]), f"{run.config['method']}{STATE_SUFFIXES[run.state_of]}"),
            float(run.config["task_options"][option]),
            (folder, run),
        )
        for folder, run in _in_order(runs)
        if run.state_of != "none"
    )
    grid = crossed(triples, cell)
    lines = [(*line, *cells) for line, cells in zip(grid.index, grid.to_numpy(), strict=True)]
    return table(("task", "method", *(f"{option}={value:g}" for value in grid.columns)), lines, 2)


def by_part(runs: Sequence[RunRecord]) -> str:
    """Return one row per method, one column per sub-task, or per task without sub-tasks."""
    parts = list(_parts(runs))
    return markdown(crossed(parts, _percent).assign(mean=_means(parts)))


def by_task(runs: Sequence[StoredRun], *, transfer: bool = False) -> str:
    """Return one row per method and state, one column per task: the main metric with the error of
    `compare`.

    A task that the adapter was not trained on, according to its header, shows a dash, except for
    `transfer`. Empty states equal `none` or the window and are omitted.
    """
    cells = [
        (
            f"{run.config['method']}{STATE_SUFFIXES[run.state_of]}",
            f"{run.config['task']} ({run.main_metric})",
            (folder, run),
        )
        for folder, run in _in_order(runs)
        if run.state_of != "none"
    ]
    grid = crossed(
        cells, lambda own: quality(own) if transfer or all(_seen(run) for _, run in own) else "-"
    )
    return markdown(grid[list(dict.fromkeys(column for _, column, _ in cells))])


def _seen(run: RunRecord) -> bool:
    """Return True if the adapter was trained on the task, or the method has no adapter."""
    tasks = trained_tasks(run.method.get("training", {}))
    return not tasks or run.config["task"] in tasks


def adapters(runs: Sequence[StoredRun]) -> str:
    """Return the training settings of the bundled adapters of these runs, one row per adapter, from
    its header.
    """
    names = {str(run.config["checkpoint"]).removeprefix("shipped:") for _, run in runs}

    def cell(value: object) -> str:
        if isinstance(value, (int, float)):
            return f"{value:,.0f}"
        return str(value or "").replace(NINE, "all nine families")

    rows = [row for row in adapters_table().data if str(row["adapter"]).rpartition("/")[2] in names]
    lines = [[cell(row[key]) for key in ADAPTERS.values()] for row in rows]
    return table(tuple(ADAPTERS), lines, 3)


def over_tasks(suites: Mapping[str, Sequence[RunRecord]]) -> str:
    """Return one row per method, one column per suite: the mean over sub-tasks or tasks with equal
    weights.
    """
    cells = (
        (line, suite, mean)
        for suite, runs in suites.items()
        for line, mean in _means(list(_parts(runs))).items()
    )
    return markdown(crossed(cells, "".join)[list(suites)])


def _parts(runs: Sequence[RunRecord]) -> Iterator[tuple[str, str, Row]]:
    """Yield the main metric by method and sub-task, or by task without sub-tasks."""
    names = _names(runs)
    for run in _ordered(runs):
        rows = [row for row in run.rows if row.metric == run.main_metric and row.step is None]
        for row in [row for row in rows if row.subtask not in (None, "mean")] or rows:
            yield names[run.id], row.subtask or str(run.config["task"]), row


def by_length(runs: Sequence[RunRecord]) -> str:
    """Return one row per method, one column per length of the read text: the main metric, mean over
    seeds.
    """
    names = _names(runs)
    cells = (
        (names[run.id], row.step, row)
        for run in _ordered(runs)
        for row in run.rows
        if row.metric == run.main_metric and row.subtask is None and row.step is not None
    )
    grid = crossed(cells, lambda rows: spread(list(_by_seed(rows).values()), 3))
    return markdown(grid.rename(columns="{:,}".format))


def by_documents(suites: Mapping[int, Sequence[StoredRun]]) -> str:
    """Return one row per method and state, one column per number of documents, with the errors of
    `compare`.

    If a stream was truncated, the cell shows the share that was read.
    """
    cells = [
        (_stream_line(run), documents, (folder, run))
        for documents, runs in suites.items()
        for folder, run in _in_order(runs)
        if run.state_of != "none"
    ]
    return markdown(crossed(cells, _cut).rename(columns="{:,} documents".format))


def _stream_line(run: RunRecord) -> str:
    settings = run.method["settings"]
    tree = (
        f" hierarchy={settings['hierarchy']}"
        if isinstance(settings, dict) and settings.get("hierarchy")
        else ""
    )
    if tree and (by := settings.get("hierarchy_by", "aggregated")) != "aggregated":
        tree += f" hierarchy_by={by}"
    if isinstance(settings, dict) and settings.get("hierarchy_aware"):
        tree += ", trained on trees"
    return f"{run.config['method']}{tree}{STATE_SUFFIXES[run.state_of]}"


def _cut(runs: Sequence[StoredRun]) -> str:
    lost, read = (
        sum(float(run.cost.get(name) or 0) for _, run in runs)
        for name in ("truncated_tokens", "tokens_read")
    )
    return quality(runs) + (f" (last {1 - lost / read:.0%})" if lost else "")


def by_training(runs: Sequence[RunRecord]) -> str:
    """Return one row per task, method and state: the mean over adapters of one recipe and several
    training seeds.

    An adapter's score is the mean over its draws. The error is over adapters. With several methods,
    those without an adapter (no-context and full-context baseline) have a row, too.
    """
    several = len({str(run.config["method"]) for run in runs}) > 1
    by_row: dict[tuple[str, str], dict[int | None, list[float]]] = {}
    for run in _ordered(runs) if several else runs:
        row, seed = run.value(run.main_metric), training_seed(run.method.get("training", {}))
        if row is None or (seed is None and not several):
            continue
        value = row.value if run.main_metric.startswith("ppl") else 100 * row.value
        line = _stream_line(run)
        answered = line if several else STATE_SUFFIXES[run.state_of].strip(" ()") or "own state"
        cell = by_row.setdefault((f"{_task_line(run)} ({run.main_metric})", answered), {})
        cell.setdefault(seed, []).append(value)
    seeds = sorted({seed for by_seed in by_row.values() for seed in by_seed if seed is not None})
    lines = []
    for (metric, answered), by_seed in by_row.items():
        means = {seed: fmean(values) for seed, values in by_seed.items()}
        digits = 2 if "ppl" in metric else 1
        cells = [f"{means[seed]:,.{digits}f}" if seed in means else "" for seed in seeds]
        lines.append((metric, answered, spread(list(means.values()), digits), *cells))
    if several:
        lines.sort(
            key=lambda line: list(dict.fromkeys(metric for metric, _ in by_row)).index(line[0])
        )
    head = "method" if several else "state"
    return table(
        ("task", head, "mean of trainings", *(f"training seed {seed}" for seed in seeds)), lines, 2
    )


def _task_line(run: RunRecord) -> str:
    documents = run.config["task_options"].get("documents")
    return (
        f"{run.config['task']}, {documents:,} documents" if documents else str(run.config["task"])
    )


def by_state(runs: Sequence[RunRecord]) -> str:
    """Return one row per state: the main metric, and its difference from the other states, by seed."""
    triples = [
        (run.state_of, row.seed, row.value)
        for run in runs
        if (row := run.value(run.main_metric)) is not None
    ]
    values = DataFrame(triples, columns=["state", "seed", "value"]).pivot(
        index="seed", columns="state", values="value"
    )
    lines = []
    for state in (state for state in STATE_SUFFIXES if state in values):
        differences = [
            spread(list(100 * (values[state] / values[reference] - 1)), 2)
            if reference in values and reference != state
            else ""
            for reference in ("other", "none")
        ]
        name = STATE_SUFFIXES[state].strip(" ()") or "own state"
        lines.append((name, spread(list(values[state]), 4), *differences))
    return table(("state", "value", "vs. swapped (%)", "vs. empty (%)"), lines, 1)


def markdown(grid: DataFrame, head: str = "method") -> str:
    """Format a grid of `crossed` as Markdown. `head` is the header of its index."""
    return table((head, *grid.columns), [tuple(row) for row in grid.itertuples(name=None)], 1)


def table(columns: Sequence[str], lines: Iterable[Sequence[str]], words: int) -> str:
    """Format a Markdown table. The first `words` columns are left-aligned, the others
    right-aligned.
    """
    rule = ["---"] * words + ["---:"] * (len(columns) - words)
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, rule, *lines)) + "\n"


def _ordered(runs: Sequence[RunRecord]) -> list[RunRecord]:
    places = {name: place for place, name in enumerate(METHODS)}
    return sorted(runs, key=lambda run: places.get(str(run.config["method"]), len(places)))


def _in_order(runs: Sequence[StoredRun]) -> list[StoredRun]:
    folders = {run.id: folder for folder, run in runs}
    return [(folders[run.id], run) for run in _ordered([run for _, run in runs])]


def _names(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Return a name per run: its method, with the settings that distinguish several runs of the
    method.
    """
    options: dict[str, dict[str, set[str]]] = {}
    for run in runs:
        for kind, word in _words(run).items():
            options.setdefault(str(run.config["method"]), {}).setdefault(kind, set()).add(word)
    names = {}
    for run in runs:
        method = str(run.config["method"])
        words = [word for kind, word in _words(run).items() if len(options[method][kind]) > 1]
        names[run.id] = " ".join(filter(None, [method, *words]))
    return names


def _words(run: RunRecord) -> dict[str, str]:
    ratio = run.config["task_options"].get("ratio", 1.0)
    return {
        "preset": str(run.config["preset"]),
        "checkpoint": Path(str(run.config["checkpoint"])).name.removeprefix("shipped:"),
        "ratio": f"ratio={ratio:g}",
        "split": str(run.config["split"]),
        "state": STATE_SUFFIXES[run.state_of].strip(),
    }


def _means(parts: Sequence[tuple[str, str, Row]]) -> dict[str, str]:
    """Return the mean of each row over all columns with equal weights. Empty if a column is
    missing.
    """
    frame = DataFrame(parts, columns=["line", "column", "row"])
    whole = frame["column"].nunique()
    lines = {
        line: {column: list(rows) for column, rows in cells.groupby("column")["row"]}
        for line, cells in frame.groupby("line", sort=False)
    }
    return {line: _mean(cells) if len(cells) == whole else "" for line, cells in lines.items()}


def _mean(cells: Mapping[str, Sequence[Row]]) -> str:
    draws = {name: _by_seed(rows) for name, rows in cells.items()}
    seeds = set.intersection(*(set(values) for values in draws.values()))
    mean = estimate(
        [
            Observation(str(s), (100 * values[s], 1.0), name)
            for name, values in draws.items()
            for s in seeds
        ]
    )
    assert mean is not None, "a mean of figures is a number"
    several = len(seeds) > 1 and mean.stderr is not None
    return f"{mean.mean:,.1f} ± {mean.stderr:,.1f}" if several else f"{mean.mean:,.1f}"


def _by_seed(rows: Sequence[Row]) -> dict[int, float]:
    """Pool all queries of each seed."""
    seeds = sorted({row.seed for row in rows})
    return {seed: pool_rows([row for row in rows if row.seed == seed])[0] for seed in seeds}


def crossed(
    triples: Iterable[tuple[Hashable, Hashable, Any]], cell: Callable[[list[Any]], str]
) -> DataFrame:
    """Build a grid from (line, column, item): `cell` formats all items of a cell; empty cells are
    "".

    Lines keep their order, columns are sorted.
    """
    frame = DataFrame(triples, columns=["line", "column", "item"])
    cells = frame.groupby(["line", "column"], sort=False)["item"].agg(
        lambda items: cell(list(items))
    )
    return cells.unstack(sort=False).sort_index(axis=1).fillna("")


def spread(values: Sequence[float], digits: int) -> str:
    """Format the mean over seeds with its standard error.

    Queries of one seed share rule, demonstrations or book. An error over queries would be several
    times too small for another seed.
    """
    if not values:
        return ""
    digits = digits if max(values) < LARGE else 0
    error = f" ± {stdev(values) / math.sqrt(len(values)):,.{digits}f}" if len(values) > 1 else ""
    return f"{round(fmean(values), digits) + 0.0:,.{digits}f}{error}"


def _percent(rows: Sequence[Row]) -> str:
    return spread([100 * value for value in _by_seed(rows).values()], 1)
