"""Gradients of gradients: through patches, attention and scoring, against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.lm.test_patching import low_rank, random_prefix, text
from tests.tiny import tiny_gpt2
from ttabench.lm.forward.patching import forward
from ttabench.lm.inference.scoring import target_logprobs
from ttabench.lm.model import LM
from ttabench.lm.patch import Dense, LowRank, Patch, Prefix


def double_gpt2() -> LM:
    """In float64; GPT-2, since the norms of Llama-likes count in float32."""
    lm = tiny_gpt2()
    lm.model.double()
    return lm


def test_second_gradients_of_prefix_bias_and_deltas_equal_finite_differences() -> None:
    lm, ids_BT = double_gpt2(), text(2, 4)
    name = lm.linear_names()[0]
    held, delta = random_prefix(lm, 2, slots=2), low_rank(lm, name, 2)
    leaves = [
        held.keys_LBHPD[0],
        held.values_LBHPD[1],
        torch.zeros(2, lm.heads, 2),
        delta.a_BRI,
        delta.b_BOR,
    ]
    leaves = [leaf.double().requires_grad_() for leaf in leaves]

    def value(keys: Tensor, values: Tensor, bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
        prefix = Prefix(
            (keys, held.keys_LBHPD[1]),
            (held.values_LBHPD[0], values),
            held.next_position_B,
            bias_LBHP=(bias, bias),
        )
        logits_BTV, _ = forward(lm, Patch(prefix=prefix, deltas={name: LowRank(a, b)}), ids_BT)
        return logits_BTV.log_softmax(-1)[:, -1, 65]

    with sdpa_kernel(SDPBackend.MATH):
        assert gradcheck(value, leaves, fast_mode=True)
        assert gradgradcheck(value, leaves, fast_mode=True)


DOCUMENTS, QUESTION = [[65, 66, 67, 68], [70, 71, 72]], ([75, 76], [77, 78])
RATE = 0.3


def learned(lm: LM, weights: list[Tensor], names: list[str]) -> Tensor:
    """Loss of a question after one weighted gradient step on each document (CaMeLS, arXiv 2305.15076)."""
    deltas = {
        name: torch.zeros_like(lm.model.get_parameter(name), requires_grad=True) for name in names
    }
    for document, weight_N in zip(DOCUMENTS, weights, strict=True):
        patch = Patch(deltas={name: Dense(delta[None]) for name, delta in deltas.items()})
        (values_N,) = target_logprobs(lm, patch, [(document[:1], document[1:])])
        slopes = torch.autograd.grad(
            -(weight_N * values_N).mean(), [*deltas.values()], create_graph=True
        )
        deltas = {
            name: deltas[name] - RATE * slope for name, slope in zip(names, slopes, strict=True)
        }
    (answer,) = target_logprobs(
        lm, Patch(deltas={name: Dense(d[None]) for name, d in deltas.items()}), [QUESTION]
    )
    return -answer.mean()


def drawn_weights(dtype: torch.dtype) -> list[Tensor]:
    drawn = torch.Generator().manual_seed(2)
    return [
        torch.rand(len(each) - 1, generator=drawn, dtype=dtype).requires_grad_()
        for each in DOCUMENTS
    ]


@pytest.mark.parametrize("which", ["all", "one map"])
def test_gradients_through_gradient_steps_equal_finite_differences(which: str) -> None:
    """All parameters, the tied embedding among them; and one map under a head that stays frozen."""
    lm = double_gpt2()
    names = (
        [name for name, _ in lm.model.named_parameters()]
        if which == "all"
        else ["transformer.h.0.mlp.c_fc.weight"]
    )

    def loss(*weights: Tensor) -> Tensor:
        return learned(lm, list(weights), names)

    with sdpa_kernel(SDPBackend.MATH):
        weights = drawn_weights(torch.float64)
        assert gradcheck(loss, weights)
        assert (
            max(float(each.abs().max()) for each in torch.autograd.grad(loss(*weights), weights))
            > 1e-3
        )
