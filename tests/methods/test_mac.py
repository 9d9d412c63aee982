"""MAC: what must hold whatever the weights are, its bank, its settings, its losses."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.methods.reading import read
from tests.tiny import tiny_llama
from tests.tiny_methods import PROMPTS, TEXTS, make_chunks, make_episode, make_queries, tiny_mac
from ttabench.core.types import Chunk
from ttabench.lm.forward.patching import forward
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.mac.method import Mac
from ttabench.methods.mac.networks import Aggregator, PrefixExpansion, aggregate_hierarchy
from ttabench.methods.trainable import answer_loss

CLOSE: dict[str, float] = {"atol": 1e-5, "rtol": 1e-4}


@pytest.fixture
def lm() -> LM:
    return tiny_llama()


def prefix(mac: Mac, state: State, *prompts: str) -> Tensor:
    """Keys and values of all layers, [L, 2, B, H, P, E]."""
    found = mac.patch(state, make_queries(*prompts)).prefix
    assert found is not None
    return torch.stack(
        [torch.stack(pair) for pair in zip(found.keys_LBHPD, found.values_LBHPD, strict=True)]
    )


@pytest.fixture
def pool() -> Aggregator:
    torch.manual_seed(0)
    return Aggregator(width=24, blocks=3, heads=2, head_dim=8)


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Hierarchy.


def test_the_most_attended_documents_of_the_groups_are_aggregated_once(pool: Aggregator) -> None:
    """Seven documents in groups of three: winners of three groups, by each question's own attention."""
    x, entries = draw(3, 4, 24), draw(7, 4, 24, seed=2) * 2
    winners = []
    for question in x:
        shares = [
            pool.with_document_attention(question[None, None], entries[None, first : first + 3])[1]
            for first in (0, 3, 6)
        ]
        winners.append([3 * place + int(share.argmax()) for place, share in enumerate(shares)])
    expected = torch.cat([pool(x[q][None, None], entries[None, winners[q]])[0] for q in range(3)])
    torch.testing.assert_close(
        aggregate_hierarchy(pool, x, entries, 3, "attended"), expected, **CLOSE
    )
    assert len({tuple(each) for each in winners}) > 1
    deeper = aggregate_hierarchy(pool, x, entries, 2, "attended")
    assert float((deeper - expected).detach().abs().max()) > 1e-3
    flat = pool(x[None], entries[None, :3])[0]
    torch.testing.assert_close(
        aggregate_hierarchy(pool, x, entries[:3], 3, "attended"), flat, **CLOSE
    )


# Texts.


def test_padding_changes_no_latent(lm: LM) -> None:
    networks = tiny_mac(lm).networks
    ids, _ = networks.document_tokenizer.encode(["short", TEXTS[0], TEXTS[0] * 3], 512, "start")
    together = networks.encode_documents(ids)
    torch.testing.assert_close(networks.encode_documents_by_length(ids), together, **CLOSE)
    for index, row in enumerate(ids):
        torch.testing.assert_close(networks.encode_documents([row])[0], together[index], **CLOSE)


def test_long_documents_keep_their_start_and_long_questions_their_end(lm: LM) -> None:
    mac = tiny_mac(lm, document_tokens=10, question_tokens=10)
    state = read(mac, "123456789 and more", "1234567890123", "short")
    assert state.meta["truncated_documents"] == [2]
    assert state.meta["tokens_read"] == [26]
    text = mac.networks.document_tokenizer
    assert (
        text.encode(["123456789 and more"], 10, "start")[0]
        == text.encode(["123456789"], 10, "start")[0]
    )
    assert text.encode(["and 123456789"], 10, "end")[0] == text.encode(["123456789"], 10, "end")[0]


# The bank.


def test_a_text_read_twice_is_kept_once(lm: LM) -> None:
    texts = (TEXTS[0], TEXTS[1], TEXTS[0])
    once = tiny_mac(lm)
    assert read(once, *texts).tensors["counts"].tolist() == [2]
    assert once.adapt(read(once, *texts), [make_chunks(TEXTS[1])]).tensors["counts"].tolist() == [2]


