"""One line of a comparison, and what a block knows of its lines: floor, ceiling, candidates, the best.

Lines that are set aside (`setting_aside`) are neither ceiling nor candidate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ttabench.report.blocks import CEILING, FLOOR
from ttabench.report.setting_aside import MARKS, Kind
from ttabench.stats.metrics import METRICS

COSTS = ("adapt_seconds", "ask_ms", "state_bytes", "peak_memory_bytes")
BUSY = 0.5
"""Processors taken by others from which on milliseconds are not those of a calm machine."""


class Step(NamedTuple):
    """Names of the steps of a task, in a table and on an axis."""

    by: str
    axis: str
    tokens: bool = True
    """Whether they are numbers of tokens, each about twice the one before."""


PIECES = Step("by pieces observed before the query", "pieces read before the query", tokens=False)
LENGTHS = Step("up to so many tokens of each text", "tokens of each text, at most")
"""Each with all that stands before it."""
DISTANCES = Step("by tokens read since the answer, at most", "tokens read since the answer, at most")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of a comparison: all runs of one configuration, whatever their seed."""

    label: str
    method: str
    task: str
    source: str
    model: str
    block: str = ""
    """Name of the block in which it stands."""
    seeds: tuple[int, ...]
    metric: str
    value: float
    stderr: float | None
    n: int
    costs: Mapping[str, float | None]
    """Means over the runs: adapt_seconds, ask_ms, state_bytes, peak_memory_bytes."""
    runs: tuple[str, ...]
    steps: Mapping[int, tuple[float, float | None, int]] = field(default_factory=dict)
    """(mean, standard error, n) by the pieces observed before the query, where the runs asked at several points."""
    state_of: str = "own"
    """Whose state answered, see `state_control`."""
    theirs: str = ""
    """Name of the submission that it is from; empty where it is ours."""
    configured: str = ""
    """Options of its method, whoever's state answered."""
    step: Step = PIECES
    """Names of its steps."""
    trained: int = 0
    """Parameters of its method that were trained before it read anything."""
    machine: str = ""
    """Machine of its latencies; several are parted by "; "."""
    load: float | None = None
    """Processors that other programs took while it ran, by its machine's load average; None where it is not known."""
    aside: Kind = ""
    """Why it is set aside; empty where it is not."""
    reason: str = ""
    """The same in words: "read 36 % of the context"."""

    @property
    def marked(self) -> str:
        """Its label as tables have it: with why it is set aside."""
        return self.label + MARKS[self.aside]

    @property
    def busy(self) -> bool:
        """Whether other programs computed while it ran, so that its milliseconds are too many."""
        return self.load is not None and self.load >= BUSY

    @property
    def worth(self) -> float:
        """The value, so that more is better."""
        return self.value if higher_is_better(self.metric) else -self.value


def higher_is_better(metric: str) -> bool:
    """Whether more is better; of a metric that is not known it is taken to be."""
    return METRICS[metric].higher_is_better if metric in METRICS else True


def floor_of(entries: Sequence[Entry]) -> Entry | None:
    """The entry of `none`, where there is one."""
    return _only(entries, FLOOR)


def ceiling_of(entries: Sequence[Entry]) -> Entry | None:
    """The entry of `icl`, where there is one that read the whole context."""
    return _only(entries, CEILING)


def _only(entries: Sequence[Entry], method: str) -> Entry | None:
    """The one of ours; of others' where none is ours."""
    matching = [entry for entry in entries if entry.method == method and entry.state_of == "own" and not entry.aside]
    own = [entry for entry in matching if not entry.theirs] or matching
    return own[0] if len(own) == 1 else None


def candidates(entries: Sequence[Entry]) -> list[Entry]:
    """Entries that a benchmark is to tell apart: all but the floor, the ceiling, and those set aside."""
    ends = (floor_of(entries), ceiling_of(entries))
    return [entry for entry in entries if not entry.aside and all(entry is not end for end in ends)]


def running(entries: Sequence[Entry]) -> list[Entry]:
    """Candidates that answered under their own state; lines of `none` or `icl` only where there are no others."""
    own = [entry for entry in candidates(entries) if entry.state_of == "own"]
    return [entry for entry in own if entry.method not in (FLOOR, CEILING)] or own


def best_of(entries: Sequence[Entry]) -> list[Entry]:
    """The best of at least two that are running; all that are equally good."""
    running_entries = running(entries)
    most = max((entry.worth for entry in running_entries), default=None)
    return [entry for entry in running_entries if entry.worth == most] if len(running_entries) > 1 else []


def share_of_gap(entry: Entry, floor: Entry, ceiling: Entry) -> float | None:
    """How much of the way from the floor to the ceiling it goes; None where they were not asked as much."""
    if len({entry.n, floor.n, ceiling.n}) > 1 or len({entry.seeds, floor.seeds, ceiling.seeds}) > 1:
        return None
    gap = ceiling.worth - floor.worth
    return (entry.worth - floor.worth) / gap if gap > 0 else None
