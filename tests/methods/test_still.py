"""Still: the loss in one forward is that of use, slots begin as means, and they stay where their pieces stood."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.methods.reading import read, read_apart
from tests.tiny import tiny_gpt2, tiny_llama
from tests.tiny_methods import PROMPTS, TEXTS, make_chunks, make_queries
from ttabench.core.types import Chunk, Episode
from ttabench.methods.still import StillSettings
from ttabench.methods.still.method import Compactor, Still
from ttabench.methods.trainable import answer_loss

TINY = StillSettings(slots=2, width=16, heads=2)


def told(order: Sequence[int], name: str = "e") -> Episode:
    """Texts and questions in turn: so many texts before each question."""
    texts, steps = iter(make_chunks(*TEXTS)), list[Any]()
    for number, count in enumerate(order):
        steps += [next(texts) for _ in range(count)]
        steps += make_queries(PROMPTS[number % len(PROMPTS)])
    return Episode(key=name, steps=tuple(steps))


def taught(make: Any) -> Still:
    """One whose slots are no plain means."""
    method = Still(make(), TINY)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for parameter in method.modules().parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return method


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_the_loss_in_one_forward_is_that_of_use(make: Any) -> None:
    method = taught(make)
    for episodes in ([told((0,))], [told((2,))], [told((1, 1))], [told((0, 1, 1)), told((3,))]):
        with torch.no_grad():
            found, wanted = method.loss_parts(episodes)["answer"], answer_loss(method, episodes)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_a_chunk_without_tokens_has_no_slots() -> None:
    steps = (Chunk(text=""), *told((2,)).steps)
    assert taught(tiny_llama).loss_parts([Episode(key="e", steps=steps)])["answer"].isfinite()


def test_slots_begin_as_means_of_neighbours() -> None:
    layer = Compactor(1, 4, StillSettings(slots=2, width=16, heads=2))
    torch.manual_seed(0)
    keys, values = torch.randn(1, 1, 40, 4), torch.randn(1, 1, 40, 4)
    real = torch.arange(40)[None] < 20  # what is padded counts for nothing
    for held, found in zip((keys, values), layer(keys, values, real), strict=True):
        first, second = found[0, 0].detach()
        near = torch.softmax(-4 * ((torch.arange(20) + 0.5) / 10 - 0.5).square(), 0)
        torch.testing.assert_close(first, near @ held[0, 0, :20])
        torch.testing.assert_close(second, near.flip(0) @ held[0, 0, :20])


def test_chunks_read_apart_see_slots_and_those_read_together_text() -> None:
    method = taught(tiny_llama)
    together, apart = read(method, *TEXTS[:2]), read_apart(method, *TEXTS[:2])
    first = len(method.lm.start_ids) + TINY.slots
    for state in (together, apart):
        assert state.tensors["keys"].shape[3] == len(method.lm.start_ids) + 2 * TINY.slots
        assert int(state.tensors["next"]) == len(method.lm.start_ids) + state.meta["tokens_read"][0]
    torch.testing.assert_close(
        together.tensors["keys"][..., :first, :], apart.tensors["keys"][..., :first, :]
    )
    assert not together.tensors["values"][1:, ..., first:, :].allclose(
        apart.tensors["values"][1:, ..., first:, :]
    )
