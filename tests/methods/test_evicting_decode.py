"""h2o while prompt and answer are read: budgets hold at every step, rows stay apart, scores are those of decoding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tiny import tiny_llama
from tests.tiny_methods import TEXTS, make_chunks, make_queries
from ttabench.lm.forward.patching import select_rows
from ttabench.lm.forward.window import Window
from ttabench.lm.inference.answering import generate
from ttabench.lm.inference.scoring import answer_nll, option_logprobs, score_options, token_logprobs
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, Prefix
from ttabench.methods.eviction.h2o import H2OSettings
from ttabench.methods.eviction.h2o.method import H2O, HeavyHitters

SMALL = H2OSettings(heavy=6, recent=6)
ITEMS = [
    ([65, 66, 67], [[68, 69, 70], [71]]),
    ([70], [[73, 74]]),
    ([72, 73, 74, 75, 76, 77], [[78], [79, 80, 81, 82]]),
]
NOISE = {"atol": 1e-4, "rtol": 1e-4}


def method(lm: LM, settings: H2OSettings = SMALL, **changes: Any) -> H2O:
    return H2O(lm, replace(settings, **changes))


def patch_of(made: Any, *texts: str) -> Patch:
    state = made.adapt(made.begin(1), [[observe] for observe in make_chunks(*(texts or TEXTS))])
    found: Patch = made.patch(state, make_queries("?"))
    return found


def rule_of(prefix: Prefix | None) -> HeavyHitters:
    assert prefix is not None
    assert isinstance(prefix.eviction, HeavyHitters)
    return prefix.eviction


@torch.no_grad()
def steps(
    lm: LM, patch: Patch, prompt: list[int], tokens: list[int]
) -> Iterator[tuple[Prefix, Tensor]]:
    """What is left after the prompt and after every token, and the last hidden states [1, D]."""
    window = Window(lm, patch.prefix, 1)
    for ids in [prompt, *([token] for token in tokens)]:
        hidden_BTD = window.feed(torch.tensor([ids]))
        yield window.prefix(), hidden_BTD[:, -1]


@pytest.mark.parametrize(
    "settings", [SMALL, H2OSettings(), H2OSettings(heavy=6, recent=6, positions="cache")]
)
@pytest.mark.parametrize("own_rows", [False, True])
def test_rows_of_a_batch_are_as_if_alone(settings: H2OSettings, own_rows: bool) -> None:
    lm = tiny_llama()
    made = method(lm, settings)
    if own_rows:
        state = made.adapt(
            made.begin(3), [make_chunks(TEXTS[0], TEXTS[1] * 2, "So."), make_chunks(*TEXTS[1:])]
        )
        patch = made.patch(state, make_queries("?") * 3)
    else:
        patch = patch_of(made)
    prompts = [prompt for prompt, _ in ITEMS]
    sums = option_logprobs(lm, patch, ITEMS)
    written = generate(lm, patch, prompts, max_new_tokens=9)
    for row, item in enumerate(ITEMS):
        alone = select_rows(patch, [row])
        torch.testing.assert_close(sums[row], option_logprobs(lm, alone, [item])[0], **NOISE)
        for option, together in zip(item[1], sums[row], strict=True):
            torch.testing.assert_close(
                token_logprobs(lm, alone, [(item[0], option)])[0].sum(), together, **NOISE
            )
        assert written[row] == generate(lm, alone, [item[0]], max_new_tokens=9)[0]


def test_scores_are_those_of_decoding_and_asking_changes_nothing() -> None:
    lm = tiny_llama()
    patch = patch_of(method(lm))
    prompts = [prompt for prompt, _ in ITEMS]
    written = generate(lm, patch, prompts, max_new_tokens=9)
    assert all(written)
    scored = score_options(
        lm, patch, [(prompt, [ids]) for prompt, ids in zip(prompts, written, strict=True)]
    )
    assert all(option.greedy for (option,) in scored)
    again = score_options(
        lm, patch, [(prompt, [ids]) for prompt, ids in zip(prompts, written, strict=True)]
    )
    for (one,), (other,) in zip(scored, again, strict=True):
        assert torch.equal(one.logprobs, other.logprobs)
    left = list(steps(lm, patch, prompts[0], written[0][:-1]))
    assert {rule_of(prefix).kept.index.shape[-1] for prefix, _ in left} == {12}
    hidden = [state for _, state in left]
    by_hand = lm.logits(torch.stack(hidden, 1))[0].log_softmax(-1)
    expected = by_hand[torch.arange(len(written[0])), torch.tensor(written[0])]
    torch.testing.assert_close(scored[0][0].logprobs, expected, **NOISE)
    loss, count = answer_nll(lm, patch, [(prompt, options[0]) for prompt, options in ITEMS])
    assert count == 6
    torch.testing.assert_close(
        loss, -sum(values[0] for values in option_logprobs(lm, patch, ITEMS)), **NOISE
    )
