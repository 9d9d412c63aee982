"""`--boost`: the largest deltas of a patch are multiplied, row by row, and nothing else is."""

from __future__ import annotations

import pytest
import torch

from tests.methods.reading import QUESTION
from tests.tiny import tiny_llama
from tests.tiny_methods import TEXTS, make_chunks, tiny_method
from ttabench.core.errors import UserError
from ttabench.lm.patch import Dense, LowRank, Patch, boost_deltas
from ttabench.methods.session import Session


def test_the_quarter_of_layers_with_the_largest_changes_is_multiplied_in_each_row() -> None:
    drawn = torch.Generator().manual_seed(0)
    size = torch.tensor([[1, 9], [5, 1], [2, 2], [3, 3]] * 2)  # layers of rows: 1 and 5, 0 and 4
    deltas = {
        f"model.layers.{layer}.mlp.{kind}": LowRank(
            torch.randn(2, 3, 6, generator=drawn) * size[layer][:, None, None],
            torch.randn(2, 5, 3, generator=drawn),
        )
        for layer in range(8)
        for kind in ("up_proj", "down_proj")
    }
    apart = {"lm_head.weight": Dense(torch.ones(1, 2, 2))}
    ours = boost_deltas(Patch(deltas={**deltas, **apart}), 1.75).deltas
    norms_LB = torch.zeros(8, 2)
    for name, delta in deltas.items():
        norms_LB[int(name.split(".")[2])] += (delta.b_BOR @ delta.a_BRI).square().sum((1, 2))
    largest = norms_LB >= norms_LB.topk(2, 0).values[-1]
    assert largest.sum(0).tolist() == [2, 2]
    assert (largest[:, 0] != largest[:, 1]).any()
    for name, delta in deltas.items():
        mine = ours[name]
        assert isinstance(mine, LowRank)
        factor_B = torch.where(largest[int(name.split(".")[2])], 1.75, 1.0)
        torch.testing.assert_close(mine.b_BOR, delta.b_BOR * factor_B[:, None, None])
        assert mine.a_BRI is delta.a_BRI
    assert ours["lm_head.weight"] is apart["lm_head.weight"]


def test_a_session_boosts_what_was_read_and_refuses_what_leaves_no_deltas() -> None:
    lm = tiny_llama()
    method = tiny_method("generative_adapter", lm)
    plain, more = Session(lm, method), Session(lm, method, boost=2.0)
    assert not more.patch(QUESTION).deltas
    for session in (plain, more):
        session.read(make_chunks(*TEXTS))
    pairs = zip(
        plain.patch(QUESTION).deltas.values(), more.patch(QUESTION).deltas.values(), strict=True
    )
    changed = [not torch.equal(one.b_BOR, other.b_BOR) for one, other in pairs]  # type: ignore[union-attr]
    assert sorted(changed) == [False, True]
    for name in ("icl", "none"):
        without = Session(lm, tiny_method(name, lm), boost=2.0)
        without.read(make_chunks(*TEXTS))
        with pytest.raises(UserError, match="--boost"):
            without.patch(QUESTION)


def test_deltas_that_rows_share_are_boosted_for_those_rows_whose_largest_they_are() -> None:
    own = LowRank(torch.tensor([[[1.0]], [[9.0]]]), torch.ones(2, 1, 1))
    shared = LowRank(torch.tensor([[[3.0]]]), torch.ones(1, 1, 1))
    ours = boost_deltas(Patch(deltas={"layers.0.a": own, "layers.1.a": shared}), 2.0).deltas
    changed = {
        name: (delta.b_BOR * torch.ones(2, 1, 1)).flatten().tolist() for name, delta in ours.items()
    }  # type: ignore[union-attr]
    assert changed == {"layers.0.a": [1.0, 2.0], "layers.1.a": [2.0, 1.0]}
