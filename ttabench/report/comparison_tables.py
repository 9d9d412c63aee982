"""What `ttabench compare` shows: a table of all blocks, and for each block its entries, its steps and its differences.

`comparison_tables` is for people; `comparison_data` has the same figures, exact and each with its key, for machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations

from ttabench.core.amounts import count, number, size
from ttabench.report.blocks import CEILING, FLOOR, called, natural
from ttabench.report.compare import Block, Comparison, share
from ttabench.report.differences import paired
from ttabench.report.entries import Entry, best_of, end_of, front, plain, probability, running, shown
from ttabench.report.verdict import ACROSS, MANY, PLURALS
from ttabench.run.budget import asked_of, told_kept
from ttabench.terminal.table import Bold, Cell, Table

GLOSSARY = {
    "front": "Front: no other line is at least as good in value and state, and better in one; controls are none.",
    "#ask ms": "Ask ms, adapt s: by the clock, whatever else the machine computed; `ttabench profile` measures.",
    "#kept": "Kept: bytes of the state, or of what a question reads where that is more, of those of full context's "
    "keys and values.",
    "#of gap": "Of gap: the way from none (0 %) to icl (100 %).",
    "#trained": "Trained: parameters of the method that were trained before it read anything.",
    "#Holm": "Holm: p adjusted for all tests of its family, shown or not (against none; against icl; icl against none; "
    "states of one method; all others); bold below 0.05.",
    "#better / worse": "Better / worse: queries on which left is better, and worse.",
}
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
    return kept[:1] if summary else kept


def overview(blocks: Sequence[Block], *, alone: bool = False) -> Table | None:
    """The values alone, a line a method and a column a block, or the other way round where that is narrower. Where both
    are too many, a line a block with its floor, its ceiling and the best of the others. None of a single line, whose
    blocks are as short, unless the table stands alone."""
    entries = [entry for block in blocks for entry in block.entries]
    methods = list(dict.fromkeys(entry.method for entry in entries))
    ordered = sorted(entries, key=lambda entry: (methods.index(entry.method), natural(entry.label)))
    labels = list(dict.fromkeys(entry.label for entry in ordered))
    cells = {
        (entry.label, place): _bold(entry in best_of(block.entries), plain(entry.metric, entry.value))
        for place, block in enumerate(blocks) for entry in block.entries
    }  # fmt: skip
    names = [called(block.place, [other.place for other in blocks]) for block in blocks]
    if len(labels) == 1 and not alone:
        return None
    if min(len(labels), len(blocks)) >= MOST_COLUMNS:
        return _leaders(blocks, names)
    if len(blocks) <= len(labels):
        rows = [(label, *(cells.get((label, place), "") for place in range(len(blocks)))) for label in labels]
        columns = ("method", *(f"#{name}" for name in names))
    else:
        rows = [(name, *(cells.get((label, place), "") for label in labels)) for place, name in enumerate(names)]
        columns = ("", *(f"#{label}" for label in labels))
    return Table(title="All blocks", columns=columns, rows=tuple(rows), names=columns[:1])


def _bold(strong: bool, text: str) -> str:
    return Bold(text) if strong else text


def _leaders(blocks: Sequence[Block], names: Sequence[str]) -> Table:
    rows = []
    for name, block in zip(names, blocks, strict=True):
        best = max(running(block.entries), key=lambda entry: entry.worth, default=None)
        lines = (end_of(block.entries, FLOOR), end_of(block.entries, CEILING), best)
        values = [plain(entry.metric, entry.value) if entry else "" for entry in lines]
        rows.append((name, *values, best.label if best else "", str(len(block.entries))))
    columns = ("", "#none", "#icl", "#best", "best method", "#lines")
    return Table(title="All blocks", columns=columns, rows=tuple(rows), spare=("#lines",))


def title_of(block: Block) -> str:
    """Where the block stands, and what all its entries have in common."""
    first = block.entries[0]
    common = [first.metric]
    if _same(entry.n for entry in block.entries):
        common.append(f"{first.n:,} {'query' if first.n == 1 else 'queries'}")
    if _same(seeds := [entry.seeds for entry in block.entries]):
        common.append(f"seed{'s' * (len(seeds[0]) > 1)} {','.join(map(str, seeds[0]))}")
    return f"{block.place.name}: {', '.join(common)}"


def _same(values: Iterable[object]) -> bool:
    return len({*values}) == 1


def entries_table(block: Block, *, every: bool = False) -> Table:
    """Quality beside cost; what all entries share stands in the title, unless every column is wanted."""
    entries = block.entries
    best, members, shares = best_of(entries), front(entries), [share(block, entry) for entry in entries]
    seeds = [entry.seeds for entry in entries]

    columns: dict[str, tuple[bool, list[str]]] = {  # whether it is shown, and its cells
        "method": (True, [entry.marked for entry in entries]),
        f"#{block.place.metric} ± stderr": (True, [
            _bold(entry in best, shown(entry.metric, entry.value, entry.stderr)) for entry in entries
        ]),
        "#n": (not _same(entry.n for entry in entries), [f"{entry.n:,}" for entry in entries]),
        "seeds": (not _same(seeds), [",".join(map(str, own)) for own in seeds]),
        "#of gap": (any(part is not None for part in shares),
                    ["" if part is None else f"{100 * part:.0f} %" for part in shares]),
        "#trained": (any(entry.untrained or _trained(entry) for entry in entries),
                     ["untrained" if entry.untrained else count(_trained(entry)) for entry in entries]),
        "#state": (True, [size(entry.costs["state_bytes"]) for entry in entries]),
        "#kept": (any(entry.costs["kept_share"] is not None for entry in entries),
                  [told_kept(entry.costs["kept_share"], asked_of(entry.record.config)) for entry in entries]),
        "#ask ms": (True, [number(entry.costs["ask_ms"], 1) for entry in entries]),
        "#adapt s": (True, [number(entry.costs["adapt_seconds"], 2) for entry in entries]),
        "#peak memory": (False, [size(entry.costs["peak_memory_bytes"]) for entry in entries]),
        "front": (len(entries) > 1, ["yes" if entry in members else "" for entry in entries]),
    }  # fmt: skip
    kept = {name: cells for name, (there, cells) in columns.items() if there or every}
    return Table(
        title=title_of(block), columns=tuple(kept), rows=tuple(zip(*kept.values(), strict=True)),
        caption=not_paired(block), names=("method",), spare=("#trained", "#adapt s", "front", "#ask ms"),
        glossary=GLOSSARY,
    )  # fmt: skip


def steps_table(block: Block) -> Table:
    """A column for each number of pieces observed before the query, or for each length or distance."""
    entries = [entry for entry in block.entries if entry.steps]
    steps = sorted({step for entry in entries for step in entry.steps})
    rows = [
        (entry.label, *(shown(entry.metric, *entry.steps[step][:2]) if step in entry.steps else "" for step in steps))
        for entry in entries
    ]
    title = f"{block.place.brief}: {block.place.metric} by {entries[0].step}"
    return Table(title=title, columns=("method", *(f"#{step}" for step in steps)), rows=tuple(rows))


def differences_table(block: Block) -> Table:
    """One line a pair; the tests that were made stand in the title."""
    pairs, unit = block.differences, block.entries[0].record.unit
    columns: dict[str, list[str]] = {
        "pair": [f"{one.left} − {one.right}" for one in pairs],
        "#difference [95 %]": [_bold(one.beyond_chance, one.shown) for one in pairs],
        "#p": [probability(one.p) for one in pairs],
        "#Holm": [probability(one.p_holm) for one in pairs],
        "#better / worse": ["-" if one.better is None else f"{one.better:,} / {one.worse:,}" for one in pairs],
        "#n": [f"{one.n:,}" for one in pairs],
    }
    for word in dict.fromkeys(one.unit for one in pairs if one.unit != "query" or one.units != one.n):
        columns[f"#{PLURALS[word]}"] = [f"{one.units:,}" if one.unit == word else "" for one in pairs]
    if any(one.across for one in pairs):
        columns[f"#{ACROSS[unit]}"] = [f"{one.across:,}" for one in pairs]
    title = "; ".join([f"{block.place.brief}: differences", *sorted({one.test for one in pairs if one.test})])
    return Table(
        title=title, columns=tuple(columns), rows=tuple(zip(*columns.values(), strict=True)),
        spare=("#better / worse", "#p"), glossary=GLOSSARY,
    )  # fmt: skip


def not_paired(block: Block) -> str:
    """The pairs without a difference; empty where there are none."""
    pairs, tested = list(combinations(range(len(block.entries)), 2)), {*paired(block.entries)}
    names = [" − ".join(block.entries[place].label for place in pair) for pair in pairs if pair not in tested]
    told = "; ".join(names) if len(names) <= MANY else f"{len(names)} of {len(pairs)} pairs"
    return f"Not tested, for no query was asked of both in the same words: {told}." if names else ""


def comparison_data(comparison: Comparison) -> list[Table]:
    """The tables `runs`, `steps`, `differences`, `overall` and `set_aside`, with exact figures."""
    runs: list[Mapping[str, Cell]] = []
    for block in comparison.blocks:
        best, members = best_of(block.entries), front(block.entries)
        for entry in block.entries:
            marks = {"best": int(entry in best), "pareto": int(entry in members)}
            runs.append({**_data(entry), "share_of_gap": share(block, entry), **marks})
    tables: dict[str, Sequence[Mapping[str, Cell]]] = {
        "runs": runs,
        "steps": [
            {"block": entry.place.name, "label": entry.label, "task": entry.place.task, "metric": entry.metric,
             "step": step, "value": value, "stderr": stderr, "n": n}
            for entry in comparison.entries for step, (value, stderr, n) in entry.steps.items()
        ],
        "differences": list(map(asdict, comparison.differences)),
        "overall": list(map(asdict, comparison.overall)),
        "set_aside": [
            {"block": entry.place.brief, "label": entry.label, "reason": entry.aside, "runs": " ".join(entry.ids)}
            for entry in comparison.aside
        ],
    }  # fmt: skip
    return [Table(title=name, columns=(), rows=(), data=tuple(rows)) for name, rows in tables.items() if rows]


def _data(entry: Entry) -> dict[str, Cell]:
    place = entry.place
    return {
        "block": place.name, "label": entry.label, "method": entry.method, "state_of": entry.state_of,
        "task": place.task, "source": entry.record.source, "model": place.model,
        "seeds": ",".join(map(str, entry.seeds)), "n": entry.n, "metric": entry.metric, "value": entry.value,
        "stderr": entry.stderr, **entry.costs, "trained_parameters": _trained(entry),
        "untrained": int(entry.untrained), "runs": " ".join(entry.ids),
        "from": entry.theirs,
    }  # fmt: skip


def _trained(entry: Entry) -> int:
    """Parameters of its method that were trained before it read anything."""
    return 0 if entry.untrained else int(entry.record.method.get("parameters") or 0)
