"""Generative Adapter: its invariants, chunks cut anywhere, training in one forward, and starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.methods.reading import prompted, read
from tests.tiny import tiny_gpt2, tiny_llama
from tests.tiny_methods import TEXTS, make_chunks, make_episode
from ttabench.core.types import Episode
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.methods.generative_adapter import GenerativeAdapterSettings
from ttabench.methods.generative_adapter.method import GenerativeAdapter
from ttabench.methods.generative_adapter.networks import differentiable_singular_vectors
from ttabench.methods.parts.lora import dense_deltas
from ttabench.methods.trainable import answer_loss
from ttabench.profiling.measure import TensorMemoryCounter

TINY = GenerativeAdapterSettings(inner=8, rank=4, chunk=16, scale=1.0)
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
NORMS: list[dict[str, Any]] = [{}, {"norm": "frobenius"}, {"norm": "spectral"}]


def taught(lm: LM, **changes: Any) -> GenerativeAdapter:
    """One whose deltas are not zero."""
    method = GenerativeAdapter(lm, replace(TINY, **changes))
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for name, parameter in method.modules().named_parameters():
            if "outputs" in name:
                parameter.normal_(std=0.1)
    return method


# --- what is summed and what it becomes ------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", NORMS)
def test_hooked_is_merged(changes: dict[str, Any]) -> None:
    lm = tiny_llama()
    method = taught(lm, **changes)
    deltas = method.networks.deltas(read(method, *TEXTS).tensors)
    wanted = prompted(lm, Patch(deltas=deltas))
    torch.testing.assert_close(
        prompted(lm, Patch(deltas=dense_deltas(lm, deltas))), wanted, atol=1e-4, rtol=1e-4
    )
    assert float((wanted - prompted(lm, Patch())).abs().max()) > 1e-2


def test_a_run_is_one_text_where_it_is_buffered() -> None:
    """Two short pieces in one chunk; and a later run goes on."""
    lm = tiny_llama()
    buffered, apart = taught(lm, buffer=True, chunk=400), taught(lm, chunk=400)
    whole = read(apart, TEXTS[0] + "\n\n" + TEXTS[1])
    together = read(buffered, *TEXTS[:2])
    torch.testing.assert_close(together.tensors["sum"], whole.tensors["sum"], **CLOSE)
    assert float((read(apart, *TEXTS[:2]).tensors["sum"] - whole.tensors["sum"]).abs().max()) > 1e-3
    on = buffered.adapt(together, [make_chunks(TEXTS[2])])
    assert on.meta["tokens_read"] == [
        sum(together.meta["tokens_read"]) + len(lm.encode("\n\n" + TEXTS[2]))
    ]


def test_reading_takes_the_memory_of_a_chunk() -> None:
    def peak(texts: int) -> int:
        method = taught(tiny_llama())
        with torch.no_grad(), TensorMemoryCounter() as counter:
            read(method, " ".join(TEXTS * texts))
        return counter.peak_tensor_bytes

    assert peak(6) <= 1.1 * peak(2)


# --- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [*NORMS, {"buffer": True}])
@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
@torch.no_grad()
def test_the_loss_in_one_forward_is_that_of_use(make: Any, changes: dict[str, Any]) -> None:
    """The same with queries between chunks."""
    method = taught(make(), **changes)
    whole, other = make_episode("a", 3), make_episode("b", 2)
    mixed = Episode(
        key="m", steps=(*whole.chunks(), *other.queries(), *other.chunks(), *whole.queries())
    )
    for one in ([whole], [other], [mixed], [whole, other, mixed]):
        wanted = answer_loss(method, one)
        torch.testing.assert_close(method.loss_parts(one)["answer"], wanted, atol=1e-5, rtol=1e-5)


def test_singular_values_too_near_to_tell_apart_leave_the_delta_out() -> None:
    method = taught(tiny_llama())
    generator = method.networks.layer_generators[0]
    sums = torch.stack([torch.eye(8), torch.diag(torch.arange(1.0, 9.0))]).requires_grad_()
    delta = generator.delta(sums, differentiable=True)
    change = delta.b_BOR @ delta.a_BRI
    assert not change[0].any()
    assert change[1].any()
    change.sum().backward()  # type: ignore[no-untyped-call]
    assert sums.grad is not None
    assert bool(sums.grad.isfinite().all())


@pytest.mark.parametrize("shape", [(5, 5), (7, 4), (4, 7)])
@pytest.mark.parametrize("tokens", [2, 9])
def test_the_exact_gradient_is_that_of_the_decomposition(
    shape: tuple[int, int], tokens: int
) -> None:
    """Of sums of many tokens, and of fewer than the rank; two rows at once."""
    settings = replace(TINY, rank=3, inner=8, gradient="exact")
    drawn = torch.Generator().manual_seed(0)
    values, keys = (
        torch.randn(2, tokens, size, generator=drawn, dtype=torch.float64) for size in shape
    )

    def product(values: Tensor, keys: Tensor) -> Tensor:
        left, right = differentiable_singular_vectors(values.mT @ keys, settings)
        return left @ right

    wanted = torch.linalg.svd(values.mT @ keys)
    rank = min(3, tokens)
    torch.testing.assert_close(
        product(values, keys), wanted[0][..., :rank] @ wanted[2][..., :rank, :]
    )
    inputs = (values.requires_grad_(), keys.requires_grad_())
    assert torch.autograd.gradcheck(product, inputs, eps=1e-6, atol=1e-5, rtol=1e-4)


def test_an_aligned_start_gives_deltas_of_a_share_of_their_maps() -> None:
    lm = tiny_llama()
    method = GenerativeAdapter(lm, replace(TINY, init="aligned", chunk=400))
    before = [parameter.clone() for parameter in lm.model.parameters()]
    method.prepare_training([make_episode("a", 3), make_episode("b", 2)])
    assert all(
        torch.equal(one, other) for one, other in zip(before, lm.model.parameters(), strict=True)
    )
    moved = float(
        (prompted(lm, method.patch(read(method, *TEXTS), [])) - prompted(lm, Patch())).abs().max()
    )
    assert 1e-2 < moved < 10
    again = GenerativeAdapter(lm, method.settings)
    again.prepare_training([make_episode("a", 3), make_episode("b", 2)])
    for one, other in zip(method.modules().parameters(), again.modules().parameters(), strict=True):
        assert torch.equal(one, other)
