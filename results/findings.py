"""Small tables of docs/results.md and its appendices, computed from the stored runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import grids
from english import HERE
from english_cells import TOGETHER
from english_keep import AT, COLUMNS, measured
from english_tables import figure, gained, runs_of
from grids import table

from ttabench.core.amounts import format_number
from ttabench.report.stored import StoredRun

METHODS = (
    "none",
    "icl",
    "kvzip",
    "attention_matching",
    "rag",
    "h2o",
    "snapkv",
    "random_slots",
    "qttt",
    "templora",
    "cartridge",
)
COMPARED = ("kvzip", "attention_matching", "rag")
SETTINGS = {
    f"SmolLM2, {COLUMNS[0]}": ("keep", COLUMNS[0]),
    f"SmolLM2, {COLUMNS[1]}": ("keep", COLUMNS[1]),
    f"SmolLM2, {COLUMNS[2]}": ("keep", COLUMNS[2]),
    f"Gemma 3, {COLUMNS[0]}": ("keep-gemma", COLUMNS[0]),
}
"""Suite and column of results/english, by column header."""
CONTINUED = {"dialogues": "keep-dialogues", "books": "keep-books"}
EVICTING = ("attention_matching", "kvzip", "snapkv", "window", "random_slots")
SWAPPED, EMPTY = " (swapped state)", " (empty state)"


class Memory(NamedTuple):
    """Configuration with scores under its own, a swapped and an empty state."""

    name: str
    suite: str
    line: str


MEMORIES = (
    Memory("`icl` on dialogues", "dailydialog", "icl"),
    Memory("`ccm`, 2 slots per turn, dialogues", "ccm-dialogues", "ccm concat"),
    Memory("`ccm`, 2 slots in all, dialogues", "ccm-dialogues", "ccm merge"),
    Memory("`ccm` on books", "ccm-books", "ccm"),
    Memory("`streamadapter` on books", "pg19-256", "streamadapter"),
    Memory("`generative_adapter` on books", "generated-books", "generative_adapter"),
)


def tables() -> dict[str, str]:
    """Return the tables of real text by their marker in docs/results.md."""
    return {
        "equal-memory": equal_memory(),
        "larger-contexts": larger_contexts(),
        "combinations": combinations(),
        "continued-text": continued_text(),
        "memory": memories(),
    }


def equal_memory() -> str:
    """Compare all methods on paragraphs at a fifth of the cache."""
    runs, rows = _column("keep", COLUMNS[0]), []
    for name in METHODS:
        line = name if name in runs else f"{name} {AT}"
        lost, loss, kept, seconds = measured(runs, line)
        rows.append((f"`{name}`", figure(runs[line]), lost, loss.partition(" ")[0], kept, seconds))
    head = (
        "method",
        "F1 (%)",
        "F1 lost vs. icl [95 %]",
        "NLL (nats/token)",
        "kept (% of bytes)",
        "CPU s",
    )
    return table(head, rows, 1)


def larger_contexts() -> str:
    """Compare F1 lost vs. full context at a fifth of the cache, for more documents and another model."""
    cells = {head: _column(suite, column) for head, (suite, column) in SETTINGS.items()}
    rows = [
        (f"`{name}`", *(measured(runs, f"{name} {AT}")[0] for runs in cells.values()))
        for name in COMPARED
    ]
    return table(("F1 lost vs. icl [95 %]", *cells), rows, 1)


def continued_text() -> str:
    """Compare the perplexity of the next turn or chunk when a fifth or half of the cache is kept."""
    columns, rows = {}, []
    for text, suite in CONTINUED.items():
        for share in (AT, "50 %"):
            columns[f"{text} at {share}"] = _column(suite, ""), share
    for name in EVICTING:
        cells = [
            _difference(runs[f"{name} {share}"], runs["icl"]) for runs, share in columns.values()
        ]
        rows.append((f"`{name}`", *cells))
    cells = [_difference(runs["none"], runs["icl"]) for runs, _ in columns.values()]
    return table(("perplexity above icl [95 %]", *columns), [("`none`", *cells), *rows], 1)


def combinations() -> str:
    """Compare each combination of two methods with `kvzip` alone at the same budget."""
    runs, alone = _column("keep", COLUMNS[0]), f"kvzip {AT}"
    pairs = [pair for pair in TOGETHER if pair in runs]
    rows = [
        (f"`{pair}`", figure(runs[pair]), _difference(runs[pair], runs[alone], 100))
        for pair in pairs
    ]
    return table(("combination", "F1 (%)", f"F1 gained vs. {alone} [95 %]"), rows, 1)


def memories() -> str:
    """Compare perplexities under the own, a swapped and an empty state."""
    rows = []
    for name, suite, line in MEMORIES:
        runs = _column(suite, "")
        empty = runs.get(f"{line}{EMPTY}", runs["none"])
        swapped, own = runs[f"{line}{SWAPPED}"], runs[line]
        values = [
            format_number(float(figure(found).partition(" ")[0])) for found in (empty, swapped, own)
        ]
        rows.append((name, *values, _difference(swapped, own)))
    head = ("perplexity", "empty state", "swapped state", "own state", "swapped minus own [95 %]")
    return table(head, rows, 1)


def sessions() -> str:
    """Compare separate queries with queries after the earlier ones and their answers."""
    found: dict[str, dict[str, list[StoredRun]]] = {}
    for run in grids.runs_of(HERE.parent / "sessions"):
        config = run[1].config
        if run[1].state_of == "own":
            name = (
                f"{config['method']} {100 * config['keep']:.0f} %"
                if config["keep"]
                else str(config["method"])
            )
            found.setdefault(name, {}).setdefault(str(config["task_options"]["mode"]), []).append(
                run
            )
    rows = []
    for name, modes in sorted(found.items(), key=lambda item: -_percent(item[1]["requests"], None)):
        parts = [f"{_percent(modes['turns'], part):.1f}" for part in ("first", "again")]
        rows.append((f"`{name}`", grids.quality(modes["requests"]), *parts))
    return table(
        ("method", "separate (%)", "in a session, new (%)", "in a session, repeated (%)"), rows, 1
    )


def _percent(runs: Sequence[StoredRun], part: str | None) -> float:
    """Return the main metric of a sub-task, or of all queries, in per cent."""
    values = [
        row.value
        for _, run in runs
        for row in run.rows
        if row.metric == run.main_metric and row.step is None and row.subtask == part
    ]
    return 100 * fmean(values)


def _column(suite: str, column: str) -> Mapping[str, Sequence[StoredRun]]:
    """Return the runs of a suite's column, by line."""
    return {line: runs for (line, own), runs in runs_of(HERE / suite).items() if own == column}


def _difference(left: Sequence[StoredRun], right: Sequence[StoredRun], scale: int = 1) -> str:
    """Format the paired difference of the main metric with its interval."""
    value, ends = gained(left, right)
    interval = (
        f" [{format_number(scale * ends[0])}, {format_number(scale * ends[1])}]" if ends else ""
    )
    return f"{format_number(scale * value)}{interval}"
