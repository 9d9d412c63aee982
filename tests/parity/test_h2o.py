"""H2O: the slots that stay are those of the published rule, at every step of reading and of decoding."""

from __future__ import annotations

import pytest
import torch

from tests.methods.test_eviction import call, dense_sums, whole
from tests.parity.fixtures import cases, load
from ttabench.lm.patch import Prefix
from ttabench.methods.eviction.cache import EvictedCache
from ttabench.methods.eviction.h2o import H2OSettings
from ttabench.methods.eviction.h2o.method import H2O, HeavyHitters
from ttabench.methods.eviction.observers import column_sums, group_heads

TOLERANCE = load("h2o").spec["tolerance"]["score"]


@pytest.mark.parametrize("case", cases("h2o"))
def test_reading_keeps_what_the_published_rule_keeps_at_every_step(case: str) -> None:
    fixture = load("h2o").case(case)
    spec, t = fixture.spec, fixture.tensors
    rows, group = spec["layers"], spec["heads"] // spec["kv_heads"]
    heavy, recent = (torch.full((rows,), spec[name]) for name in ("hh_size", "recent_size"))
    ends = [spec["first_step_tokens"] + step * spec["step_tokens"] for step in range(spec["steps"])]
    ends[-1] = spec["tokens"]
    full, kept = whole(t["k"]), None
    for step, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        new = full.take(torch.arange(begin, end)[None, None, None])
        keys, index = new.keys, new.index.expand(-1, -1, spec["kv_heads"], -1)
        scores = torch.zeros(1, rows, spec["kv_heads"], end - begin)
        if kept is not None:
            assert kept.scores is not None
            keys, index = torch.cat([kept.keys, keys], 3), torch.cat([kept.index, index], 3)
            scores = torch.cat([kept.scores, scores], 3)
        counted = torch.ones(rows, end - begin, dtype=torch.bool)
        sums = column_sums(call(t["q"][:, :, begin:end], keys[0]), counted)
        scores = H2O.score(sums, scores)
        held = EvictedCache(keys, keys, index, torch.full((rows,), end), scores)
        kept = held.evict(scores, heavy + recent, last_B=recent)
        expected = t["kept_after_step"][:, step]
        assert torch.equal(
            kept.index[0].long(), expected[expected >= 0].view(rows, spec["kv_heads"], -1)
        )
    assert kept is not None
    assert kept.scores is not None
    assert torch.equal(kept.index[0].long(), t["kept"])
    torch.testing.assert_close(kept.scores[0] / group, t["score"], **TOLERANCE)


@pytest.mark.parametrize("case", cases("h2o", step_tokens=1))
def test_decoding_keeps_what_the_published_rule_keeps(case: str) -> None:
    """The rows of a batch stand for layers: the rule knows no difference."""
    fixture = load("h2o").case(case)
    spec, t = fixture.spec, fixture.tensors
    rows, first = spec["layers"], spec["first_step_tokens"]
    places = torch.arange(first, dtype=torch.int32).expand(1, rows, spec["kv_heads"], -1)
    sums = group_heads(
        dense_sums(t["q"][:, :, :first], t["k"][:, :, :first]), spec["kv_heads"], 1
    ).sum(2)
    keys = t["k"][None, :, :, :first]
    read = EvictedCache(keys, keys, places, torch.full((rows,), first), sums[None])
    heavy, recent = (torch.full((rows,), spec[name]) for name in ("hh_size", "recent_size"))
    settings = H2OSettings(heavy=spec["hh_size"], recent=spec["recent_size"])
    kept = read.evict(sums[None], heavy + recent, last_B=recent)
    rule = HeavyHitters(kept, None, settings)
    for number in range(first, spec["tokens"]):
        held = torch.cat([rule.kept.keys[0], t["k"][:, :, number : number + 1]], dim=2)
        step = rule.step(torch.ones(rows, 1, dtype=torch.bool))
        step(call(t["q"][:, :, number : number + 1], held))
        left = step.remaining_prefix(
            Prefix((held,), (held,), torch.full((rows,), number + 1)), evict=True
        )
        assert isinstance(left.eviction, HeavyHitters)
        rule = left.eviction
        expected = t["kept_after_step"][:, number + 1 - first]
        assert torch.equal(
            rule.kept.index[0].long(), expected[expected >= 0].view(rows, spec["kv_heads"], -1)
        )
    assert rule.kept.scores is not None
    group = spec["heads"] // spec["kv_heads"]
    torch.testing.assert_close(rule.kept.scores[0] / group, t["score"], **TOLERANCE)
