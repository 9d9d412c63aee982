"""Compare runs: quality beside cost, and whether the differences could be chance.

Runs stand in blocks (`blocks`), those that differ in their seed only are pooled, those that were asked less are set
aside (`entries`), and pairs within a block get the difference over the queries both answered, over several blocks the
mean of these. Which pairs are shown is chosen, and p values are adjusted for all tests of their family that could be
(`differences`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from ttabench.core.errors import UnknownName, UserError
from ttabench.report.blocks import CEILING, FLOOR, Group, Place, blocks_of, labels_of, natural
from ttabench.report.differences import (
    Difference,
    Family,
    Standing,
    adjusted,
    between,
    chosen,
    difference,
    family_of,
    means,
    paired,
    standing_of,
)
from ttabench.report.entries import Entry, end_of, entry_of, limit_of, share_of_gap, within_limit
from ttabench.report.finding import refuse_all_damaged
from ttabench.report.stored import Answers, Run, answers_of, joined
from ttabench.stats.estimate import LEVEL

SAME_FIGURE = 1e-6
"""Relative difference of two figures up to which they are those of one computation on two machines."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Runs that read and ask the same under one base model, compared with each other."""

    place: Place
    entries: tuple[Entry, ...]
    """Floor and ceiling first, those of one method together."""
    limited: tuple[Entry, ...] = ()
    """Those that were asked fewer queries than these."""
    differences: tuple[Difference, ...] = ()
    """Of the pairs that were tested."""

    def named(self, label: str) -> Entry | None:
        """The entry of that label."""
        return next((entry for entry in self.entries if entry.label == label), None)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Blocks, one below the other, who leads, and what was tested over several of them."""

    blocks: tuple[Block, ...]
    standing: Standing | None = None
    overall: tuple[Difference, ...] = ()
    """Means of differences over the blocks that count for the standing, where these are several; of states over all."""
    without_metric: tuple[str, ...] = ()
    """Ids of runs that were left out, for they lack the metric."""
    damaged: tuple[str, ...] = ()
    """A line for every run that was left out, for its record or its samples are damaged."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Of all blocks."""
        return tuple(entry for block in self.blocks for entry in block.entries)

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Those of all blocks."""
        return tuple(difference for block in self.blocks for difference in block.differences)

    @property
    def aside(self) -> tuple[Entry, ...]:
        """All that is set aside: asked less, then cut."""
        limited = [entry for block in self.blocks for entry in block.limited]
        return (*limited, *(entry for entry in self.entries if entry.aside))


def compared(
    runs: Sequence[Run], metric: str = "", *, all_pairs: bool = False, damaged: Sequence[str] = ()
) -> Comparison:
    """Compare runs (`damaged`: a line for every one that could not be loaded), by each task's own main metric for "". A
    run in two folders counts once. With `all_pairs`, every pair of a block has its difference, and not only those of
    `differences.chosen`.

    Raises:
        UserError: no runs, none but damaged ones, or a metric that no run has.
    """
    if not runs:
        raise UserError("There are no runs to compare.", "Run `ttabench eval` first, or give paths or ids.")
    kept_of = {run[1].id: run for run in reversed(runs)}
    repeated = [line for run in runs if (line := _other_figures(run, kept_of[run[1].id]))]
    runs = list(kept_of.values())[::-1]
    kept = [run for run in runs if run[1].value(metric or run[1].main_metric) is not None]
    if not kept:
        record = runs[0][1]
        known = sorted({row.metric for row in record.rows})
        raise UnknownName(f"metric of run {record.id}", metric or record.main_metric, known)
    without = tuple(record.id for _, record in runs if record.value(metric or record.main_metric) is None)
    answers, wrong = read_answers(kept, metric)
    kept = [run for run in kept if run[1].id in answers]
    refuse_all_damaged(len(kept), wrong)
    placed = blocks_of(kept, metric)
    labels = labels_of([groups for _, groups in placed])
    methods = list(dict.fromkeys([FLOOR, CEILING, *(group.method for _, groups in placed for group in groups)]))
    blocks = []
    for (place, groups), own in zip(placed, labels, strict=True):
        lines = sorted(zip(groups, own, strict=True), key=lambda at: (methods.index(at[0].method), natural(at[1])))
        blocks.append(_block(place, lines, answers))
    standing = standing_of([block.entries for block in blocks])
    blocks = _tested(blocks, standing, all_pairs=all_pairs)
    # means over blocks, where several count for the standing
    places = standing.blocks if standing else range(len(blocks))
    counting = [blocks[place].differences for place in places] if len(places) > 1 else []
    overall = means(counting, [block.differences for block in blocks], standing.order if standing else ())
    return Comparison(
        blocks=tuple(blocks),
        standing=standing,
        overall=tuple(overall),
        damaged=(*damaged, *repeated, *wrong),
        without_metric=without,
    )


def _other_figures(run: Run, kept: Run) -> str:
    """A line that says that a run is left out, where another folder holds the same run with other figures."""
    same = all(
        math.isclose(one.value, other.value, rel_tol=SAME_FIGURE, abs_tol=SAME_FIGURE)
        for one, other in zip(run[1].rows, kept[1].rows, strict=False)
    )
    if same:
        return ""
    return f"{run[0]} holds other figures than {kept[0]}, which is a run of the same id. Compare with one of them."


def read_answers(runs: Sequence[Run], metric: str = "") -> tuple[dict[str, Answers | None], list[str]]:
    """(answers of each run by its id, None where none are kept; a line for every run whose samples are damaged). The
    metric is each run's main one for ""."""
    answers: dict[str, Answers | None] = {}
    damaged = []
    for folder, record in runs:
        try:
            answers[record.id] = answers_of((folder, record), metric or record.main_metric)
        except UserError as error:
            damaged.append(str(error))
        except (IndexError, TypeError):
            damaged.append(f"The samples of run {record.id} in {folder} are not those of queries.")
    return answers, damaged


