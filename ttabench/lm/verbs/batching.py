"""Batches that fit: rows go through together, and where memory does not suffice half as many do.

    for samples in in_batches(asks, BatchSize(64), answer):     # 64, 64, out of memory, 32, 32 ...

What is done stays done; a batch that failed is run again in halves. Results do not depend on the size.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TypeVar

from ttabench.core import memory
from ttabench.core.accelerators import release
from ttabench.core.errors import UserError
from ttabench.core.memory import out_of_memory
from ttabench.core.types import Ask, Choose, Generate
from ttabench.lm.forward.ways import ways_of
from ttabench.lm.model import LM

AUTO = 0
"""Stands for a size that is found: the largest one that fits, from `START` downwards."""
START = {"cpu": 64, "cuda": 1024}
"""A CPU gains nothing from more rows, and runs out of memory without a word; a GPU says so."""
FEWEST = 4
"""Rows that a batch has before one of another length is kept out: a forward of few rows costs, too."""

Row = TypeVar("Row")
Done = TypeVar("Done")


class BatchSize:
    """How many rows go together, for as long as they fit; `AUTO` begins with those of a device type."""

    def __init__(self, wanted: int, device: str = "cpu") -> None:
        self.rows = wanted if wanted != AUTO else START.get(device, START["cpu"])
        assert self.rows > 0, f"a batch of {self.rows} rows"


def in_batches(rows: Sequence[Row], size: BatchSize, work: Callable[[list[Row]], Done]) -> Iterator[Done]:
    """Do the work on all rows, batch by batch; the size shrinks where it must and stays there."""
    begin = 0
    while begin < len(rows):
        batch = list(rows[begin : begin + size.rows])
        failed = False
        try:
            done = work(batch)
        except (RuntimeError, MemoryError) as error:
            failed = out_of_memory(error)
            if not failed:
                raise
        if failed:  # out of the handler, so that what the traceback holds is free again
            _halve(size, len(batch))
            continue
        yield done
        begin += len(batch)


def _halve(size: BatchSize, failed: int) -> None:
    if failed == 1:
        memory.released()
        hint = "Read less, take a smaller --model or --dtype bfloat16, or a device with more memory."
        raise UserError("One query alone does not fit into memory.", hint)
    size.rows = failed // 2
    gc.collect()
    release()


def by_length(lm: LM, lengths: Sequence[int], size: int, like: float = 0.0) -> Iterator[list[int]]:
    """Places of rows in batches of at most so many, longest first: what does not fit fails at once.

    A row shorter than `like` times the longest one of its batch goes to the next batch, once `FEWEST` are in it.
    """
    size = size if ways_of(lm).rows else 1
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if len(batch) == size or (len(batch) >= FEWEST and lengths[place] < like * lengths[batch[0]]):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def alike(lm: LM, asks: Sequence[Ask]) -> Iterator[list[Ask]]:
    """Queries of one mode and one answer length together, those of like length side by side, the longest first.

    What does not fit the model fails at once, and a run that was killed goes on with the batches it would have had.
    """
    # a prompt is read in one row with its options
    texts = [ask.prompt + ("".join(ask.want.options) if isinstance(ask.want, Choose) else "") for ask in asks]
    lengths = {ask.key: len(ids) for ask, ids in zip(asks, lm.encode_many(texts), strict=True)}
    ordered = sorted(asks, key=lambda ask: (_kind(ask), -lengths[ask.key], ask.key))
    for _, together in groupby(ordered, key=_kind):
        yield list(together)


def _kind(ask: Ask) -> tuple[str, int]:
    """Queries of one kind may go together: they are answered in one way, with as many new tokens."""
    return ask.mode, ask.want.max_new_tokens if isinstance(ask.want, Generate) else 0
