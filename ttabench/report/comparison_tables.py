"""What `ttabench compare` shows: a table of all blocks, and for each block its entries, its steps and its differences.

`comparison_tables` is for people; `comparison_data` has the same figures, exact and each with its key, for machines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ttabench.core.amounts import count, number, size
from ttabench.report.blocks import told
from ttabench.report.compare import Block, Comparison, Difference
from ttabench.report.difference_tables import differences_table, legend, not_paired
from ttabench.report.entries import Entry, best_of, ceiling_of, floor_of, running
from ttabench.report.figures import plain, shown
from ttabench.report.labels import natural
from ttabench.report.pareto import front, timed
from ttabench.report.shares import share, shown_share
from ttabench.report.submissions import file_called
from ttabench.terminal.table import Bold, Cell, Table

GLOSSARY = {
    "front": "Front: of lines under their own state, no other is at least as good in value, state and ask ms, and "
    "better in one.",
    "#of gap": "Of gap: the way from none (0 %) to icl (100 %).",
    "#trained": "Trained: parameters of the method that were trained before it read anything.",
}
"""Meanings of headings."""
OURS = "here"
"""Stands in the column `from` where other lines are from a submission."""
MOST_COLUMNS = 9
"""Of the table of all blocks; wider ones say no more than the blocks do."""


def comparison_tables(comparison: Comparison, *, summary: bool = False) -> list[Table]:
    """The tables in the order in which they are read; the first alone for a summary."""
    tables = [overview(comparison.blocks, alone=summary)] if len(comparison.blocks) > 1 else []
    for block in comparison.blocks:
        tables.append(entries_table(block))
        if any(entry.steps for entry in block.entries):
            tables.append(steps_table(block))
        if block.differences:
            tables.append(differences_table(block))
    kept = [table for table in tables if table is not None]
    if summary:
        return kept[:1]
    caption = "\n".join(part for part in (kept[-1].caption, legend(comparison)) if part)
    return [*kept[:-1], _captioned(kept[-1], caption)]


def _captioned(table: Table, caption: str) -> Table:
    return replace(table, caption=caption)


def overview(blocks: Sequence[Block], *, alone: bool = False) -> Table | None:
    """The values alone, a line a method and a column a block, or the other way round where that is narrower.

    Where both are too many, or a screen is too narrow, a line a block with its floor, its ceiling and the best of the
    others. None of a single line, whose blocks are as short, unless the table stands alone.
    """
    labels = labels_of(blocks)
    cells = {
        (entry.label, place): (Bold if _is_best(entry, block) else str)(plain(entry.metric, entry.value))
        for place, block in enumerate(blocks) for entry in block.entries
    }  # fmt: skip
    title, names = headings(blocks)
    if len(labels) == 1 and not alone:
        return None
    least = _leaders(blocks, title, names)
    if min(len(labels), len(blocks)) >= MOST_COLUMNS:
        return least
    if len(blocks) <= len(labels):
        rows = [(label, *(cells.get((label, place), "") for place in range(len(blocks)))) for label in labels]
        columns = ("method", *(f"#{name}" for name in names))
    else:
        rows = [(name, *(cells.get((label, place), "") for label in labels)) for place, name in enumerate(names)]
        columns = ("", *(f"#{label}" for label in labels))
    return Table(title=title, columns=columns, rows=tuple(rows), names=columns[:1], narrower=least)


def labels_of(blocks: Sequence[Block]) -> list[str]:
    """All of them, each once; those of one method together."""
    entries = [entry for block in blocks for entry in block.entries]
    methods = list(dict.fromkeys(entry.method for entry in entries))
    ordered = sorted(entries, key=lambda entry: (methods.index(entry.method), natural(entry.label)))
    return list(dict.fromkeys(entry.label for entry in ordered))


def _leaders(blocks: Sequence[Block], title: str, names: Sequence[str]) -> Table:
    rows = []
    for name, block in zip(names, blocks, strict=True):
        ends = [end(block.entries) for end in (floor_of, ceiling_of)]
        best = max(running(block.entries), key=lambda entry: entry.worth, default=None)
        values = [plain(entry.metric, entry.value) if entry else "" for entry in (*ends, best)]
        rows.append((name, *values, best.label if best else "", str(len(block.entries))))
    columns = ("", "#none", "#icl", "#best", "of", "#lines")
    return Table(title=title, columns=columns, rows=tuple(rows), spare=("#lines",))


def headings(blocks: Sequence[Block]) -> tuple[str, list[str]]:
    """A title, and names of the blocks: as short as they tell them apart."""
    places = [block.place for block in blocks]
    keys = {key for place in places for key in place.options}
    one_task = len({(place.task, place.metric) for place in places}) == 1
    values = [told(value) for place in places for value in place.options.values()]
    if one_task and len(keys) == 1 and len(set(values)) == len(places):
        return f"{places[0].task}: {places[0].metric} by {keys.pop()}", values
    options = [place.brief.removeprefix(place.task).strip() for place in places]
    for names in (options if one_task else [], [place.brief for place in places]):
        if names and all(names) and len(set(names)) == len(names):
            return "All blocks", names
    return "All blocks", [place.name for place in places]


def origin(entry: Entry) -> str:
    """Cell of the column `from`: the file of a submission, or that the runs lie here."""
    return file_called(entry.theirs) if entry.theirs else OURS


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
    columns: dict[str, list[str]] = {"method": [entry.marked for entry in block.entries]}
    if any(entry.theirs for entry in block.entries):
        columns["from"] = [origin(entry) for entry in block.entries]
    columns[f"#{block.place.metric} ± stderr"] = [
        (Bold if any(entry is line for line in best) else str)(shown(entry.metric, entry.value, entry.stderr))
        for entry in block.entries
    ]
    if not _alike(block, "n"):
        columns["#n"] = [f"{entry.n:,}" for entry in block.entries]
    if not _alike(block, "seeds"):
        columns["seeds"] = [",".join(map(str, entry.seeds)) for entry in block.entries]
    shares = [share(block, entry) for entry in block.entries]
    if any(line is not None for line in shares):
        columns["#of gap"] = [shown_share(line) for line in shares]
    if any(entry.trained for entry in block.entries):
        columns["#trained"] = [count(entry.trained) for entry in block.entries]
    columns["#state"] = [size(entry.costs["state_bytes"]) for entry in block.entries]
    columns["#ask ms"] = [_time(entry, "ask_ms", 1) for entry in block.entries]
    columns["#adapt s"] = [_time(entry, "adapt_seconds", 2) for entry in block.entries]
    if len(block.entries) > 1:
        columns["front"] = ["yes" if any(entry is member for member in members) else "" for entry in block.entries]
    rows = tuple(zip(*columns.values(), strict=True))
    return Table(
        title=title_of(block), columns=tuple(columns), rows=rows, caption=_remarks(block), names=("method",),
        spare=("#trained", "#adapt s", "front", "#ask ms"), glossary=GLOSSARY,
    )  # fmt: skip


def _time(entry: Entry, cost: str, digits: int) -> str:
    """With a mark where other programs computed meanwhile."""
    return ("~" if entry.busy else "") + number(entry.costs[cost], digits)


def _remarks(block: Block) -> str:
    """Remarks on these entries."""
    machines = {entry.machine for entry in block.entries}
    sentences = [not_paired(block)]
    if len(machines) > 1:
        sentences.append(f"ask ms and adapt s are of {len(machines)} different machines.")
    if busy := [entry.load for entry in block.entries if entry.busy and entry.load is not None]:
        low, high = (f"{load:.1f}" for load in (min(busy), max(busy)))
        others = low if low == high else f"{low} to {high}"
        sentences.append(f"~ other programs took {others} processors while it ran: its ms and s are too large.")
    if len(block.entries) > 1 and not timed(block.entries):
        sentences.append("Front: of value and state alone here, without ask ms.")
    return "\n".join(filter(None, sentences))


def steps_table(block: Block) -> Table:
    """A column for each number of pieces observed before the query, or for each length or distance."""
    entries = [entry for entry in block.entries if entry.steps]
    steps = sorted({step for entry in entries for step in entry.steps})
    rows = [
        (entry.label, *(shown(entry.metric, *entry.steps[step][:2]) if step in entry.steps else "" for step in steps))
        for entry in entries
    ]
    title = f"{block.place.brief}: {block.place.metric} {entries[0].step.by}"
    return Table(title=title, columns=("method", *(f"#{step}" for step in steps)), rows=tuple(rows))


def comparison_data(comparison: Comparison) -> list[Table]:
    """The tables `runs`, `steps`, `differences`, `overall`, `set_aside` and `unpaired`, with exact figures."""
    runs: list[Mapping[str, Cell]] = []
    for block in comparison.blocks:
        best, members = best_of(block.entries), front(block.entries)
        for entry in block.entries:
            marks = {
                "share_of_gap": share(block, entry), "best": int(any(entry is best_entry for best_entry in best)),
                "pareto": int(any(entry is member for member in members)),
            }  # fmt: skip
            runs.append({**_data(entry), **marks})
    tables = {"runs": runs, "steps": _steps_data(comparison.entries)}
    tables["differences"] = [_difference(difference) for difference in comparison.differences]
    tables["overall"] = [{**_difference(difference), "blocks": difference.blocks} for difference in comparison.overall]
    tables["set_aside"] = [
        {
            "block": set_aside.block,
            "label": set_aside.label,
            "kind": set_aside.kind,
            "reason": set_aside.reason,
            "runs": " ".join(set_aside.runs),
        }
        for set_aside in comparison.aside
    ]
    tables["unpaired"] = [
        {"block": unpaired.block, "left": unpaired.left, "right": unpaired.right, "reason": unpaired.reason}
        for unpaired in comparison.unpaired
    ]
    return [Table(title=name, columns=(), rows=(), data=tuple(rows)) for name, rows in tables.items() if rows]


def _difference(apart: Difference) -> dict[str, Cell]:
    return {
        "block": apart.block, "left": apart.left, "right": apart.right, "task": apart.task, "metric": apart.metric,
        "value": apart.value, "ci_low": apart.ci_low, "ci_high": apart.ci_high, "p": apart.p, "p_holm": apart.p_holm,
        "family": apart.family, "tests": apart.tests, "test": apart.test, "stderr": apart.stderr,
        "detectable": apart.detectable, "better": apart.better, "worse": apart.worse, "n": apart.n,
        "units": apart.units,
    }  # fmt: skip


def _data(entry: Entry) -> dict[str, Cell]:
    return {
        "block": entry.block, "label": entry.label, "method": entry.method, "state_of": entry.state_of,
        "task": entry.task, "source": entry.source, "model": entry.model, "seeds": ",".join(map(str, entry.seeds)),
        "n": entry.n, "metric": entry.metric, "value": entry.value, "stderr": entry.stderr, **entry.costs,
        "trained_parameters": entry.trained,
        "runs": " ".join(entry.runs), "from": file_called(entry.theirs) if entry.theirs else "",
    }  # fmt: skip


def _steps_data(entries: Sequence[Entry]) -> list[Mapping[str, Cell]]:
    return [
        {"block": entry.block, "label": entry.label, "task": entry.task, "metric": entry.metric, "step": step,
         "value": value, "stderr": stderr, "n": n}
        for entry in entries
        for step, (value, stderr, n) in entry.steps.items()
    ]  # fmt: skip
