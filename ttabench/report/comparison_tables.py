"""What `ttabench compare` shows: a table of all blocks, and for each block its entries, its steps and its differences;
and in what runs differ (--diff).

`comparison_tables` is for people; `comparison_data` has the same figures, exact and each with its key, for machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ttabench.core.amounts import count, number, size
from ttabench.core.types import Json
from ttabench.records.schema import RunRecord
from ttabench.report.blocks import called, natural, told
from ttabench.report.compare import Block, Comparison, share, shown_share
from ttabench.report.configuration import with_defaults
from ttabench.report.differences import Difference
from ttabench.report.entries import Entry, best_of, ceiling_of, floor_of, front, running, timed
from ttabench.report.figures import plain, probability, shown, with_interval
from ttabench.report.finding import file_called
from ttabench.report.pairing import seed_of
from ttabench.report.phrases import ACROSS, MANY, lone
from ttabench.run.budget import asked_of, told_kept
from ttabench.stats.estimate import SIGN
from ttabench.terminal.table import Bold, Cell, Table

GLOSSARY = {
    "front": "Front: of lines under their own state, no other is at least as good in value, state and ask ms, and "
    "better in one.",
    "#kept": "Kept: bytes of the state, or of what a question reads where that is more, of those of full context's "
    "keys and values.",
    "#of gap": "Of gap: the way from none (0 %) to icl (100 %).",
    "#trained": "Trained: parameters of the method that were trained before it read anything.",
    "#Holm": "Holm: p adjusted for all tests of its family, shown or not (against none; against icl; icl against none; "
    "states of one method; all others); bold below 0.05.",
    "#detectable": "Detectable: a true difference of this size is found 4 times in 5 (80 % power).",
    "#better / worse": "Better / worse: queries on which left is better, and worse.",
}
OURS = "here"
"""Stands in the column `from` where other lines are from a submission."""
MOST_COLUMNS = 9
"""Of the table of all blocks; wider ones say no more than the blocks do."""
BY_SEED = ("rows", "others")
"""Inputs that every seed has its own of."""


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
    return [*kept[:-1], replace(kept[-1], caption=caption)]


def overview(blocks: Sequence[Block], *, alone: bool = False) -> Table | None:
    """The values alone, a line a method and a column a block, or the other way round where that is narrower. Where both
    are too many, a line a block with its floor, its ceiling and the best of the others. None
    of a single line, whose blocks are as short, unless the table stands alone."""
    labels = every_label(blocks)
    cells = {
        (entry.label, place): _bold(entry in best_of(block.entries), plain(entry.metric, entry.value))
        for place, block in enumerate(blocks) for entry in block.entries
    }  # fmt: skip
    title, names = headings(blocks)
    if len(labels) == 1 and not alone:
        return None
    if min(len(labels), len(blocks)) >= MOST_COLUMNS:
        return _leaders(blocks, title, names)
    if len(blocks) <= len(labels):
        rows = [(label, *(cells.get((label, place), "") for place in range(len(blocks)))) for label in labels]
        columns = ("method", *(f"#{name}" for name in names))
    else:
        rows = [(name, *(cells.get((label, place), "") for label in labels)) for place, name in enumerate(names)]
        columns = ("", *(f"#{label}" for label in labels))
    return Table(title=title, columns=columns, rows=tuple(rows), names=columns[:1])


def _bold(strong: bool, text: str) -> str:
    return Bold(text) if strong else text


def every_label(blocks: Sequence[Block]) -> list[str]:
    """The labels of all lines, each once; those of one method together."""
    entries = [entry for block in blocks for entry in block.entries]
    methods = list(dict.fromkeys(entry.method for entry in entries))
    ordered = sorted(entries, key=lambda entry: (methods.index(entry.method), natural(entry.label)))
    return list(dict.fromkeys(entry.label for entry in ordered))


def _leaders(blocks: Sequence[Block], title: str, names: Sequence[str]) -> Table:
    rows = []
    for name, block in zip(names, blocks, strict=True):
        best = max(running(block.entries), key=lambda entry: entry.worth, default=None)
        lines = (floor_of(block.entries), ceiling_of(block.entries), best)
        values = [plain(entry.metric, entry.value) if entry else "" for entry in lines]
        rows.append((name, *values, best.label if best else "", str(len(block.entries))))
    columns = ("", "#none", "#icl", "#best", "of", "#lines")
    return Table(title=title, columns=columns, rows=tuple(rows), spare=("#lines",))


def headings(blocks: Sequence[Block]) -> tuple[str, list[str]]:
    """A title, and names of the blocks: as short as they tell them apart."""
    places = [block.place for block in blocks]
    keys = {key for place in places for key in place.options}
    values = [told(value) for place in places for value in place.options.values()]
    if len({(place.task, place.metric) for place in places}) == len(keys) == 1 and len(set(values)) == len(places):
        return f"{places[0].task}: {places[0].metric} by {keys.pop()}", values
    return "All blocks", [called(place, places) for place in places]


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

    def time(entry: Entry, cost: str, digits: int) -> str:  # with a mark where other programs ran meanwhile
        return ("~" if entry.busy else "") + number(entry.costs[cost], digits)

    columns: dict[str, tuple[bool, list[str]]] = {  # whether it is shown, and its cells
        "method": (True, [entry.marked for entry in entries]),
        "from": (any(entry.theirs for entry in entries),
                 [file_called(entry.theirs) if entry.theirs else OURS for entry in entries]),
        f"#{block.place.metric} ± stderr": (True, [
            _bold(entry in best, shown(entry.metric, entry.value, entry.stderr)) for entry in entries
        ]),
        "#n": (not _same(entry.n for entry in entries), [f"{entry.n:,}" for entry in entries]),
        "seeds": (not _same(seeds), [",".join(map(str, own)) for own in seeds]),
        "#of gap": (any(part is not None for part in shares), list(map(shown_share, shares))),
        "#trained": (any(map(_trained, entries)), [count(_trained(entry)) for entry in entries]),
        "#state": (True, [size(entry.costs["state_bytes"]) for entry in entries]),
        "#kept": (any(entry.costs["kept_share"] is not None for entry in entries),
                  [told_kept(entry.costs["kept_share"], asked_of(entry.record.config)) for entry in entries]),
        "#ask ms": (True, [time(entry, "ask_ms", 1) for entry in entries]),
        "#adapt s": (True, [time(entry, "adapt_seconds", 2) for entry in entries]),
        "#peak memory": (False, [size(entry.costs["peak_memory_bytes"]) for entry in entries]),
        "front": (len(entries) > 1, ["yes" if entry in members else "" for entry in entries]),
    }  # fmt: skip
    kept = {name: cells for name, (there, cells) in columns.items() if there or (every and name != "from")}
    return Table(
        title=title_of(block), columns=tuple(kept), rows=tuple(zip(*kept.values(), strict=True)),
        caption=_remarks(block), names=("method",), spare=("#trained", "#adapt s", "front", "#ask ms"),
        glossary=GLOSSARY,
    )  # fmt: skip


def _remarks(block: Block) -> str:
    """Remarks on these entries."""
    machines = {entry.machine for entry in block.entries}
    sentences = [not_paired(block)]
    if len(machines) > 1:
        sentences.append(f"ask ms and adapt s are of {len(machines)} different machines.")
    if any(entry.busy for entry in block.entries):
        sentences.append("~ other programs ran meanwhile: its ms and s are too large.")
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
    title = f"{block.place.brief}: {block.place.metric} by {entries[0].step}"
    return Table(title=title, columns=("method", *(f"#{step}" for step in steps)), rows=tuple(rows))


def differences_table(block: Block) -> Table:
    """One line a pair; what all pairs share stands in the title."""
    pairs, word = block.differences, block.entries[0].record.unit
    columns: dict[str, list[str]] = {
        "pair": [f"{one.left} − {one.right}" for one in pairs],
        "#difference [95 %]": [
            _bold(one.beyond_chance, with_interval(one.metric, one.value, one.ci_low, one.ci_high)) for one in pairs
        ],
        "#p": [probability(one.p) for one in pairs],
        "#Holm": [probability(one.p_holm) for one in pairs],
        "#detectable": [plain(one.metric, one.detectable) for one in pairs],
        "#better / worse": ["-" if one.better is None else f"{one.better:,} / {one.worse:,}" for one in pairs],
    }
    over = ""
    if len({(one.n, one.units) for one in pairs}) == 1:
        first = pairs[0]
        of = [f"{first.units:,} {word}{'s' * (first.units > 1)}"] * (first.units != first.n and word != "query")
        of += [f"{first.across:,} {ACROSS[word]}"] if first.across else []
        queries = f"{first.n:,} common {'query' if first.n == 1 else 'queries'}"
        over = f" over {queries}{' of ' * bool(of)}{' and '.join(of)}"
    else:
        columns["#n"] = [f"{one.n:,}" for one in pairs]
        columns["#queries" if word == "query" else f"#{word}s"] = [f"{one.units:,}" for one in pairs]
    title = "; ".join([f"{block.place.brief}: differences{over}", *sorted({one.test for one in pairs if one.test})])
    alone = f"One {word} only: queries stand for themselves, and errors are too small. Run more seeds."
    return Table(
        title=title, columns=tuple(columns), rows=tuple(zip(*columns.values(), strict=True)),
        caption=alone if lone(block) else "", spare=("#detectable", "#better / worse", "#p"), glossary=GLOSSARY,
    )  # fmt: skip


def not_paired(block: Block) -> str:
    """The pairs without a difference, by reason."""
    reasons: dict[str, list[str]] = {}
    for unpaired in block.unpaired:
        reasons.setdefault(unpaired.reason, []).append(f"{unpaired.left} − {unpaired.right}")
    pairs = len(block.entries) * (len(block.entries) - 1) // 2
    return "\n".join(
        f"Not tested ({reason}): {'; '.join(names) if len(names) <= MANY else f'{len(names)} of {pairs} pairs'}."
        for reason, names in reasons.items()
    )


def legend(comparison: Comparison) -> str:
    """How the tables are read, beside what their headings mean: only what stands in them."""
    sentences = []
    if any("McNemar" in difference.test for difference in comparison.differences):
        sentences.append("McNemar: p is exact, intervals are Bonett and Price's; near 0.05 they may disagree.")
    if any(difference.test == SIGN for difference in comparison.differences):
        sentences.append("Sign test: all that varies differs alike, so there is no interval.")
    if any(entry.state_of == "other" for entry in comparison.entries):
        sentences.append(
            "Own state − another's is memory of the context; another's − none is what any such context gives."
        )
    return "\n".join(sentences)


def comparison_data(comparison: Comparison) -> list[Table]:
    """The tables `runs`, `steps`, `differences`, `overall`, `set_aside` and `unpaired`, with exact figures."""
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
        "differences": [_picked(one, DIFFERENCE) for one in comparison.differences],
        "overall": [_picked(one, f"{DIFFERENCE} blocks") for one in comparison.overall],
        "set_aside": [
            {"block": entry.place.brief, "label": entry.label, "kind": entry.aside, "reason": entry.reason,
             "runs": " ".join(entry.ids)}
            for entry in comparison.aside
        ],
        "unpaired": [pair._asdict() for pair in comparison.unpaired],
    }  # fmt: skip
    return [Table(title=name, columns=(), rows=(), data=tuple(rows)) for name, rows in tables.items() if rows]


DIFFERENCE = (
    "block left right task metric value ci_low ci_high p p_holm family tests test stderr detectable better worse n "
    "units"
)


def _picked(one: Difference, names: str) -> dict[str, Cell]:
    return {name: getattr(one, name) for name in names.split()}


def _data(entry: Entry) -> dict[str, Cell]:
    place = entry.place
    return {
        "block": place.name, "label": entry.label, "method": entry.method, "state_of": entry.state_of,
        "task": place.task, "source": entry.record.source, "model": place.model,
        "seeds": ",".join(map(str, entry.seeds)), "n": entry.n, "metric": entry.metric, "value": entry.value,
        "stderr": entry.stderr, **entry.costs, "trained_parameters": _trained(entry), "runs": " ".join(entry.ids),
        "from": file_called(entry.theirs) if entry.theirs else "",
    }  # fmt: skip


def _trained(entry: Entry) -> int:
    """Parameters of its method that were trained before it read anything."""
    return int(entry.record.method.get("parameters") or 0)


def differing(comparison: Comparison) -> Table:
    """One line a value: `task_options.documents | 16 | none, icl`; of each setting among the runs that have it."""
    values: dict[str, dict[str, dict[str, str]]] = {}
    for block in comparison.blocks:
        for entry in block.entries:
            label = f"{entry.label} on {block.place.brief}" if len(comparison.blocks) > 1 else entry.label
            for record in entry.records:
                for key, value in _flat(record):
                    values.setdefault(key, {}).setdefault(told(value), {})[record.id] = label
    rows, data = [], []
    for key in sorted(key for key, alike in values.items() if len(alike) > 1):
        for value, having in values[key].items():
            labels = list(dict.fromkeys(having.values()))
            more = f" and {len(labels) - MANY} more" if len(labels) > MANY else ""
            rows.append((key, value or "-", ", ".join(labels[:MANY]) + more))
            data.append({"setting": key, "value": value, "runs": " ".join(having)})
    caption = "" if rows else "The runs differ in method, task and seed alone."
    return Table(title="settings that differ", columns=("setting", "value", "of"), rows=tuple(rows), data=tuple(data),
                 caption=caption)  # fmt: skip


def _flat(record: RunRecord) -> Iterator[tuple[str, Json]]:
    for key, value in with_defaults(record.config).items():
        if isinstance(value, dict):
            for inner, item in value.items():
                by_seed = f" of seed {seed_of(record)}" if key == "inputs" and inner in BY_SEED else ""
                yield f"{key}.{inner}{by_seed}", item
        elif key not in ("verb", "seed", "method", "task"):
            yield key, value
    yield from ((f"versions.{name}", version) for name, version in record.versions.items())
    yield from (
        (f"hardware.{key}", value) for key, value in record.hardware.items() if key in ("cpu", "gpu", "threads")
    )
