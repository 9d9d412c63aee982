"""What `ttabench paper` shows: the list of all tables, our figures beside a paper's, and its claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ttabench.core.amounts import number
from ttabench.core.types import Json
from ttabench.papers import declared
from ttabench.papers.costs import NOUNS, amount
from ttabench.papers.declared import SCALES, Place, Scale, scale_of_model
from ttabench.papers.declared import Table as DeclaredTable
from ttabench.papers.judging import RULE, RULE_OF_COSTS, VERDICTS, Judged, judged
from ttabench.papers.matching import Stored
from ttabench.papers.profiles import lines_at, where
from ttabench.papers.reported import reported
from ttabench.papers.standing import Spot, named, spots
from ttabench.papers.wording import claimed, counted, figures, folders, ours, theirs
from ttabench.report.figures import shown
from ttabench.terminal.render import as_markdown
from ttabench.terminal.table import Table

GLOSSARY = {
    "the paper's": "The paper's: the same difference of its figures, over its base models.",
    "#n": "n: queries that both sides answered, and of how many documents, draws or books.",
}
"""Meanings of headings."""


def reported_table(name: str) -> Table:
    """The figures of a table as the paper prints them, by base model."""
    of, which, table = declared.table(name)
    own = reported(of, which)
    models = list(dict.fromkeys(figure.model for figure in own))
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for figure in own:
        line = (figure.method, figure.task, figure.setting, figure.metric)
        cells.setdefault(line, {})[figure.model] = f"{figure.value:g}"
    rows = tuple((*line, *(values.get(model, "") for model in models)) for line, values in cells.items())
    columns = ("line", "task", "setting", "metric", *(f"#{model}" for model in models))
    return Table(title=f"{name}: {table.about}, as the paper prints it", columns=columns, rows=rows, names=("line",),
                 data=tuple(figure._asdict() for figure in own))  # fmt: skip


def beside_table(name: str, stored_runs: Stored, scale: Scale) -> Table:
    """Our figures of a table at one scale, and the paper's by base model."""
    of, which, table = declared.table(name)
    there = [spot for spot in spots(of, which, stored_runs) if spot.scale == scale]
    metric = table.metric or table.cost
    models = list(dict.fromkeys(figure.model for figure in reported(of, which) if figure.metric == metric))
    rows = []
    for place in (place for place in table.places if scale in place.scales):
        if place.profile is not None:
            told_of = _profiled(declared.paper(of).lines_of(table), table, place, stored_runs, scale)
            rows += [(place.name, *cells, *("" for _ in models)) for cells in told_of]
            continue
        own = [spot for spot in there if spot.place is place]
        lacking = [line for line in named(table) if not any(line in spot.lines for spot in own)]
        for spot, lines in [*((spot, [line for line in named(table) if line in spot.lines]) for spot in own),
                            (None, lacking)]:  # fmt: skip
            task = spot.task if spot is not None and place.mean else place.task
            for line in lines:
                known_figures = figures(of, which, table, place.model_copy(update={"task": task}), line, metric)
                theirs = [number(known_figures[model], 1) if model in known_figures else "" for model in models]
                if spot is not None or known_figures:
                    rows.append((place.name, line, spot.block if spot else "", *_figure(table, spot, line), *theirs))
    columns = ("at", "line", "runs", f"#ours, {scale}", "#n", *(f"#{model}" for model in models))
    caption = f"Ours: value ± stderr. By base model: {metric} as arXiv {declared.paper(of).arxiv} prints it."
    if not metric:
        caption = (
            "Ours: the median of n repeats (memory is counted once); ×: after the longer context over the shorter."
        )
    keys = [name.lstrip("#") for name in columns]
    return Table(
        title=f"{name}: {table.about}", columns=columns, rows=tuple(rows), names=("line",), spare=("runs",),
        data=tuple(dict(zip(keys, row, strict=True)) for row in rows),
        caption=caption,
    )  # fmt: skip


def _profiled(
    lines: Mapping[str, Mapping[str, Json]], table: DeclaredTable, place: Place, stored_runs: Stored, scale: Scale
) -> Iterator[tuple[str, str, str, str]]:
    """(line, what was profiled, our figure, how often it was measured) of every line of a place in profiles."""
    assert place.profile is not None, "it is one of profiles"
    claims = {(claim.cost, claim.growth): claim for claim in table.claims if place in table.placed(claim)}
    for claim in claims.values():
        own = [each for each in table.claims if (each.cost, each.growth) == (claim.cost, claim.growth)]
        for name in dict.fromkeys(side for each in own for side in (each.left, each.right)):
            for line in lines_at(name, lines[name], claim, place.profile, stored_runs.profiles):
                if scale_of_model(str(line.record.config["model"])) == scale:
                    sentence = f"{NOUNS[claim.cost]}, {where(line.record, place.profile)}"
                    yield name, sentence, amount(claim, line.bounds.value), str(line.repeats)


