"""Which slots stay: scores against a dense computation, ties, pooling and rotation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.tiny import tiny_gpt2, tiny_llama
from ttabench.core.errors import UserError
from ttabench.lm.attention.interface import Call
from ttabench.lm.forward.ways import rotary_of
from ttabench.methods.eviction.evicted_cache import EvictedCache
from ttabench.methods.eviction.evicting import column_sums, kept_slots


def call(query: Tensor, key: Tensor, mask: Tensor | None = None) -> Call:
    return Call(0, query, key, key, mask, query.shape[-1] ** -0.5)


def whole(key_BHSD: Tensor) -> EvictedCache:
    """A cache of one layer that has evicted nothing."""
    index = torch.arange(key_BHSD.shape[2], dtype=torch.int32).expand(1, len(key_BHSD), 1, -1)
    return EvictedCache(key_BHSD[None], key_BHSD[None], index, torch.full((len(key_BHSD),), key_BHSD.shape[2]))


def dense_sums(query: Tensor, key: Tensor) -> Tensor:
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    past = key.shape[2] - query.shape[2]
    seen = torch.ones(scores.shape[-2:]).tril(past).bool()
    return scores.masked_fill(~seen, -torch.inf).softmax(-1).sum(-2)


@pytest.mark.parametrize("block", [1, 3, 256])
def test_column_sums_in_blocks_are_those_of_all_attention(block: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 4, 10, 8, generator=generator), torch.randn(2, 2, 17, 8, generator=generator)
    counted = torch.ones(2, 10, dtype=torch.bool)
    torch.testing.assert_close(column_sums(call(query, key), counted, block), dense_sums(query, key))
    counted[:, :6] = False
    some = column_sums(call(query, key), counted, block)
    torch.testing.assert_close(some, dense_sums(query[:, :, 6:], key))
    assert not column_sums(call(query, key), torch.zeros_like(counted), block).any()


def test_ties_go_to_the_lower_slot_and_padding_fills_the_front() -> None:
    scores = torch.tensor([[1.0, 2.0, 1.0, 1.0, 2.0], [-torch.inf, -torch.inf, -torch.inf, 0.0, 5.0]])[None, :, None]
    slots = kept_slots(scores, torch.tensor([3, 3]))[0, :, 0]
    assert slots.tolist() == [[0, 1, 4], [-1, 3, 4]]


def test_rotation_is_the_models_own_and_can_be_undone() -> None:
    lm = tiny_llama()
    rotary = rotary_of(lm)
    keys, places = torch.randn(2, 2, 5, 8), torch.tensor([[0, 3, 4, 9, 400], [1, 2, 3, 4, 5]])
    turned = rotary.rotate(keys, places)
    torch.testing.assert_close(rotary.unrotate(turned, places), keys, atol=1e-5, rtol=1e-5)
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    expected = apply_rotary_pos_emb(keys, keys, *lm.decoder.rotary_emb(keys, places))[1]  # type: ignore[operator]
    torch.testing.assert_close(turned, expected)
    with pytest.raises(UserError, match="no rotary position embeddings"):
        rotary_of(tiny_gpt2())
