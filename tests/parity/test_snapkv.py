"""SnapKV: the slots that stay are those of the published rule."""

from __future__ import annotations

import pytest
import torch

from tests.methods.test_eviction import call, whole
from tests.parity.fixtures import cases, load
from ttabench.methods.eviction.observers import column_sums
from ttabench.methods.eviction.snapkv import SnapKVSettings
from ttabench.methods.eviction.snapkv.method import pool_attention


@pytest.mark.parametrize("case", cases("snapkv"))
def test_snapkv_keeps_what_the_published_rule_keeps(case: str) -> None:
    fixture = load("snapkv").case(case)
    spec, t = fixture.spec, fixture.tensors
    rows, tokens, window = spec["layers"], spec["tokens"], min(spec["window"], spec["tokens"])
    settings = SnapKVSettings(
        budget=spec["capacity"], window=spec["window"], kernel=spec["kernel"], pool=spec["pooling"]
    )
    key = t["k"]
    if spec["gqa"] != "group_mean":  # one cache per query head, as released
        key = key.repeat_interleave(spec["heads"] // spec["kv_heads"], dim=1)
    # the layers of the fixture stand for rows
    counted = torch.arange(tokens).expand(rows, -1) >= tokens - window
    scores = torch.zeros(key.shape[:3])
    if "score" in t:  # nothing is scored if all slots stay
        past = column_sums(call(t["q"], key), counted)[..., :-window]
        scores[..., :-window] = pool_attention(past, key.shape[1], settings)
        tolerance = load("snapkv").spec["tolerance"]["score"]
        torch.testing.assert_close(scores[..., :-window], t["score"], **tolerance)
    budget, last = (torch.full((rows,), amount) for amount in (spec["capacity"], window))
    kept = whole(key).evict(scores[None], budget, last_B=last).index[0].long()
    assert torch.equal(kept.expand_as(t["kept"]), t["kept"])
