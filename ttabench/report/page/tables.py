"""Tables of the page: what `comparison_tables` shows, every cell with the number it is sorted by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ttabench.core.amounts import count, number, size
from ttabench.report.blocks import called
from ttabench.report.compare import Block, Comparison
from ttabench.report.comparison_tables import headings, labels_of, origin, overview
from ttabench.report.differences import Difference
from ttabench.report.entries import best_of
from ttabench.report.figures import plain, probability, scale, shown, together
from ttabench.report.pareto import front
from ttabench.report.setting_aside import MARKS
from ttabench.report.shares import share, shown_share
from ttabench.report.state_sentences import Outcome, state_outcomes
from ttabench.terminal.table import Bold, Table


@dataclass(frozen=True)
class Cell:
    """A cell as it is read and as it is sorted: numbers by their size, what is missing before them."""

    text: str
    order: float | str = ""
    strong: bool = False

    @property
    def numeric(self) -> bool:
        """Whether it is a number, or one that is missing."""
        return isinstance(self.order, float | int)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A table of the page."""

    name: str
    """Its id there; empty for one that has none."""
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    live: bool = True
    """Whether it can be sorted and filtered."""


MISSING = -1e308
"""Order of a number that is not known."""
MOST_BLOCKS = 12
"""Columns of the grid of all blocks; of more blocks each has a row, with the best of its methods."""
HELD = (
    "● own state is better than an empty one and another text's: it holds the text; ◐ better than one of them; ○ not "
    "shown to be better than either, or worse."
)
"""The marks of `Outcome`."""


def tables_of(comparison: Comparison) -> list[Shown]:
    """All blocks beside each other, where there are several; every line; every difference. One block is not named."""
    several = 1 < len(comparison.blocks) <= MOST_BLOCKS
    over_blocks = blocks_grid(comparison) if several else _overview(comparison.blocks)
    lines = [_lines(comparison), _differences(comparison)]
    if len(comparison.blocks) == 1:  # whose name would stand in every row
        lines = [table and replace(table, columns=table.columns[1:], rows=tuple(row[1:] for row in table.rows))
                 for table in lines]  # fmt: skip
    return [table for table in (over_blocks, *lines) if table is not None]


def blocks_grid(comparison: Comparison) -> Shown:
    """A line a method under its own state, a column a block: its figure, and whether its state holds the text."""
    blocks = comparison.blocks
    own = {entry.label for block in blocks for entry in block.entries if entry.state_of == "own"}
    outcomes = [state_outcomes(comparison, block) for block in blocks]
    rows = tuple(
        (Cell(label), *(_figure(block, label, held) for block, held in zip(blocks, outcomes, strict=True)))
        for label in labels_of(blocks) if label in own
    )  # fmt: skip
    title, names = headings(blocks)
    metrics = [block.place.metric for block in blocks]
    if len(set(metrics)) > 1:
        names = [f"{name} ({metric})" for name, metric in zip(names, metrics, strict=True)]
    caption = f"{title}; the best of the methods is bold, none is the floor, icl the ceiling."
    held = f" {HELD}" if any(outcomes) else ""
    return Shown(name="overview", title="All blocks", caption=caption + held, columns=("method", *names), rows=rows)


def _figure(block: Block, label: str, outcomes: Mapping[str, Outcome]) -> Cell:
    """The figure of a line in a block, with the mark of its state's tests."""
    entry = block.named(label)
    if entry is None:
        return Cell("", MISSING)
    mark = outcomes[label].mark if label in outcomes else ""
    strong = any(entry is best for best in best_of(block.entries))
    figure = plain(entry.metric, entry.value) + MARKS[entry.aside]
    return Cell(f"{figure} {mark}".rstrip(), entry.value * scale(entry.metric), strong)


def _overview(blocks: Sequence[Block]) -> Shown | None:
    table: Table | None = overview(blocks) if len(blocks) > 1 else None
    if table is None:
        return None
    numbers = [
        column for column in range(1, len(table.columns))
        if not any(isinstance(_number(str(row[column])), str) for row in table.rows)
    ]  # fmt: skip
    rows = tuple(
        tuple(Cell(str(cell), _number(str(cell)) if column in numbers else str(cell), isinstance(cell, Bold))
              for column, cell in enumerate(row))
        for row in table.rows
    )  # fmt: skip
    names = {"": "block", "of": "best method"}
    columns = tuple(names.get(name := each.removeprefix("#"), name) for each in table.columns)
    bold = any(cell.strong for row in rows for cell in row)
    remark = "the best of the methods is bold" if bold else "none is the floor, icl the ceiling, best that of others"
    caption = f"{table.title}; {remark}." if bold or "best" in columns else f"{table.title}: the figures alone."
    return Shown(name="overview", title="All blocks", caption=caption, columns=columns, rows=rows)


