"""Items of different length, a list of them a row, as two tensors of a state.

    tensors = appended({}, "texts", [[b"Ada", b"Bo"], [b"Cy"]])     "texts" [2, 5] and "texts_sizes" [2, 2]
    items(tensors, "texts", row=1)                                  [tensor of b"Cy"]

Items of a row stand one after the other, zeros behind them; the sizes say where each ends. A row may have fewer items
than another: sizes of -1 fill its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

NO_ITEM = -1


def appended(tensors: Mapping[str, Tensor], name: str, rows_new: Sequence[Sequence[Tensor]]) -> dict[str, Tensor]:
    """Both tensors of that name with more items behind those of each row.

    Args:
        tensors: those of a state; items of that name may be there.
        name: of the items.
        rows_new: the next items of every row, each a tensor whose first dimension is its length.
    """
    flat, sizes = [], []
    for row, new in enumerate(rows_new):
        old_N, counts = _row(tensors, name, row)
        flat.append(torch.cat([*([] if old_N is None else [old_N]), *new]) if new or old_N is not None else None)
        sizes.append([*counts, *map(len, new)])
    some = next((texts_of_row for texts_of_row in flat if texts_of_row is not None), None)
    if some is None:
        return {}
    widest, most = max(len(texts_of_row) for texts_of_row in flat if texts_of_row is not None), max(map(len, sizes))
    table = some.new_zeros(len(flat), widest, *some.shape[1:])
    for row, texts_of_row in enumerate(flat):
        if texts_of_row is not None:
            table[row, : len(texts_of_row)] = texts_of_row
    padded = [[*row, *[NO_ITEM] * (most - len(row))] for row in sizes]
    return {name: table, f"{name}_sizes": torch.tensor(padded, dtype=torch.int32)}


def items(tensors: Mapping[str, Tensor], name: str, row: int) -> list[Tensor]:
    """The items of one row, in order; none while nothing was appended."""
    flat_N, sizes = _row(tensors, name, row)
    return [] if flat_N is None else list(torch.split(flat_N, sizes))


def _row(tensors: Mapping[str, Tensor], name: str, row: int) -> tuple[Tensor | None, list[int]]:
    if name not in tensors:
        return None, []
    sizes = [size for size in tensors[f"{name}_sizes"][row].tolist() if size != NO_ITEM]
    return tensors[name][row, : sum(sizes)], sizes
