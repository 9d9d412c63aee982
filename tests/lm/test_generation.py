"""Decoding: batch equals single, per-row patches, EOS, and beams as transformers has them."""

from __future__ import annotations

import pytest
import torch

from tests.lm.test_patching import full_patch
from tests.tiny import tiny_gpt2, tiny_llama
from ttabench.lm.forward.patching import encoded, forward, select_rows, text_start
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.lm.verbs.generation import generate

PROMPTS = [[65, 66, 67], [70], [72, 73, 74, 75, 76, 77], [81, 82]]


def by_hand(lm: LM, patch: Patch, prompt: list[int], count: int) -> list[int]:
    patch = encoded(lm, patch)
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


def test_stops_at_eos() -> None:
    lm = tiny_llama()
    first = generate(lm, Patch(), PROMPTS, max_new_tokens=6)
    lm.eos_id = first[0][2]
    lm.eos_ids = frozenset({lm.eos_id})
    cut = generate(lm, Patch(), PROMPTS, max_new_tokens=6)
    assert cut[0] == first[0][: first[0].index(lm.eos_id)]
    assert all(lm.eos_id not in row for row in cut)


@pytest.mark.parametrize("beams", [2, 3, 5])
@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_beams_equal_transformers(make: type[LM], beams: int) -> None:
    for seed in range(3):
        lm = make(seed)  # type: ignore[arg-type, call-arg]
        # Likely ends, at different lengths: raise the logit of a common token and call it EOS.
        lm.eos_id = generate(lm, Patch(), [PROMPTS[0]], max_new_tokens=8)[0][-1]
        lm.eos_ids = frozenset({lm.eos_id})
        ours = generate(lm, Patch(), PROMPTS, max_new_tokens=8, num_beams=beams, batch_size=3)
        for prompt, found in zip(PROMPTS, ours, strict=True):
            ids = torch.tensor([[*lm.bos_ids, *prompt]])
            full = lm.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                num_beams=beams,
                do_sample=False,
                max_new_tokens=8,
                eos_token_id=lm.eos_id,
                pad_token_id=lm.eos_id,
            )[0, ids.shape[1] :].tolist()
            assert found == (full[: full.index(lm.eos_id)] if lm.eos_id in full else full)
