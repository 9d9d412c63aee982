"""One loop trains every method: it learns, repeats itself bit for bit and resumes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.places import ROOT
from tests.tiny import tiny_llama
from tests.tiny_methods import make_chunks, make_episode, make_queries, tiny_mac, tiny_method
from ttabench.core.errors import UserError
from ttabench.core.types import Choose, Episode, Query
from ttabench.lm.inference.scoring import token_logprobs
from ttabench.lm.model import LM
from ttabench.methods.icl.method import InContext
from ttabench.methods.mac.method import Mac
from ttabench.methods.mac.networks import SlotLinear
from ttabench.methods.spec import Recipe
from ttabench.methods.trainable import answer_loss, training_item
from ttabench.run.plan import make_plan
from ttabench.run.request import RunRequest
from ttabench.training.batches import curriculum_batches, make_batches
from ttabench.training.config import TrainConfig, learning_rate
from ttabench.training.loop import Muon, train
from ttabench.training.stages import request_for_task, split_mixture


def test_an_update_is_about_as_large_as_one_of_adam_and_vectors_move_as_with_adam() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 32), SlotLinear(2, 64, 32), nn.Embedding(5, 64)]
    twins = [nn.Linear(64, 32), SlotLinear(2, 64, 32), nn.Embedding(5, 64)]
    one, other = nn.ModuleList(layers), nn.ModuleList(twins)
    other.load_state_dict(one.state_dict())
    before = {name: each.detach().clone() for name, each in one.named_parameters()}
    muon = Muon(one, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1)
    adam = torch.optim.AdamW(other.parameters(), lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1)
    for _ in range(3):
        for left, right in zip(one.parameters(), other.parameters(), strict=True):
            left.grad = torch.randn_like(left)
            right.grad = left.grad.clone()
        muon.step()
        adam.step()
    for (name, left), right in zip(one.named_parameters(), other.parameters(), strict=True):
        if name in ("0.weight", "1.weight"):
            sizes = [(each - before[name]).square().mean().sqrt().item() for each in (left, right)]
            assert 0.1 < sizes[0] / sizes[1] < 1.5
        else:
            torch.testing.assert_close(left, right)


@pytest.fixture
def lm() -> LM:
    return tiny_llama()


def episodes(seed: int = 0) -> Iterator[list[Episode]]:
    index = seed * 1000
    while True:
        yield [make_episode(f"{index:03d}", documents=2)]
        index += 1


def weights(method: Mac) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in method.modules().named_parameters()}


def assert_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


CONFIG = TrainConfig(steps=6, lr=3e-3, warmup=2, seed=1)


def test_training_learns_and_leaves_the_base_alone(lm: LM) -> None:
    mac, told = tiny_mac(lm), []
    before = {name: p.clone() for name, p in lm.model.named_parameters()}
    same = ([make_episode("ab", documents=2)] for _ in range(100))
    record = train(
        mac, same, replace(CONFIG, steps=30), lambda step, parts: told.append((step, parts))
    )
    assert record.losses[-1] < record.losses[0] - 0.5
    assert (record.steps, record.observes, record.asks) == (30, 60, 60)
    assert [step for step, _ in told] == list(range(1, 31))
    assert set(told[0][1]) == {"answer", "loss", "gradient", "lr", "tokens_per_second"}
    assert not mac.networks.training
    after = dict(lm.model.named_parameters())
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_resumed_training_ends_where_it_would_have_ended(
    lm: LM, tmp_path: Path, optimizer: Literal["adam", "muon"]
) -> None:
    whole, config = (
        tiny_mac(lm, backprop_dropout=0.5),
        replace(CONFIG, optimizer=optimizer, save_every=2),
    )
    expected = train(whole, episodes(), replace(config, out=tmp_path / "whole"))
    part = replace(config, out=tmp_path / "part", resume=True)
    train(tiny_mac(lm, backprop_dropout=0.5), episodes(), replace(part, steps=4))
    resumed = tiny_mac(lm, backprop_dropout=0.5)
    record = train(resumed, episodes(), part)
    assert record.losses == expected.losses
    assert_equal(weights(resumed), weights(whole))
    assert_equal(
        load_file(tmp_path / "part" / "adapter.safetensors"),
        load_file(tmp_path / "whole" / "adapter.safetensors"),
    )
    names = [
        ".lock",
        ".ttabench.json",
        "adapter.json",
        "adapter.safetensors",
        "curve.jsonl",
        "training.safetensors",
    ]
    assert sorted(path.name for path in (tmp_path / "part").iterdir()) == names
    with pytest.raises(UserError, match=r"\(settings"):
        train(tiny_mac(lm), episodes(), part)


def test_rates_warm_up_and_decay() -> None:
    config = TrainConfig(steps=10, lr=1.0, warmup=4)
    assert [learning_rate(config, step) for step in (1, 2, 4, 5, 10)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    cosine = replace(config, schedule="cosine")
    assert [round(learning_rate(cosine, step), 3) for step in (4, 7, 10)] == [1.0, 0.5, 0.0]


def test_default_loss_asks_after_what_stands_before(lm: LM) -> None:
    """A method without a loss of its own: log-likelihoods through adapt and patch, in the order of the steps."""
    method = tiny_method("icl", lm)
    assert isinstance(method, InContext)
    first, second = make_chunks("Ada lives in Port Ansel.", "Bo lives in Tern.")
    one, two = make_queries("Where does Ada live?", "Where does Bo live?")
    choose = Query(prompt="Ada?", key="c", want=Choose(options=(" yes", " no"), gold=1))
    mixed = Episode(key="m", steps=(one, first, two, second, choose))
    prompts = [one.prompt, f"\n\n{two.prompt}"]
    items = [(lm.encode(prompt), [*lm.encode(" Port Ansel"), lm.eos_id]) for prompt in prompts]
    items.append((lm.encode("\n\nAda?"), lm.encode(" no")))
    states = [method.begin(1)]
    for observe in (first, second):
        states.append(method.adapt(states[-1], [[observe]]))
    values = torch.cat(
        [
            token_logprobs(lm, method.patch(state, [one]), [item])[0]
            for state, item in zip(states, items, strict=True)
        ]
    )
    torch.testing.assert_close(answer_loss(method, [mixed]), -values.mean(), atol=1e-5, rtol=1e-4)


def test_episodes_read_as_rows_lose_what_they_lose_alone(lm: LM) -> None:
    """Two of one shape, whose texts and windows differ, and one of another."""
    method = tiny_method("streamadapter", lm)
    pieces, queries = (
        make_chunks("Ada lives in Port Ansel.", "Bo lives in Tern, far from all others."),
        make_queries("Where does Ada live?", "Where does Bo live?"),
    )
    window = [
        replace(query, window=(piece,)) for query, piece in zip(queries, pieces, strict=False)
    ]
    alike = [
        Episode(key=str(at), steps=(pieces[at], window[at], pieces[1 - at], queries[at]))
        for at in (0, 1)
    ]
    episodes = [*alike, Episode(key="c", steps=(pieces[0], queries[1]))]
    alone = torch.stack([answer_loss(method, [episode]) for episode in episodes])
    tokens = torch.tensor(
        [len(training_item(lm, ask)[1]) for episode in episodes for ask in episode.queries()]
    )
    by_episode = torch.stack([tokens[:2].sum(), tokens[2:4].sum(), tokens[4]])
    torch.testing.assert_close(
        answer_loss(method, episodes), (alone * by_episode).sum() / tokens.sum()
    )


def test_every_task_of_a_mixture_reads_as_many_chunks_a_step(lm: LM) -> None:
    request, also = split_mixture(
        RunRequest(method="icl", task=str(ROOT / "results/diet.yaml"), split="train"), ()
    )
    requests = [request, *(request_for_task(request, words) for words in also)]
    plans = [make_plan(each, 0) for each in requests]
    assert len(plans) == len(also) + 1 == 9
    recipe = Recipe(documents=(2, 4), steps=18, questions=1, batch_documents=16)
    read = [
        sum(len(made.chunks()) for made in batch) for batch in make_batches(plans, recipe, lm, 0)
    ]
    assert len(read) == 18
    assert all(12 <= pieces <= 16 for pieces in read), "a profile may lose entries that do not fit"


def test_lessons_share_out_the_steps_and_fill_each_batch() -> None:
    streams = [
        (iter([make_episode(f"{name}{i}") for i in range(12)]), count)
        for name, count in (("a", 2), ("b", 1))
    ]
    drawn = [[made.chunks()[0].text for made in batch] for batch in curriculum_batches(streams, 4)]
    assert [len(batch) for batch in drawn] == [2, 2, 1, 1]
    assert len({text for batch in drawn for text in batch}) == 6
    mixed = [len(batch) for batch in curriculum_batches(streams, 4, rounds=2)]
    assert mixed == [2, 1, 2, 1], "two rounds: both lessons twice, their streams going on"
