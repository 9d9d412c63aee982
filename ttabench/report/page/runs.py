"""Parts of the page on every run: its command, configuration, costs and machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ttabench.core.amounts import figure
from ttabench.core.errors import UserError
from ttabench.core.typed import as_typed
from ttabench.records.schema import RunRecord
from ttabench.report.about import about_tables
from ttabench.report.blocks import called
from ttabench.report.compare import Comparison
from ttabench.report.configuration import flat, whole
from ttabench.report.figures import shown
from ttabench.report.submissions import file_called


@dataclass(frozen=True, kw_only=True)
class About:
    """One run."""

    id: str
    label: str
    block: str
    seed: int
    value: str
    facts: tuple[tuple[str, str], ...]
    """(what, text): command, settings that are no default, model, costs, when and where it was made, notes."""
    settings: str
    """All of them, a line each."""
    costs: str
    """All of them, a line each."""


def about_runs(comparison: Comparison) -> Iterator[About]:
    """Every run that stands in a block, in the order of their lines."""
    places = [block.place for block in comparison.blocks]
    for block in comparison.blocks:
        name = called(block.place, places)
        for group, entry in zip(block.groups, block.entries, strict=True):
            for _, record in group.runs:
                row = record.value(group.metric)
                file = [("from", file_called(entry.theirs))] if entry.theirs else []
                yield About(
                    id=record.id, label=entry.label, block=name, seed=int(record.config.get("seed", 0)),
                    value=f"{row.metric} {shown(row.metric, row.value, row.stderr)}" if row else "",
                    facts=(*file, *_facts(record)), settings=_settings(record), costs=_costs(record),
                )  # fmt: skip


def _facts(record: RunRecord) -> tuple[tuple[str, str], ...]:
    try:
        table = about_tables(record, everything=False)[0]
    except UserError as error:  # of a method that is gone
        return (("command", str(error)),)
    return tuple(zip(table.columns[1:], map(str, table.rows[0][1:]), strict=True))


def _settings(record: RunRecord) -> str:
    config = flat(whole(record.config).to_json())
    return "\n".join(f"{key} = {as_typed(value) or '-'}" for key, value in config.items())


def _costs(record: RunRecord) -> str:
    return "\n".join(f"{name.replace('_', ' ')} = {figure(name, value)}" for name, value in record.cost.items())
