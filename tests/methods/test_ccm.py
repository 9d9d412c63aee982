"""CCM: piece by piece and in one forward the same numbers, and what its memory is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tiny import tiny_gpt2, tiny_llama, tinyllama_shaped
from tests.tiny_methods import asks, observes
from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Episode, Observe, Score, Step
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.methods.ccm import CcmSettings
from ttabench.methods.ccm.method import Ccm
from ttabench.methods.parts.one_forward import Row, alike
from ttabench.methods.trainable import answer_loss

WAYS: list[dict[str, Any]] = [
    {**first, **second}
    for first, second in product(
        ({}, {"update": "merge"}, {"update": "merge", "ema": 0.5}),
        ({}, {"sink": True}, {"recursive": False}, {"recursive": False, "sink": True}, {"conditional": False}),
    )
]


def ccm(lm: LM, **settings: Any) -> Ccm:
    """With deltas that are not zero."""
    method = Ccm(lm, CcmSettings(**{"comp_tokens": 3, "rank": 2, **settings}))
    generator = torch.Generator().manual_seed(1)
    for b_OR in method.b:
        b_OR.data.copy_(torch.randn(b_OR.shape, generator=generator) * 0.3)
    return method


FOUR = ("Ada Voss lives in Port Ansel.", "She keeps bees.", "It rains.", "Bob is late again.")


def episodes() -> list[Episode]:
    """Of unequal pieces, with questions between them and before any is read."""
    first: list[Step] = [
        *observes("Ada Voss lives in Port Ansel.", "She keeps bees."),
        *asks("Where?", "Who is it?"),
        *observes("It rains."),
    ]
    third = Ask(prompt="And then?", want=Score(continuation=" It snowed."), key="then")
    return [
        Episode(key="one", steps=(*first, *asks("Where does Ada live?"))),
        Episode(key="two", steps=(*asks("Where does Ada live?"), *observes(*FOUR), third)),
    ]


@pytest.mark.parametrize("base", [tiny_llama, tiny_gpt2])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: " ".join(f"{k}={v}" for k, v in way.items()) or "concat")
def test_one_forward_gives_the_loss_of_reading_piece_by_piece(base: Callable[[], LM], way: dict[str, Any]) -> None:
    method = ccm(base(), **way)
    with torch.no_grad():
        told = method.loss_parts(episodes())["answer"]
        torch.testing.assert_close(told, answer_loss(method, episodes()), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("update", ["concat", "merge"])
@torch.no_grad()
def test_rows_of_other_lengths_and_of_no_piece_count_by_their_answers(update: str) -> None:
    """Rows of about one length share a forward; an episode may ask before anything is read."""
    method = ccm(tiny_llama(), update=update)
    bare, (long, other) = Episode(key="bare", steps=tuple(asks("Who?"))), episodes()
    rows = [Row(ids=[0] * length) for length in (10, 30, 11, 12, 13)]
    assert [[len(row.ids) for row in group] for group in alike(rows)] == [[10, 11, 12], [13], [30]]
    mixed = [bare, long, other]
    torch.testing.assert_close(method.loss_parts(mixed)["answer"], answer_loss(method, mixed), atol=1e-4, rtol=1e-5)
    assert len(alike([method.laid(episode) for episode in mixed])) > 1


def read(method: Ccm, texts: list[Observe]) -> State:
    return method.adapt(method.begin(1), [[piece] for piece in texts])


def test_a_later_piece_depends_on_an_earlier_one_through_the_memory_alone() -> None:
    lm = tinyllama_shaped()  # the first layer of a COMP token knows no text: two do not tell
    one, other = observes("Ada keeps bees.", "Then came May."), observes("Bob keeps cats.", "Then came May.")

    def newest(recursive: bool, texts: list[Observe]) -> Tensor:
        return read(ccm(lm, recursive=recursive), texts).tensors["keys"][..., -3:, :]

    apart = [(newest(recursive, one) - newest(recursive, other)).abs().max().item() for recursive in (False, True)]
    assert apart[0] < 1e-6 < 1e-4 < apart[1]


@pytest.mark.parametrize("given", ["piece", "prompt"])
def test_ids_of_comp_tokens_are_none_of_a_text(given: str) -> None:
    """They stand right behind the vocabulary: a text cut with another model's tokenizer might bring them."""
    lm = tiny_llama()
    method, last, behind = ccm(lm), lm.vocab_size - 1, lm.vocab_size
    told = f"brings the token id {behind:,}, and the ids of .* end at {last:,}"

    def episode(token: int) -> Episode:
        ids = (5, token) if given == "piece" else ()
        want = Score(continuation="x", prompt_ids=(5, token) if given == "prompt" else ())
        return Episode(key="one", steps=(Observe(text="..", joiner="", ids=ids), Ask(prompt="..", want=want, key="q")))

    for loss in (
        lambda token: method.loss_parts([episode(token)]),
        lambda token: answer_loss(method, [episode(token)]),
    ):
        loss(last)
        with pytest.raises(UserError, match=told):
            loss(behind)
