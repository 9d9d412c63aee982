"""CCM on a stream: what is held, that blocks are as token by token, and that memory is constant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.methods.test_ccm import ccm
from tests.tiny import MODELS, tiny_gpt2, tiny_llama
from ttabench.core.errors import UserError
from ttabench.core.types import Observe
from ttabench.cost import Workload, shape_from
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.methods.ccm import CCM
from ttabench.methods.ccm.method import Ccm
from ttabench.methods.ccm.settings import CcmSettings

SMALL: dict[str, Any] = {"comp_tokens": 2, "window": 20, "piece": 8, "memory": 4}


def text(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(10, 90, (count,), generator=generator).tolist()


def read(method: Ccm, *pieces: list[int], state: State | None = None) -> State:
    observes = [[Observe(text=".", joiner="", ids=tuple(piece))] for piece in pieces]
    return method.adapt(method.begin(1) if state is None else state, observes)


def held(method: Ccm, count: int) -> list[int]:
    """Slots held before each token of a stream."""
    assert method.stream is not None
    lengths: list[int] = []
    method.stream.read(None, text(count), 0, method.comp_use(), lengths.extend)
    return lengths


@pytest.mark.parametrize("base", MODELS)
@pytest.mark.parametrize("compress", [True, False])
def test_a_block_is_read_as_token_by_token(base: Callable[[], LM], compress: bool) -> None:
    method, ids = ccm(base(), **SMALL, compress=compress), text(53)
    whole, single = read(method, ids), read(method, *([token] for token in ids))
    for name, tensor in whole.tensors.items():
        torch.testing.assert_close(single.tensors[name], tensor, atol=1e-4, rtol=1e-4)
    assert whole.meta == single.meta


@pytest.mark.parametrize("base", [tiny_llama, tiny_gpt2])
def test_what_is_held_oscillates_and_is_as_much_without_compressing(base: Callable[[], LM]) -> None:
    found = [held(ccm(base(), **SMALL, compress=compress), 200) for compress in (True, False)]
    assert found[0] == found[1]
    assert (max(found[0]), min(found[0][60:])) == (20, 13), "1 first, 4 of memory, 21 - 1 - 4 - 8 of text"


def test_the_papers_lengths() -> None:
    """Figure 8: a window of 160, 64 tokens to 2, a memory of 8."""
    lengths = held(ccm(tiny_llama(), comp_tokens=2, window=160), 800)
    assert (max(lengths), min(lengths[409:])) == (160, 97)
    assert lengths[409 : 409 + 128] == [*range(97, 161)] * 2


def test_bytes_of_the_state_are_the_same_after_any_text() -> None:
    method, state, sizes = ccm(tiny_llama(), **SMALL), None, set()
    for part in range(40):
        state = read(method, text(50, part), state=state)
        sizes.add(state.nbytes)
    cost = CCM.cost
    assert cost is not None
    told = cost(
        method.settings,
        shape_from(method.lm.config.to_dict(), method.lm.config.model_type),
        Workload(pieces=(50,) * 40, prompt_tokens=1, new_tokens=1),
    )
    assert told is not None
    assert sizes == {told.state_bytes}
    assert state is not None
    assert state.meta["tokens_read"] == [2000]


@pytest.mark.parametrize("n_sink", [None, 0, 3])
def test_without_compressing_the_first_and_the_newest_stay(n_sink: int | None) -> None:
    ids, first = text(100), 1 if n_sink is None else n_sink
    places = read(ccm(tiny_llama(), **SMALL, compress=False, n_sink=n_sink), ids).tensors["index"].flatten()
    places = places[places >= 0].tolist()
    assert places == [*range(first), *range(101 + first - len(places), 101)], "behind what begins the text"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"compress": False}, "give window, too"),
        ({"n_sink": 2}, "give window, too"),
        ({"window": 160, "n_sink": -1}, "n_sink must be at least 0"),
        ({"window": 72}, "must be larger than memory and piece"),
        ({"window": 160, "comp_tokens": 3}, "whole groups of comp_tokens"),
        ({"window": 160, "piece": 8}, "fewer than a piece"),
        ({"window": 160, "update": "merge"}, "concatenated"),
        ({"window": 160, "recursive": False}, "concatenated"),
        ({"window": 160, "memory": 0}, "memory must be at least 1"),
    ],
)
def test_bad_settings_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CcmSettings(**given)


def test_a_window_beyond_the_positions_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="exceed the 512 positions"):
        ccm(tiny_llama(), comp_tokens=2, window=512)
    ccm(tiny_llama(), comp_tokens=2, window=511)
