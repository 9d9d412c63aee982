"""Quality along a number, a line a method and setting: what pictures and the page draw.

by_step(block)          asked after 1, 2 and 4 documents, up to so many tokens of a text, so far behind the answer
over_blocks(blocks)     blocks of 4, 16 and 64 documents, of 0, 5 and 10 shots
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeGuard

from ttabench.core.types import Json
from ttabench.report.blocks import short_source, told
from ttabench.report.compare import Block
from ttabench.report.entries import Entry
from ttabench.report.phrases import PLURALS, enumerated


class Point(NamedTuple):
    """A figure of a line."""

    at: float
    entry: Entry
    value: float
    """A share, as entries have it."""
    stderr: float | None
    n: int


@dataclass(frozen=True, kw_only=True)
class Line:
    """A method, and what it was told, at two places or more."""

    label: str
    method: str
    points: tuple[Point, ...]


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Lines of one picture."""

    about: str
    """The block, or what several have in common."""
    model: str
    axis: str
    metric: str
    tokens: bool
    """Whether the numbers are tokens."""
    units: tuple[str, ...]
    """Units that standard errors are over."""
    lines: tuple[Line, ...]

    @property
    def places(self) -> list[float]:
        """Where there are points, ascending."""
        return sorted({point.at for line in self.lines for point in line.points})

    @property
    def counts(self) -> list[int]:
        """Numbers of queries behind its points, ascending."""
        return sorted({point.n for line in self.lines for point in line.points})


def by_step(block: Block) -> list[Curves]:
    """Quality by what had been read before the query, seeds pooled; none where nothing was asked at two steps."""
    entries = [entry for entry in block.entries if len(entry.steps) > 1]
    lines = [_line(entry.label, [Point(at, entry, *figure) for at, figure in entry.steps.items()]) for entry in entries]
    return [_curves([block], lines, entries[0].step.axis, tokens=entries[0].step.tokens)] if entries else []


def over_blocks(blocks: Sequence[Block]) -> list[Curves]:
    """Those of every option by whose number alone two blocks or more differ, with a line in two of them."""
    families: dict[tuple[str, ...], list[tuple[float, Block]]] = {}
    for block in blocks:
        place = block.place
        for key, value in place.options.items():
            if _is_number(value):
                rest = "".join(f", {name}={told(other)}" for name, other in place.options.items() if name != key)
                about = f"{place.task} ({short_source(place.source)}), base {place.model}{rest}"
                family = (place.source, place.metric, about, key)
                families.setdefault(family, []).append((value, block))
    curves = []
    for (_, _, about, key), own in families.items():
        points: dict[str, list[Point]] = {}
        for value, entry in ((value, entry) for value, block in own for entry in block.entries):
            points.setdefault(entry.label, []).append(Point(value, entry, entry.value, entry.stderr, entry.n))
        lines = [_line(label, of_label) for label, of_label in points.items() if len({at.at for at in of_label}) > 1]
        if lines:
            curves.append(replace(_curves([block for _, block in own], lines, key), about=about))
    return curves


def _line(label: str, points: Sequence[Point]) -> Line:
    return Line(label=label, method=points[0].entry.method, points=tuple(sorted(points, key=lambda point: point.at)))


def _curves(blocks: Sequence[Block], lines: Sequence[Line], axis: str, *, tokens: bool = False) -> Curves:
    place = blocks[0].place
    return Curves(about=place.name, model=place.model, axis=axis, metric=place.metric,
                  tokens=tokens, units=units_of(blocks), lines=tuple(lines))  # fmt: skip


def units_of(blocks: Sequence[Block]) -> tuple[str, ...]:
    """Units that standard errors of these blocks are over, each once."""
    return tuple(dict.fromkeys(PLURALS[block.entries[0].record.unit] for block in blocks))


def drawn_from(model: str, counts: Sequence[int], units: Sequence[str]) -> str:
    """What a picture is of, and what its bars are: "Base nano, n = 48 to 192; bars: one standard error over draws."."""
    n = " to ".join(dict.fromkeys(f"{count:,}" for count in (counts[0], counts[-1])))
    return f"Base {model}, n = {n}; bars: one standard error over {enumerated(units)}."


def _is_number(value: Json) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
