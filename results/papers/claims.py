"""What `paper.py` shows: our figures beside a paper's, and a verdict for every claim, one comparison of one table
of a paper.

Rows of `judging` are joined twice: trainings of one setting (a place in one block of runs), settings of one claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

from papers import declared
from papers.declared import COUNTED, SCALES, Scale
from papers.judging import Held, Judged, Stored, judged, over, spots
from ttabench.core.amounts import format_bytes, format_number
from ttabench.report.method_rows import format_value
from ttabench.stats.metrics import metric_or_default
from ttabench.terminal.table import Table

RULE = """\
**Reproduced**: our paired difference has the sign of the claim, its 95 % interval excludes zero, and a method that
holds the context in a state is better under its own than under another text's, by an interval that excludes zero, too;
**no memory**: all but the last; **no control**: nothing was run under another text's state. **Contradicted**: the other
sign, and the interval excludes zero; **undecided**: it includes zero. **Cannot tell**: both lines within a tenth of the
way from no context to full context at the same end, full context no better than none, a comparison that is one of the
miniature world alone, or runs with another fault, as is said. Intervals are not corrected for the number of claims;
where all that varies differs alike, the sign test's p below 5 % stands for the interval.

A claim is one comparison of one table. Its settings are places of that table (a task, a length) in one block of runs,
each judged under every training of the adapter, by an interval of its own. Where all that can tell say the same, that
is the verdict, else it is **mixed**. Claims were chosen by hand, most of them when these runs were there."""


def all_claims(stored_runs: Stored, scales: Sequence[Scale] = SCALES) -> list[Judged]:
    """Every claim of every paper, at every place, in every block and training."""
    return [
        row
        for of in declared.PAPERS
        for which in declared.paper(of).tables
        for row in judged(of, which, stored_runs, scales)
    ]


def settings(rows: Sequence[Judged]) -> list[Any]:
    """A line a claim, place and block: its verdict over trainings, and the rows behind it."""
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


def by_claim(rows: Sequence[Judged]) -> list[Any]:
    """A line a claim and scale: its verdict over settings, and of its settings the rows and verdicts. Places without
    runs count where a claim has none at all."""
    run = {(row.paper, row.table, row.claim.text) for row in rows if row.scale}
    cells = [
        (line.paper, line.table, line.claim, line.scale, line.rows, line.verdict)
        for line in settings(rows)
        if line.scale or (line.paper, line.table, line.claim) not in run
    ]
    return _joined(cells, ["paper", "table", "claim", "scale", "settings", "verdicts"], 4)


def _joined(cells: Sequence[tuple[Any, ...]], columns: list[str], keys: int) -> list[Any]:
    """Lines of the same first cells as one, with lists of the others and the verdict over all."""
    import pandas

    joined = (
        pandas.DataFrame(cells, columns=columns)
        .groupby(columns[:keys], sort=False)
        .agg(list)
        .reset_index()
    )
    return list(joined.assign(verdict=joined["verdicts"].map(over)).itertuples(index=False))


def claims_table(title: str, rows: Sequence[Judged]) -> Table:
    """Claims with verdicts, a line a claim and scale."""
    cells = tuple(
        (
            f"{line.paper} {line.table}",
            line.claim,
            theirs(list(chain(*line.settings))),
            line.scale,
            _effects(line.settings),
            told(line.verdict, line.verdicts, "settings"),
        )
        for line in by_claim(rows)
    )
    columns = ("table", "claim", "the paper's", "scale", "ours", "verdict")
    return Table(
        title=title, columns=columns, rows=cells, data=tuple(map(_data, rows)), caption=counts(rows)
    )


def settings_table(title: str, rows: Sequence[Judged]) -> Table:
    """What stands behind the verdicts: every setting that was run, a line each; of several trainings all figures."""
    cells = []
    for line in (line for line in settings(rows) if line.scale):
        controls = [
            row.control.shown if row.control else "not run" if row.memory and row.found else ""
            for row in line.rows
        ]
        reason = _each([row.reason for row in line.rows])
        verdict = told(line.verdict, line.verdicts, "trainings") + (f": {reason}" if reason else "")
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
        "runs",
        "ours, left − right [95 %]",
        "own − another's [95 %]",
        "#n",
        "the paper's",
        "verdict",
    )
    return Table(
        title=title,
        columns=columns,
        rows=tuple(cells),
        data=tuple(map(_data, rows)),
        caption=counts(rows),
        spare=("runs", "#n"),
    )


def told(verdict: str, verdicts: Sequence[str], noun: str) -> str:
    """`reproduced (3 settings)`, `mixed (2 reproduced, 1 undecided of 3 settings)`."""
    several = Counter(verdicts)
    each = (
        f"{', '.join(f'{count} {name}' for name, count in several.most_common())} of "
        if len(several) > 1
        else ""
    )
    return f"{verdict} ({each}{len(verdicts)} {noun})" if len(verdicts) > 1 else verdict


def counts(rows: Sequence[Judged]) -> str:
    """`Claims, by scale: 3 reproduced, 5 undecided, 4 no runs.`"""
    verdicts = Counter(line.verdict for line in by_claim(rows))
    return f"Claims, by scale: {', '.join(f'{count} {name}' for name, count in verdicts.most_common())}."


def _each(cells: Sequence[str]) -> str:
    """What all say, or each."""
    return "; ".join(cells if len(set(cells)) > 1 else cells[:1]).strip("; ")


def _effects(at: Sequence[list[Judged]]) -> str:
    """`14.0 to 44.4`: our differences over settings and trainings; of costs every setting."""
    effects = [row.found for own in at for row in own if row.found is not None]
    if effects:
        metric = metric_or_default(effects[0].metric)
        return span([found.value * metric.scale for found in effects], metric.digits)
    return "; ".join(
        dict.fromkeys(
            f"{row.place.name} {ours(row)}" if row.costs else row.reason for row, *_ in at
        )
    )


def _data(row: Judged) -> dict[str, Any]:
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
        "left_cost": left and left.value,
        "right_cost": right and right.value,
        "paper_says": theirs([row]),
        "verdict": row.verdict,
        "reason": row.reason,
    }


def ours(row: Judged) -> str:
    """Our difference with its interval; of costs both."""
    if row.costs is not None:
        counted = row.claim.cost in COUNTED
        return " against ".join(
            format_bytes(cost.value) if counted else f"{cost.value:,.3g} s" for cost in row.costs
        )
    return row.found.shown if row.found else ""


def theirs(rows: Sequence[Judged]) -> str:
    """The same difference of the paper's figures, over places and base models; without any what it says."""
    differences = [reported(row) for row in rows]
    values = [value for by_model in differences for value in by_model.values()]
    if not values:
        return rows[0].claim.says
    return f"{span(values)}: {', '.join(dict.fromkeys(model for by_model in differences for model in by_model))}"


