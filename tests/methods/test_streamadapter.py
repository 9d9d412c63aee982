"""StreamAdapter: its equations two ways, streams cut anywhere, both ways to read, sizes and gradients."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from tests.methods.reading import prompted, read_apart
from tests.tiny import tiny_gpt2, tiny_llama
from tests.tiny_methods import PROMPTS, TEXTS, make_chunks, make_queries, set_nonzero_outputs
from ttabench.lm.forward.patching import forward
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.methods.streamadapter import StreamAdapterSettings
from ttabench.methods.streamadapter.method import StreamAdapter
from ttabench.methods.streamadapter.networks import ChunkMapper
from ttabench.profiling.measure import TensorMemoryCounter

TINY = StreamAdapterSettings(queries=4, down=4, chunk=8)
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def taught(lm: LM, **changes: Any) -> StreamAdapter:
    """An adapter whose deltas and gates are not zero."""
    method = StreamAdapter(lm, replace(TINY, **changes))
    set_nonzero_outputs(method)
    return method


def mapper(seed: int = 0, heads: int = 2) -> ChunkMapper:
    torch.manual_seed(seed)
    made = ChunkMapper([(6, 10), (10, 6)], heads, 4, StreamAdapterSettings(queries=3, down=5))
    with torch.no_grad():
        made.gate.normal_()
        made.gate_bias.normal_()
    return made


def by_hand(made: ChunkMapper, keys_HSD: Tensor, values_HSD: Tensor, chunk: int) -> Tensor:
    """Equations 4 to 8 as they stand in the paper: one map, one head, one query, one chunk at a time, [M, R, E]."""
    maps, heads, queries, size = made.queries.shape
    states = []
    for m in range(maps):
        h = None
        for begin in range(0, keys_HSD.shape[1], chunk):
            part = slice(begin, begin + chunk)
            rows = []
            for r in range(queries):
                cells = []
                for head in range(heads):
                    weights = (keys_HSD[head, part] @ made.queries[m, head, r] / size**0.5).softmax(
                        0
                    )
                    cells.append(weights @ (values_HSD[head, part] @ made.down[m, 0]))
                rows.append(torch.cat(cells))
            summary = torch.stack(rows)
            gate = torch.sigmoid(summary @ made.gate[m] + made.gate_bias[m]) ** (1 / 16)
            h = summary if h is None else gate[:, None] * h + summary
        assert h is not None
        states.append(h)
    return torch.stack(states)


@given(st.lists(st.integers(2, 30), min_size=1, max_size=5))
@settings(max_examples=5, deadline=None)
def test_a_cache_may_be_cut_anywhere(cuts: list[int]) -> None:
    """What fills no chunk waits in the tail, in a row of its own length; up to 30 chunks, of which 8 go at once."""
    networks, total = taught(tiny_llama()).networks, sum(cuts)
    shape = (networks.lm.layers, 2, networks.lm.kv_heads, total, networks.lm.head_dim)
    keys, values = torch.randn(shape), torch.randn(shape)
    real = torch.arange(total) < torch.tensor([[total], [total // 2]])
    tensors = networks.empty_state(2)
    for end, size in zip(accumulate(cuts), cuts, strict=True):
        part = slice(end - size, end)
        tensors = networks.absorb(
            tensors, list(keys[..., part, :]), list(values[..., part, :]), real[:, part]
        )
    for row, length in enumerate((total, total // 2)):
        own = by_hand(networks.mappers[0], keys[0, row, :, :length], values[0, row, :, :length], 8)  # type: ignore[arg-type]
        torch.testing.assert_close(networks.flush_tail(tensors)[0, row], own, atol=1e-4, rtol=1e-4)


def test_deltas_are_those_of_the_equations() -> None:
    made = mapper()
    with torch.no_grad():
        for outer in made.outputs:
            outer.normal_()
    h = torch.randn(1, *made.shape)
    for index, (features_in, features_out) in enumerate([(6, 10), (10, 6)]):
        x = torch.randn(features_in)
        delta = made.deltas(h)[index]
        wanted = x @ made.inputs[index] @ h[0, index].T @ made.outputs[index]
        assert wanted.shape == (features_out,)
        torch.testing.assert_close(x @ delta.a_BRI[0].T @ delta.b_BOR[0].T, wanted, **CLOSE)


def test_a_book_is_read_in_the_memory_of_two_windows() -> None:
    method = taught(tiny_llama(), window=16, stride=8)

    def peak(pieces: int) -> int:
        state = read_apart(method, *TEXTS)
        with torch.no_grad(), TensorMemoryCounter() as counter:
            for _ in range(pieces):
                state = method.adapt(state, [make_chunks(TEXTS[0])])
        return counter.peak_tensor_bytes

    assert peak(5) <= 1.05 * peak(2)


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
@pytest.mark.parametrize("window", [None, 16])
def test_merged_equals_hooked(make: Any, window: int | None) -> None:
    lm = make()
    hooked, merged = (taught(lm, window=window, stride=8, merge=merge) for merge in (False, True))
    state = read_apart(hooked, *TEXTS)
    ours, theirs = (
        prompted(lm, merged.patch(state, make_queries(*PROMPTS))),
        prompted(lm, hooked.patch(state, make_queries(*PROMPTS))),
    )
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert float((theirs - prompted(lm, Patch())).abs().max()) > 1e-2


def test_window_keeps_the_newest_tokens_and_maps_the_others() -> None:
    """The weights after the second eviction, followed by hand: what leaves is read under the weights then in force."""
    lm = tiny_llama()
    method = taught(lm, window=16, stride=8)
    ids = lm.encode(TEXTS[0])[:25]
    state = method.adapt(method.begin(1), [[replace(make_chunks(lm.decode(ids))[0], joiner="")]])
    assert state.tensors["lengths"].tolist() == [25 - 2 * 8]
    assert state.tensors["tokens"][0, :9].tolist() == ids[16:]
    networks, h = method.networks, method.networks.empty_state(1)["h"]
    for begin in (0, 8):
        start, _ = len(lm.bos_ids), None
        text = torch.tensor([[*lm.bos_ids, *ids[begin : begin + 16]]])
        with torch.no_grad():
            _, window = forward(lm, Patch(deltas=networks.deltas(h)), text)
            seen = window.prefix()
            part = slice(start, start + 8)
            h = networks.advance(
                h,
                [k[:, :, part] for k in seen.keys_LBHPD],
                [v[:, :, part] for v in seen.values_LBHPD],
                torch.tensor([1]),
            )
    torch.testing.assert_close(state.tensors["h"], h, **CLOSE)


def test_window_that_is_not_full_is_the_base_model_on_its_tokens() -> None:
    lm = tiny_llama()
    method = taught(lm, window=64, stride=8)
    patch = method.patch(read_apart(method, "Ada lives here."), make_queries(PROMPTS[0]))
    plain = Patch(tokens_BT=torch.tensor([lm.encode("Ada lives here.")]))
    torch.testing.assert_close(prompted(lm, patch), prompted(lm, plain), atol=1e-5, rtol=1e-5)
