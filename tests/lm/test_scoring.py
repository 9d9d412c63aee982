"""Log-probabilities: the same numbers by every route, with gradients where they are wanted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.lm.test_patching import full_patch
from tests.tiny import tiny_llama
from ttabench.core.types import Choose, Chunk, Generate, Query, Score
from ttabench.lm.forward.patching import encode_patch, forward, select_rows, text_start
from ttabench.lm.forward.tokens import choice_ids, chunk_ids, gold_ids, prompt_ids
from ttabench.lm.inference import scoring
from ttabench.lm.inference.scoring import (
    answer_nll,
    option_logprobs,
    score_options,
    target_logprobs,
    token_logprobs,
)
from ttabench.lm.model import LM
from ttabench.lm.patch import Dense, Patch

ITEMS = [
    ([65, 66, 67], [68, 69]),
    ([70], [71]),
    ([72, 73, 74, 75, 76, 77], [78, 79, 80]),
    ([81, 82], [83]),
]


def by_hand(lm: LM, patch: Patch, prompt: list[int], target: list[int]) -> Tensor:
    patch = encode_patch(lm, patch)
    text = [*text_start(lm, patch), *prompt, *target]
    logits_TV = forward(lm, patch, torch.tensor([text]))[0][0].log_softmax(-1)
    places = range(len(text) - len(target) - 1, len(text) - 1)
    return torch.stack(
        [logits_TV[place, token] for place, token in zip(places, target, strict=True)]
    )


@pytest.mark.parametrize("rows", [0, 1, 4])
@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_log_probabilities_do_not_depend_on_the_batch(lm: LM, rows: int, batch_size: int) -> None:
    patch = full_patch(lm, rows) if rows else Patch()
    found = token_logprobs(lm, patch, ITEMS, batch_size)
    for index, (prompt, target) in enumerate(ITEMS):
        alone = select_rows(patch, [index]) if rows > 1 else patch
        torch.testing.assert_close(
            found[index], by_hand(lm, alone, prompt, target), atol=1e-4, rtol=1e-4
        )
        assert found[index].dtype == torch.float32


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_every_token_has_its_own_gradient(lm: LM, rows: int) -> None:
    """A loss that weighs tokens: values, their sum and the gradient, in one batch and text by text."""
    patch = full_patch(lm, rows) if rows else Patch()
    name = lm.linear_names()[1]
    leaf = (lm.model.get_submodule(name).weight[None] * 0.1).requires_grad_()
    patch = replace(patch, deltas={**patch.deltas, f"{name}.weight": Dense(leaf)})
    weights = [torch.rand(len(target), requires_grad=True) for _, target in ITEMS]
    found = target_logprobs(lm, patch, ITEMS)
    loss, count = answer_nll(lm, patch, ITEMS)
    assert (count, loss.requires_grad) == (7, True)
    torch.testing.assert_close(loss, -torch.cat(found).sum(), atol=1e-3, rtol=1e-4)
    alone = [
        by_hand(lm, select_rows(patch, [index]) if rows > 1 else patch, *item)
        for index, item in enumerate(ITEMS)
    ]
    for ours, expected, scored in zip(found, alone, token_logprobs(lm, patch, ITEMS), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ours.detach(), scored, atol=1e-4, rtol=1e-4)
    slopes = []
    for values in (found, alone):
        loss = sum((w * v).sum() for w, v in zip(weights, values, strict=True))
        slopes.append(torch.autograd.grad(loss, [leaf, *weights]))
    for ours, expected in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-3, rtol=1e-3)
    assert slopes[0][0].abs().max() > 1e-3


def test_a_text_is_scored_from_its_first_token(lm: LM) -> None:
    """A document has no prompt: every token is scored where something begins texts, all but the first elsewhere."""
    document = [65, 66, 67, 68]
    (values,) = target_logprobs(lm, Patch(), [([], document)])
    (behind,) = target_logprobs(lm, Patch(), [(document[:1], document[1:])])
    assert len(values) == 4 - (not lm.bos_ids)
    torch.testing.assert_close(values[-3:], behind, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_options_that_fork_from_one_prompt(lm: LM, rows: int) -> None:
    items = [
        ([65, 66, 67], [[73, 74], [75], [76, 77, 78]]),
        ([68], [[79], [80]]),
        ([69, 70], [[81, 82, 83, 84], [85]]),
    ]
    patch = full_patch(lm, rows) if rows else Patch()
    sums = option_logprobs(lm, patch, items, batch_size=4)
    for index, ((prompt, options), scored) in enumerate(
        zip(items, score_options(lm, patch, items), strict=True)
    ):
        torch.testing.assert_close(sums[index], torch.stack([one.logprobs.sum() for one in scored]))
        alone = encode_patch(lm, select_rows(patch, [index]) if rows > 1 else patch)
        for option, found in zip(options, scored, strict=True):
            torch.testing.assert_close(
                found.logprobs, by_hand(lm, alone, prompt, option), atol=1e-4, rtol=1e-4
            )
            text = [*text_start(lm, alone), *prompt, *option]
            likeliest = forward(lm, alone, torch.tensor([text]))[0][0].argmax(-1)[
                -len(option) - 1 : -1
            ]
            assert found.greedy == (likeliest.tolist() == option)


def test_chunks_prompts_and_targets() -> None:
    lm = tiny_llama()
    piece = Chunk(text="abcdef", joiner="\n\n")
    assert lm.decode(chunk_ids(lm, piece, first=True)) == "abcdef"
    assert lm.decode(chunk_ids(lm, piece, first=False)) == "\n\nabcdef"
    ask = Query(prompt="Where? ", key="q", want=Choose(options=(" here", " there")), joiner="\n")
    assert lm.decode(prompt_ids(lm, ask, is_continuation=False)) == "Where? "
    assert lm.decode(prompt_ids(lm, ask, is_continuation=True)) == "\nWhere? "
    (((prompt, options),),) = choice_ids(lm, [ask], is_continuation=True)
    assert lm.decode(prompt) == "\nWhere?", "blanks that end a prompt go to the option"
    assert [lm.decode(ids) for ids in options] == ["  here", "  there"]
    written = Query(prompt="Where?", key="q", want=Generate(answers=("x",)))
    assert gold_ids(lm, written) == [*lm.encode(" x"), lm.eos_id]
    assert gold_ids(lm, replace(written, want=Score(continuation=" x"))) == lm.encode(" x")


def test_logits_of_a_trained_head_in_slices_have_the_same_slopes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lm = tiny_llama()
    weight = lm.model.get_output_embeddings().weight.requires_grad_()
    hidden, targets = torch.randn(20, weight.shape[1]), torch.randint(0, lm.vocab_size, (20,))
    found = []
    for most in (2**26, 3 * lm.vocab_size):
        monkeypatch.setattr(scoring, "MAX_LOGITS", most)
        values = scoring.logprobs_of(lm, hidden, targets)
        found.append((values.detach(), *torch.autograd.grad(values.sum(), weight)))
    for whole, sliced in zip(*found, strict=True):
        torch.testing.assert_close(sliced, whole)
