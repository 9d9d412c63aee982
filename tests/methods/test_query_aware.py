"""snapkv query_aware: the question chooses what stays of a full cache. And the contract for settings of two kinds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.methods.reading import logits, read
from tests.tiny import tiny_gpt2, tiny_llama
from tests.tiny_methods import PROMPTS, TEXTS, asks, observes
from ttabench.core.types import Observe
from ttabench.lm.model import LM
from ttabench.methods.eviction.evicted_cache import EvictedCache
from ttabench.methods.eviction.settings import SnapKVSettings
from ttabench.methods.eviction.snapkv import SnapKV
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext

SMALL = SnapKVSettings(budget=20, window=6, query_aware=True)
NOISE = {"atol": 2e-5, "rtol": 1e-4}


@pytest.mark.parametrize("lm", [tiny_llama(), tiny_gpt2()], ids=["llama-gqa", "gpt2"])
def test_a_full_budget_is_full_context(lm: LM) -> None:
    method, full = SnapKV(lm, replace(SMALL, budget=400)), InContext(lm, InContextSettings())
    torch.testing.assert_close(logits(method, read(method, *TEXTS)), logits(full, read(full, *TEXTS)), **NOISE)


@pytest.mark.parametrize("positions", ["original", "cache"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_question_observes_as_the_end_of_the_context_would(prompt: str, positions: str) -> None:
    """Another route: question and context are one text, the question is its window."""
    lm = tiny_llama()
    count = len(lm.encode(f"\n\n{prompt}"))
    aware = SnapKV(lm, replace(SMALL, window=count, budget=40, positions=positions))
    plain = SnapKV(lm, replace(SMALL, window=count, budget=40 + count, query_aware=False, positions=positions))
    state, asked = read(aware, *TEXTS), asks(prompt)
    kept = EvictedCache.of(plain.adapt(plain.begin(1), [[o] for o in (*observes(*TEXTS), Observe(text=prompt))]))
    held = EvictedCache.of(state)
    assert kept is not None
    assert held is not None
    found = aware._looked_at(held, asked)
    assert torch.equal(found.index, kept.index[..., :-count])
    torch.testing.assert_close(found.values, kept.values[..., :-count, :], **NOISE)


def test_another_question_keeps_other_slots_and_the_end_of_the_context_stays() -> None:
    method = SnapKV(tiny_llama(), replace(SMALL, window=12))
    kept = EvictedCache.of(read(method, *TEXTS))
    assert kept is not None
    short, long = asks("Who?", "Where does Ada live?")
    found = method._looked_at(kept, [short, long])
    assert not torch.equal(found.index[:, 0], found.index[:, 1])
    tokens = int(kept.next)
    assert (found.index[:, 0, :, -6:] == torch.arange(tokens - 6, tokens)).all(), "12 less break and question, 6 bytes"
    in_window = replace(short, window=(Observe(text="Ada rows a small boat."),))
    assert not torch.equal(method._looked_at(kept, [in_window]).index[:, 0], found.index[:, 0])
