"""Tables of `ttabench compare`: an overview, the tests of states, and those of each group.

Rows are mappings of exact values, one per method row, step, difference, test of states, or excluded
row. `comparison_data` contains them all, for CSV and JSON. `comparison_tables` formats them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import combinations
from statistics import fmean

from ttabench.core.amounts import format_bytes, format_count, format_number
from ttabench.report.compare import Comparison, ComparisonGroup, recovered_in_group
from ttabench.report.differences import Difference, share_query
from ttabench.report.group_selection import CROSSED_UNIT_NAMES, MAX_LISTED_NAMES, UNIT_NAMES
from ttabench.report.groups import natural_sort_key, short_group_names
from ttabench.report.memory import memory_tests
from ttabench.report.method_rows import (
    MethodRow,
    best_rows,
    contenders,
    format_p,
    format_value,
    format_without_error,
    pareto_optimal,
)
from ttabench.run.budget import budget_of_config, format_kept_share
from ttabench.terminal.table import Bold, Columns, DataRow, Table

GLOSSARY = {
    "Pareto": "Pareto: Pareto-optimal in score and state bytes; control rows are excluded.",
    "#ask ms": "Ask ms, adapt s: wall-clock time of the run; use `ttabench profile` to measure latency.",
    "#kept": "Kept: bytes of the state, or of what a query reads if that is more, relative to the"
    " full-context KV cache.",
    "#mean rank": "Mean rank: mean over groups of the place by value; equal values share a place. The"
    " tests of differences decide what is significant.",
    "#mean recovered": "Mean recovered: mean of the recovered shares of the groups, which may exceed 100 % or be negative.",
    "#recovered": "Recovered: share of the improvement of icl over none that the method keeps.",
    "#trained": "Trained: parameters of the method that were trained before adaptation.",
    "#Holm p": "Holm p: p adjusted for all tests of a family (against none; against icl; icl against"
    " none; states of one method; all others); bold below 0.05.",
    "#better / worse": "Better / worse: queries on which left is better, and worse.",
    "memory": "Memory: yes if the own state is significantly better than the swapped and the empty"
    " state.",
}
MAX_OVERVIEW_COLUMNS = 9
"""Maximum number of columns of the overview; with more, it shows the best row of each group."""


def comparison_tables(comparison: Comparison, *, summary: bool = False) -> list[Table]:
    """Return the tables in reading order; only the overview for a summary."""
    groups = comparison.groups
    tables = [overview_table(groups, alone=summary)] if len(groups) > 1 else []
    tables += [standings_table(groups), memory_table(comparison)]
    for group in groups:
        tables.append(group_table(group))
        if any(row.steps for row in group.method_rows):
            tables.append(steps_table(group))
        if group.differences:
            tables.append(differences_table(group))
    return [table for table in tables if table is not None][: 1 if summary else None]


def comparison_data(comparison: Comparison) -> list[Table]:
    """Return tables with exact values.

    Titles: `runs`, `steps`, `differences`, `overall`, `standings`, `memory` and `set_aside` (excluded
    rows).
    """
    excluded = [
        {
            "block": row.group_key.brief,
            "label": row.label,
            "reason": row.exclusion_reason,
            "runs": " ".join(row.ids),
        }
        for row in comparison.excluded
    ]
    tables: dict[str, Sequence[DataRow]] = {
        "runs": [row for group in comparison.groups for row in _run_rows(group)],
        "steps": _step_rows(comparison.method_rows),
        "differences": _difference_rows(comparison.differences),
        "overall": _difference_rows(comparison.overall),
        "standings": _standing_rows(comparison.groups),
        "memory": _memory_rows(comparison),
        "set_aside": excluded,
    }
    return [Table.of(name, rows, {}) for name, rows in tables.items() if rows]


# --- rows ---------------------------------------------------------------------------------------


def _run_rows(group: ComparisonGroup) -> list[DataRow]:
    best, pareto_rows = best_rows(group.method_rows), pareto_optimal(group.method_rows)
    return [
        {
            "block": group.group_key.name,
            "label": row.label,
            "method": row.method,
            "state_of": row.state_of,
            "task": group.group_key.task,
            "source": row.record.source,
            "model": group.group_key.model,
            "seeds": ",".join(map(str, row.seeds)),
            "n": row.n,
            "metric": row.metric,
            "value": row.value,
            "stderr": row.stderr,
            **row.costs,
            "trained_parameters": 0
            if row.untrained
            else int(row.record.method.get("parameters") or 0),
            "untrained": int(row.untrained),
            "runs": " ".join(row.ids),
            "from": row.submission,
            "share_of_gap": recovered_in_group(group, row),
            "best": int(row in best),
            "pareto": int(row in pareto_rows),
            "_label": row.marked_label,
            "_budget": budget_of_config(row.record.config),
        }
        for row in group.method_rows
    ]


def _step_rows(method_rows: Sequence[MethodRow]) -> list[DataRow]:
    return [
        {
            "block": row.group_key.name,
            "label": row.label,
            "task": row.group_key.task,
            "metric": row.metric,
            "step": step,
            "value": value,
            "stderr": stderr,
            "n": n,
        }
        for row in method_rows
        for step, (value, stderr, n) in row.steps.items()
    ]


DIFFERENCE_KEYS = {
    "degrees_of_freedom": "freedom",
    "crossed": "across",
    "group": "block",
    "groups": "blocks",
}
"""Keys of written differences by field; other fields are written under their names."""


def _difference_rows(differences: Sequence[Difference]) -> list[DataRow]:
    return [
        {DIFFERENCE_KEYS.get(name, name): value for name, value in asdict(one).items()}
        | {"units_needed": one.units_needed, "_shown": _show_difference(one)}
        for one in differences
    ]


def _show_difference(difference: Difference | None) -> str:
    return _bold_if(difference.is_significant, difference.shown) if difference else ""


def _standing_rows(groups: Sequence[ComparisonGroup]) -> list[DataRow]:
    """Return a row per contender; none for a single group or contender.

    Rows of more groups come first, then those of a better mean rank.

    Equal values have the same rank. Recovered is the mean of the groups' shares, because their
    metrics may differ.
    """
    cells: dict[str, dict[str, tuple[int, float | None]]] = {}
    names = short_group_names([group.group_key for group in groups])
    for name, group in zip(names, groups, strict=True):
        ranked = contenders(group.method_rows)
        for row in ranked:
            rank = 1 + sum(other.oriented_value > row.oriented_value for other in ranked)
            cells.setdefault(row.label, {})[name] = rank, recovered_in_group(group, row)
    if min(len(groups), len(cells)) < 2:
        return []
    rows = [
        {
            "label": label,
            "mean_rank": fmean(rank for rank, _ in own.values()),
            "share_of_gap": fmean(shares) if shares else None,
            "blocks": len(own),
            "_cells": own,
        }
        for label, own in cells.items()
        for shares in [[share for _, share in own.values() if share is not None]]
    ]
    return sorted(rows, key=lambda row: (-row["blocks"], row["mean_rank"]))


def _memory_rows(comparison: Comparison) -> list[DataRow]:
    return [
        {
            "own": test.own,
            "other": test.swapped,
            "none": test.empty,
            "blocks": len(test.selection.groups),
            "block": test.selection.groups[0].group_key.name,
            "memory": test.outcome.value,
            "_test": test,
        }
        for test in memory_tests(comparison)
    ]


# --- tables -------------------------------------------------------------------------------------


def overview_table(groups: Sequence[ComparisonGroup], *, alone: bool = False) -> Table | None:
    """Return a table of values: methods by comparison groups, transposed if that is narrower.

    With too many of both it has a row for each group: both baselines and the best method. None for
    a single method, unless `alone`.
    """
    method_rows = [row for group in groups for row in group.method_rows]
    methods = list(dict.fromkeys(row.method for row in method_rows))
    method_rows.sort(key=lambda row: (methods.index(row.method), natural_sort_key(row.label)))
    labels = list(dict.fromkeys(row.label for row in method_rows))
    names = short_group_names([group.group_key for group in groups])
    if len(labels) == 1 and not alone:
        return None
    if min(len(labels), len(groups)) >= MAX_OVERVIEW_COLUMNS:
        return _leaders_table(groups, names)
    cells: list[list[str]] = []
    for group in groups:
        best = best_rows(group.method_rows)
        texts = {
            row.label: _bold_if(row in best, format_without_error(row.metric, row.value))
            for row in group.method_rows
        }
        cells.append([texts.get(label, "") for label in labels])
    first, heads, lines, shown = "", labels, names, cells
    if len(groups) <= len(labels):
        first, heads, lines = "method", names, labels
        shown = [list(column) for column in zip(*cells, strict=True)]
    return Table(
        title="All comparison groups",
        columns=(first, *(f"#{head}" for head in heads)),
        rows=tuple((line, *row) for line, row in zip(lines, shown, strict=True)),
        names=(first,),
    )


def standings_table(groups: Sequence[ComparisonGroup]) -> Table | None:
    """Return mean rank and recovered share of each contender, and both by group if there is space."""
    rows = _standing_rows(groups)
    columns: dict[str, str | Callable[[DataRow], str]] = {
        "method": "label",
        "#mean rank": lambda row: format_number(row["mean_rank"], 1),
        "#mean recovered": lambda row: _format_recovered(row["share_of_gap"]),
        "#groups": "blocks",
    }
    names = short_group_names([group.group_key for group in groups])
    for name in names if len(names) < MAX_OVERVIEW_COLUMNS else ():
        columns[f"#{name}: rank, recovered"] = partial(_standing, name)
    return (
        Table.of("Standings", rows, columns, names=("method",), glossary=GLOSSARY) if rows else None
    )


def _standing(group: str, row: DataRow) -> str:
    if group not in row["_cells"]:
        return ""
    rank, share = row["_cells"][group]
    return ", ".join(filter(None, [str(rank), _format_recovered(share)]))


def _bold_if(strong: bool, text: str) -> str:
    return Bold(text) if strong else text


def _leaders_table(groups: Sequence[ComparisonGroup], names: Sequence[str]) -> Table:
    rows = []
    for name, group in zip(names, groups, strict=True):
        ranked = contenders(group.method_rows)
        best = max(ranked, key=lambda row: row.oriented_value, default=None)
        values = [
            format_without_error(row.metric, row.value) if row else ""
            for row in (*group.baselines, best)
        ]
        rows.append((name, *values, best.label if best else "", str(len(group.method_rows))))
    columns = ("", "#none", "#icl", "#best", "best method", "#rows")
    return Table(title="All comparison groups", columns=columns, rows=tuple(rows), spare=("#rows",))


def group_title(group: ComparisonGroup) -> str:
    """Return the name of a group, with what all its rows share: metric, queries, seeds."""
    first, common = group.method_rows[0], [group.group_key.metric]
    if len({row.n for row in group.method_rows}) == 1:
        common.append(f"{first.n:,} {'query' if first.n == 1 else 'queries'}")
    if len({row.seeds for row in group.method_rows}) == 1:
        noun = "seed" if len(first.seeds) == 1 else "seeds"
        common.append(f"{noun} {','.join(map(str, first.seeds))}")
    return f"{group.group_key.name}: {', '.join(common)}"


def group_table(group: ComparisonGroup, *, all_columns: bool = False) -> Table:
    """Return scores and costs of a group; `all_columns` keeps columns that are equal in all rows."""
    rows = _run_rows(group)
    columns: Columns = {
        "method": "_label",
        f"#{group.group_key.metric} ± stderr": lambda row: _bold_if(
            row["best"], format_value(row["metric"], row["value"], row["stderr"])
        ),
        "#n": "n",
        "seeds": "seeds",
        "#recovered": lambda row: _format_recovered(row["share_of_gap"]),
        "#trained": lambda row: (
            "untrained" if row["untrained"] else format_count(row["trained_parameters"])
        ),
        "#state": lambda row: format_bytes(row["state_bytes"]),
        "#kept": lambda row: format_kept_share(row["kept_share"], row["_budget"]),
        "#ask ms": lambda row: format_number(row["ask_ms"], 1),
        "#adapt s": lambda row: format_number(row["adapt_seconds"], 2),
        "#peak memory": lambda row: format_bytes(row["peak_memory_bytes"]),
        "Pareto": lambda row: "yes" if row["pareto"] else "",
    }
    hidden = {
        "#n": len({row["n"] for row in rows}) == 1,
        "seeds": len({row["seeds"] for row in rows}) == 1,
        "#recovered": all(row["share_of_gap"] is None for row in rows),
        "#trained": not any(row["untrained"] or row["trained_parameters"] for row in rows),
        "#kept": all(row["kept_share"] is None for row in rows),
        "#peak memory": True,
        "Pareto": len(rows) == 1,
    }
    table = Table.of(
        group_title(group),
        rows,
        columns,
        caption=untested_pairs(group),
        names=("method",),
        spare=("#trained", "#adapt s", "Pareto", "#ask ms"),
        glossary=GLOSSARY,
    )
    return table if all_columns else table.without(*(name for name in hidden if hidden[name]))


def memory_table(comparison: Comparison) -> Table | None:
    """Return each method under own, swapped and empty state; None if no states were compared."""

    def value(state: str) -> Callable[[DataRow], str]:
        return lambda row: row["_test"].selection.shown(row[state]) if row[state] else ""

    columns: Columns = {
        "method": "own",
        "group": lambda row: (
            row["_test"].selection.groups[0].group_key.brief
            if row["blocks"] == 1
            else f"{row['blocks']} groups"
        ),
        "#own": value("own"),
        "#swapped": value("other"),
        "#empty": value("none"),
        "#own − swapped [95 %]": lambda row: _show_difference(row["_test"].swapped_difference),
        "#own − empty [95 %]": lambda row: _show_difference(row["_test"].empty_difference),
        "memory": "memory",
    }
    title, rows = "States: memory of the context", _memory_rows(comparison)
    return Table.of(title, rows, columns, names=("method",), glossary=GLOSSARY) if rows else None


def _format_recovered(share: float | None) -> str:
    """Format a share of the improvement; beyond full context it is no share any more."""
    if share is None:
        return ""
    return "> 100 %" if share > 1 else f"{100 * share:.0f} %"


def steps_table(group: ComparisonGroup) -> Table:
    """Return values by number of chunks before the query, or by length or distance."""
    method_rows = [row for row in group.method_rows if row.steps]
    steps = sorted({step for row in method_rows for step in row.steps})
    rows = [
        (
            row.label,
            *(
                format_value(row.metric, *row.steps[step][:2]) if step in row.steps else ""
                for step in steps
            ),
        )
        for row in method_rows
    ]
    title = f"{group.group_key.brief}: {group.group_key.metric} by {method_rows[0].step}"
    return Table(title=title, columns=("method", *(f"#{step}" for step in steps)), rows=tuple(rows))


def differences_table(group: ComparisonGroup) -> Table:
    """Return a row for each tested pair; the title names the tests."""
    pairs, unit = group.differences, group.method_rows[0].record.unit

    def units(word: str) -> Callable[[DataRow], str]:
        return lambda row: f"{row['units']:,}" if row["unit"] == word else ""

    columns: dict[str, str | Callable[[DataRow], str]] = {
        "pair": lambda row: f"{row['left']} − {row['right']}",
        "#difference [95 %]": "_shown",
        "#p": lambda row: format_p(row["p"]),
        "#Holm p": lambda row: format_p(row["p_holm"]),
        "#better / worse": lambda row: (
            "-" if row["better"] is None else f"{row['better']:,} / {row['worse']:,}"
        ),
        "#n": "n",
    }
    for word in dict.fromkeys(
        one.unit for one in pairs if one.unit != "query" or one.units != one.n
    ):
        columns[f"#{UNIT_NAMES[word]}"] = units(word)
    if any(one.crossed for one in pairs):
        columns[f"#{CROSSED_UNIT_NAMES[unit]}"] = "across"
    tests = sorted({one.test for one in pairs if one.test})
    return Table.of(
        "; ".join([f"{group.group_key.brief}: differences", *tests]),
        _difference_rows(pairs),
        columns,
        spare=("#better / worse", "#p"),
        glossary=GLOSSARY,
    )


def untested_pairs(group: ComparisonGroup) -> str:
    """Name the pairs that share no query; empty if all pairs share some."""
    pairs = list(combinations(group.method_rows, 2))
    names = [f"{one.label} − {other.label}" for one, other in pairs if not share_query(one, other)]
    several = f"{len(names)} of {len(pairs)} pairs"
    described = "; ".join(names) if len(names) <= MAX_LISTED_NAMES else several
    return f"Not tested, because they share no query: {described}." if names else ""
