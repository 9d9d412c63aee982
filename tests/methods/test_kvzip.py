"""kvzip and attention_matching: scores against the model's own attention, ragged states, and what a refit gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.methods.reading import QUESTION, logits, read
from tests.methods.test_eviction import NOISE, make
from tests.tiny import tiny_gpt2, tiny_llama
from tests.tiny_methods import TEXTS
from tools.architectures import tiny_lm
from ttabench.lm.forward.capabilities import get_capabilities
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.methods.eviction.cache import RaggedCache
from ttabench.methods.eviction.kvzip.method import (
    LATER_REPEAT_PROMPT,
    MUST_STAY_SCORE,
    REPEAT_PROMPT,
)
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext

METHODS = ("kvzip", "attention_matching")


def cache(state: State) -> RaggedCache:
    kept = RaggedCache.of(state)
    assert kept is not None
    return kept


def text_ids(lm: LM) -> list[int]:
    return [*lm.start_ids, *lm.encode("\n\n".join(TEXTS))]


@torch.no_grad()
def attention(lm: LM, ids: list[int]) -> list[Tensor]:
    """What each token pays to each before it, [N, T, T] a layer, as transformers computes it."""
    before = lm.model.config._attn_implementation
    lm.model.set_attn_implementation("eager")
    try:
        return [
            layer[0] for layer in lm.model(torch.tensor([ids]), output_attentions=True).attentions
        ]
    finally:
        lm.model.set_attn_implementation(before)


@pytest.mark.parametrize("lm", [tiny_llama(), tiny_gpt2()], ids=["llama-gqa", "gpt2"])
@pytest.mark.parametrize("chunk", [2048, 50])
def test_scores_are_the_largest_attention_of_the_repetition(lm: LM, chunk: int) -> None:
    """Chunk by chunk: text and repetition as one text, of whose attention a softmax over fewer slots is made."""
    method = make("kvzip", lm, budget=1.0, repeat_chunk=chunk)
    kept = cache(read(method, *TEXTS))
    found = kept.padded(kept.scores, 0)[:, 0]
    ids, end = text_ids(lm), lm.encode("\n", is_continuation=True)
    assert (found[..., :4] == MUST_STAY_SCORE).all()
    for begin in range(0, len(ids), chunk):
        part = ids[begin : begin + chunk]
        words = [
            *lm.encode(LATER_REPEAT_PROMPT if begin else REPEAT_PROMPT, is_continuation=True),
            *(ids[begin - 8 : begin] if begin else ()),
        ]
        asked = [*words, *end, *part]
        columns = [
            *range(min(4, begin)),
            *range(begin, begin + len(part)),
            *range(len(ids), len(ids) + len(asked)),
        ]
        for layer, paid_NTT in enumerate(attention(lm, [*ids, *asked])):
            paid = paid_NTT[:, len(ids) :, columns]
            paid = (paid / paid.sum(-1, keepdim=True))[
                ..., min(4, begin) : min(4, begin) + len(part)
            ].amax(1)
            best_HC = paid.view(lm.kv_heads, -1, len(part)).amax(1)
            first = max(begin, 4)
            torch.testing.assert_close(
                found[layer, :, first : begin + len(part)], best_HC[:, first - begin :], **NOISE
            )


@pytest.mark.parametrize("name", METHODS)
def test_slots_are_shared_out_over_layers_and_heads(name: str) -> None:
    lm = tiny_llama()
    kept = cache(read(make(name, lm, budget=0.25), *TEXTS))
    room = lm.layers * lm.kv_heads * (int(kept.next) // 4)
    assert int(kept.counts.sum()) == len(kept.keys) == len(kept.scores) == room
    assert len(set(kept.counts.flatten().tolist())) > 1
    state = read(make(name, lm, budget=0.25), *TEXTS)
    carried = 3 if name == "attention_matching" else 2  # place, score, bias
    assert state.nbytes == room * (2 * lm.head_dim + carried) * 4 + lm.layers * lm.kv_heads * 4 + 8
    prefix = make(name, lm, budget=0.25).patch(state, QUESTION).prefix
    assert prefix is not None
    assert prefix.nbytes == room * 2 * lm.head_dim * 4


def test_a_refit_is_nearer_to_full_context() -> None:
    """Of the same slots: what is left of the difference to full context, with what was fitted and without."""
    lm = tiny_llama()
    expected = logits(full := InContext(lm, InContextSettings()), read(full, *TEXTS))
    before, after = (
        (logits(method, read(method, *TEXTS)) - expected).abs().mean()
        for method in (make(name, lm, budget=0.5) for name in METHODS)
    )
    assert after < 0.5 * before


def test_slots_outside_a_window_of_the_model_go_first() -> None:
    """Layers of Gemma 3 that see 16 tokens keep none before them, and others get their budget."""
    lm = tiny_lm("gemma3_text")
    kept = cache(read(make("kvzip", lm, budget=0.5), *TEXTS))
    local = sorted(get_capabilities(lm).local_masks)
    assert 0 < len(local) < lm.layers
    places = kept.padded(kept.index, 10**6)[:, 0]
    for layer in local:
        assert int(places[layer].min()) > int(kept.next) - lm.config.sliding_window
    others = [layer for layer in range(lm.layers) if layer not in local]
    assert int(kept.counts[others].sum()) > 0.5 * int(kept.next) * len(others) * lm.kv_heads
