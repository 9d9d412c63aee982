"""Figures crossed to a grid by pandas: a line a method, a column a step, a sub-task or what else varies.

crossed([("icl", 4, 0.5), ("icl", 8, 0.7), ("none", 4, 0.1), ("icl", 4, 0.6)], lambda values: f"{max(values):g}")

      |   4 |   8
icl   | 0.6 | 0.7
none  | 0.1 |
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")


def crossed(triples: Iterable[tuple[Hashable, Hashable, T]], cell: Callable[[list[T]], str]) -> pandas.DataFrame:
    """What `cell` makes of all items of a line and column; "" where there are none.

    Args:
        triples: line, column, item. Lines keep their order, columns are sorted.
        cell: never asked about no items.
    """
    import pandas

    frame = pandas.DataFrame(triples, columns=["line", "column", "item"])
    cells = frame.groupby(["line", "column"], sort=False)["item"].agg(lambda items: cell(list(items)))
    return cells.unstack(sort=False).sort_index(axis=1).fillna("")
