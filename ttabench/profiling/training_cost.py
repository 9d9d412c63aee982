"""What training costs: milliseconds a sample, peak memory, and the memory of adapting one document.

A step trains on `BATCH` documents with a query each, in one episode (CCM, arXiv 2312.03414, Tables 18 and 22); adapting
to one document is as in MAC, arXiv 2403.04317, Figure 2.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

from ttabench.core.meter import Meter
from ttabench.core.types import Ask, Episode, Observe
from ttabench.lm.model import LM
from ttabench.methods.base import BaseMethod
from ttabench.methods.session import Session
from ttabench.profiling.load import Load
from ttabench.profiling.measure import pieces, question
from ttabench.profiling.rows import Figure, Row, exactly, figure, measured, peak
from ttabench.training.loop import TrainConfig, train

BATCH = 8
"""Samples in a step."""


def training(lm: LM, method: BaseMethod[Any], tokens: int, load: Load) -> Row:
    """The row of one length of document."""

    def measure() -> Row:
        figures = _document(lm, method, tokens, load)
        if method.spec.trainable:
            figures |= _steps(lm, method, tokens, load)
        return Row(method=method.name, prefill=tokens, figures=figures)

    return measured(method.name, tokens, measure)


def _document(lm: LM, method: BaseMethod[Any], tokens: int, load: Load) -> dict[str, Figure]:
    """Adapting to one document: warmed up once, then repeated."""
    (document,) = pieces(lm, tokens, tokens)
    seconds, peaks, session = [], [], Session(lm, method)
    for number in range(load.repeat + 1):
        meter, session = Meter(lm.device), Session(lm, method)
        session.read([document])
        with meter.phase("adapt"):
            session.flush()
        if number:
            seconds.append(1000 * meter.seconds["adapt"])
            peaks.append(meter.peak_bytes["adapt"])
    return {
        "document_ms": figure(seconds),
        **peak("document_peak_bytes", peaks),
        "state_bytes": exactly(session.state.nbytes),
    }


def _steps(lm: LM, method: BaseMethod[Any], tokens: int, load: Load) -> dict[str, Figure]:
    """Training steps: the first warms up, the others are timed one by one."""
    ends: list[float] = []
    meter = Meter(lm.device)

    def on_step(_step: int, _figures: Mapping[str, float]) -> None:
        ends.append(time.perf_counter())  # the loss was read back, so a GPU is done, too

    # from the weights as they are: what a step costs does not depend on them
    config = TrainConfig(steps=load.repeat + 1, fresh=False, lr=1e-6)
    with meter.phase("train"):
        train(method, _episodes(lm, tokens, load), config, on_step)
    samples = [1000 * (after - before) / BATCH for before, after in pairwise(ends)]
    return {
        "train_ms_per_sample": figure(samples),
        **peak("train_peak_bytes", [meter.peak_bytes["train"]]),
        "trained_parameters": exactly(sum(parameter.numel() for parameter in method.modules().parameters())),
        "samples_per_step": exactly(BATCH),
    }


def _episodes(lm: LM, tokens: int, load: Load) -> Iterator[list[Episode]]:
    """Steps without end, each one episode of documents never seen before and a query about each."""
    for step in count():
        read: list[Observe] = []
        asked: list[Ask] = []
        for number in range(step * BATCH, (step + 1) * BATCH):
            (piece,) = pieces(lm, tokens, tokens, reader=number)
            query = question(lm, load.prompt_tokens, load.generate, number)
            read.append(Observe(text=piece.text, key=f"document{number}"))
            asked.append(replace(query, source_key=f"document{number}"))
        yield [Episode(key=f"episode{step}", steps=(*read, *asked))]
