"""Throughput: samples a second at growing batches, and the largest batch that fits the memory.

    1, 2, 4 ... samples, each a context of its own and a query        until memory ends; then halfway, until it is known

CCM, arXiv 2312.03414, Table 1. A sample is a context that is read and a query that is answered with `generate` tokens.
Given is the rate of answering (with the state at hand, as in the paper) and that of reading and answering.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import torch

from ttabench.batching import out_of_memory
from ttabench.errors import UserError
from ttabench.generation import greedy_tokens
from ttabench.lm import LM
from ttabench.meter import Meter
from ttabench.methods.base import BaseMethod
from ttabench.patching import encoded, text_start
from ttabench.profiling.load import Load
from ttabench.profiling.rows import Figure, Row, exactly, oom
from ttabench.profiling.sizes import short
from ttabench.profiling.text import pieces, question
from ttabench.progress import Tick, no_tick
from ttabench.stream import prompt_ids

MOST = 4096
"""Rows beyond which no larger batch is tried."""
NEAR = 8
"""The largest batch is known to an eighth of itself."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """One batch that fitted."""

    rows: int
    adapt_seconds: float
    ask_seconds: float
    state_bytes: int
    peak_bytes: int

    @property
    def asked(self) -> float:
        """Samples answered a second."""
        return self.rows / self.ask_seconds

    @property
    def whole(self) -> float:
        """Samples read and answered a second."""
        return self.rows / (self.adapt_seconds + self.ask_seconds)


def throughput(lm: LM, method: BaseMethod[Any], tokens: int, load: Load, tick: Tick = no_tick) -> Row:
    """The row of one length: the best rates, and the largest batch."""
    fitted: list[Rate] = []
    largest, failed, reason = 0, 0, ""
    while (rows := next_batch(largest, failed)) and rows <= MOST:
        tick(f"{method.name} batches of {short(tokens)}", rows, failed or MOST)
        try:
            fitted.append(_rate(lm, method, tokens, load, rows))
            largest = rows
        except UserError as error:
            return Row(method=method.name, prefill=tokens, status="refused", detail=str(error))
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            failed, reason = rows, str(error)
        _free()  # out of the handler, so that what the traceback holds is free again
    if not fitted:
        return oom(method.name, tokens, reason)
    notes = () if failed else (f"batches beyond {largest} were not tried",)
    return Row(method=method.name, prefill=tokens, figures=_figures(fitted, load), notes=notes)


def next_batch(largest: int, failed: int) -> int:
    """The batch to try next, 0 when the largest one is known well enough.

    Args:
        largest: rows that fitted, 0 before any.
        failed: the fewest rows that did not fit, 0 before any.
    """
    if not failed:
        return max(1, 2 * largest)
    return (largest + failed) // 2 if failed - largest > max(1, largest // NEAR) else 0


def _rate(lm: LM, method: BaseMethod[Any], tokens: int, load: Load, rows: int) -> Rate:
    meter = Meter(lm.device.type)
    readers = [pieces(lm, tokens, load.piece_tokens, reader) for reader in range(rows)]
    state = method.begin(rows)
    with meter.phase("adapt"):
        state = method.adapt_many(state, list(zip(*readers, strict=True)))
    asks = [question(lm, load.prompt_tokens, load.generate, number) for number in range(rows)]
    with torch.no_grad(), meter.phase("ask"):
        patch = encoded(lm, method.patch(state, asks))
        start = text_start(lm, patch)
        for token_B in greedy_tokens(lm, patch, [start + prompt_ids(lm, ask) for ask in asks], load.generate):
            token_B.tolist()
    return Rate(
        rows=rows,
        adapt_seconds=meter.seconds["adapt"],
        ask_seconds=meter.seconds["ask"],
        state_bytes=state.nbytes,
        peak_bytes=max(meter.peak_bytes.values()),
    )


def _figures(fitted: list[Rate], load: Load) -> dict[str, Figure]:
    best = max(fitted, key=lambda rate: rate.asked)
    largest = max(fitted, key=lambda rate: rate.rows)
    return {
        "largest_batch": exactly(largest.rows),
        "fastest_batch": exactly(best.rows),
        "samples_per_second": exactly(best.asked),
        "whole_samples_per_second": exactly(max(rate.whole for rate in fitted)),
        "tokens_per_second": exactly(best.asked * load.generate),
        "sample_state_bytes": exactly(largest.state_bytes / largest.rows),
        "peak_memory_bytes": exactly(largest.peak_bytes),
    }


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
