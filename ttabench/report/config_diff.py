"""In what the runs of a comparison differ: settings, task options, data, versions; what is the same is left out.

A setting is compared among the runs that have it: that two methods have other settings is no difference of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ttabench.core.types import Json
from ttabench.records.schema import RunRecord
from ttabench.report.blocks import told
from ttabench.report.compare import Comparison
from ttabench.report.configuration import with_defaults
from ttabench.terminal.table import Table

PLAIN = ("verb", "seed", "method", "task")
"""Fields that labels and blocks show already."""
BY_SEED = ("rows", "others")
"""Inputs that every seed has its own of."""
MOST_LABELS = 4


def differing(comparison: Comparison) -> Table:
    """One line a value: `task_options.documents | 16 | none, icl`."""
    runs = list(_runs(comparison))
    values: dict[str, dict[str, list[tuple[str, str]]]] = {}
    for label, record in runs:
        for key, value in _flat(record):
            values.setdefault(key, {}).setdefault(told(value), []).append((label, record.id))
    rows, data = [], []
    for key in sorted(key for key, alike in values.items() if len(alike) > 1):
        for place, (value, having) in enumerate(values[key].items()):
            labels = list(dict.fromkeys(label for label, _ in having))
            rows.append((key if place == 0 else "", value or "-", _listed(labels, len(runs))))
            data.append({"setting": key, "value": value, "runs": " ".join(run for _, run in having)})
    columns = ("setting", "value", "of")
    caption = "" if rows else "The runs differ in method, task and seed alone."
    return Table(title="settings that differ", columns=columns, rows=tuple(rows), data=tuple(data), caption=caption)


def _listed(labels: Sequence[str], _all: int) -> str:
    more = len(labels) - MOST_LABELS
    return ", ".join(labels[:MOST_LABELS]) + (f" and {more} more" if more > 0 else "")


def _runs(comparison: Comparison) -> Iterator[tuple[str, RunRecord]]:
    several = len(comparison.blocks) > 1
    for block in comparison.blocks:
        for entry, group in zip(block.entries, block.groups, strict=True):
            label = f"{entry.label} on {block.place.brief}" if several else entry.label
            yield from ((label, record) for _, record in group.runs)


def _flat(record: RunRecord) -> Iterator[tuple[str, Json]]:
    for key, value in with_defaults(record.config).items():
        if not isinstance(value, dict):
            if key not in PLAIN:
                yield key, value
            continue
        for inner, item in value.items():
            by_seed = f" of seed {record.config.get('seed', 0)}" if key == "inputs" and inner in BY_SEED else ""
            yield f"{key}.{inner}{by_seed}", item
    yield from ((f"versions.{name}", version) for name, version in record.versions.items())
    for key in ("cpu", "gpu", "threads"):
        if key in record.hardware:
            yield f"hardware.{key}", record.hardware[key]
