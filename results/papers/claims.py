"""Tables of `paper.py`: our figures next to a paper's, and a verdict for every claim.

Results of `judging` are combined twice: first trainings of one setting (a place in one comparison
group), then settings of one claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

from papers import declared
from papers.declared import COUNTED, SCALES, Scale
from papers.judging import ClaimResult, StoredResult, StoredRuns, evaluate_claims, locations, over
from ttabench.core.amounts import format_bytes, format_number
from ttabench.report.method_rows import format_value
from ttabench.stats.metrics import metric_or_default
from ttabench.terminal.table import Table

RULE = """\
- **Reproduced**: our paired difference has the sign of the claim, and its 95 % interval excludes
  zero. A method that keeps the context in a state must also be better under its own than under a
  swapped state, and that interval must exclude zero, too.
- **No memory**: the difference is significant, but the own state is not significantly better than a
  swapped one.
- **No control**: the difference is significant, but no run used a swapped state.
- **Contradicted**: the difference has the other sign, and its interval excludes zero.
- **Undecided**: the interval includes zero.
- **Cannot tell**: the runs cannot test the claim, for the reason given. Both results are near the
  same baseline (within a tenth of the distance between no context and full context), full context
  is not better than no context, the comparison is an artefact of the synthetic world, or the runs
  have a fault.

Intervals are not corrected for the number of claims. If all units differ by the same amount, a sign
test with p below 5 % replaces the interval.

