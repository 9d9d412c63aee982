"""Tables with one row per method and one column per option value, sub-task, task or length; from
the records only. Each function takes the runs of a suite.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeAlias

from pandas import DataFrame, Series
from scipy.special import stdtrit

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
from ttabench.stats.estimate import PairedDifference, estimate
from ttabench.stats.metrics import metric_or_default

HERE = Path(__file__).resolve().parent
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
MIN_EQUAL_UNITS = 6
"""Number of units from which a sign test of equal differences has p below 5 %."""
LARGE = 1000
"""Figures from this value on have no decimals."""
Runs: TypeAlias = Sequence[StoredRun]


def is_equivalent(difference: PairedDifference, margin: float) -> bool:
    """Return True if two one-sided tests (Schuirmann 1987) show a difference below the margin.

    Each test has a level of 5 %, so the 90 % interval lies within the margin. It is the 95 %
    interval, shrunk by the ratio of the quantiles. Without an interval, all units differ alike,
    which is significant from `MIN_EQUAL_UNITS` units on.
    """
    if difference.ci_low is None or difference.ci_high is None:
        return difference.units >= MIN_EQUAL_UNITS and abs(difference.value) < margin
    degrees_of_freedom = difference.degrees_of_freedom or math.inf
    ratio = float(stdtrit(degrees_of_freedom, 0.95) / stdtrit(degrees_of_freedom, 0.975))
    ends = (
        difference.value + ratio * (end - difference.value)
        for end in (difference.ci_low, difference.ci_high)
    )
    return all(abs(end) < margin for end in ends)


def oriented(metric: str, value: float) -> float:
    """Return a value so that higher is better; of perplexities, the negative logarithm."""
    return value if metric_or_default(metric).higher_is_better else -math.log(value)


def memory_share(own: float, swapped: float, none: float, full: float) -> float | None:
    """Return own minus swapped state, as a share of full context minus no context.

    Values are `oriented`. None if full context is not better than no context.
    """
    return (own - swapped) / (full - none) if full > none else None


def ttabench(*words: object) -> str:
    """Run the command line and return what it printed."""
    command = [sys.executable, "-m", "ttabench", *map(str, words)]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[2:])}\n{done.stderr}")
    return done.stdout


def runs_of(folder: Path) -> list[StoredRun]:
    """Load every run of a suite with its folder, in the order of `METHODS`."""
    runs = [(folder_of_run, load_record(folder_of_run)) for folder_of_run in list_runs(folder)]
    places = {name: place for place, name in enumerate(METHODS)}
    return sorted(runs, key=lambda run: places.get(str(run[1].config["method"]), len(places)))


def quality(runs: Runs) -> str:
    """Format the main metric with its error, as in `ttabench compare`."""
    (method_row,) = compare_runs(runs).method_rows
    return format_value(method_row.metric, method_row.value, method_row.stderr)


def state_size(runs: Runs) -> str:
    """Format the mean size of the state."""
    return format_bytes(fmean(int(run.cost["state_bytes"] or 0) for _, run in runs))


def with_state(run: RunRecord) -> str:
    """Return the name of the method, with the state if it is not its own."""
    return f"{run.config['method']}{STATE_SUFFIXES[run.state_of]}"


def by_option(runs: Runs, option: str, cell: Callable[[Runs], str]) -> str:
    """Return one row per task, method and state, one column per value of a task option."""
    triples = (
        ((str(run.config["task"]), with_state(run)), float(run.config["task_options"][option]), one)
        for one in runs
        if (run := one[1]).state_of != "none"
    )
    grid = crossed(triples, cell)
    lines = [(*line, *cells) for line, cells in zip(grid.index, grid.to_numpy(), strict=True)]
    return table(("task", "method", *(f"{option}={value:g}" for value in grid.columns)), lines, 2)


def by_part(runs: Runs) -> str:
    """Return one row per method, one column per sub-task, or per task without sub-tasks."""
    parts = list(_parts(runs))
    cells = crossed(parts, lambda rows: spread([100 * value for value in _by_seed(rows)], 1))
    return markdown(cells.assign(mean=Series(_means(parts))))


def by_task(runs: Runs, *, transfer: bool = False) -> str:
    """Return one row per method and state, one column per task: the main metric with its error.

    A task that the adapter was not trained on shows a dash, except for `transfer`.
    """
    cells = [
        (with_state(run), f"{run.config['task']} ({run.main_metric})", one)
        for one in runs
        if (run := one[1]).state_of != "none"
    ]

    def cell(own: Runs) -> str:
        trained = [trained_tasks(run.method.get("training", {})) for _, run in own]
        seen = (not tasks or own[0][1].config["task"] in tasks for tasks in trained)
        return quality(own) if transfer or all(seen) else "-"

    return markdown(crossed(cells, cell)[list(dict.fromkeys(column for _, column, _ in cells))])


def adapters(runs: Runs) -> str:
    """Return the training settings of the bundled adapters of these runs, one row per adapter."""
    names = {str(run.config["checkpoint"]).removeprefix("shipped:") for _, run in runs}

    def cell(value: object) -> str:
        if isinstance(value, (int, float)):
            return f"{value:,.0f}"
        return str(value or "").replace(NINE, "all nine families")

    rows = [row for row in adapters_table().data if str(row["adapter"]).rpartition("/")[2] in names]
    return table(
        tuple(ADAPTERS), [[cell(row[key]) for key in ADAPTERS.values()] for row in rows], 3
    )


def over_tasks(suites: Mapping[str, Runs]) -> str:
    """Return one row per method, one column per suite: the mean over sub-tasks or tasks."""
    cells = (
        (line, suite, mean)
        for suite, runs in suites.items()
        for line, mean in _means(list(_parts(runs))).items()
    )
    return markdown(crossed(cells, "".join)[list(suites)])


def by_length(runs: Runs) -> str:
    """Return one row per method, one column per length of the read text: mean over seeds."""
    names = _names(runs)
    cells = (
        (names[run.id], row.step, row)
        for _, run in runs
        for row in run.rows
        if row.metric == run.main_metric and row.subtask is None and row.step is not None
    )
    grid = crossed(cells, lambda rows: spread(_by_seed(rows), 3))
    return markdown(grid.rename(columns="{:,}".format))


def by_documents(runs: Runs) -> str:
    """Return one row per method and state of question streams, one column per number of documents.

    If a stream was truncated, the cell shows the share that was read.
    """

    def cell(own: Runs) -> str:
        lost, read = (
            sum(float(run.cost.get(name) or 0) for _, run in own)
            for name in ("truncated_tokens", "tokens_read")
        )
        return quality(own) + (f" (last {1 - lost / read:.0%})" if lost else "")

    cells = (
        (_with_hierarchy(run), int(run.config["task_options"]["documents"]), one)
        for one in sorted(runs, key=lambda one: int(one[1].config["task_options"]["documents"]))
        if (run := one[1]).state_of != "none"
    )
    return markdown(crossed(cells, cell).rename(columns="{:,} documents".format))


def _with_hierarchy(run: RunRecord) -> str:
    """Return the name of the method and state, with MAC's settings of its tree."""
    settings: Mapping[str, Any] = run.method["settings"]
    tree = f" hierarchy={settings['hierarchy']}" if settings.get("hierarchy") else ""
    if tree and (by := settings.get("hierarchy_by", "aggregated")) != "aggregated":
        tree += f" hierarchy_by={by}"
    if settings.get("hierarchy_aware"):
        tree += ", trained on trees"
    return f"{run.config['method']}{tree}{STATE_SUFFIXES[run.state_of]}"


