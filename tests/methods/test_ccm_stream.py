"""CCM on a stream: what is held, that blocks are as token by token, and that memory is constant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.methods.test_ccm import ccm
from tests.tiny import tiny_gpt2, tiny_llama
from ttabench.core.types import Observe
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.methods.ccm.method import Ccm

SMALL: dict[str, Any] = {"comp_tokens": 2, "window": 20, "piece": 8, "memory": 4}


def text(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(10, 90, (count,), generator=generator).tolist()


def read(method: Ccm, *pieces: list[int], state: State | None = None) -> State:
    observes = [[Observe(text=".", joiner="", ids=tuple(piece))] for piece in pieces]
    return method.adapt(method.begin(1) if state is None else state, observes)


@pytest.mark.parametrize("base", [tiny_llama, tiny_gpt2])
@pytest.mark.parametrize("compress", [True, False])
def test_a_block_is_read_as_token_by_token(base: Callable[[], LM], compress: bool) -> None:
    method, ids = ccm(base(), **SMALL, compress=compress), text(53)
    whole, single = read(method, ids), read(method, *([token] for token in ids))
    for name, tensor in whole.tensors.items():
        torch.testing.assert_close(single.tensors[name], tensor, atol=1e-4, rtol=1e-4)
    assert whole.meta == single.meta


def test_the_papers_lengths() -> None:
    """Figure 8: a window of 160, 64 tokens to 2, a memory of 8."""
    stream, kept, done, lengths = ccm(tiny_llama(), comp_tokens=2, window=160).stream, None, 0, [0]
    assert stream is not None
    for token in text(600):
        kept, done = stream.read(kept, [token], done)
        assert kept is not None
        lengths.append(kept.index.shape[-1])
    assert (max(lengths), min(lengths[409:])) == (160, 97)
    assert lengths[409 : 409 + 128] == [*range(97, 161)] * 2


@pytest.mark.parametrize("n_sink", [None, 0, 3])
def test_without_compressing_the_first_and_the_newest_stay(n_sink: int | None) -> None:
    ids, first = text(100), 1 if n_sink is None else n_sink
    places = read(ccm(tiny_llama(), **SMALL, compress=False, n_sink=n_sink), ids).tensors["index"].flatten()
    places = places[places >= 0].tolist()
    assert places == [*range(first), *range(101 + first - len(places), 101)], "behind what begins the text"
