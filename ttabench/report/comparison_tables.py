"""What `ttabench compare` shows: a table of all blocks, and for each block its entries, its steps and its differences.

`comparison_tables` is for people; `comparison_data` has the same figures, exact and each with its key, for machines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ttabench.core.emphasis import Bold
from ttabench.core.render import Cell, Table, number, size
from ttabench.report.compare import Block, Comparison
from ttabench.report.difference_tables import differences_table, legend, not_paired
from ttabench.report.entries import Entry, best_of, candidates, ceiling_of, floor_of
from ttabench.report.figures import plain, shown
from ttabench.report.pareto import front
from ttabench.report.shares import share

MOST_COLUMNS = 9
"""Of the table of all blocks; wider ones say no more than the blocks do."""


def comparison_tables(found: Comparison) -> list[Table]:
    """The tables in the order in which they are read."""
    tables = [overview(found.blocks)] if len(found.blocks) > 1 else []
    for block in found.blocks:
        tables.append(entries_table(block))
        if any(entry.steps for entry in block.entries):
            tables.append(steps_table(block))
        if block.differences:
            tables.append(differences_table(block))
    kept = [table for table in tables if table is not None]
    caption = "\n".join(part for part in (kept[-1].caption, legend(found)) if part)
    return [*kept[:-1], _captioned(kept[-1], caption)]


def _captioned(table: Table, caption: str) -> Table:
    return replace(table, caption=caption)


def overview(blocks: Sequence[Block]) -> Table | None:
    """The values alone, a line a method and a column a block, or the other way round where that is narrower.

    Where both are too many, a line a block with its floor, its ceiling and the best of the others.
    """
    labels = list(dict.fromkeys(entry.label for block in blocks for entry in block.entries))
    cells = {
        (entry.label, place): (Bold if _is_best(entry, block) else str)(plain(entry.metric, entry.value))
        for place, block in enumerate(blocks) for entry in block.entries
    }  # fmt: skip
    names = _headings(blocks)
    if len(labels) == 1:
        return None
    if min(len(labels), len(blocks)) >= MOST_COLUMNS:
        return _leaders(blocks, names)
    if len(blocks) <= len(labels):
        rows = [(label, *(cells.get((label, place), "") for place in range(len(blocks)))) for label in labels]
        return Table(title="All blocks", columns=("method", *(f"#{name}" for name in names)), rows=tuple(rows))
    rows = [(name, *(cells.get((label, place), "") for label in labels)) for place, name in enumerate(names)]
    return Table(title="All blocks", columns=("", *(f"#{label}" for label in labels)), rows=tuple(rows))


def _leaders(blocks: Sequence[Block], names: Sequence[str]) -> Table:
    rows = []
    for name, block in zip(names, blocks, strict=True):
        ends = [end(block.entries) for end in (floor_of, ceiling_of)]
        best = max(candidates(block.entries), key=lambda entry: entry.worth, default=None)
        told = [plain(entry.metric, entry.value) if entry else "" for entry in (*ends, best)]
        rows.append((name, *told, best.label if best else "", str(len(block.entries))))
    return Table(title="All blocks", columns=("", "#none", "#icl", "#best", "of", "#lines"), rows=tuple(rows))


def _headings(blocks: Sequence[Block]) -> list[str]:
    """As short as they tell the blocks apart."""
    places = [block.place for block in blocks]
    one_task = len({place.task for place in places}) == 1
    options = [place.brief.removeprefix(place.task).strip() for place in places]
    for names in (options if one_task else [], [place.brief for place in places]):
        if names and all(names) and len(set(names)) == len(names):
            return names
    return [place.name for place in places]


def _is_best(entry: Entry, block: Block) -> bool:
    return any(entry is best for best in best_of(block.entries))


def title_of(block: Block) -> str:
    """Where the block stands, and what all its entries have in common."""
    first = block.entries[0]
    common = [first.metric]
    if _alike(block, "n"):
        common.append(f"{first.n:,} {'query' if first.n == 1 else 'queries'}")
    if _alike(block, "seeds"):
        common.append(f"seed{'s' * (len(first.seeds) > 1)} {','.join(map(str, first.seeds))}")
    return f"{block.place.name}: {', '.join(common)}"


def _alike(block: Block, name: str) -> bool:
    return len({getattr(entry, name) for entry in block.entries}) == 1


def entries_table(block: Block) -> Table:
    """Quality beside cost; what all entries share stands in the title."""
    best, members = best_of(block.entries), front(block.entries)
    columns: dict[str, list[str]] = {"method": [entry.label for entry in block.entries]}
    columns[f"#{block.place.metric} ± stderr"] = [
        (Bold if any(entry is each for each in best) else str)(shown(entry.metric, entry.value, entry.stderr))
        for entry in block.entries
    ]
    if not _alike(block, "n"):
        columns["#n"] = [f"{entry.n:,}" for entry in block.entries]
    if not _alike(block, "seeds"):
        columns["seeds"] = [",".join(map(str, entry.seeds)) for entry in block.entries]
    shares = [share(block, entry) for entry in block.entries]
    if any(each is not None for each in shares):
        columns["#of gap"] = ["" if each is None else f"{100 * each:.0f} %" for each in shares]
    columns["#state"] = [size(entry.costs["state_bytes"]) for entry in block.entries]
    columns["#ask ms"] = [number(entry.costs["ask_ms"], 1) for entry in block.entries]
    columns["#adapt s"] = [number(entry.costs["adapt_seconds"], 2) for entry in block.entries]
    if len(block.entries) > 1:
        columns["front"] = ["yes" if any(entry is each for each in members) else "" for entry in block.entries]
    rows = tuple(zip(*columns.values(), strict=True))
    return Table(
        title=title_of(block), columns=tuple(columns), rows=rows, caption=_remarks(block), names=("method",),
        spare=("#adapt s", "front", "#ask ms"),
    )  # fmt: skip


def _remarks(block: Block) -> str:
    """What is to be known of these entries."""
    machines = {entry.machine for entry in block.entries}
    timed = f"ask ms and adapt s are of {len(machines)} different machines." if len(machines) > 1 else ""
    return "\n".join(part for part in (not_paired(block), timed) if part)


def steps_table(block: Block) -> Table:
    """A column for each number of pieces observed before the query, or for each length."""
    entries = [entry for entry in block.entries if entry.steps]
    steps = sorted({step for entry in entries for step in entry.steps})
    rows = [
        (entry.label, *(shown(entry.metric, *entry.steps[step][:2]) if step in entry.steps else "" for step in steps))
        for entry in entries
    ]
    read = "up to so many tokens of each text" if entries[0].lengths else "by pieces observed before the query"
    title = f"{block.place.brief}: {block.place.metric} {read}"
    return Table(title=title, columns=("method", *(f"#{step}" for step in steps)), rows=tuple(rows))


def comparison_data(found: Comparison) -> list[Table]:
    """The tables `runs`, `steps`, `differences` and `unpaired`, each with exact figures."""
    runs: list[Mapping[str, Cell]] = []
    for block in found.blocks:
        best, members = best_of(block.entries), front(block.entries)
        for entry in block.entries:
            marks = {
                "share_of_gap": share(block, entry), "best": int(any(entry is each for each in best)),
                "pareto": int(any(entry is each for each in members)),
            }  # fmt: skip
            runs.append({**_data(entry), **marks})
    tables = {"runs": runs, "steps": _steps_data(found.entries)}
    tables["differences"] = [
        {"block": each.block, "left": each.left, "right": each.right, "task": each.task, "metric": each.metric,
         "value": each.value, "ci_low": each.ci_low, "ci_high": each.ci_high, "p": each.p, "p_holm": each.p_holm,
         "test": each.test, "detectable": each.detectable, "better": each.better, "worse": each.worse, "n": each.n,
         "units": each.units}
        for each in found.differences
    ]  # fmt: skip
    tables["unpaired"] = [
        {"block": each.block, "left": each.left, "right": each.right, "reason": each.reason} for each in found.unpaired
    ]
    return [Table(title=name, columns=(), rows=(), data=tuple(rows)) for name, rows in tables.items() if rows]


def _data(entry: Entry) -> dict[str, Cell]:
    return {
        "block": entry.block, "label": entry.label, "method": entry.method, "state_of": entry.state_of,
        "task": entry.task, "source": entry.source, "model": entry.model, "seeds": ",".join(map(str, entry.seeds)),
        "n": entry.n, "metric": entry.metric, "value": entry.value, "stderr": entry.stderr, **entry.costs,
        "runs": " ".join(entry.runs),
    }  # fmt: skip


def _steps_data(entries: Sequence[Entry]) -> list[Mapping[str, Cell]]:
    return [
        {"block": entry.block, "label": entry.label, "task": entry.task, "metric": entry.metric, "step": step,
         "value": value, "stderr": stderr, "n": n}
        for entry in entries
        for step, (value, stderr, n) in entry.steps.items()
    ]  # fmt: skip