def _lines(comparison: Comparison) -> Shown:
    mixed = any(entry.theirs for entry in comparison.entries)
    columns = ("block", "method", *(["from"] if mixed else []), "metric", "value ± stderr", "of gap", "n", "seeds",
               "trained", "state", "ask ms", "adapt s", "peak memory", "front")  # fmt: skip
    rows = tuple(
        row for block in comparison.blocks for row in _lines_of(block, _called(comparison, block), mixed=mixed)
    )
    caption = (
        "Every line: a method with its settings, over all seeds. Of gap: how far it goes from none (0 %) to icl "
        "(100 %). Trained: its parameters that were trained before it read the text. State: bytes that it keeps of the "
        "text. Ask ms: milliseconds to answer a query; adapt s: seconds to read the text. Front (Pareto): no other "
        "line of its block under its own state is at least as good in value and state (and ask ms, where all were "
        "measured on one calm machine), and better in one of them. ~: other programs ran, so the time is rough."
    )
    return Shown(name="lines", title="Lines", caption=caption, columns=columns, rows=rows)


def _called(comparison: Comparison, block: Block) -> str:
    return called(block.place, [other.place for other in comparison.blocks])


def _lines_of(block: Block, name: str, *, mixed: bool) -> Iterator[tuple[Cell, ...]]:
    best, members = best_of(block.entries), front(block.entries)
    for entry in block.entries:
        part, costs, busy = share(block, entry), entry.costs, "~" if entry.busy else ""
        yield (
            Cell(name), Cell(entry.marked), *([Cell(origin(entry))] if mixed else []),
            Cell(entry.metric), Cell(shown(entry.metric, entry.value, entry.stderr), entry.value * scale(entry.metric),
                 any(entry is best_line for best_line in best)),
            Cell(shown_share(part), _order(part)),
            Cell(f"{entry.n:,}", float(entry.n)), Cell(", ".join(map(str, entry.seeds))),
            Cell(count(entry.trained), float(entry.trained)),
            Cell(size(costs.get("state_bytes")), _order(costs.get("state_bytes"))),
            Cell(busy + number(costs.get("ask_ms"), 1), _order(costs.get("ask_ms"))),
            Cell(busy + number(costs.get("adapt_seconds"), 2), _order(costs.get("adapt_seconds"))),
            Cell(size(costs.get("peak_memory_bytes")), _order(costs.get("peak_memory_bytes"))),
            Cell("yes" if len(block.entries) > 1 and any(entry is member for member in members) else ""),
        )  # fmt: skip


def _differences(comparison: Comparison) -> Shown | None:
    if not comparison.differences:
        return None
    columns = ("block", "left", "right", "metric", "left − right [95 %]", "p", "Holm", "n", "better", "worse")
    rows = tuple(
        _difference(_called(comparison, block), difference)
        for block in comparison.blocks
        for difference in block.differences
    )
    caption = (
        "Differences over the queries that both sides answered, with 95 % intervals. Holm: p adjusted for all tests of "
        "its family; bold below 0.05. Better, worse: the number of queries on which left is better, or worse."
    )
    return Shown(name="differences", title="Differences", caption=caption, columns=columns, rows=rows)


def _difference(name: str, apart: Difference) -> tuple[Cell, ...]:
    ends = [] if apart.ci_low is None or apart.ci_high is None else [apart.ci_low, apart.ci_high]
    value, *interval = together(apart.metric, apart.value, *ends)
    text = f"{value} [{', '.join(interval)}]" if interval else value
    counts = ((apart.better, "better"), (apart.worse, "worse"))
    return (
        Cell(name), Cell(apart.left), Cell(apart.right), Cell(apart.metric),
        Cell(text, apart.value * scale(apart.metric), apart.beyond_chance),
        Cell(probability(apart.p), _order(apart.p)), Cell(probability(apart.p_holm), _order(apart.p_holm)),
        Cell(f"{apart.n:,}", float(apart.n)),
        *(Cell("-" if count is None else f"{count:,}", _order(count)) for count, _ in counts),
    )  # fmt: skip


def steps_of(block: Block) -> Shown | None:
    """Figures of the curves, for those who do not see them."""
    entries = [entry for entry in block.entries if len(entry.steps) > 1]
    if not entries:
        return None
    steps = sorted({step for entry in entries for step in entry.steps})
    rows = tuple(
        (Cell(entry.label), *(_at(entry.metric, entry.steps.get(step)) for step in steps)) for entry in entries
    )
    caption = f"{block.place.metric} ± stderr by {entries[0].step.axis}"
    return Shown(name="", title="Figures of the curves", caption=caption, live=False,
                 columns=("method", *(f"{step:,}" for step in steps)), rows=rows)  # fmt: skip


def _at(metric: str, pair: tuple[float, float | None, int] | None) -> Cell:
    return Cell("", MISSING) if pair is None else Cell(shown(metric, *pair[:2]), pair[0])


def _order(value: float | None) -> float:
    return MISSING if value is None else float(value)


def _number(text: str) -> float | str:
    """The number that a figure is sorted by; a text that is none by itself."""
    try:
        return float(text.replace(",", "")) if text else MISSING
    except ValueError:
        return text