@pytest.mark.parametrize("settings", [{}, {"hierarchy": 2}])
def test_an_empty_bank_next_to_a_full_one_changes_nothing(lm: LM, settings: dict[str, Any]) -> None:
    mac = tiny_mac(lm, **settings)
    with torch.no_grad():
        for parameter in mac.networks.expansion.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.2)
    full = read(mac, *TEXTS)
    padded = torch.cat([torch.zeros_like(full.tensors["bank"]), full.tensors["bank"]])
    state = State(2, tensors={"bank": padded, "counts": torch.tensor([0, len(TEXTS)])})
    ids = torch.tensor([lm.encode(PROMPTS[0])] * 2)
    logits, _ = forward(lm, mac.patch(state, make_queries(PROMPTS[0], PROMPTS[0])), ids)
    base, _ = forward(lm, Patch(), ids[:1])
    alone, _ = forward(lm, mac.patch(full, make_queries(PROMPTS[0])), ids[:1])
    torch.testing.assert_close(logits[:1], base, **CLOSE)
    torch.testing.assert_close(logits[1:], alone, **CLOSE)
    assert float((alone - base).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("reduce", ["random", "average_random", "average_nearest"])
def test_a_capped_bank_stays_within_its_cap_in_any_chunking(lm: LM, reduce: str) -> None:
    texts = [f"Person {index} lives in town {index * 7 % 5}." for index in range(9)]
    mac = tiny_mac(lm, bank_cap=4, bank_reduce=reduce, seed=3)
    assert mac.growth == "constant"
    at_once, one_by_one, sizes = read(mac, *texts), mac.begin(1), set()
    for index, observe in enumerate(make_chunks(*texts)):
        one_by_one = mac.adapt(one_by_one, [[observe]])
        sizes |= {one_by_one.nbytes} if index >= 3 else set()
    assert len(sizes) == 1
    assert at_once.meta == one_by_one.meta
    torch.testing.assert_close(at_once.tensors["bank"], one_by_one.tensors["bank"], **CLOSE)
    names = sorted(name for entry in at_once.meta["members"][0] for name in entry)
    if reduce == "random":
        assert len(names) == 4
    else:
        assert names == sorted(f"d{index}" for index in range(9))


# Modulation.


def test_the_expansion_has_the_parameters_of_the_paper() -> None:
    """28.4 M, 284 M, 473 M and 807 M: the largest block of MAC."""
    shapes = (
        (768, 6, 12, 64, 28.4),
        (1280, 36, 20, 64, 284),
        (1600, 48, 25, 64, 473),
        (4096, 32, 32, 128, 807),
    )
    for width, layers, heads, size, millions in shapes:
        with torch.device("meta"):
            expansion = PrefixExpansion(12, width, (2, layers, heads, size))
        count = sum(p.numel() for p in expansion.parameters())
        assert count == 4 * layers * (2 * width * 768 + 768 + 3 * width)
        assert count / 1e6 == pytest.approx(millions, abs=0.5)


# Training losses.


def loss(mac: Mac, documents: int = 4, seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    mac.modules().zero_grad()
    parts = mac.loss_parts([make_episode(documents=documents)])
    torch.stack(list(parts.values())).sum().backward()  # type: ignore[no-untyped-call]
    return {name: part.detach() for name, part in parts.items()}


@torch.no_grad()
def test_the_loss_is_that_of_the_method_in_use_and_episodes_do_not_meet(lm: LM) -> None:
    mac, few, many = (
        tiny_mac(lm),
        make_episode("few", documents=2),
        make_episode("many", documents=5),
    )
    for episodes in ([few], [few, many]):
        found = mac.loss_parts(episodes)["answer"]
        torch.testing.assert_close(found, answer_loss(mac, episodes), **CLOSE)


def test_backpropagation_dropout_keeps_the_loss_and_drops_gradients(lm: LM) -> None:
    plain, dropping = tiny_mac(lm), tiny_mac(lm, backprop_dropout=0.75)
    torch.testing.assert_close(loss(dropping), loss(plain), **CLOSE)
    for name in ("input_encoder", "aggregator", "expansion"):
        pairs = zip(
            plain.modules()[name].parameters(), dropping.modules()[name].parameters(), strict=True
        )
        for one, other in pairs:
            torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-3)
    one, other = (mac.networks.amortiser.prompts.grad for mac in (plain, dropping))
    assert one is not None
    assert other is not None
    assert float((one - other).abs().max()) > 1e-6


@pytest.mark.parametrize(("lite", "count"), [("random", 2), ("released", 2)])
def test_only_the_chosen_documents_carry_gradient(lm: LM, lite: str, count: int) -> None:
    """Bytes of documents are told apart by their embeddings: those of the others get no gradient."""
    mac = tiny_mac(lm, backprop_dropout=0.5, lite=lite)
    texts = ["AAA", "BBB", "CCC", "DDD"]
    one = make_episode(documents=4)
    read_ = [Chunk(text=text, key=ask.key) for text, ask in zip(texts, one.queries(), strict=True)]
    mac.modules().zero_grad()
    torch.manual_seed(0)
    mac.loss_parts([replace(one, steps=(*read_, *one.queries()))])["answer"].backward()  # type: ignore[no-untyped-call]
    gradient = mac.networks.amortiser.t5.shared.weight.grad
    assert gradient is not None
    carrying = [text for text in texts if gradient[lm.encode(text)[0]].abs().max() > 0]
    assert len(carrying) == count
    assert lite == "random" or carrying == texts[:2]


def test_auxiliary_losses_are_off_and_can_be_switched_on(lm: LM) -> None:
    assert set(loss(tiny_mac(lm))) == {"answer"}
    mac = tiny_mac(lm, retrieval_aux=0.5, attention_aux=0.25, words_aux=1.0)
    parts = loss(mac)
    assert set(parts) == {"answer", "retrieval", "attention", "words"}
    assert float(parts["attention"]) == pytest.approx(0.25 * math.log(4), abs=0.2)


def test_a_template_around_a_question_is_not_what_the_bank_is_asked() -> None:
    method = tiny_mac(tiny_llama())
    state = method.adapt(method.begin(1), [[piece] for piece in make_chunks(*TEXTS)])
    (plain,) = make_queries(PROMPTS[0])
    dressed = replace(plain, prompt=f"Question: {PROMPTS[0]}\nAnswer:", question=PROMPTS[0])
    bare, asked = (method.patch(state, [ask]).prefix for ask in (plain, dressed))
    assert bare is not None
    assert asked is not None
    assert all(
        torch.equal(one, other)
        for one, other in zip(bare.keys_LBHPD, asked.keys_LBHPD, strict=True)
    )
