"""Quality along a number, a line a method and setting: what pictures and the page draw.

by_step(block)          asked after 1, 2 and 4 documents, up to so many tokens of a text, so far behind the answer
over_blocks(blocks)     blocks of 4, 16 and 64 documents, of 0, 5 and 10 shots
by_setting(block)       lines of a method that differ in one number alone: its budget, the share that it adapts to
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeGuard

from ttabench.core.types import Json
from ttabench.report.blocks import STATE_OF, short_source, told
from ttabench.report.compare import Block
from ttabench.report.entries import Entry, ceiling_of, floor_of
from ttabench.report.labels import OF_BLOCKS
from ttabench.report.phrases import PLURALS


class Point(NamedTuple):
    """A figure of a line."""

    at: float
    entry: Entry
    """Whose figure it is."""
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
    """Ascending."""
    level: bool = False
    """Whether it is a figure of no such number, drawn from end to end: floor and ceiling."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Lines of one picture."""

    about: str
    """Task, source, base and options that all its lines have in common."""
    brief: str
    """The same without source and base."""
    model: str
    axis: str
    metric: str
    tokens: bool
    """Whether the numbers are tokens."""
    units: tuple[str, ...]
    """Units that standard errors are over."""
    lines: tuple[Line, ...]

    @property
    def title(self) -> str:
        """`f1 by documents`."""
        return f"{self.metric} by {self.axis}"

    @property
    def places(self) -> list[float]:
        """Where there are points, ascending."""
        return sorted({point.at for line in self.lines for point in line.points})

    @property
    def counts(self) -> list[int]:
        """Numbers of queries behind its points, ascending."""
        return sorted({point.n for line in self.lines for point in line.points})


def by_step(block: Block) -> Curves | None:
    """Quality by what had been read before the query, seeds pooled; None where nothing was asked at two steps."""
    lines = [
        Line(label=entry.label, method=entry.method, points=tuple(
            Point(step, entry, value, stderr, n) for step, (value, stderr, n) in sorted(entry.steps.items())
        ))
        for entry in block.entries if len(entry.steps) > 1
    ]  # fmt: skip
    if not lines:
        return None
    step = lines[0].points[0].entry.step
    return _curves([block], lines, step.axis, tokens=step.tokens)


def over_blocks(blocks: Sequence[Block]) -> list[Curves]:
    """Those of every option by whose number alone two blocks or more differ, with a line in two of them."""
    families: dict[tuple[str, ...], list[tuple[float, Block]]] = {}
    for block in blocks:
        place = block.place
        for key, value in place.options.items():
            if _is_number(value):
                rest = "".join(f", {name}={told(other)}" for name, other in place.options.items() if name != key)
                about = f"{place.task} ({short_source(place.source)}), base {place.model}{rest}"
                family = (place.source, place.metric, about, f"{place.task}{rest}", key)
                families.setdefault(family, []).append((value, block))
    all_curves = [_over(about, brief, key, own) for (_, _, about, brief, key), own in families.items()]
    return [curves for curves in all_curves if curves is not None]


def _over(about: str, brief: str, key: str, own: Sequence[tuple[float, Block]]) -> Curves | None:
    points: dict[str, list[Point]] = {}
    for value, block in own:
        for entry in block.entries:
            points.setdefault(entry.label, []).append(Point(value, entry, entry.value, entry.stderr, entry.n))
    lines = [
        _line(label, points_of_label)
        for label, points_of_label in points.items()
        if len({point.at for point in points_of_label}) > 1
    ]
    if not lines:
        return None
    return replace(_curves([block for _, block in own], lines, key), about=about, brief=brief)


def by_setting(block: Block) -> list[Curves]:
    """Those of every setting by whose number alone lines of a method differ: two such lines, or three points of one.

    Floor and ceiling, which have no such setting, go from end to end.
    """
    curves = []
    for key, lines in _varied(block).items():
        if len(lines) > 1 or any(len(line.points) > 2 for line in lines):
            ends = sorted({point.at for line in lines for point in line.points})
            methods = {line.method for line in lines}
            levels = [
                Line(label=entry.label, method=entry.method, level=True, points=tuple(
                    Point(at, entry, entry.value, entry.stderr, entry.n) for at in (ends[0], ends[-1])
                ))
                for entry in (floor_of(block.entries), ceiling_of(block.entries))
                if entry is not None and entry.method not in methods
            ]  # fmt: skip
            curves.append(_curves([block], [*levels, *lines], key))
    return curves


def _varied(block: Block) -> dict[str, list[Line]]:
    """Lines of a method that differ in one number alone, by its name."""
    lines: dict[str, list[Line]] = {}
    own = [(group, entry) for group, entry in zip(block.groups, block.entries, strict=True) if entry.state_of == "own"]
    for method in dict.fromkeys(entry.method for _, entry in own):
        alike = [(group.varying, entry) for group, entry in own if entry.method == method]
        keys = [
            key for key in dict.fromkeys(key for varying, _ in alike for key in varying)
            if key not in (*OF_BLOCKS, STATE_OF) and len({repr(varying.get(key)) for varying, _ in alike}) > 1
        ]  # fmt: skip
        for key in keys:
            families: dict[str, list[Point]] = {}
            for varying, entry in alike:
                if _is_number(value := varying.get(key)):
                    rest = repr([entry.theirs, *(varying.get(name) for name in keys if name != key)])
                    families.setdefault(rest, []).append(Point(value, entry, entry.value, entry.stderr, entry.n))
            for points in families.values():
                if len(points) > 1:
                    label = re.sub(rf" {re.escape(key)}=\S+", "", points[0].entry.label)
                    lines.setdefault(key, []).append(_line(label, points))
    return lines


def _line(label: str, points: Sequence[Point]) -> Line:
    return Line(label=label, method=points[0].entry.method, points=tuple(sorted(points, key=lambda point: point.at)))


def _curves(blocks: Sequence[Block], lines: Sequence[Line], axis: str, *, tokens: bool = False) -> Curves:
    place = blocks[0].place
    return Curves(about=place.name, brief=place.brief, model=place.model, axis=axis, metric=place.metric,
                  tokens=tokens, units=tuple(units_of(blocks)), lines=tuple(lines))  # fmt: skip


def units_of(blocks: Sequence[Block]) -> Iterator[str]:
    """Units that standard errors of these blocks are over, each once."""
    yield from dict.fromkeys(PLURALS[block.groups[0].record.unit] for block in blocks)


def drawn_from(model: str, counts: Sequence[int], units: Sequence[str]) -> str:
    """What a picture is of, and what its bars are: "Base nano, n = 48 to 192; bars: one standard error over draws."."""
    return f"Base {model}, n = {numbered(counts)}; bars: one standard error over {enumerated(units)}."


def numbered(counts: Sequence[int]) -> str:
    """`48 to 192`, of numbers in ascending order."""
    return f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"


def enumerated(names: Sequence[str]) -> str:
    """`draws, documents and books`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _is_number(value: Json) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
