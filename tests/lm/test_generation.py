"""Decoding: batch equals single, per-row patches, EOS."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.lm.test_patching import full_patch
from tests.tiny import random_lm, tiny_llama
from ttabench.contract.models import check_method
from ttabench.lm.forward.capability_probe import reference_logprobs
from ttabench.lm.forward.patching import encode_patch, forward, select_rows, text_start
from ttabench.lm.inference.answering import generate
from ttabench.lm.inference.scoring import option_logprobs, token_logprobs
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch

PROMPTS = [[65, 66, 67], [70], [72, 73, 74, 75, 76, 77], [81, 82]]


def by_hand(lm: LM, patch: Patch, prompt: list[int], count: int) -> list[int]:
    patch = encode_patch(lm, patch)
    text, written = [*text_start(lm, patch), *prompt], []
    for _ in range(count):
        token = int(forward(lm, patch, torch.tensor([text]))[0][0, -1].argmax())
        if token == lm.eos_id:
            break
        text.append(token)
        written.append(token)
    return written


@pytest.mark.parametrize("rows", [0, 1, 4])
@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_greedy_of_a_batch_equals_each_row_alone(lm: LM, rows: int, batch_size: int) -> None:
    patch = full_patch(lm, rows) if rows else Patch()
    found = generate(lm, patch, PROMPTS, max_new_tokens=8, batch_size=batch_size)
    for index, prompt in enumerate(PROMPTS):
        alone = select_rows(patch, [index]) if rows > 1 else patch
        assert found[index] == by_hand(lm, alone, prompt, 8)


def padded_lm() -> LM:
    """Model with 300 embedding rows for 259 ids. The last rows are the most likely."""
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
    )
    lm = random_lm(LlamaForCausalLM, config, "padded", 0)
    with torch.no_grad():
        lm.model.lm_head.weight[259:] *= 100
    return lm


def test_padding_of_the_embedding_table_is_never_written() -> None:
    lm = padded_lm()
    (written,) = generate(lm, Patch(), [lm.encode("Ada")], max_new_tokens=20)
    assert written
    assert max(written) < lm.text_vocab_size == 259


def test_log_probabilities_count_the_padding_of_the_embedding_table() -> None:
    lm = padded_lm()
    own, want = lm.encode("Ada"), lm.encode("Voss")
    expected = reference_logprobs(lm, torch.tensor([[*lm.start_ids, *own, *want]]))
    expected = expected[-len(want) - 1 : -1].gather(1, torch.tensor(want)[:, None])[:, 0]
    (scored,) = token_logprobs(lm, Patch(), [(own, want)])
    (chosen,) = option_logprobs(lm, Patch(), [(own, [want])])
    torch.testing.assert_close(scored, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(chosen.sum(), expected.sum(), atol=1e-3, rtol=1e-4)
    assert check_method("icl", lm) == "right"


def test_stops_at_eos() -> None:
    lm = tiny_llama()
    first = generate(lm, Patch(), PROMPTS, max_new_tokens=6)
    lm.eos_id = first[0][2]
    lm.eos_ids = frozenset({lm.eos_id})
    cut = generate(lm, Patch(), PROMPTS, max_new_tokens=6)
    assert cut[0] == first[0][: first[0].index(lm.eos_id)]
    assert all(lm.eos_id not in row for row in cut)