def _block(place: Place, labelled: Sequence[tuple[Group, str]], answers: Mapping[str, Answers | None]) -> Block:
    asked_alike = within_limit([group for group, _ in labelled])
    made = [(entry_of(place, label, group, joined([answers[run] for run in group.ids])), group in asked_alike)
            for group, label in labelled]  # fmt: skip
    limited = (replace(entry, aside=limit_of(entry)) for entry, alike in made if not alike)
    return Block(place=place, entries=tuple(entry for entry, alike in made if alike), limited=tuple(limited))


def _tested(blocks: Sequence[Block], standing: Standing | None, *, all_pairs: bool) -> list[Block]:
    """The same with their differences, and Holm's p by family over all blocks: those that are tested are chosen by what
    was found, so all that could be tested count."""
    counts, differences = Counter[Family](), list[list[Difference]]()
    for block in blocks:
        counts.update(family_of(block.entries, pair) for pair in paired(block.entries))
        differences.append([
            replace(apart, family=family_of(block.entries, pair))
            for pair in chosen(block.entries, standing, every=all_pairs)
            if (apart := difference(*(block.entries[place] for place in pair))) is not None
        ])  # fmt: skip
    holms = iter(adjusted([one for own in differences for one in own], counts))
    return [
        replace(block, differences=tuple(next(holms) for _ in own))
        for block, own in zip(blocks, differences, strict=True)
    ]


def share(block: Block, entry: Entry) -> float | None:
    """The share of the way from floor (0) to ceiling (1) that a line goes. None of these two, and where the ceiling is
    not above the floor beyond chance, by the one difference of the two."""
    floor, ceiling = end_of(block.entries, FLOOR), end_of(block.entries, CEILING)
    if floor is None or ceiling is None or entry is floor or entry is ceiling:
        return None
    room = between(block.differences, ceiling.label, floor.label)
    if room is None or room.p is None or room.p >= LEVEL:
        return None
    return share_of_gap(entry, floor, ceiling)


def recovered(blocks: Sequence[Block], label: str) -> tuple[float | None, int]:
    """(share of the way, blocks it is over) of a line: the mean of its gains over the mean of the gaps. All blocks
    count in which floor, ceiling and the line were asked alike, those in which it lost, too."""
    gains, gaps = [], []
    for block in blocks:
        floor, ceiling, entry = end_of(block.entries, FLOOR), end_of(block.entries, CEILING), block.named(label)
        if floor and ceiling and entry and share_of_gap(entry, floor, ceiling) is not None:
            gains.append(entry.worth - floor.worth)
            gaps.append(ceiling.worth - floor.worth)
    return (fmean(gains) / fmean(gaps) if gaps and fmean(gaps) > 0 else None), len(gaps)
