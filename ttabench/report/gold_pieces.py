"""How questions look at the piece of context that holds their answer, a line a method: for two charts of the page.

looks_of(block)                         lines of `mac` and `rag`, whose samples tell it
found_within(look, [1, 2, 4])           0.5, 0.75 and 1: shares of questions whose piece is among the first k
share_by_age(look)                      (0, 0.9, 12), (1, 0.8, 12), (2, 0.7, 24): mean share of attention, n
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import NamedTuple

from ttabench.core.errors import UserError
from ttabench.records.sample_files import has_samples, read_samples
from ttabench.records.samples import Looked
from ttabench.report.compare import Block
from ttabench.report.entries import Entry

COLUMNS = tuple(column.name for column in fields(Looked))
"""Of samples."""
MOST = 64
"""Up to which place pieces are counted as found."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """A line of a block, and its questions."""

    entry: Entry
    seen: tuple[Looked, ...]


class ByAge(NamedTuple):
    """Questions whose piece was followed by so many others."""

    age: int
    """The least; ages from 2 on are put together up to the next power of two."""
    share: float
    """Mean share of attention on the piece."""
    n: int


def looks_of(block: Block) -> list[Look]:
    """The lines of a block whose samples tell it, under their own state.

    Raises:
        UserError: samples that cannot be read, or lack a column that their record names.
    """
    found = []
    for group, entry in zip(block.groups, block.entries, strict=True):
        if entry.state_of != "own" or entry.aside:
            continue
        seen: list[Looked] = []
        for folder, record in group.runs:
            if COLUMNS[0] in record.sample_digests and has_samples(folder):
                columns = read_samples(folder, COLUMNS, record)
                if not columns:
                    continue  # a suite that does not keep them
                if missing := [name for name in COLUMNS if name not in columns]:
                    fault = f"The samples of run {record.id} in {folder} lack the column {missing[0]}."
                    raise UserError(fault, "Restore the file, run again with --force, or remove the folder.")
                rows = zip(*(columns[name] for name in COLUMNS), strict=True)
                looked = (Looked(**dict(zip(COLUMNS, row, strict=True))) for row in rows)
                seen += [query for query in looked if query.kept_pieces > 0]
        if seen:
            found.append(Look(entry=entry, seen=tuple(seen)))
    return found


def places(looks: Sequence[Look]) -> list[int]:
    """1, 2, 4 ... up to the number of pieces: how many of the first are counted."""
    most = min(MOST, max(seen.kept_pieces for look in looks for seen in look.seen))
    return [2**power for power in range(most.bit_length()) if 2**power <= most]


def found_within(look: Look, first: Sequence[int]) -> list[float]:
    """Shares of questions whose piece is among the first so many."""
    return [fmean(0 < seen.gold_rank <= most for seen in look.seen) for most in first]


def graded(look: Look) -> bool:
    """Whether its shares are more than 0 and one other: retrieval looks alike at all that it reads."""
    return len({round(seen.gold_share, 6) for seen in look.seen} - {0.0}) > 1


def share_by_age(look: Look) -> list[ByAge]:
    """Mean share on the piece by how many were read after it, of pieces that are kept."""
    by_age: dict[int, list[float]] = {}
    for seen in look.seen:
        if seen.gold_rank:
            least = 1 << (seen.gold_age.bit_length() - 1) if seen.gold_age else 0
            by_age.setdefault(least, []).append(seen.gold_share)
    return [ByAge(age, fmean(shares), len(shares)) for age, shares in sorted(by_age.items())]
