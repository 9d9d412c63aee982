"""The last lessons of the nano LM: how far positions jump, and what their losses see."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from results.nano_recipe import corpus, far, lessons
from results.nano_recipe.teaching import losses_of
from ttabench.lm.model import LM, load
from ttabench.mini.world import rng


@pytest.fixture(scope="module")
def lm() -> LM:
    return load("nano", device="cpu")


def questions(seed: int, tokens: int) -> corpus.Segments:
    return far.dense_questions(rng("test", seed), tokens)


def tiny() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=3072, hidden_size=32, intermediate_size=48, num_hidden_layers=4,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=8192,
                         initializer_range=0.3)  # fmt: skip
    return LlamaForCausalLM(config).eval()


def batches_of_questions(lm: LM) -> lessons.Batch:
    made = [lessons.encoded(lm.tokenizer.backend_tokenizer, questions(seed, 128)) for seed in range(2)]
    return lessons.batch_of(made, [far.jumped(each, 4000, rng("jump", place)) for place, each in enumerate(made)])


def test_losses_see_through_jumps(lm: LM) -> None:
    """The same as a full causal mask: a jump cuts nothing off; and other positions are other losses."""
    model, batch = tiny(), batches_of_questions(lm)
    answer, _ = losses_of(model, batch, lessons.Teaching(0.0, 0.0))
    rows, width = batch.ids_BT.shape
    causal = torch.ones(width, width).tril().log()[None, None].expand(rows, 1, -1, -1)
    logits = model(input_ids=batch.ids_BT, position_ids=batch.positions_BT, attention_mask=causal).logits
    each = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch.ids_BT[:, 1:].flatten(), reduction="none")
    weights = batch.weights_BT[:, 1:].flatten()
    torch.testing.assert_close(answer, torch.dot(each, weights) / weights.sum())
    plain = replace(batch, positions_BT=torch.arange(width).expand(rows, -1))
    assert abs(losses_of(model, plain, lessons.Teaching(0.0, 0.0))[0] - answer) > 1e-4


def test_a_jump_without_a_mask_is_seen(lm: LM) -> None:
    """The opposite of what every test holds (`conftest._no_jump_without_a_mask`)."""
    model, batch = tiny(), batches_of_questions(lm)
    with pytest.raises(AssertionError, match="position ids jump"):
        model(input_ids=batch.ids_BT, position_ids=batch.positions_BT, use_cache=False)
