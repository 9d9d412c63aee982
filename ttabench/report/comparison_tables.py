"""Tables of `ttabench compare`: an overview, the tests of states, and those of each group.

`comparison_tables` is formatted for people; `comparison_data` has the exact figures by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations

from ttabench.core.amounts import format_bytes, format_count, format_number
from ttabench.report.compare import Comparison, ComparisonGroup, recovered_in_group
from ttabench.report.differences import Difference, comparable_pairs
from ttabench.report.group_selection import CROSSED_UNIT_NAMES, MAX_LISTED_NAMES, UNIT_NAMES
from ttabench.report.groups import FULL_CONTEXT, NO_CONTEXT, natural_sort_key, short_group_name
from ttabench.report.memory import memory_tests
from ttabench.report.method_rows import (
    MethodRow,
    baseline_row,
    best_rows,
    contenders,
    format_p,
    format_value,
    format_without_error,
    pareto_optimal,
)
from ttabench.run.budget import budget_of_config, format_kept_share
from ttabench.terminal.table import Bold, Cell, Table

GLOSSARY = {
    "Pareto": "Pareto: Pareto-optimal in score and state bytes; control rows are excluded.",
    "#ask ms": "Ask ms, adapt s: wall-clock time of the run; use `ttabench profile` to measure latency.",
    "#kept": "Kept: bytes of the state, or of what a query reads if that is more, relative to the"
    " full-context KV cache.",
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
    tables = (
        [overview_table(comparison.groups, alone=summary)] if len(comparison.groups) > 1 else []
    )
    tables.append(memory_table(comparison))
    for group in comparison.groups:
        tables.append(group_table(group))
        if any(method_row.steps for method_row in group.method_rows):
            tables.append(steps_table(group))
        if group.differences:
            tables.append(differences_table(group))
    kept = [table for table in tables if table is not None]
    return kept[:1] if summary else kept


def overview_table(groups: Sequence[ComparisonGroup], *, alone: bool = False) -> Table | None:
    """Return a table of values: methods by comparison groups, transposed if that is narrower.

    With too many of both it has a row for each group: both baselines and the best method. None for
    a single method, unless `alone`.
    """
    method_rows = [method_row for group in groups for method_row in group.method_rows]
    methods = list(dict.fromkeys(method_row.method for method_row in method_rows))
    ordered = sorted(
        method_rows,
        key=lambda method_row: (
            methods.index(method_row.method),
            natural_sort_key(method_row.label),
        ),
    )
    labels = list(dict.fromkeys(method_row.label for method_row in ordered))
    cells = {
        (method_row.label, place): _bold_if(
            method_row in best_rows(group.method_rows),
            format_without_error(method_row.metric, method_row.value),
        )
        for place, group in enumerate(groups)
        for method_row in group.method_rows
    }
    names = [
        short_group_name(group.group_key, [other.group_key for other in groups]) for group in groups
    ]
    if len(labels) == 1 and not alone:
        return None
    if min(len(labels), len(groups)) >= MAX_OVERVIEW_COLUMNS:
        return _leaders_table(groups, names)
    if len(groups) <= len(labels):
        rows = [
            (label, *(cells.get((label, place), "") for place in range(len(groups))))
            for label in labels
        ]
        columns = ("method", *(f"#{name}" for name in names))
    else:
        rows = [
            (name, *(cells.get((label, place), "") for label in labels))
            for place, name in enumerate(names)
        ]
        columns = ("", *(f"#{label}" for label in labels))
    return Table(
        title="All comparison groups", columns=columns, rows=tuple(rows), names=columns[:1]
    )


def _bold_if(strong: bool, text: str) -> str:
    return Bold(text) if strong else text


def _leaders_table(groups: Sequence[ComparisonGroup], names: Sequence[str]) -> Table:
    rows = []
    for name, group in zip(names, groups, strict=True):
        best = max(
            contenders(group.method_rows),
            key=lambda method_row: method_row.oriented_value,
            default=None,
        )
        shown_rows = (
            baseline_row(group.method_rows, NO_CONTEXT),
            baseline_row(group.method_rows, FULL_CONTEXT),
            best,
        )
        values = [
            format_without_error(method_row.metric, method_row.value) if method_row else ""
            for method_row in shown_rows
        ]
        rows.append((name, *values, best.label if best else "", str(len(group.method_rows))))
    columns = ("", "#none", "#icl", "#best", "best method", "#rows")
    return Table(title="All comparison groups", columns=columns, rows=tuple(rows), spare=("#rows",))


def group_title(group: ComparisonGroup) -> str:
    """Return the name of a group, with what all its rows share: metric, queries, seeds."""
    first = group.method_rows[0]
    common = [first.metric]
    if _all_equal(method_row.n for method_row in group.method_rows):
        common.append(f"{first.n:,} {'query' if first.n == 1 else 'queries'}")
    if _all_equal(seeds := [method_row.seeds for method_row in group.method_rows]):
        noun = "seed" if len(seeds[0]) == 1 else "seeds"
        common.append(f"{noun} {','.join(map(str, seeds[0]))}")
    return f"{group.group_key.name}: {', '.join(common)}"


def _all_equal(values: Iterable[object]) -> bool:
    return len({*values}) == 1


def group_table(group: ComparisonGroup, *, all_columns: bool = False) -> Table:
    """Return scores and costs of a group; `all_columns` keeps columns that are equal in all rows."""
    method_rows = group.method_rows
    best, pareto_rows, shares = (
        best_rows(method_rows),
        pareto_optimal(method_rows),
        [recovered_in_group(group, method_row) for method_row in method_rows],
    )
    seeds = [method_row.seeds for method_row in method_rows]

    columns: dict[str, tuple[bool, list[str]]] = {  # whether it is shown, and its cells
        "method": (True, [method_row.marked_label for method_row in method_rows]),
        f"#{group.group_key.metric} ± stderr": (
            True,
            [
                _bold_if(
                    method_row in best,
                    format_value(method_row.metric, method_row.value, method_row.stderr),
                )
                for method_row in method_rows
            ],
        ),
        "#n": (
            not _all_equal(method_row.n for method_row in method_rows),
            [f"{method_row.n:,}" for method_row in method_rows],
        ),
        "seeds": (not _all_equal(seeds), [",".join(map(str, own)) for own in seeds]),
        "#recovered": (
            any(part is not None for part in shares),
            [_format_recovered(part) for part in shares],
        ),
        "#trained": (
            any(
                method_row.untrained or _trained_parameters(method_row)
                for method_row in method_rows
            ),
            [
                "untrained"
                if method_row.untrained
                else format_count(_trained_parameters(method_row))
                for method_row in method_rows
            ],
        ),
        "#state": (
            True,
            [format_bytes(method_row.costs["state_bytes"]) for method_row in method_rows],
        ),
        "#kept": (
            any(method_row.costs["kept_share"] is not None for method_row in method_rows),
            [
                format_kept_share(
                    method_row.costs["kept_share"], budget_of_config(method_row.record.config)
                )
                for method_row in method_rows
            ],
        ),
        "#ask ms": (
            True,
            [format_number(method_row.costs["ask_ms"], 1) for method_row in method_rows],
        ),
        "#adapt s": (
            True,
            [format_number(method_row.costs["adapt_seconds"], 2) for method_row in method_rows],
        ),
        "#peak memory": (
            False,
            [format_bytes(method_row.costs["peak_memory_bytes"]) for method_row in method_rows],
        ),
        "Pareto": (
            len(method_rows) > 1,
            ["yes" if method_row in pareto_rows else "" for method_row in method_rows],
        ),
    }
    kept = {name: cells for name, (is_shown, cells) in columns.items() if is_shown or all_columns}
    return Table(
        title=group_title(group),
        columns=tuple(kept),
        rows=tuple(zip(*kept.values(), strict=True)),
        caption=untested_pairs(group),
        names=("method",),
        spare=("#trained", "#adapt s", "Pareto", "#ask ms"),
        glossary=GLOSSARY,
    )


def memory_table(comparison: Comparison) -> Table | None:
    """Return each method under own, swapped and empty state; None if no states were compared."""
    tests = memory_tests(comparison)
    rows = []
    for test in tests:
        values = [
            test.selection.shown(label) if label else ""
            for label in (test.own, test.swapped, test.empty)
        ]
        differences = [
            _bold_if(one.is_significant, one.shown) if one else ""
            for one in (test.swapped_difference, test.empty_difference)
        ]
        groups = test.selection.groups
        place = groups[0].group_key.brief if len(groups) == 1 else f"{len(groups)} groups"
        rows.append((test.own, place, *values, *differences, test.outcome.value))
    columns = (
        "method",
        "group",
        "#own",
        "#swapped",
        "#empty",
        "#own − swapped [95 %]",
        "#own − empty [95 %]",
        "memory",
    )
    if not rows:
        return None
    title = "States: memory of the context"
    return Table(
        title=title, columns=columns, rows=tuple(rows), names=("method",), glossary=GLOSSARY
    )


def _format_recovered(share: float | None) -> str:
    """Format a share of the improvement; beyond full context it is no share any more."""
    if share is None:
        return ""
    return "> 100 %" if share > 1 else f"{100 * share:.0f} %"


def steps_table(group: ComparisonGroup) -> Table:
    """Return values by number of chunks before the query, or by length or distance."""
    method_rows = [method_row for method_row in group.method_rows if method_row.steps]
    steps = sorted({step for method_row in method_rows for step in method_row.steps})
    rows = [
        (
            method_row.label,
            *(
                format_value(method_row.metric, *method_row.steps[step][:2])
                if step in method_row.steps
                else ""
                for step in steps
            ),
        )
        for method_row in method_rows
    ]
    title = f"{group.group_key.brief}: {group.group_key.metric} by {method_rows[0].step}"
    return Table(title=title, columns=("method", *(f"#{step}" for step in steps)), rows=tuple(rows))


def differences_table(group: ComparisonGroup) -> Table:
    """Return a row for each tested pair; the title names the tests."""
    pairs, unit = group.differences, group.method_rows[0].record.unit
    columns: dict[str, list[str]] = {
        "pair": [f"{one.left} − {one.right}" for one in pairs],
        "#difference [95 %]": [_bold_if(one.is_significant, one.shown) for one in pairs],
        "#p": [format_p(one.p) for one in pairs],
        "#Holm p": [format_p(one.p_holm) for one in pairs],
        "#better / worse": [
            "-" if one.better is None else f"{one.better:,} / {one.worse:,}" for one in pairs
        ],
        "#n": [f"{one.n:,}" for one in pairs],
    }
    for word in dict.fromkeys(
        one.unit for one in pairs if one.unit != "query" or one.units != one.n
    ):
        columns[f"#{UNIT_NAMES[word]}"] = [
            f"{one.units:,}" if one.unit == word else "" for one in pairs
        ]
    if any(one.crossed for one in pairs):
        columns[f"#{CROSSED_UNIT_NAMES[unit]}"] = [f"{one.crossed:,}" for one in pairs]
    title = "; ".join(
        [f"{group.group_key.brief}: differences", *sorted({one.test for one in pairs if one.test})]
    )
    return Table(
        title=title,
        columns=tuple(columns),
        rows=tuple(zip(*columns.values(), strict=True)),
        spare=("#better / worse", "#p"),
        glossary=GLOSSARY,
    )


def untested_pairs(group: ComparisonGroup) -> str:
    """Name the pairs that share no query; empty if all pairs share some."""
    pairs, tested = (
        list(combinations(range(len(group.method_rows)), 2)),
        {*comparable_pairs(group.method_rows)},
    )
    names = [
        " − ".join(group.method_rows[place].label for place in pair)
        for pair in pairs
        if pair not in tested
    ]
    described = (
        "; ".join(names)
        if len(names) <= MAX_LISTED_NAMES
        else f"{len(names)} of {len(pairs)} pairs"
    )
    return f"Not tested, because they share no query: {described}." if names else ""


def comparison_data(comparison: Comparison) -> list[Table]:
    """Return tables with exact values.

    Titles: `runs`, `steps`, `differences`, `overall`, `memory` and `set_aside` (excluded rows).
    """
    runs: list[Mapping[str, Cell]] = []
    for group in comparison.groups:
        best, pareto_rows = best_rows(group.method_rows), pareto_optimal(group.method_rows)
        for method_row in group.method_rows:
            marks = {"best": int(method_row in best), "pareto": int(method_row in pareto_rows)}
            runs.append(
                {
                    **_row_data(method_row),
                    "share_of_gap": recovered_in_group(group, method_row),
                    **marks,
                }
            )
    tables: dict[str, Sequence[Mapping[str, Cell]]] = {
        "runs": runs,
        "steps": [
            {
                "block": method_row.group_key.name,
                "label": method_row.label,
                "task": method_row.group_key.task,
                "metric": method_row.metric,
                "step": step,
                "value": value,
                "stderr": stderr,
                "n": n,
            }
            for method_row in comparison.method_rows
            for step, (value, stderr, n) in method_row.steps.items()
        ],
        "differences": list(map(_difference_data, comparison.differences)),
        "overall": list(map(_difference_data, comparison.overall)),
        "memory": [
            {
                "own": test.own,
                "other": test.swapped,
                "none": test.empty,
                "blocks": len(test.selection.groups),
                "block": test.selection.groups[0].group_key.name,
                "memory": test.outcome.value,
            }
            for test in memory_tests(comparison)
        ],
        "set_aside": [
            {
                "block": method_row.group_key.brief,
                "label": method_row.label,
                "reason": method_row.exclusion_reason,
                "runs": " ".join(method_row.ids),
            }
            for method_row in comparison.excluded
        ],
    }
    return [
        Table(title=name, columns=(), rows=(), data=tuple(rows))
        for name, rows in tables.items()
        if rows
    ]


DIFFERENCE_KEYS = {
    "degrees_of_freedom": "freedom",
    "crossed": "across",
    "group": "block",
    "groups": "blocks",
}
"""Keys of written differences by field; other fields are written under their names."""


def _difference_data(difference: Difference) -> dict[str, Cell]:
    return {DIFFERENCE_KEYS.get(name, name): value for name, value in asdict(difference).items()}


def _row_data(method_row: MethodRow) -> dict[str, Cell]:
    place = method_row.group_key
    return {
        "block": place.name,
        "label": method_row.label,
        "method": method_row.method,
        "state_of": method_row.state_of,
        "task": place.task,
        "source": method_row.record.source,
        "model": place.model,
        "seeds": ",".join(map(str, method_row.seeds)),
        "n": method_row.n,
        "metric": method_row.metric,
        "value": method_row.value,
        "stderr": method_row.stderr,
        **method_row.costs,
        "trained_parameters": _trained_parameters(method_row),
        "untrained": int(method_row.untrained),
        "runs": " ".join(method_row.ids),
        "from": method_row.submission,
    }


def _trained_parameters(method_row: MethodRow) -> int:
    """Return the number of parameters that were trained before adaptation."""
    return 0 if method_row.untrained else int(method_row.record.method.get("parameters") or 0)