A claim is one comparison of one table. Its settings are places of that table (a task, a length) in
one comparison group. Each setting is evaluated under every training of the adapter, with its own
interval. If all decided settings agree, that is the verdict. Otherwise the verdict is **mixed**.
Claims were chosen by hand, most of them after the runs."""


def all_claims(stored_runs: StoredRuns, scales: Sequence[Scale] = SCALES) -> list[ClaimResult]:
    """Evaluate every claim of every paper, at every place, in every comparison group and training."""
    return [
        row
        for of in declared.PAPERS
        for which in declared.paper(of).tables
        for row in evaluate_claims(of, which, stored_runs, scales)
    ]


def settings(rows: Sequence[ClaimResult]) -> list[Any]:
    """Return one row per claim, place and comparison group: verdict over trainings, and the
    results.
    """
    keys = ["paper", "table", "claim", "place", "block", "scale"]
    cells = [
        (
            row.paper,
            row.table,
            row.claim.text,
            row.place.name,
            row.block,
            row.scale or "",
            row,
            row.verdict,
        )
        for row in rows
    ]
    return _joined(cells, [*keys, "rows", "verdicts"], len(keys))


def by_claim(rows: Sequence[ClaimResult]) -> list[Any]:
    """Return one row per claim and scale: verdict over settings, with their results.

    A place without runs counts only if its claim has no runs at all.
    """
    with_runs = {(row.paper, row.table, row.claim.text) for row in rows if row.scale}
    cells = [
        (line.paper, line.table, line.claim, line.scale, line.rows, line.verdict)
        for line in settings(rows)
        if line.scale or (line.paper, line.table, line.claim) not in with_runs
    ]
    return _joined(cells, ["paper", "table", "claim", "scale", "settings", "verdicts"], 4)


def _joined(cells: Sequence[tuple[Any, ...]], columns: list[str], keys: int) -> list[Any]:
    """Group rows by their first `keys` cells. Other cells become lists, with the combined verdict."""
    import pandas

    joined = (
        pandas.DataFrame(cells, columns=columns)
        .groupby(columns[:keys], sort=False)
        .agg(list)
        .reset_index()
    )
    return list(joined.assign(verdict=joined["verdicts"].map(over)).itertuples(index=False))


def claims_table(title: str, rows: Sequence[ClaimResult]) -> Table:
    """Return the table of claims with verdicts: one row per claim and scale."""
    cells = tuple(
        (
            f"{line.paper} {line.table}",
            line.claim,
            theirs(list(chain(*line.settings))),
            line.scale,
            _effects(line.settings),
            format_verdict(line.verdict, line.verdicts, "settings"),
        )
        for line in by_claim(rows)
    )
    columns = ("table", "claim", "paper", "scale", "ours", "verdict")
    return Table(
        title=title, columns=columns, rows=cells, data=tuple(map(_data, rows)), caption=counts(rows)
    )


def settings_table(title: str, rows: Sequence[ClaimResult]) -> Table:
    """Return the table of settings with runs: one row per setting, with the figures of all
    trainings.
    """
    cells = []
    for line in (line for line in settings(rows) if line.scale):
        controls = [
            row.control.shown if row.control else "not run" if row.memory and row.found else ""
            for row in line.rows
        ]
        reason = _each([row.reason for row in line.rows])
        verdict = format_verdict(line.verdict, line.verdicts, "trainings") + (
            f": {reason}" if reason else ""
        )
        queries = [f"{row.found.n:,}" if row.found else "" for row in line.rows]
        cells.append(
            (
                f"{line.paper} {line.table}",
                line.claim,
                line.place,
                line.block,
                _each(list(map(ours, line.rows))),
                _each(controls),
                _each(queries),
                theirs(line.rows[:1]).partition(":")[0],
                verdict,
            )
        )
    columns = (
        "table",
        "claim",
        "setting",
        "comparison group",
        "ours, left − right [95 %]",
        "own − swapped state [95 %]",
        "#n",
        "paper",
        "verdict",
    )
    return Table(
        title=title,
        columns=columns,
        rows=tuple(cells),
        data=tuple(map(_data, rows)),
        caption=counts(rows),
        spare=("comparison group", "#n"),
    )


def format_verdict(verdict: str, verdicts: Sequence[str], noun: str) -> str:
    """Format `reproduced (3 settings)` or `mixed (2 reproduced, 1 undecided of 3 settings)`."""
    if len(verdicts) < 2:
        return verdict
    counted = Counter(verdicts).most_common()
    each = f"{', '.join(f'{count} {name}' for name, count in counted)} of "
    return f"{verdict} ({each if len(counted) > 1 else ''}{len(verdicts)} {noun})"


def counts(rows: Sequence[ClaimResult]) -> str:
    """Format `Claims, by scale: 3 reproduced, 5 undecided, 4 no runs.`"""
    verdicts = Counter(line.verdict for line in by_claim(rows))
    return f"Claims, by scale: {', '.join(f'{count} {name}' for name, count in verdicts.most_common())}."


def _each(cells: Sequence[str]) -> str:
    """Join different cells; equal cells are written once."""
    return "; ".join(cells if len(set(cells)) > 1 else cells[:1]).strip("; ")


def _effects(by_setting: Sequence[list[ClaimResult]]) -> str:
    """Format the range of our differences, `14.0 to 44.4`. For costs, list every setting."""
    effects = [row.found for rows in by_setting for row in rows if row.found is not None]
    if effects:
        metric = metric_or_default(effects[0].metric)
        return span([found.value * metric.scale for found in effects], metric.digits)
    return "; ".join(
        dict.fromkeys(
            f"{row.place.name} {ours(row)}" if row.costs else row.reason for row, *_ in by_setting
        )
    )


def _data(row: ClaimResult) -> dict[str, Any]:
    left, right = row.costs or (None, None)
    figures = {
        f"{prefix}{name}": getattr(found, name, None)
        for prefix, found in (("", row.found), ("own_less_other_", row.control))
        for name in ("value", "ci_low", "ci_high", "p", "n", "units")
    }
    return {
        "paper": row.paper,
        "table": row.table,
        "claim": row.claim.text,
        "says": row.claim.says,
        "place": row.place.name,
        "scale": row.scale,
        "block": row.block,
        "metric": row.found.metric if row.found else row.claim.cost,
        **figures,
        "left_cost": left.value if left else None,
        "right_cost": right.value if right else None,
        "paper_says": theirs([row]),
        "verdict": row.verdict,
        "reason": row.reason,
    }


def ours(row: ClaimResult) -> str:
    """Format our difference with its interval, or both costs."""
    if row.costs is not None:
        counted = row.claim.cost in COUNTED
        return " against ".join(
            format_bytes(cost.value) if counted else f"{cost.value:,.3g} s" for cost in row.costs
        )
    return row.found.shown if row.found else ""


def theirs(rows: Sequence[ClaimResult]) -> str:
    """Format the paper's differences over places and base models. Without figures, quote the paper."""
    differences = [reported(row) for row in rows]
    values = [value for by_model in differences for value in by_model.values()]
    if not values:
        return rows[0].claim.says
    return f"{span(values)}: {', '.join(dict.fromkeys(model for by_model in differences for model in by_model))}"


