"""What `ttabench paper TABLE` shows: our figures beside a paper's."""

from __future__ import annotations

from ttabench.core.amounts import number
from ttabench.papers import declared
from ttabench.papers.claims import figures
from ttabench.papers.declared import SCALES, Scale, reported
from ttabench.papers.declared import Table as DeclaredTable
from ttabench.papers.matching import Held, Stored, named, spots
from ttabench.papers.profiles import amount
from ttabench.report.figures import shown
from ttabench.terminal.table import Table


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
        own = [spot for spot in there if spot.place is place]
        known = {line for spot in own for line in spot.lines}
        shown_lines = [(spot, line, held) for spot in own for line in named(table) if line in spot.lines
                       for held in spot.lines[line].values()]  # fmt: skip
        for spot, line, held in [*shown_lines, *((None, line, None) for line in named(table) if line not in known)]:
            task = spot.task if spot is not None and place.mean else place.task
            known_figures = figures(of, which, table, place.model_copy(update={"task": task}), line, metric)
            beside = [number(known_figures[model], 1) if model in known_figures else "" for model in models]
            if spot is not None or known_figures:
                rows.append((place.name, line, spot.block if spot else "", *_figure(table, held), *beside))
    columns = ("at", "line", "runs", f"#ours, {scale}", "#n", *(f"#{model}" for model in models))
    caption = f"Ours: value ± stderr. By base model: {metric} as arXiv {declared.paper(of).arxiv} prints it."
    if scale == SCALES[0]:
        caption += " Ours are of a small model on made-up texts: compare the order of lines, not the figures."
    keys = [name.lstrip("#") for name in columns]
    return Table(
        title=f"{name}: {table.about}", columns=columns, rows=tuple(rows), names=("line",), spare=("runs",),
        data=tuple(dict(zip(keys, row, strict=True)) for row in rows),
        caption=caption,
    )  # fmt: skip


def _figure(table: DeclaredTable, held: Held | None) -> tuple[str, str]:
    """(our figure, n) of a line; of a table of costs the first of which it has claims."""
    if held is None:
        return "", ""
    if not table.metric:
        spent = held.cost(table.claims[0].cost)
        return ("", "") if spent is None else (amount(table.claims[0], spent.value), f"{held.entry.n:,}")
    value = held.figure
    return (shown(held.entry.metric, *value[:2]), f"{value[2]:,}") if value else ("", "")
