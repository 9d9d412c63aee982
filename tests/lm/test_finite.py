"""Answers that are no numbers end in an error; what is finite is answered."""

from __future__ import annotations

import pytest

from tests.lm.test_patching import low_rank
from tests.tiny import tiny_llama
from tests.tiny_methods import PROMPTS
from ttabench.core.types import Choose, Generate, Query, Score
from ttabench.lm.inference.answering import answer_queries
from ttabench.lm.inference.scoring import NonFiniteError
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch

WANTS = {
    "generate": Generate(answers=("a",), max_new_tokens=4),
    "choose": Choose(options=(" a", " bc")),
    "score": Score(continuation=" and on"),
}
KINDS = pytest.mark.parametrize("kind", WANTS)
FAULTS = [float("nan"), float("inf")]


@pytest.fixture
def lm() -> LM:
    return tiny_llama()


def asks(kind: str) -> list[Query]:
    return [
        Query(prompt=prompt, key=key, want=WANTS[kind])
        for prompt, key in zip(PROMPTS, "abc", strict=False)
    ]


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
    assert len(answer_queries(lm, patch_of(lm, {}, len(questions)), questions)) == len(questions)
    with pytest.raises(NonFiniteError, match="--dtype float32"):
        answer_queries(lm, patch_of(lm, {1: fault}, len(questions)), questions)