def span(values: Sequence[float], digits: int = 1) -> str:
    """Format the smallest and the largest value, `-0.6 to 23.5`."""
    limits = [format_number(limit, digits) for limit in (min(values), max(values))]
    return " to ".join(dict.fromkeys(limits))


def reported(row: ClaimResult) -> dict[str, float]:
    """Return the paper's difference at a place (left minus right) by base model. Empty for costs."""
    if row.claim.cost or not row.place.task:
        return {}
    left, right = (
        {
            figure["model"]: figure["value"]
            for figure in declared.reported_at(row.paper, row.table, row.place, line)
        }
        for line in (row.claim.left, row.claim.right)
    )
    return {model: left[model] - right[model] for model in left if model in right}


def figures_table(name: str, stored_runs: StoredRuns, scale: Scale) -> Table:
    """Return the table as the paper prints it, by base model, with a column of our results at one
    scale.
    """
    import pandas

    of, which, table = declared.table(name)
    keys = ["method", "task", "setting", "metric"]
    printed = pandas.DataFrame(declared.reported(of, which), columns=["model", *keys, "value"])
    results: dict[tuple[str, ...], list[StoredResult]] = {}
    for location in (
        location for location in locations(of, which, stored_runs) if location.scale == scale
    ):
        for line in (line for line in table.named if line in location.lines):
            known_rows = declared.reported_at(of, which, location.place, line)
            usable = [
                one
                for one in location.lines[line].values()
                if one.figure is not None and not one.method_row.exclusion_reason
            ]
            for index in dict.fromkeys(tuple(row[key] for key in keys) for row in known_rows):
                results.setdefault(index, []).extend(usable)
    wide = printed.pivot_table(index=keys, columns="model", values="value", sort=False)
    rows = tuple(
        (
            *index,
            *("" if pandas.isna(value) else f"{value:g}" for value in values),
            _range(results.get(index, ())),
        )
        for index, values in zip(wide.index, wide.to_numpy(), strict=True)
    )
    columns = (*keys, *(f"#{model}" for model in wide.columns), f"#ours, {scale}")
    caption = (
        f"Figures of arXiv {declared.paper(of).arxiv}. Ours: value ± standard error, or a range."
    )
    if scale == SCALES[0]:
        caption += " Ours are of a small model on synthetic texts: compare the order of rows, not the figures."
    return Table(
        title=f"{name}: {table.about}",
        columns=columns,
        rows=rows,
        names=("method",),
        caption=caption,
        data=tuple(
            {key.removeprefix("#"): cell for key, cell in zip(columns, row, strict=True)}
            for row in rows
        ),
    )


def _range(results: Sequence[StoredResult]) -> str:
    """Format `66.2 ± 3.1`, or several results as `62.0 to 71.5 (3)`."""
    figures = [one.figure for one in results if one.figure is not None]
    if len(figures) < 2:
        return "".join(
            format_value(one.method_row.metric, *figure[:2])
            for one, figure in zip(results, figures, strict=True)
        )
    metric = metric_or_default(results[0].method_row.metric)
    return (
        f"{span([figure[0] * metric.scale for figure in figures], metric.digits)} ({len(figures)})"
    )
