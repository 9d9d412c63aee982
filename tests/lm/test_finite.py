"""Answers that are no numbers end in an error; what is finite, or masked, is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tests.lm.test_patching import low_rank, random_prefix
from tests.tiny import tiny_llama
from tests.tiny_methods import PROMPTS
from ttabench.core.types import Ask, Choose, Generate, Score
from ttabench.lm.loading.finite import NotFinite
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.lm.verbs.answering import answer
from ttabench.lm.verbs.generation import generate
from ttabench.lm.verbs.scoring import choose, score_options

WANTS = {
    "generate": Generate(answers=("a",), max_new_tokens=4),
    "choose": Choose(options=(" a", " bc")),
    "unconditional": Choose(options=(" a", " bc"), unconditional_prompt="Answer:"),
    "score": Score(continuation=" and on"),
}
KINDS = pytest.mark.parametrize("kind", WANTS)
FAULTS = [float("nan"), float("inf")]


@pytest.fixture
def lm() -> LM:
    return tiny_llama()


def asks(kind: str) -> list[Ask]:
    return [Ask(prompt=prompt, key=key, want=WANTS[kind]) for prompt, key in zip(PROMPTS, "abc", strict=False)]


def patch_of(lm: LM, faults: dict[int, float], rows: int) -> Patch:
    """Deltas of so many rows; some hold what is no number."""
    name = lm.linear_names()[-1]  # behind the last attention: its kernels may drop a NaN
    delta = low_rank(lm, name, rows, 0)
    for row, fault in faults.items():
        delta.b_BOR[row, 0, 0] = fault
    return Patch(deltas={name: delta})


@KINDS
@pytest.mark.parametrize("fault", FAULTS)
def test_answers_that_are_no_numbers_are_refused(lm: LM, kind: str, fault: float) -> None:
    questions = asks(kind)
    assert len(answer(lm, patch_of(lm, {}, len(questions)), questions)) == len(questions)
    with pytest.raises(NotFinite, match="--dtype float32"):
        answer(lm, patch_of(lm, {1: fault}, len(questions)), questions)


class counted:  # noqa: N801  # used like a function
    """Logits changed from call to call."""

    def __init__(self, lm: LM, change: Callable[[int, Tensor], Tensor]) -> None:
        self.lm, self.change, self.calls = lm, change, 0

    def __enter__(self) -> None:
        def hook(_module: nn.Module, _args: object, logits: Tensor) -> Tensor:
            self.calls += 1
            return self.change(self.calls, logits)

        self.handle = self.lm.model.lm_head.register_forward_hook(hook)

    def __exit__(self, *_: object) -> None:
        self.handle.remove()


@pytest.fixture
def without_b(lm: LM) -> Iterator[int]:
    """A model whose vocabulary lacks the letter b: its logit is minus infinity everywhere."""
    (token,) = lm.encode("b")

    def mask(_call: int, logits: Tensor) -> Tensor:
        logits[..., token] = float("-inf")
        return logits

    with counted(lm, mask):
        yield token


@pytest.mark.parametrize("beams", [1, 3])
def test_a_token_that_is_masked_is_no_fault_where_it_is_not_asked_for(lm: LM, without_b: int, beams: int) -> None:
    prompt, some, masked = lm.encode("Say"), lm.encode("a"), [without_b]
    (written,) = generate(lm, Patch(), [prompt], max_new_tokens=6, num_beams=beams)
    assert without_b not in written
    assert choose(lm, Patch(), [(prompt, [some])])[0].isfinite().all()
    for scored in (choose, score_options):
        with pytest.raises(NotFinite, match="not finite"):
            scored(lm, Patch(), [(prompt, [some, masked])])


def test_slots_that_a_bias_masks_are_answered_under(lm: LM) -> None:
    prefix = random_prefix(lm, rows=1)
    slots = prefix.keys_LBHPD[0].shape[2]
    heads = prefix.keys_LBHPD[0].shape[1]
    bias = torch.zeros(1, heads, slots)
    bias[..., 0] = float("-inf")
    patch = Patch(prefix=replace(prefix, bias_LBHP=(bias,) * len(prefix.keys_LBHPD)))
    for kind in WANTS:
        assert len(answer(lm, patch, asks(kind))) == 3
