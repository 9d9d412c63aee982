"""Gradients of gradients: through patches, attention and scoring, against finite differences."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.lm.test_patching import low_rank, random_prefix, text
from tests.tiny import tiny_gpt2
from ttabench.lm.forward.patching import forward
from ttabench.lm.inference.scoring import logprobs_of
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch, Prefix


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


def test_second_gradients_through_a_frozen_head_equal_finite_differences() -> None:
    lm = double_gpt2()
    targets_N = torch.tensor([65, 66, 67])
    drawn = torch.Generator().manual_seed(2)
    hidden_ND = torch.randn(3, lm.hidden_size, generator=drawn, dtype=torch.float64)
    inputs = hidden_ND.requires_grad_()
    assert gradgradcheck(lambda hidden: logprobs_of(lm, hidden, targets_N), inputs, fast_mode=True)
