"""What a profile measures at one length: sizes, text, counts, phases, batches, training. Nothing is timed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.tiny import tiny_llama
from tests.tiny_methods import tiny_method
from ttabench.lm.forward.tokens import chunk_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext
from ttabench.methods.registry import methods
from ttabench.profiling.job import Load
from ttabench.profiling.measure import (
    MODES,
    TensorMemoryCounter,
    make_chunks,
    make_query,
    measure_latency,
    measure_throughput,
    measure_training,
)
from ttabench.profiling.record import measure_or_refuse

LOAD = Load(piece_tokens=32, prompt_tokens=8, generate=3, repeat=2, row_seconds=600.0)


@pytest.fixture
def lm() -> LM:
    return tiny_llama()


@pytest.mark.parametrize("wanted", [1, 31, 32, 33, 65, 200, 500])
def test_text_has_the_length_asked_for_and_never_repeats(lm: LM, wanted: int) -> None:
    read = [piece.text for reader in range(2) for piece in make_chunks(lm, wanted, 32, reader)]
    told = [
        text for text in read if len(text) > 20
    ]  # the rest of a text may be too short to say anything
    assert len(set(told)) == len(told) >= 2 * (wanted // 32)
    parts = enumerate(make_chunks(lm, wanted, 32))
    assert sum(len(chunk_ids(lm, piece, first=not number)) for number, piece in parts) == wanted
    assert len(lm.encode(make_query(lm, 8, 3).prompt)) == 8


def test_tensors_are_counted_while_they_live() -> None:
    given_ = torch.ones(100)
    with TensorMemoryCounter() as counter:
        for _ in range(3):
            kept = given_ + 1  # each one takes the place of the last, once it is made
        view = kept.view(10, 10).t()
        given_.mul_(2)
    assert counter.peak_tensor_bytes == 2 * kept.nbytes
    assert view.nbytes == kept.nbytes


@pytest.mark.parametrize("name", methods())
def test_every_method_has_every_figure(lm: LM, name: str) -> None:
    method = tiny_method(name, lm)
    rows = [measure_latency(lm, method, length, LOAD) for length in (64, 160)]
    for row in rows:
        assert row.status == "ok", row.detail
        for figure_name in (
            "total_seconds",
            "first_ms",
            "token_ms",
            "tokens_per_second",
            "peak_memory_bytes",
        ):
            assert (row.value(figure_name) or 0) > 0, figure_name
        assert "peak_tensor_bytes" in row.figures
        assert row.figures["token_ms"].n == row.figures["adapt_seconds"].n == 2
    states = [row.value("state_bytes") or 0.0 for row in rows]
    growth = method.growth
    assert (
        states[1] == 0
        if growth == "none"
        else (states[1] > 1.5 * states[0]) == (growth == "linear")
    )
    if name in ("icl", "h2o", "snapkv", "window"):
        assert abs((rows[1].value("tokens_read") or 0) - 160) <= 2


class Greedy(InContext):
    """Runs out of memory beyond so many rows, or tokens."""

    most_rows = 5

    def adapt(self, state: State, chunks: Any) -> State:
        if state.rows > self.most_rows:
            raise MemoryError("no room for so many rows")
        return super().adapt(state, chunks)


@pytest.mark.parametrize("mode", MODES.values())
def test_out_of_memory_is_a_row(lm: LM, mode: Any) -> None:
    method = Greedy(lm, InContextSettings())
    method.most_rows = 0
    row = measure_or_refuse("icl", 64, lambda: mode(lm, method, 64, LOAD))
    assert (row.status, row.figures) == ("oom", {})
    assert "no room" in row.detail


def test_throughput_finds_the_largest_batch(lm: LM) -> None:
    row = measure_throughput(lm, Greedy(lm, InContextSettings()), 64, LOAD)
    assert row.status == "ok"
    assert row.value("largest_batch") == 5
    assert (row.value("samples_per_second") or 0) > (row.value("whole_samples_per_second") or 0) > 0
    alone = measure_latency(lm, InContext(lm, InContextSettings()), 64, LOAD)
    assert row.value("sample_state_bytes") == alone.value("state_bytes")


@pytest.mark.parametrize("name", methods())
def test_a_training_profile(lm: LM, name: str) -> None:
    method = tiny_method(name, lm)
    before = [parameter.clone() for parameter in method.modules().parameters()]
    row = measure_training(lm, method, 40, LOAD)
    assert row.status == "ok", row.detail
    assert row.figures["adapt_seconds"].n == 2
    assert ("train_ms_per_sample" in row.figures) == method.spec.trainable
    if method.spec.trainable:
        after = list(method.modules().parameters())
        assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True)), (
            "no step was made"
        )
        assert row.value("trained_parameters") == sum(parameter.numel() for parameter in after)
