"""SnapKV: the slots that stay are those of the published rule."""

from __future__ import annotations

import pytest
import torch

from tests.methods.test_eviction import call, whole
from tests.parity.fixtures import cases, load
from ttabench.methods.eviction import SnapKVSettings
from ttabench.methods.eviction.evicting import column_sums, kept_slots, newest_slots
from ttabench.methods.eviction.snapkv import slot_scores


@pytest.mark.parametrize("case", cases("snapkv"))
def test_snapkv_keeps_what_the_published_rule_keeps(case: str) -> None:
    fixture = load("snapkv").case(case)
    spec, t = fixture.spec, fixture.tensors
    tokens, window = (
        spec["tokens"],
        torch.full((spec["layers"],), min(spec["window"], spec["tokens"])),
    )
    counted = newest_slots(torch.ones(spec["layers"], tokens, dtype=torch.bool), window)
    settings = SnapKVSettings(
        budget=spec["capacity"], window=spec["window"], kernel=spec["kernel"], pool=spec["pooling"]
    )
    key = t["k"]
    if spec["gqa"] != "group_mean":  # one cache a query head, as released
        key = key.repeat_interleave(spec["heads"] // spec["kv_heads"], dim=1)
    # The layers of the fixture stand for batch rows: the rule knows no difference.
    scores = slot_scores(
        column_sums(call(t["q"], key), counted)[None], whole(key), window, settings
    )
    if "score" in t:  # nothing is scored where all fits
        tolerance = load("snapkv").spec["tolerance"]["score"]
        torch.testing.assert_close(scores[0, ..., : -spec["window"]], t["score"], **tolerance)
    kept = kept_slots(scores, torch.full((spec["layers"],), spec["capacity"]))[0]
    assert torch.equal(kept, t["kept"])
