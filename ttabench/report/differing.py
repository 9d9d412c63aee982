"""In what runs differ: queries that changed (--flips), and settings, data, versions (--diff)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ttabench.core.types import Json
from ttabench.records.schema import RunRecord
from ttabench.records.scores import TEXTS, kept_text
from ttabench.report.blocks import told
from ttabench.report.compare import Block, Comparison
from ttabench.report.configuration import with_defaults
from ttabench.report.differences import Difference, worth
from ttabench.report.figures import plain
from ttabench.report.pairing import Place, cells_of, seed_of
from ttabench.terminal.table import Cell, Table

MOST = 5
"""Queries of a pair that a screen shows each way, the largest changes first; machines get all."""
LONGEST = 60
Cells = Mapping[Place, Mapping[str, Any]]
PLAIN = ("verb", "seed", "method", "task")
BY_SEED = ("rows", "others")
"""Inputs that every seed has its own of."""
MOST_LABELS = 4


def flips_tables(comparison: Comparison, *, every: bool = False) -> list[Table]:
    """One table a pair that is shown and has any; all queries if `every`."""
    tables = []
    for block in comparison.blocks:
        texts = {entry.label: cells_of(entry.group.runs, TEXTS) if entry.values else {} for entry in block.entries}
        for apart in block.differences:
            data = sorted(_changed(block, apart, texts), key=lambda row: -float(row["gain"] or 0.0))
            tables += [_flips(block, apart, data, every)] if data else []
    return tables


def _changed(block: Block, apart: Difference, texts: Mapping[str, Cells]) -> Iterator[dict[str, Cell]]:
    ours, theirs = (line.values for label in (apart.left, apart.right) if (line := block.named(label)))
    for query in sorted(ours.keys() & theirs.keys()):
        one, other = (worth(values[query], apart.metric) for values in (ours, theirs))
        if one is None or other is None or one == other:
            continue
        left, right = (texts[label].get(query[:3], {}) for label in (apart.left, apart.right))
        yield {
            "block": apart.block, "left": apart.left, "right": apart.right, "seed": query[0], "episode": query[1],
            "key": query[2], "prompt": kept_text(left.get("prompt", "")),
            "answer": kept_text(next(iter(left.get("answers", ())), "")),
            "left_answer": kept_text(left.get("prediction", "")),
            "right_answer": kept_text(right.get("prediction", "")),
            "left_value": abs(one), "right_value": abs(other), "gain": one - other,
        }  # fmt: skip


def _flips(block: Block, apart: Difference, data: list[dict[str, Cell]], every: bool) -> Table:
    def short(text: Cell) -> str:  # the end of a question, and of an answer, in one line
        line = " ".join(str(text or "").split())
        return line if len(line) <= LONGEST else f"...{line[-LONGEST:]}"

    some = data if every or len(data) <= 2 * MOST else [*data[:MOST], *data[-MOST:]]
    rows = tuple(
        (str(row["key"]), *(short(row[name]) for name in ("prompt", "answer", "left_answer", "right_answer")),
         " / ".join(plain(apart.metric, float(row[name] or 0.0)) for name in ("left_value", "right_value")))
        for row in some
    )  # fmt: skip
    count = "1 query" if len(data) == 1 else f"{len(data):,} queries"
    remarks = [f"The {MOST} largest changes each way; all with --format csv, json or parquet."] * (
        len(some) < len(data)
    )
    remarks += ["Texts are not kept."] * (not any(row["prompt"] for row in data))
    return Table(
        title=f"{block.place.brief}: {apart.left} − {apart.right}: {count} changed",
        columns=("query", "question", "right answer", apart.left, apart.right, f"#{apart.metric}"),
        rows=rows, data=tuple(data), caption=" ".join(remarks),
    )  # fmt: skip


def differing(comparison: Comparison) -> Table:
    """One line a value: `task_options.documents | 16 | none, icl`; of each setting among the runs that have it."""
    values: dict[str, dict[str, list[tuple[str, str]]]] = {}
    for label, record in _runs(comparison):
        for key, value in _flat(record):
            values.setdefault(key, {}).setdefault(told(value), []).append((label, record.id))
    rows, data = [], []
    for key in sorted(key for key, alike in values.items() if len(alike) > 1):
        for place, (value, having) in enumerate(values[key].items()):
            labels = list(dict.fromkeys(label for label, _ in having))
            more = f" and {len(labels) - MOST_LABELS} more" if len(labels) > MOST_LABELS else ""
            rows.append((key if place == 0 else "", value or "-", ", ".join(labels[:MOST_LABELS]) + more))
            data.append({"setting": key, "value": value, "runs": " ".join(run for _, run in having)})
    caption = "" if rows else "The runs differ in method, task and seed alone."
    return Table(title="settings that differ", columns=("setting", "value", "of"), rows=tuple(rows), data=tuple(data),
                 caption=caption)  # fmt: skip


def _runs(comparison: Comparison) -> Iterator[tuple[str, RunRecord]]:
    several = len(comparison.blocks) > 1
    for block in comparison.blocks:
        for entry in block.entries:
            label = f"{entry.label} on {block.place.brief}" if several else entry.label
            yield from ((label, record) for _, record in entry.group.runs)


def _flat(record: RunRecord) -> Iterator[tuple[str, Json]]:
    for key, value in with_defaults(record.config).items():
        if not isinstance(value, dict):
            if key not in PLAIN:
                yield key, value
            continue
        for inner, item in value.items():
            by_seed = f" of seed {seed_of(record)}" if key == "inputs" and inner in BY_SEED else ""
            yield f"{key}.{inner}{by_seed}", item
    yield from ((f"versions.{name}", version) for name, version in record.versions.items())
    yield from (
        (f"hardware.{key}", record.hardware[key]) for key in ("cpu", "gpu", "threads") if key in record.hardware
    )
