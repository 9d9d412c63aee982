"""Which runs say nothing of their method beside the others of their block, and why. They are named, and never lead.

limit    `--limit` let it ask fewer questions than the others were asked: it stands in no table
cut      its window left out a part of the context: of `icl` that is no ceiling
whole    it evicts, and had no need to: what it measures is full context under another name
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ttabench.records.schema import RunRecord
from ttabench.report.blocks import Group
from ttabench.run.caveats import kept_whole

Kind = Literal["", "limit", "cut", "whole"]
MARKS: dict[Kind, str] = {"": "", "limit": "", "cut": " (cut)", "whole": " (evicted nothing)"}
"""Words that tables put behind the label."""


@dataclass(frozen=True, kw_only=True)
class Aside:
    """A line of a block that is set aside."""

    block: str
    """Name of the block in a sentence."""
    label: str
    kind: Kind
    reason: str
    """Words that follow its label: "read 36 % of the context"; of a limit the option as it was typed."""
    runs: tuple[str, ...]
    """Ids."""


def within_limit(block: Sequence[Group]) -> list[Group]:
    """The groups that were asked alike: those of the largest `--limit` that two groups share, none being the largest.

    Where no two share one, the group of the largest is left alone.
    """
    limits = [_limit(group) for group in block]
    shared = [limit for limit in limits if limits.count(limit) > 1]
    most = max(shared or limits)
    return [group for group, limit in zip(block, limits, strict=True) if limit == most]


def _limit(group: Group) -> float:
    """Queries that `--limit` left; infinite where it left all."""
    limit = group.record.config.get("limit")
    return math.inf if limit is None or all(record.n < limit for _, record in group.runs) else float(limit)


def limit_of(group: Group) -> str:
    """The option as it was typed; "no --limit"."""
    limit = group.record.config.get("limit")
    return "no --limit" if limit is None else f"--limit {limit}"


def fault_of(records: Sequence[RunRecord]) -> tuple[Kind, str]:
    """The kind that sets the runs of a group aside by their own counts, and the reason; empty where nothing does."""
    lost, read = (sum(float(record.cost.get(key) or 0) for record in records) for key in ("truncated_tokens",
                                                                                         "tokens_read"))  # fmt: skip
    if lost:
        part = f"{_percent(1 - lost / read)} of the context" if read > lost else "a part of the context only"
        return "cut", f"read {part}"
    if sum(kept_whole(record.notes) for record in records) > len(records) / 2:
        return "whole", "evicted nothing"
    return "", ""


def _percent(share: float) -> str:
    """Never 100 % of what is less."""
    return f"{min(99.9, 100 * share):.1f} %" if share > 0.99 else f"{100 * share:.0f} %"