def by_training(runs: Runs) -> str:
    """Return one row per task, method and state: the mean over adapters of one recipe and several
    training seeds.

    An adapter's score is the mean over its draws. The error is over adapters. With several methods,
    those without an adapter have a row, too.
    """
    several = len({str(run.config["method"]) for _, run in runs}) > 1
    by_row: dict[tuple[str, str], dict[int | None, list[float]]] = {}
    for _, run in runs:
        row, seed = run.value(run.main_metric), training_seed(run.method.get("training", {}))
        if row is None or (seed is None and not several):
            continue
        own = STATE_SUFFIXES[run.state_of].strip(" ()") or "own state"
        task, documents = str(run.config["task"]), run.config["task_options"].get("documents")
        task += f", {documents:,} documents" if documents else ""
        line = (f"{task} ({run.main_metric})", _with_hierarchy(run) if several else own)
        value = row.value if run.main_metric.startswith("ppl") else 100 * row.value
        by_row.setdefault(line, {}).setdefault(seed, []).append(value)
    seeds = sorted({seed for by_seed in by_row.values() for seed in by_seed if seed is not None})
    order = list(dict.fromkeys(metric for metric, _ in by_row))
    lines: list[Sequence[str]] = []
    for (metric, name), by_seed in sorted(by_row.items(), key=lambda item: order.index(item[0][0])):
        digits = 2 if "ppl" in metric else 1
        means = {seed: fmean(values) for seed, values in by_seed.items()}
        cells = [f"{means[seed]:,.{digits}f}" if seed in means else "" for seed in seeds]
        lines.append((metric, name, spread(list(means.values()), digits), *cells))
    heads = ("task", "method" if several else "state", "mean of trainings")
    return table((*heads, *(f"training seed {seed}" for seed in seeds)), lines, 2)


