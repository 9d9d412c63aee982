"""In what runs differ: settings, data, versions (--diff)."""

from __future__ import annotations

from collections.abc import Iterator

from ttabench.core.types import Json
from ttabench.records.schema import RunRecord
from ttabench.report.blocks import told
from ttabench.report.compare import Comparison
from ttabench.report.configuration import with_defaults
from ttabench.report.pairing import seed_of
from ttabench.terminal.table import Table

PLAIN = ("verb", "seed", "method", "task")
BY_SEED = ("rows", "others")
"""Inputs that every seed has its own of."""
MOST_LABELS = 4


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
