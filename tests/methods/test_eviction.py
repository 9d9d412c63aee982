"""Evicting methods: attention sums against a dense computation, full budgets, and kept slots."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.methods.reading import logits, read
from tests.tiny import MAX_POSITIONS, tiny_gpt2, tiny_llama
from tests.tiny_methods import PROMPTS, TEXTS, make_chunks, make_queries
from ttabench.core.errors import UserError
from ttabench.core.types import Chunk
from ttabench.lm.attention import AttentionCall
from ttabench.lm.forward.capabilities import get_capabilities, get_rotary
from ttabench.lm.model import LM
from ttabench.methods.eviction import observers
from ttabench.methods.eviction.cache import EvictedCache
from ttabench.methods.eviction.scoring import ScoringMethod
from ttabench.methods.eviction.spec import BudgetSettings, eviction_spec
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext
from ttabench.methods.registry import find_method


def call(query: Tensor, key: Tensor, mask: Tensor | None = None) -> AttentionCall:
    return AttentionCall(0, query, key, key, mask, query.shape[-1] ** -0.5)


def whole(key_BHSD: Tensor) -> EvictedCache:
    """A cache of one layer that has evicted nothing."""
    index = torch.arange(key_BHSD.shape[2], dtype=torch.int32).expand(1, len(key_BHSD), 1, -1)
    return EvictedCache(
        key_BHSD[None], key_BHSD[None], index, torch.full((len(key_BHSD),), key_BHSD.shape[2])
    )


def dense_sums(query: Tensor, key: Tensor) -> Tensor:
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    past = key.shape[2] - query.shape[2]
    seen = torch.ones(scores.shape[-2:]).tril(past).bool()
    return scores.masked_fill(~seen, -torch.inf).softmax(-1).sum(-2)


FULL: dict[str, Any] = {
    "snapkv": {"budget": 400, "window": 8},
    "snapkv-aware": {"budget": 400, "window": 8, "query_aware": True},
    "h2o": {"heavy": 200, "recent": 200},
    "window": {"recent": 400},
    "random_slots": {"budget": 400},
    "keydiff": {"budget": 400},
    "expected_attention": {"budget": 400},
    "kvzip": {"budget": 1.0, "repeat_chunk": 20},
    "attention_matching": {"budget": 1.0},
}
SMALL: dict[str, Any] = {
    "snapkv": {"budget": 12, "window": 4},
    "h2o": {"heavy": 6, "recent": 6},
    "window": {"n_sink": 2, "recent": 10},
    "window-postprefill": {"n_sink": 2, "recent": 10, "mode": "postprefill"},
    "random_slots": {"budget": 12},
    "keydiff": {"budget": 12},
    "expected_attention": {"budget": 12},
}
NOISE = {"atol": 2e-5, "rtol": 1e-4}


def make(name: str, lm: LM, **settings: Any) -> Any:
    spec = find_method(name.partition("-")[0])
    return spec.load()(lm, spec.Settings(**settings))


@pytest.mark.parametrize("lm", [tiny_llama(), tiny_gpt2()], ids=["llama-gqa", "gpt2"])
@pytest.mark.parametrize("name", FULL)
def test_full_budget_equals_full_context(name: str, lm: LM) -> None:
    expected = logits(full := InContext(lm, InContextSettings()), read(full, *TEXTS))
    moves = (
        get_capabilities(lm).rotary is not None
        and "repeat_chunk" not in FULL[name]
        and name != "attention_matching"
    )
    for positions in ["original", "cache"] if moves else ["original"]:
        for chunk in (None, 17):
            method = make(name, lm, **FULL[name], positions=positions, chunk=chunk)
            noise = NOISE if moves else {"atol": 2e-4, "rtol": 1e-3}
            torch.testing.assert_close(logits(method, read(method, *TEXTS)), expected, **noise)


@pytest.mark.parametrize("name", SMALL)
def test_eviction_is_felt(name: str) -> None:
    """Ninety per cent gone changes the logits: context and query are two passes."""
    lm = tiny_llama()
    full = InContext(lm, InContextSettings())
    method = make(name, lm, **SMALL[name])
    state = read(method, *TEXTS)
    kept = EvictedCache.of(state)
    assert kept is not None
    assert kept.index.shape[-1] == 12 < 0.1 * int(kept.next) + 1
    assert (logits(method, state) - logits(full, read(full, *TEXTS))).abs().max() > 1e-2


@pytest.mark.parametrize("name", sorted(set(SMALL) - {"window-postprefill"}))
def test_texts_beyond_the_models_positions_need_moving_ones(name: str) -> None:
    lm, long = tiny_llama(), " ".join(TEXTS * 10)
    assert len(lm.encode(long)) > 2 * MAX_POSITIONS
    with pytest.raises(UserError, match=r"512 positions.*positions=cache"):
        read(make(name, lm, **SMALL[name], positions="original"), long)
    with pytest.raises(UserError, match="positions=cache"):
        make(name, tiny_gpt2(), **SMALL[name], positions="cache")
    method = make(name, lm, **SMALL[name], positions="cache", chunk=64)
    state = read(method, long)
    assert state.tensors["keys"].shape[3] == 12
    assert logits(method, state).isfinite().all()


def kept_positions(lm: LM, name: str, **settings: Any) -> Tensor:
    """int32 [L, H, P]"""
    positions: Tensor = read(make(name, lm, **settings), *TEXTS).tensors["index"][:, 0]
    return positions


def test_random_slots_differ_by_head_and_seed_and_not_by_chunks() -> None:
    kept = partial(kept_positions, tiny_llama(), "random_slots", budget=12)
    heads = kept().flatten(0, 1).tolist()
    assert all(head[0] == 0 for head in heads), "the first token is always kept"
    assert len({tuple(head) for head in heads}) == len(heads) > 1
    assert not torch.equal(kept(), kept(seed=1))
    for parts in ({"chunk": 17}, {"chunk": 9, "positions": "cache"}):
        assert torch.equal(kept(), kept(**parts))


@pytest.mark.parametrize("positions", ["original", "cache"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_window_of_a_query_equals_the_query_as_end_of_the_context(
    prompt: str, positions: str
) -> None:
    lm = tiny_llama()
    count = len(lm.encode(f"\n\n{prompt}"))
    aware, plain = (
        make("snapkv", lm, window=count, budget=budget, query_aware=is_aware, positions=positions)
        for budget, is_aware in ((40, True), (40 + count, False))
    )
    asked = make_queries(prompt)
    kept = EvictedCache.of(
        plain.adapt(plain.begin(1), [[o] for o in (*make_chunks(*TEXTS), Chunk(text=prompt))])
    )
    held = EvictedCache.of(read(aware, *TEXTS))
    assert kept is not None
    assert held is not None
    found = aware._select_for_queries(held, asked)
    assert torch.equal(found.index, kept.index[..., :-count])
    torch.testing.assert_close(found.values, kept.values[..., :-count, :], **NOISE)


class Recording(ScoringMethod[BudgetSettings]):
    """Keeps the inputs of `score`."""

    spec = eviction_spec("recording", "a test")

    def score(
        self,
        keys: Tensor,
        attention: Tensor,
        queries: Tensor,
        positions: Tensor,
        next_position: int,
    ) -> Tensor:
        self.seen = queries, keys, attention, positions, next_position
        return positions.expand(keys.shape[:-1]).float()


@pytest.mark.parametrize("block", [3, 256])
@pytest.mark.parametrize("settings", [{}, {"positions": "cache"}])
def test_inputs_of_a_score_give_its_attention_and_ignore_padding(
    settings: Any, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of softmax(queries @ keys) is the attention, also for a padded row."""
    monkeypatch.setattr(observers, "MAX_QUERIES_PER_BLOCK", block)
    lm = tiny_llama()
    method = Recording(lm, BudgetSettings(budget=20, chunk=40, **settings))
    state = method.adapt(
        method.begin(2), [make_chunks(TEXTS[0] * 2, TEXTS[0]), make_chunks("", TEXTS[1] * 2)]
    )
    queries, keys, attention, positions, next_position = method.seen
    assert next_position == (keys.shape[2] if settings else positions.max() + 1)
    assert (state.tensors["index"].diff(dim=-1) >= 0).all()
    keys = keys.repeat_interleave(lm.config.num_attention_heads // lm.kv_heads, 1)
    seen = torch.ones(queries.shape[2], keys.shape[2]).tril(keys.shape[2] - queries.shape[2])
    weights = (queries @ keys.mT).masked_fill(seen == 0, -torch.inf).softmax(-1)
    torch.testing.assert_close(weights.sum(2), attention, atol=1e-4, rtol=1e-4)


def test_wrong_scores_are_user_errors() -> None:
    class Wrong(ScoringMethod[BudgetSettings]):
        spec = eviction_spec("wrong", "a test")

        def score(self, values: Tensor) -> Tensor:
            return values.mean(-1)[:, :1]

    with pytest.raises(UserError, match=r"wrong\.score"):
        read(Wrong(tiny_llama(), BudgetSettings()), *TEXTS)
    setattr(Wrong, "score", staticmethod(lambda key: key))  # noqa: B010  # a read-only method for mypy
    with pytest.raises(UserError, match="keys"):
        Wrong(tiny_llama(), BudgetSettings())


def test_scores_are_the_published_formulas() -> None:
    """Head by head, with the mean of the rotations as a matrix."""
    lm, sinks, future = tiny_llama(), 2, 7
    generator = torch.Generator().manual_seed(0)
    sizes = (lm.layers, lm.kv_heads, 12, lm.head_dim)
    keys, values = (torch.randn(sizes, generator=generator) for _ in range(2))
    queries = torch.randn(lm.layers, 4, 12, lm.head_dim, generator=generator) / 3
    unit = keys / keys.norm(dim=-1, keepdim=True)
    mean = unit.mean(2, keepdim=True)
    differences = -(unit * mean / mean.norm(dim=-1, keepdim=True)).sum(-1)
    torch.testing.assert_close(make("keydiff", lm).score(keys), differences)

    rotate = partial(get_rotary(lm).rotations[0], inverse=False)
    eye = torch.eye(lm.head_dim)[None, None]
    turn = sum(rotate(eye, torch.full((1, lm.head_dim), 12 + step)) for step in range(future))
    turn = turn[0, 0].T / future
    bare = rotate(queries, torch.arange(12)[None], inverse=True)[:, :, sinks:]
    method = make("expected_attention", lm, n_sink=sinks, future=future)
    scores = method.score(keys, values, queries, next_position=12)
    for layer, head in product(range(lm.layers), range(lm.kv_heads)):
        key = keys[layer, head, sinks:]
        paid = []
        for query in bare[layer].view(lm.kv_heads, -1, *bare.shape[2:])[head]:
            covariance = turn @ query.T.cov(correction=0) @ turn.T
            exponents = [k @ turn @ query.mean(0) + k @ covariance @ k / 2 for k in key]
            paid.append(torch.stack(exponents).softmax(0))
        expected = torch.stack(paid).mean(0) * values[layer, head, sinks:].norm(dim=-1)
        torch.testing.assert_close(scores[layer, head, sinks:], expected)