def markdown(grid: DataFrame, head: str = "method") -> str:
    """Format a grid of `crossed` as Markdown. `head` is the header of its index."""
    return table((head, *grid.columns), [tuple(row) for row in grid.itertuples(name=None)], 1)


def table(columns: Sequence[str], lines: Iterable[Sequence[str]], words: int) -> str:
    """Format a Markdown table. The first `words` columns are left-aligned, the others
    right-aligned.
    """
    rule = ["---"] * words + ["---:"] * (len(columns) - words)
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, rule, *lines)) + "\n"


def crossed(
    triples: Iterable[tuple[Hashable, Hashable, Any]], cell: Callable[[list[Any]], str]
) -> DataFrame:
    """Build a grid from (line, column, item): `cell` formats all items of a cell; empty cells are
    "". Lines keep their order, columns are sorted.
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


def _parts(runs: Runs) -> Iterator[tuple[str, str, Row]]:
    """Yield the main metric by method and sub-task, or by task without sub-tasks."""
    names = _names(runs)
    for _, run in runs:
        rows = [row for row in run.rows if row.metric == run.main_metric and row.step is None]
        for row in [row for row in rows if row.subtask not in (None, "mean")] or rows:
            yield names[run.id], row.subtask or str(run.config["task"]), row


def _names(runs: Runs) -> dict[str, str]:
    """Return a name per run: its method, with the settings that distinguish runs of the method."""
    words = DataFrame(
        {
            "method": str(run.config["method"]),
            "preset": str(run.config["preset"]),
            "checkpoint": Path(str(run.config["checkpoint"])).name.removeprefix("shipped:"),
            "ratio": f"ratio={run.config['task_options'].get('ratio', 1.0):g}",
            "split": str(run.config["split"]),
            "state": STATE_SUFFIXES[run.state_of].strip(),
        }
        for _, run in runs
    )
    varied = words.groupby("method").transform("nunique") > 1
    shown = words.where(varied.assign(method=True)[words.columns], "")
    names = [" ".join(filter(None, line)) for line in shown.itertuples(index=False, name=None)]
    return dict(zip((run.id for _, run in runs), names, strict=True))


def _means(parts: Sequence[tuple[str, str, Row]]) -> dict[str, str]:
    """Return the mean of each line over all columns with equal weights, "" if one is missing."""
    cells: dict[str, dict[str, list[Row]]] = {}
    for line, column, row in parts:
        cells.setdefault(line, {}).setdefault(column, []).append(row)
    whole = len({column for _, column, _ in parts})
    return {line: _mean(own) if len(own) == whole else "" for line, own in cells.items()}


def _mean(cells: Mapping[str, Sequence[Row]]) -> str:
    seeds = set.intersection(*({row.seed for row in rows} for rows in cells.values()))
    mean = estimate(
        [
            Observation(str(seed), (100 * value, 1.0), name)
            for name, rows in cells.items()
            for seed in seeds
            for value in _by_seed([row for row in rows if row.seed == seed])
        ]
    )
    assert mean is not None, "a mean of figures is a number"
    several = len(seeds) > 1 and mean.stderr is not None
    return f"{mean.mean:,.1f} ± {mean.stderr:,.1f}" if several else f"{mean.mean:,.1f}"


def _by_seed(rows: Sequence[Row]) -> list[float]:
    """Pool all queries of each seed."""
    seeds = sorted({row.seed for row in rows})
    return [pool_rows([row for row in rows if row.seed == seed])[0] for seed in seeds]
