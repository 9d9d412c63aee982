"""CCM: piece by piece and in one forward the same numbers, and what its memory is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tiny import MODELS, tiny_gpt2, tiny_llama, tinyllama_shaped
from tests.tiny_methods import asks, observes
from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Episode, Observe, Score, Step
from ttabench.lm.attention.interface import watched
from ttabench.lm.attention.layout import Layout
from ttabench.lm.forward.patching import forward, hidden_states
from ttabench.lm.model import LM, load
from ttabench.lm.patch import State
from ttabench.methods import checkpoints
from ttabench.methods.ccm.comp_tokens import laid
from ttabench.methods.ccm.method import Ccm, Gisting
from ttabench.methods.ccm.settings import CcmSettings
from ttabench.methods.parts.one_forward import Row, alike
from ttabench.methods.trainable import answer_loss
from ttabench.training.loop import TrainConfig, train

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


@pytest.mark.parametrize("base", MODELS)
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
    assert len(alike([laid(method.lm, method.settings, episode) for episode in mixed])) > 1


@pytest.mark.parametrize("update", ["concat", "merge"])
def test_gradients_reach_all_that_the_memory_depends_on_and_not_the_base(update: str) -> None:
    lm = tiny_llama()
    method = ccm(lm, update=update)
    method.loss_parts(episodes())["answer"].backward()
    still = {name for name, p in method.modules().named_parameters() if p.grad is None or not p.grad.any()}
    unused = [place for place, name in enumerate(method.names) if ".1." in name and name[-6] in "qo"]
    assert still == {f"{part}.{place}" for part in "ab" for place in unused}, "of the last layer keys and values stay"
    assert all(p.grad is None for p in lm.model.parameters())


def read(method: Ccm, texts: list[Observe]) -> State:
    return method.adapt(method.begin(1), [[piece] for piece in texts])


def test_the_first_merged_memory_is_the_first_concatenated_one() -> None:
    lm, text = tiny_llama(), observes("Ada Voss lives in Port Ansel.")
    both = [read(ccm(lm, update=update), text).tensors for update in ("concat", "merge")]
    for name, tensor in both[0].items():
        assert torch.equal(tensor, both[1][name])


def test_a_merged_memory_is_the_mean_of_what_the_pieces_became() -> None:
    lm, texts = tiny_llama(), observes("One.", "Two and two.", "Three.")
    kept = read(ccm(lm, recursive=False), texts).tensors["keys"].unflatten(3, (3, 3))
    torch.testing.assert_close(read(ccm(lm, recursive=False, update="merge"), texts).tensors["keys"], kept.mean(3))
    moved = read(ccm(lm, recursive=False, update="merge", ema=0.5), texts).tensors["keys"]
    torch.testing.assert_close(moved, kept[..., 0, :, :] / 4 + kept[..., 1, :, :] / 4 + kept[..., 2, :, :] / 2)


def test_a_later_piece_depends_on_an_earlier_one_through_the_memory_alone() -> None:
    lm = tinyllama_shaped()  # the first layer of a COMP token knows no text: two do not tell
    one, other = observes("Ada keeps bees.", "Then came May."), observes("Bob keeps cats.", "Then came May.")

    def newest(recursive: bool, texts: list[Observe]) -> Tensor:
        return read(ccm(lm, recursive=recursive), texts).tensors["keys"][..., -3:, :]

    apart = [(newest(recursive, one) - newest(recursive, other)).abs().max().item() for recursive in (False, True)]
    assert apart[0] < 1e-6 < 1e-4 < apart[1]


def test_questions_stand_where_the_whole_text_would_end() -> None:
    lm = tiny_llama()
    method = ccm(lm)
    state = read(method, observes(*FOUR[:2]))
    near = replace(state, tensors={**state.tensors, "next": torch.zeros(1, dtype=torch.int64)})
    ids_BT = torch.tensor([lm.encode("Where?")])
    told = [hidden_states(lm, method.patch(each, []), ids_BT, Layout())[0] for each in (state, near)]
    assert not torch.allclose(*told, atol=1e-3)


def test_it_learns(tmp_path: Any) -> None:
    method = Ccm(tiny_gpt2(), CcmSettings(comp_tokens=2, rank=4))

    def same() -> Iterator[list[Episode]]:
        while True:
            yield episodes()

    losses = train(method, same(), TrainConfig(steps=25, lr=1e-2, out=tmp_path)).losses
    assert losses[-1] < losses[0] - 0.3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"comp_tokens": 0}, "comp_tokens must be at least 1"),
        ({"ema": 0.0, "update": "merge"}, "ema must lie in"),
        ({"ema": 0.5}, "give update=merge, too"),
        ({"rank": 0}, "rank must be at least 1"),
    ],
)
def test_bad_settings_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CcmSettings(**given)


def test_bad_targets_and_long_texts_are_refused_in_one_line() -> None:
    lm = tiny_llama()
    with pytest.raises(UserError, match="has no linear map 'k_prod'"):
        Ccm(lm, CcmSettings(targets=("k_prod",)))
    with pytest.raises(UserError, match="exceeds the 512 positions"):
        read(ccm(lm), observes("long " * 300))


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


@pytest.mark.parametrize("update", ["concat", "merge"])
def test_a_checkpoint_of_other_comp_tokens_is_refused_in_one_line(update: str, tmp_path: Path) -> None:
    lm = tiny_llama()
    checkpoints.save(ccm(lm, update=update), tmp_path)
    loaded = checkpoints.load(Ccm, lm, tmp_path)
    assert loaded.settings == CcmSettings(comp_tokens=3, rank=2, update=update)  # type: ignore[arg-type]
    for other in ({"comp_tokens": 2}, {"comp_tokens": 4}):
        with pytest.raises(UserError, match=r"embeddings.weight is \[3, .*\], not"):
            checkpoints.load(Ccm, lm, tmp_path, other)
    with pytest.raises(UserError, match="is a checkpoint of ccm"):
        checkpoints.load(Gisting, lm, tmp_path)


@pytest.mark.parametrize(("update", "peak"), [("concat", 178), ("merge", 66)])
@torch.no_grad()
def test_the_most_slots_alive_are_the_papers(update: str, peak: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 5: 16 pieces of 50 tokens, 50 of input and output, 8 COMP tokens, nothing that begins a text."""
    lm = load("nano", device="cpu")
    monkeypatch.setattr(lm, "bos_ids", ())
    method, lengths = ccm(lm, comp_tokens=8, update=update), list[int]()
    text = Observe(text=".", joiner="", ids=tuple(range(10, 60)))
    with watched(lambda call: lengths.append(call.key.shape[2])):
        state = read(method, [text] * 16)
        forward(lm, method.patch(state, []), torch.tensor([text.ids]))
    assert max(lengths) == peak
    assert state.nbytes == lm.layers * 2 * lm.kv_heads * lm.head_dim * 4 * {"concat": 128, "merge": 8}[update] + 8
