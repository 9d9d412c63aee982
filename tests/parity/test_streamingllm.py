"""StreamingLLM: a stream behind a sink window gives the logits of the published rule."""

from __future__ import annotations

import pytest
import torch

from tests.parity.fixtures import base_lm, cases, llama_config, load
from ttabench.lm.model import LM
from ttabench.methods.eviction.window import WindowSettings
from ttabench.methods.eviction.window.method import SlidingWindow

TOLERANCE = load("streamingllm").spec["tolerance"]["logits"]


def model(name: str) -> LM:
    fixture = load("streamingllm")
    config = llama_config(fixture.spec["models"][name], bos_token_id=None, eos_token_id=1)
    return base_lm("llama", config, fixture.under(f"model_{name}"))


@pytest.mark.parametrize("case", cases("streamingllm"))
@pytest.mark.parametrize("block", [1, 7, None])
def test_streams_give_the_published_logits(case: str, block: int | None) -> None:
    """One token at a time, in blocks, and the whole text at once."""
    fixture = load("streamingllm").case(case)
    spec, t = fixture.spec, fixture.tensors
    settings = WindowSettings(
        n_sink=spec["n_sink"],
        recent=spec["recent"],
        evict=spec["evict"],
        positions=spec["positions"],
    )
    method, kept, out = SlidingWindow(model(spec["model"]), settings), None, []
    ids = t["input_ids"][None]
    for part in ids.split(block or spec["tokens"], dim=1):
        kept, hidden = method.stream(kept, part, torch.ones_like(part, dtype=torch.bool))
        out.append(method.lm.logits(hidden)[0])
    logits, equal = torch.cat(out), spec["tokens_equal_to_full_attention"]
    torch.testing.assert_close(logits, t["logits"], **TOLERANCE)
    torch.testing.assert_close(logits[:equal], t["full_attention_logits"][:equal], **TOLERANCE)
    if equal < spec["tokens"]:
        assert (logits - t["full_attention_logits"])[equal:].abs().max() > 1e-2
    assert kept is not None
    assert kept.index.flatten().tolist() == t["kept_positions_end"].tolist()
