"""Throughput: samples a second at growing batches, and the largest batch that fits (CCM, arXiv 2312.03414, Table 1).

A sample is a context that is read and a query that is answered. Given is the rate of answering, with the state at hand
as in the paper, and, at the same batch, that of reading and answering.
"""

from __future__ import annotations

import gc
import time
from statistics import median
from typing import Any, NamedTuple

import torch

from ttabench.core.accelerators import release
from ttabench.core.memory import out_of_memory
from ttabench.core.meter import Meter, largest
from ttabench.core.types import Ask, Observe
from ttabench.lm.forward.patching import follows_text, text_start
from ttabench.lm.forward.tokens import prompt_ids
from ttabench.lm.model import LM
from ttabench.lm.verbs.generation import greedy_tokens
from ttabench.methods.base import BaseMethod
from ttabench.methods.session import Session
from ttabench.profiling.load import Load
from ttabench.profiling.measure import pieces, question
from ttabench.profiling.rows import Figure, Row, exactly, figure, measured, oom, peak

MOST = 4096
"""Rows beyond which no larger batch is tried."""
NEAR = 8
"""The largest batch is known to an eighth of itself."""


class Rate(NamedTuple):
    """One batch that fitted, and its passes."""

    rows: int
    asked: list[float]
    """Samples answered a second, by pass."""
    whole: list[float]
    """Samples read and answered a second, by pass."""
    state_bytes: int
    peak_bytes: int | None


def throughput(lm: LM, method: BaseMethod[Any], tokens: int, load: Load) -> Row:
    """The row of one length: the best rates, and the largest batch."""
    return measured(method.name, tokens, lambda: _throughput(lm, method, tokens, load))


def _throughput(lm: LM, method: BaseMethod[Any], tokens: int, load: Load) -> Row:
    fitted: list[Rate] = []
    largest, failed, reason = 0, 0, ""
    while (rows := next_batch(largest, failed)) and rows <= MOST:
        try:
            fitted.append(_rate(lm, method, rows, tokens, load))
            largest = rows
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            failed, reason = rows, str(error)
        gc.collect()  # out of the handler, so that what the traceback holds is free again
        release()
    if not fitted:
        return oom(method.name, tokens, reason)
    notes = () if failed else (f"batches beyond {largest} were not tried",)
    return Row(method=method.name, prefill=tokens, figures=figures(fitted, load), notes=notes)


def next_batch(largest: int, failed: int) -> int:
    """The batch to try next, 0 when the largest one is known well enough.

    Args:
        largest: rows that fitted, 0 before any.
        failed: the fewest rows that did not fit, 0 before any.
    """
    if not failed:
        return max(1, 2 * largest)
    return (largest + failed) // 2 if failed - largest > max(1, largest // NEAR) else 0


def _rate(lm: LM, method: BaseMethod[Any], rows: int, tokens: int, load: Load) -> Rate:
    """Contexts, each different, and a query about each: warm up, then time pass after pass."""
    read = list(zip(*(pieces(lm, tokens, load.piece_tokens, reader) for reader in range(rows)), strict=True))
    asks = [question(lm, load.prompt_tokens, load.generate, number) for number in range(rows)]
    meters: list[Meter] = []
    kept = _pass(lm, method, read, asks, load.generate, Meter(lm.device))
    started = time.perf_counter()
    while not meters or (len(meters) < load.repeat and time.perf_counter() - started < load.row_seconds):
        meters.append(Meter(lm.device))
        kept = _pass(lm, method, read, asks, load.generate, meters[-1])
    seconds = [(meter.seconds["adapt"], meter.seconds["ask"]) for meter in meters]
    most = largest(peak for meter in meters for peak in meter.peak_bytes.values())
    return Rate(rows, [rows / ask for _, ask in seconds], [rows / sum(both) for both in seconds], kept, most)


def _pass(
    lm: LM, method: BaseMethod[Any], read: list[tuple[Observe, ...]], asks: list[Ask], tokens: int, meter: Meter
) -> int:
    """Read and answer once; returns the bytes of the state."""
    session = Session(lm, method, rows=len(asks))
    session.read_rows(read)
    with meter.phase("adapt"):
        session.flush()
    with torch.no_grad(), meter.phase("ask"):
        patch = session.patch(asks)
        start = text_start(lm, patch)
        prompts = [start + prompt_ids(lm, ask, follows=follows_text(patch)) for ask in asks]
        for token_B in greedy_tokens(lm, patch, prompts, tokens):
            token_B.tolist()
    return session.state.nbytes


def figures(fitted: list[Rate], load: Load) -> dict[str, Figure]:
    """Rates are those of the batch that answers fastest; memory is that of the largest."""
    best = max(fitted, key=lambda rate: median(rate.asked))
    most = max(fitted, key=lambda rate: rate.rows)
    return {
        "largest_batch": exactly(most.rows),
        "fastest_batch": exactly(best.rows),
        "samples_per_second": figure(best.asked),
        "whole_samples_per_second": figure(best.whole),
        "tokens_per_second": figure([rate * load.generate for rate in best.asked]),
        "sample_state_bytes": exactly(most.state_bytes / most.rows),
        **peak("peak_memory_bytes", [most.peak_bytes]),
    }
