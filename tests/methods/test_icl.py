"""Full context: the cache is the window read once, and what does not fit is refused or counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.methods.reading import read_apart
from tests.tiny import tiny_gpt2, tiny_llama
from tests.tiny_methods import TEXTS, make_chunks, make_queries
from ttabench.core.errors import UserError
from ttabench.lm.forward.patching import encode_patch
from ttabench.lm.forward.tokens import chunk_ids
from ttabench.lm.inference.scoring import token_logprobs
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext

QUESTION = make_queries("Where does Ada live?")


@pytest.fixture(params=[tiny_llama, tiny_gpt2], ids=["llama-gqa", "gpt2"])
def lm(request: pytest.FixtureRequest) -> LM:
    make: Callable[[], LM] = request.param
    return make()


def scores(lm: LM, patch: Patch, before: list[int] | None = None) -> torch.Tensor:
    prompt = [*(before or []), *lm.encode(QUESTION[0].prompt)]
    return token_logprobs(lm, encode_patch(lm, patch), [(prompt, lm.encode(" Port Ansel"))])[0]


def context(lm: LM, *texts: str) -> list[int]:
    return [
        token
        for i, piece in enumerate(make_chunks(*texts))
        for token in chunk_ids(lm, piece, first=not i)
    ]


def test_equals_the_context_in_front_of_the_question(lm: LM) -> None:
    method = InContext(lm, InContextSettings())
    patch = method.patch(read_apart(method, *TEXTS), QUESTION)
    torch.testing.assert_close(
        scores(lm, patch), scores(lm, Patch(), context(lm, *TEXTS)), atol=2e-5, rtol=1e-4
    )


@pytest.mark.parametrize("truncate", ["left", "right"])
def test_truncation_keeps_one_end_and_counts_the_rest(lm: LM, truncate: str) -> None:
    method = InContext(lm, InContextSettings(truncate=truncate, max_tokens=40))  # type: ignore[arg-type]
    state = read_apart(method, *TEXTS)
    ids = context(lm, *TEXTS)
    kept = ids[-40:] if truncate == "left" else ids[:40]
    patch = method.patch(state, QUESTION)
    torch.testing.assert_close(scores(lm, patch), scores(lm, Patch(), kept), atol=2e-5, rtol=1e-4)
    assert state.meta == {"tokens_read": [len(ids)], "truncated_tokens": [len(ids) - 40]}
    at_once = method.adapt(method.begin(1), [[observe] for observe in make_chunks(*TEXTS)])
    assert at_once.meta == state.meta
    assert at_once.nbytes == state.nbytes


def test_too_long_a_context_is_refused_in_one_line(lm: LM) -> None:
    method = InContext(lm, InContextSettings())
    with pytest.raises(UserError, match=r"max_tokens=256 .*512 positions.* truncate=left"):
        read_apart(method, "a" * 300)