def span(values: Sequence[float], digits: int = 1) -> str:
    """`-0.6 to 23.5`: the smallest and the largest."""
    ends = [format_number(end, digits) for end in (min(values), max(values))]
    return " to ".join(dict.fromkeys(ends))


def reported(row: Judged) -> dict[str, float]:
    """The paper's difference at a place, left less right, by base model; none of costs."""
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


def figures_table(name: str, stored_runs: Stored, scale: Scale) -> Table:
    """The figures of a table as the paper prints them, by base model, and ours at one scale beside each."""
    import pandas

    of, which, table = declared.table(name)
    keys = ["method", "task", "setting", "metric"]
    printed = pandas.DataFrame(declared.reported(of, which), columns=["model", *keys, "value"])
    own: dict[tuple[str, ...], list[Held]] = {}
    for spot in (spot for spot in spots(of, which, stored_runs) if spot.scale == scale):
        for line in (line for line in table.named if line in spot.lines):
            known_rows = declared.reported_at(of, which, spot.place, line)
            held = [
                one
                for one in spot.lines[line].values()
                if one.figure is not None and not one.method_row.exclusion_reason
            ]
            for at in dict.fromkeys(tuple(row[key] for key in keys) for row in known_rows):
                own.setdefault(at, []).extend(held)
    wide = printed.pivot_table(index=keys, columns="model", values="value", sort=False)
    rows = tuple(
        (
            *at,
            *("" if pandas.isna(value) else f"{value:g}" for value in values),
            _range(own.get(at, ())),
        )
        for at, values in zip(wide.index, wide.to_numpy(), strict=True)
    )
    columns = (*keys, *(f"#{model}" for model in wide.columns), f"#ours, {scale}")
    caption = f"As arXiv {declared.paper(of).arxiv} prints them. Ours: value ± stderr, of several the range."
    if scale == SCALES[0]:
        caption += " Ours are of a small model on made-up texts: compare the order of lines, not the figures."
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


def _range(held: Sequence[Held]) -> str:
    """`66.2 ± 3.1`, or of several `62.0 to 71.5 (3)`."""
    figures = [one.figure for one in held if one.figure is not None]
    if len(figures) < 2:
        return "".join(
            format_value(one.method_row.metric, *figure[:2])
            for one, figure in zip(held, figures, strict=True)
        )
    metric = metric_or_default(held[0].method_row.metric)
    return (
        f"{span([figure[0] * metric.scale for figure in figures], metric.digits)} ({len(figures)})"
    )
