"""Compare runs: quality beside cost, and whether the differences could be chance.

Runs stand in blocks (`blocks`), those that differ in their seed only are pooled, and pairs within a block get the
difference over the queries both answered (`pairing`, `differences`). Which pairs are shown is chosen, and p values are
adjusted for all that could be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Json
from ttabench.records.schema import Row, RunRecord, has_samples, load_record
from ttabench.report.blocks import Group, Place, blocks_of, labels_of
from ttabench.report.differences import Difference, Unpaired, chosen, difference, unpaired
from ttabench.report.entries import COSTS, Entry
from ttabench.report.headline import Rivals, rivals_of
from ttabench.report.pairing import Run, Values, answered, steps_of
from ttabench.report.pooling import mean, over_runs, pooled
from ttabench.stats.testing import holm

__all__ = ["Block", "Comparison", "Difference", "Entry", "Unpaired", "compare", "over_runs", "pooled"]


@dataclass(frozen=True, kw_only=True)
class Block:
    """What is compared with each other: runs that read and ask the same under one base model."""

    place: Place
    groups: tuple[Group, ...]
    entries: tuple[Entry, ...]
    """One for each group, floor and ceiling first."""
    values: tuple[Values, ...]
    """What the queries of each group add to the metric."""
    differences: tuple[Difference, ...] = ()
    """Of the pairs chosen."""
    unpaired: tuple[Unpaired, ...] = ()
    """Every pair without a common query."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Blocks, one below the other, and which two labels the first line speaks of."""

    blocks: tuple[Block, ...]
    rivals: Rivals | None = None
    without_metric: tuple[str, ...] = ()
    """Ids of runs that were left out, for they lack the metric."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Of all blocks."""
        return tuple(entry for block in self.blocks for entry in block.entries)

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Of all blocks."""
        return tuple(each for block in self.blocks for each in block.differences)

    @property
    def unpaired(self) -> tuple[Unpaired, ...]:
        """Of all blocks."""
        return tuple(each for block in self.blocks for each in block.unpaired)


def compare(folders: Sequence[Path], metric: str = "", *, all_pairs: bool = False) -> Comparison:
    """Compare the runs in these folders.

    Args:
        folders: run folders, see `finding.find_runs`.
        metric: which metric; each task's own main metric by default.
        all_pairs: every pair of a block has its difference, and not only those of `differences.chosen`.

    Raises:
        UserError: no runs, a corrupted record, or a metric that no run has.
    """
    return compared([(folder, load_record(folder)) for folder in folders], metric, all_pairs=all_pairs)


def compared(runs: Sequence[Run], metric: str = "", *, all_pairs: bool = False) -> Comparison:
    """The same of records that are loaded already; a run that lies in two folders counts once."""
    if not runs:
        raise UserError("There are no runs to compare.", "Run `ttabench eval` first, or give paths or ids.")
    runs = list({run[1].id: run for run in reversed(runs)}.values())[::-1]
    kept = [run for run in runs if run[1].value(metric or run[1].main_metric) is not None]
    if not kept:
        record = runs[0][1]
        known = sorted({row.metric for row in record.rows})
        raise UnknownName(f"metric of run {record.id}", metric or record.main_metric, known)
    blocks = [_block(place, groups) for place, groups in blocks_of(kept, metric)]
    rivals = rivals_of([block.entries for block in blocks])
    paired = [_with_pairs(block, rivals, all_pairs=all_pairs) for block in blocks]
    left_out = tuple(record.id for _, record in runs if record.value(metric or record.main_metric) is None)
    return Comparison(blocks=tuple(_adjusted(paired)), rivals=rivals, without_metric=left_out)


def _block(place: Place, groups: Sequence[Group]) -> Block:
    values = [answered(group.runs, group.metric) if _has_answers(group) else {} for group in groups]
    entries = [
        _entry(place, label, group, own) for label, group, own in zip(labels_of(groups), groups, values, strict=True)
    ]
    return Block(place=place, groups=tuple(groups), entries=tuple(entries), values=tuple(values))


def _has_answers(group: Group) -> bool:
    return all(has_samples(folder) for folder, _ in group.runs)


def _with_pairs(block: Block, rivals: Rivals | None, *, all_pairs: bool) -> Block:
    pairs = chosen(block.entries, rivals, every=all_pairs)
    sides = list(zip(block.entries, block.values, strict=True))
    found = [difference(sides[left], sides[right]) for left, right in pairs]
    return replace(
        block, differences=tuple(each for each in found if each), unpaired=tuple(unpaired(block.groups, sides))
    )


def _adjusted(blocks: Sequence[Block]) -> Iterator[Block]:
    """The same with Holm's p over all pairs of all blocks: those that are shown are chosen by what was found."""
    found = [each.p for block in blocks for each in block.differences]
    adjusted = iter(holm(found, family_of(blocks)))
    for block in blocks:
        yield replace(block, differences=tuple(replace(each, p_holm=next(adjusted)) for each in block.differences))


def family_of(blocks: Sequence[Block]) -> int:
    """How many pairs could be shown: all pairs of each block that have a common query."""
    return sum(math.comb(len(block.entries), 2) - len(block.unpaired) for block in blocks)


def _entry(place: Place, label: str, group: Group, answered: Values) -> Entry:
    records = [record for _, record in group.runs]
    rows = [row for record in records if (row := record.value(group.metric)) is not None]
    value, stderr, n = over_runs(rows, list(answered.values()), draws=group.record.unit == "draw")
    return Entry(
        label=label,
        method=rows[0].method,
        task=rows[0].task,
        source=rows[0].source,
        model=rows[0].model,
        block=place.name,
        seeds=tuple(sorted({row.seed for row in rows})),
        metric=group.metric,
        value=value,
        stderr=stderr,
        n=n,
        costs={cost: mean([record.cost.get(cost) for record in records]) for cost in COSTS},
        runs=tuple(record.id for record in records),
        steps=_by_step(group, answered),
        state_of=records[0].state_of,
        lengths=bool(records[0].task.get("lengths")),
        machine=_machine(records[0]),
    )


def _machine(record: RunRecord) -> str:
    found: Mapping[str, Json] = record.hardware
    return repr([record.model.get("device"), found.get("gpu"), found.get("cpu"), found.get("threads")])


def _by_step(group: Group, answered: Values) -> dict[int, tuple[float, float | None, int]]:
    rows: dict[int, list[Row]] = {}
    for row in (row for _, record in group.runs for row in record.rows):
        if row.metric == group.metric and row.step is not None and row.subtask is None:
            rows.setdefault(row.step, []).append(row)
    if not rows:
        return {}
    at, lengths = steps_of(group.runs) if answered else {}, bool(group.record.task.get("lengths"))
    own = [(at[query[:3]], value) for query, value in answered.items()]
    return {
        step: over_runs(rows[step], [value for mine, value in own if mine == step or (lengths and mine < step)])
        for step in sorted(rows)
    }