def _figure(table: DeclaredTable, spot: Spot | None, line: str) -> tuple[str, str]:
    """(our figure, n) of a line; of a table of costs the first of which it has claims."""
    held = spot.lines.get(line) if spot else None
    if not table.metric:
        claim = table.claims[0]
        spent = held.entry.costs.get(claim.cost) if held else None
        return ("", "") if held is None or spent is None else (amount(claim, spent), f"{held.entry.n:,}")
    value = held.figure(spot.place.step) if held and spot else None
    return (shown(held.entry.metric, *value[:2]), f"{value[2]:,}") if held and value else ("", "")


def claims_table(title: str, rows: Sequence[Judged], *, of_tables: bool = False) -> Table:
    """Claims with verdicts, a line each."""
    columns = ("claim", "setting", "runs", "suite", "ours, left − right [95 %]", "#n", "the paper's", "verdict")
    cells = [
        (claimed(row.claim), row.place.name, row.block or row.scale or "", folders(row.suites), ours(row),
         counted(row), theirs(row), row.verdict)
        for row in rows
    ]  # fmt: skip
    table = Table(
        title=title, columns=columns, rows=tuple(cells), data=tuple(map(_data, rows)), glossary=GLOSSARY,
        spare=("suite", "#n"), names=("verdict",), caption=counts(rows),
    )  # fmt: skip
    if not of_tables:
        return table
    return Table(title=title, columns=("table", *columns), glossary=GLOSSARY, data=table.data, caption=table.caption,
                 rows=tuple((row.table, *line) for row, line in zip(rows, cells, strict=True)))  # fmt: skip


def _data(row: Judged) -> dict[str, str | int | float | None]:
    apart = row.found
    return {
        "paper": row.paper, "table": row.table, "claim": claimed(row.claim), "says": row.claim.says,
        "place": row.place.name, "scale": row.scale, "block": row.block, "suites": " ".join(row.suites),
        "metric": apart.metric if apart else row.claim.cost or None, "value": apart.value if apart else None,
        "ci_low": apart.ci_low if apart else None, "ci_high": apart.ci_high if apart else None,
        "p": apart.p if apart else None, "n": apart.n if apart else None, "units": apart.units if apart else None,
        "left_cost": row.costs[0] if row.costs else None, "right_cost": row.costs[1] if row.costs else None,
        "paper_says": theirs(row), "verdict": row.verdict, "reason": row.reason,
    }  # fmt: skip


def counts(rows: Sequence[Judged]) -> str:
    """`12 reproduced, 3 contradicted, 8 undecided (5 without runs).`"""
    counted = Counter(row.verdict for row in rows)
    without = sum(row.scale is None for row in rows)
    some = ", ".join(f"{counted[verdict]} {verdict}" for verdict in VERDICTS)
    return f"{some}{f' ({without} without runs)' if without else ''}."


def all_claims(stored_runs: Stored, scales: Sequence[Scale] = SCALES) -> dict[str, list[Judged]]:
    """Every claim of every paper."""
    return {
        of: [row for which, table in declared.paper(of).tables.items() if table.claims
             for row in judged(of, which, stored_runs, scales)]
        for of in declared.PAPERS
    }  # fmt: skip


def claims_page(stored_runs: Stored) -> str:
    """Every claim as a page of Markdown: `results/claims.md`."""
    by_paper = all_claims(stored_runs)
    parts = [
        "# What the papers claim, and what our runs say",
        RULE,
        RULE_OF_COSTS,
        "Left − right: of perplexities less is better. n: queries that both sides answered, and of how many documents, "
        "draws or books where these are fewer. The paper's: the same difference of its figures, over its base models. "
        "Claims, their thresholds (`at least 80 %`) and the factor of two were chosen by hand, most of them when these "
        "runs were there.",
        "Of " + counts([row for rows in by_paper.values() for row in rows]),
    ]
    for of, rows in by_paper.items():
        about = declared.paper(of)
        table = claims_table(of, rows, of_tables=True)
        head = f"## {of}\n\n{about.title} (arXiv {about.arxiv}): {counts(rows)}"
        parts += [head, _bare(table)]
    return "\n\n".join(parts) + "\n"


def _bare(table: Table) -> str:
    """A table of Markdown alone."""
    lines = as_markdown(Table(title="", columns=table.columns, rows=table.rows)).splitlines()
    return "\n".join(line for line in lines if line.startswith("|"))
