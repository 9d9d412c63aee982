"""Batches that shrink where memory does not suffice, and lose nothing."""

from __future__ import annotations

import pytest
import torch

from ttabench.core.errors import UserError
from ttabench.lm.inference.answering import (
    AUTO_BATCH_SIZE,
    INITIAL_BATCH_SIZES,
    BatchSize,
    is_out_of_memory,
    run_in_batches,
)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.cuda.OutOfMemoryError("CUDA out of memory."),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
        ),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
    ],
    ids=["python", "cuda", "cpu", "windows"],
)
def test_a_batch_that_does_not_fit_is_run_in_halves(error: Exception) -> None:
    tried: list[int] = []

    def work(batch: list[int]) -> list[int]:
        tried.append(len(batch))
        if len(batch) > 3:
            raise error
        return [row * 10 for row in batch]

    size = BatchSize(8)
    done = [row for batch in run_in_batches(range(10), size, work) for row in batch]
    assert done == [row * 10 for row in range(10)]
    assert tried == [8, 4, 2, 2, 2, 2, 2]
    assert size.rows == 2
    assert is_out_of_memory(error)


def test_other_errors_pass_and_one_row_is_the_users() -> None:
    def fails(batch: list[int]) -> None:
        raise RuntimeError("a bug")

    def never_fits(batch: list[int]) -> None:
        raise MemoryError

    with pytest.raises(RuntimeError, match="a bug"):
        list(run_in_batches([1, 2], BatchSize(2), fails))
    with pytest.raises(UserError, match="memory"):
        list(run_in_batches([1, 2], BatchSize(2), never_fits))
    assert BatchSize(AUTO_BATCH_SIZE, "cuda").rows == INITIAL_BATCH_SIZES["cuda"]
    assert BatchSize(AUTO_BATCH_SIZE).rows == INITIAL_BATCH_SIZES["cpu"]
