"""How often 95 % intervals hold the truth where the same questions are asked under several draws: a simulation.

    python results/bench_coverage.py     bench_coverage.md and what the documentation shows of it; half an hour

Answers are continuous, right or wrong, or differences of two methods that are right or wrong; every draw asks all
questions, three fifths of them, or so few that most stand in one draw. Effects of questions, of draws and of both
together are normal, with these standard deviations; of right and wrong answers they are those of what decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

import numpy as np

from ttabench.stats.clusters import Observed
from ttabench.stats.estimate import Apart, Estimate, difference, estimate, single

HERE = Path(__file__).resolve().parent
REPEATS = 1000
SIZES = ((20, 3), (60, 3), (200, 3), (60, 5), (60, 11))
"""Questions and draws."""
SPREADS = ((1, 0, 1), (1, 0.2, 1), (0, 0.3, 1), (2, 0.2, 0.3))

Generator: TypeAlias = np.random.Generator
Asked: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[np.bool_]]"
Values: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[np.float64]]"
Spreads: TypeAlias = tuple[float, float, float]
"""Standard deviations of effects of questions, of draws, and of both together."""


def observed(values: Values, asked: Asked | None = None) -> list[Observed]:
    """Values of questions (rows) under draws (columns), as samples of demonstrations have them."""
    return [
        single(f"draw {j}", float(values[i, j]), across=f"q{i}", question=f"q{i}")
        for i, j in np.ndindex(*values.shape)
        if asked is None or asked[i, j]
    ]


def one_way(some: list[Observed], side: int) -> list[Observed]:
    """The same clustered by draws (0) or by questions (1) alone."""
    return [single((each.cluster, each.across)[side], each.terms[0], each.stratum) for each in some]


def all_asked(generator: Generator, questions: int, draws: int) -> Asked:
    """Every draw asks the same."""
    return generator.random((questions, draws)) < 1


def some_asked(generator: Generator, questions: int, draws: int) -> Asked:
    """Every draw asks three fifths, drawn by itself."""
    return generator.random((questions, draws)).argsort(0) < 3 * questions // 5


def few_shared(generator: Generator, questions: int, draws: int) -> Asked:
    """Every draw asks as many as make up the whole together, drawn by itself: most stand in one draw."""
    return generator.random((questions, draws)).argsort(0) < max(4, questions // draws)


def continuous(generator: Generator, shape: tuple[int, int], spreads: Spreads) -> Values:
    """Mean 0."""
    rows, columns, cells = spreads
    effects = generator.normal(0, rows, (shape[0], 1)) + generator.normal(0, columns, (1, shape[1]))
    return effects + generator.normal(0, cells, shape)


def binary(generator: Generator, shape: tuple[int, int], spreads: Spreads) -> Values:
    """Half of them right, less that half."""
    return (continuous(generator, shape, spreads) > 0) - 0.5


def paired(generator: Generator, shape: tuple[int, int], spreads: Spreads) -> Values:
    """Right or wrong of two methods, which share half of what makes a question hard: the difference."""
    common, *own = (continuous(generator, shape, spreads) for _ in range(3))
    left, right = (common + each > 0 for each in own)
    return left.astype(float) - right.astype(float)


Kind: TypeAlias = Callable[[Generator, tuple[int, int], Spreads], Values]
Asking: TypeAlias = Callable[[Generator, int, int], Asked]
KINDS: dict[str, Kind] = {"continuous": continuous, "right or wrong": binary, "paired differences": paired}
ASKINGS: tuple[Asking, ...] = (all_asked, some_asked, few_shared)


def coverage(
    kind: Kind, asking: Asking, shape: tuple[int, int], spreads: Spreads, repeats: int = REPEATS
) -> tuple[float, float, float]:
    """How often intervals hold the truth, 0: both ways, by draws alone, by questions alone."""
    generator, held = np.random.default_rng(7), np.zeros(3)
    for _ in range(repeats):
        some = observed(kind(generator, shape, spreads), asking(generator, *shape))
        forms = (some, one_way(some, 0), one_way(some, 1))
        if kind is paired:
            nothing = [form._replace(terms=(0.0, 1.0)) for form in some]
            held += [inside(difference(form, nothing)) for form in forms]
        else:
            held += [inside(estimate(form)) for form in forms]
    both, draws, questions = held / repeats
    return float(both), float(draws), float(questions)


def inside(interval: Estimate | Apart | None) -> bool:
    """Whether the interval holds 0; without one it is the value alone."""
    assert interval is not None, "a mean is a number"
    if interval.ci_low is None or interval.ci_high is None:
        return (interval.value if isinstance(interval, Apart) else interval.mean) == 0
    return interval.ci_low <= 0 <= interval.ci_high


def lines() -> Iterator[str]:
    """A line of the table for each kind of answers and number of draws."""
    yield "| answers | draws | designs | both ways | within 93 to 97 | by draws alone | by questions alone |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for name, kind in KINDS.items():
        for draws in sorted({draws for _, draws in SIZES}):
            rows = [
                coverage(kind, asking, shape, spreads)
                for shape in SIZES
                if shape[1] == draws
                for asking in ASKINGS
                for spreads in SPREADS
            ]
            sides = [[100 * share for share in side] for side in zip(*rows, strict=True)]
            ranges = [f"{fmean(side):.1f} ({min(side):.1f} to {max(side):.1f})" for side in sides]
            good = f"{sum(93 <= share <= 97 for share in sides[0])} of {len(rows)}"
            line = f"| {name} | {draws} | {len(rows)} | {ranges[0]} | {good} | {ranges[1]} | {ranges[2]} |"
            print(line, flush=True)
            yield line


HEAD = f"""# How often 95 % intervals of crossed designs hold the truth

Per cent of {REPEATS:,} repetitions of each design, mean and range over designs. Questions and draws:
{", ".join(f"{questions} and {draws}" for questions, draws in SIZES)}. Standard deviations of effects of questions, of
draws and of both together: {"; ".join(", ".join(map(str, each)) for each in SPREADS)}. Of one design the share has a
standard error of 0.7.
"""


def write(rows: Sequence[str]) -> None:
    """The page, and what the documentation shows of it."""
    import pages  # beside this file, where scripts find each other

    table = "\n".join([*rows, ""])
    (HERE / "bench_coverage.md").write_text(f"{HEAD}\n{table}", encoding="utf-8")
    pages.put(HERE.parent / "docs" / "guide" / "statistics.md", "coverage", table)


if __name__ == "__main__":
    write(list(lines()))
