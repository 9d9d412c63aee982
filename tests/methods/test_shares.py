"""Head budgets (`shares`): allocation of slots, and equality with other ways to the same slots."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import save_file
from torch import Tensor

from tests.methods.reading import logits, read
from tests.methods.test_eviction import NOISE, SMALL, make
from tests.methods.test_kvzip import cache
from tests.tiny import tiny_llama
from tests.tiny_methods import TEXTS, make_chunks
from ttabench.core.digests import digest_path
from ttabench.core.errors import UserError
from ttabench.lm.model import LM
from ttabench.methods.eviction.shares import SHARES_FOLDER, allocate_slots, load_shares

SCORING = ("snapkv", "keydiff", "expected_attention", "random_slots")


def write_counts(path: Path, counts_LH: Tensor) -> str:
    save_file({"counts": counts_LH.int()[:, None].contiguous()}, path)
    return str(path)


@settings(max_examples=50, deadline=None)
@given(
    shares=st.lists(st.integers(0, 1000), min_size=6, max_size=6).filter(any),
    available=st.lists(st.integers(0, 50), min_size=6, max_size=6),
    budget=st.integers(0, 400),
)
def test_a_budget_is_divided_in_proportion_and_used_up(
    shares: list[int], available: list[int], budget: int
) -> None:
    share_LH, available_LH = torch.tensor(shares).float().view(2, 3), torch.tensor(available)
    counts = allocate_slots(share_LH, available_LH.view(2, 3), budget).flatten()
    assert int(counts.sum()) == min(budget, sum(available))
    assert (counts <= available_LH).all()
    free = [n for n in range(6) if counts[n] < available[n] - 1]
    for one in free:
        for other in free:
            if shares[one] and shares[other]:
                ratio = (counts[one] - 1) / shares[one]
                assert ratio <= (counts[other] + 1) / shares[other]


@pytest.mark.parametrize("name", SCORING)
def test_equal_shares_keep_the_slots_of_uniform(name: str, tmp_path: Path) -> None:
    lm = tiny_llama()
    equal = write_counts(tmp_path / "equal.safetensors", torch.full((lm.layers, lm.kv_heads), 7))
    uniform, shared = make(name, lm, **SMALL[name]), make(name, lm, **SMALL[name], shares=equal)
    expected, found = read(uniform, *TEXTS), read(shared, *TEXTS)
    index = cache(found).padded(cache(found).index, -1)
    assert torch.equal(index, expected.tensors["index"])
    torch.testing.assert_close(logits(shared, found), logits(uniform, expected), **NOISE)


def test_shares_of_a_state_repeat_its_division(tmp_path: Path) -> None:
    lm = tiny_llama()
    best = make("kvzip", lm, budget=0.3)
    state = read(best, *TEXTS)
    counts = state.tensors["counts"]
    path = write_counts(tmp_path / "counts.safetensors", counts[:, 0])
    same = make("kvzip", lm, budget=0.3, shares=path)
    assert torch.equal(logits(same, read(same, *TEXTS)), logits(best, state))
    for name in SCORING:
        method = make(name, lm, budget=0.3, shares=path)
        assert torch.equal(read(method, *TEXTS).tensors["counts"], counts)
    uniform = cache(read(make("kvzip", lm, budget=0.3, shares="uniform"), *TEXTS))
    assert int(uniform.counts.max()) - int(uniform.counts.min()) <= 1
    assert len(uniform.keys) == int(counts.sum())


def test_the_window_takes_the_same_part_of_every_head(tmp_path: Path) -> None:
    lm = tiny_llama()
    counts = torch.arange(1, lm.layers * lm.kv_heads + 1).view(lm.layers, lm.kv_heads)
    path = write_counts(tmp_path / "counts.safetensors", counts)
    method = make("snapkv", lm, budget=20, window=10, shares=path)
    kept = cache(read(method, *TEXTS))
    index = kept.padded(kept.index, -1)[:, 0]
    recent = (index >= int(kept.next) - 10).sum(-1)
    for own, slots in zip(recent.flatten(), kept.counts.flatten(), strict=True):
        assert min(10, int(slots) // 2) <= own
        assert own <= slots / 2 + 2


def test_faults_of_shares(tmp_path: Path) -> None:
    lm = tiny_llama()
    other = write_counts(tmp_path / "other.safetensors", torch.ones(5, 7))
    for shares, match in (
        (other, "5|layers"),
        (str(tmp_path / "missing"), "missing"),
        ("shipped", "tiny|bundled"),
    ):
        with pytest.raises(UserError, match=match):
            make("keydiff", lm, shares=shares)
    for more in ({"chunk": 9}, {"positions": "cache"}):
        with pytest.raises(UserError, match="positions=original"):
            make("keydiff", lm, shares="global", **more)
    method = make("keydiff", lm, budget=9, shares="global")
    with pytest.raises(UserError, match="shares=uniform"):
        method.adapt(read(method, TEXTS[0]), [[chunk] for chunk in make_chunks(TEXTS[1])])
    with pytest.raises(ValueError, match="unifrom"):
        make("keydiff", lm, shares="unifrom")
    with pytest.raises(ValueError, match="query_aware"):
        make("snapkv", lm, shares="global", query_aware=True)


@pytest.mark.parametrize(
    ("model", "layers", "heads", "digest"),
    [("smollm2-135m", 30, 3, "8044f4ce17a1"), ("gemma3-270m", 18, 1, "babbf240b483")],
)
def test_bundled_shares(
    model: str, layers: int, heads: int, digest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of a model never changes: run ids contain only its name."""
    lm: LM = tiny_llama()
    monkeypatch.setattr(lm, "name", model)
    monkeypatch.setattr(lm, "kv_layers", range(layers))
    monkeypatch.setattr(lm, "kv_heads", heads)
    shares = load_shares(lm, "shipped")
    assert shares is not None
    assert shares.shape == (layers, heads)
    assert shares.max() > 5 * shares.min() > 0
    assert digest_path(SHARES_FOLDER / f"{model}.safetensors").startswith(digest)
