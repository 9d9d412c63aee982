"""Simulation of the coverage of 95 % intervals when the same queries occur in several draws.

    python results/bench_coverage.py            print both tables of docs/reference/coverage.md; half an hour

Answers are continuous, binary, or differences of two methods with binary answers. Every draw has
all queries, three fifths of them, or so few that most occur in one draw only. Effects of queries,
draws and their interaction are normal, with the given standard deviations. For binary answers they
apply to the latent variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np

from ttabench.stats.clusters import Observation
from ttabench.stats.estimate import Estimate, PairedDifference, difference, estimate

REPEATS = 1000
SIZES = ((20, 3), (60, 3), (200, 3), (60, 5), (60, 11))
"""Numbers of queries and draws."""
SPREADS = ((1, 0, 1), (1, 0.2, 1), (0, 0.3, 1), (2, 0.2, 0.3))

NESTED = ((16, 3), (64, 3), (165, 3), (16, 4), (64, 4), (165, 4))
"""Documents per draw, and draws. Every document has one query and occurs in one draw."""
BETWEEN = (0, 0.125, 0.25)
"""Standard deviations between such draws, relative to documents: 0, 5 and 10 points for binary
answers.
"""

Generator: TypeAlias = np.random.Generator
Included: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[np.bool_]]"
Values: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Spreads: TypeAlias = tuple[float, float, float]
"""Standard deviations of the effects of queries, draws and their interaction."""


def observations(values: Values, included: Included | None = None) -> list[Observation]:
    """Convert values of queries (rows) under draws (columns) to observations, as for draws of
    demonstrations.
    """
    return [
        Observation(f"draw {j}", (float(values[i, j]), 1.0), crossed=f"q{i}", question=f"q{i}")
        for i, j in np.ndindex(*values.shape)
        if included is None or included[i, j]
    ]


def one_way(some: list[Observation], side: int) -> list[Observation]:
    """Cluster the same observations by draws (0) or by queries (1) only."""
    return [
        Observation((each.cluster, each.crossed)[side], each.terms, each.stratum) for each in some
    ]


def own_queries(_: Generator, questions: int, draws: int) -> Included:
    """Give every draw the same number of queries, none in common."""
    return np.arange(questions)[:, None] % draws == np.arange(draws)


def all_queries(generator: Generator, questions: int, draws: int) -> Included:
    """Give every draw all queries."""
    return generator.random((questions, draws)) < 1


def some_queries(generator: Generator, questions: int, draws: int) -> Included:
    """Give every draw three fifths of the queries, drawn independently."""
    return generator.random((questions, draws)).argsort(0) < 3 * questions // 5


def few_shared(generator: Generator, questions: int, draws: int) -> Included:
    """Give every draw an independent sample. Samples add up to the total, so most queries occur in
    one draw.
    """
    return generator.random((questions, draws)).argsort(0) < max(4, questions // draws)


def continuous(generator: Generator, shape: tuple[int, int], spreads: Spreads) -> Values:
    """Draw continuous values with mean 0."""
    rows, columns, cells = spreads
    effects = generator.normal(0, rows, (shape[0], 1)) + generator.normal(0, columns, (1, shape[1]))
    return effects + generator.normal(0, cells, shape)


def binary(generator: Generator, shape: tuple[int, int], spreads: Spreads) -> Values:
    """Draw binary values, half of them right, minus one half."""
    return (continuous(generator, shape, spreads) > 0) - 0.5


def paired(generator: Generator, shape: tuple[int, int], spreads: Spreads) -> Values:
    """Draw differences of two methods with binary answers that share half of the query effect."""
    common, *own = (continuous(generator, shape, spreads) for _ in range(3))
    left, right = (common + each > 0 for each in own)
    return left.astype(float) - right.astype(float)


Kind: TypeAlias = Callable[[Generator, tuple[int, int], Spreads], Values]
Asking: TypeAlias = Callable[[Generator, int, int], Included]
KINDS: dict[str, Kind] = {"continuous": continuous, "binary": binary, "paired differences": paired}
ASKINGS: tuple[Asking, ...] = (all_queries, some_queries, few_shared)


def coverage(
    kind: Kind, asking: Asking, shape: tuple[int, int], spreads: Spreads, repeats: int = REPEATS
) -> tuple[float, float, float]:
    """Return the coverage of the true value 0: clustered both ways, by draws only, and by queries
    only.
    """
    generator, covered = np.random.default_rng(7), np.zeros(3)
    for _ in range(repeats):
        some = observations(kind(generator, shape, spreads), asking(generator, *shape))
        if asking is own_queries:  # Documents are the clusters, nested in draws.
            some = [each._replace(cluster=each.crossed, crossed=each.cluster) for each in some]
        forms = (some, one_way(some, 0), one_way(some, 1))
        if kind is paired:
            nothing = [form._replace(terms=(0.0, 1.0)) for form in some]
            covered += [inside(difference(form, nothing)) for form in forms]
        else:
            covered += [inside(estimate(form)) for form in forms]
    both, draws, questions = covered / repeats
    return float(both), float(draws), float(questions)


def inside(interval: Estimate | PairedDifference | None) -> bool:
    """Return True if the interval contains 0. Without an interval, test the value itself."""
    assert interval is not None, "a mean is a number"
    if interval.ci_low is None or interval.ci_high is None:
        return (interval.value if isinstance(interval, PairedDifference) else interval.mean) == 0
    return interval.ci_low <= 0 <= interval.ci_high


def crossed() -> Iterator[str]:
    """Yield one table row per kind of answer and number of draws."""
    yield "| answers | draws | designs | both ways (%) | within 93 to 97 % | by draws only (%) | by queries only (%) |"
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
            cells = (name, str(draws), str(len(rows)), ranges[0], good, *ranges[1:])
            yield f"| {' | '.join(cells)} |"


def nested() -> Iterator[str]:
    """Yield one table row per kind of answer and design, for draws without common documents."""
    heads = [f"draws differ by {between:g}" for between in BETWEEN]
    yield f"| answers | draws | documents of each | {' | '.join(heads)} | by documents alone |"
    yield f"| --- | ---: | ---: |{' ---: |' * (len(BETWEEN) + 1)}"
    for name, kind in KINDS.items():
        for documents, draws in NESTED:
            shape = documents * draws, draws
            covered = [coverage(kind, own_queries, shape, (1, between, 0)) for between in BETWEEN]
            shares = [f"{100 * both:.1f}" for both, _, _ in covered]
            alone = f"{100 * covered[-1][1]:.1f}"
            yield f"| {name} | {draws} | {documents} | {' | '.join(shares)} | {alone} |"


if __name__ == "__main__":
    for row in chain(crossed(), nested()):
        print(row, flush=True)
