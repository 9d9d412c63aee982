"""Query-only test-time training: a step sees what stood before the stretch, changes the queries alone, and helps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.methods.reading import read
from tests.tiny import tiny_gpt2, tiny_llama
from tests.tiny_methods import TEXTS
from ttabench.core.errors import UserError
from ttabench.lm.inference.scoring import answer_nll
from ttabench.lm.patch import Patch
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext
from ttabench.methods.qttt import QueryTrainingSettings
from ttabench.methods.qttt.method import QueryTraining, truncate_prefix

TINY = QueryTrainingSettings(rank=2, alpha=2.0, steps=16, span=16, lr=1e-2)


def test_a_stretch_after_the_first_slots_reads_as_in_the_whole_text() -> None:
    lm = tiny_llama()
    state = read(QueryTraining(lm, TINY), *TEXTS)
    (ids,), prefix = (
        state.tensors["tokens"].tolist(),
        QueryTraining(lm, TINY).patch(state, []).prefix,
    )
    assert prefix is not None
    begin = len(ids) // 2
    whole = lm.model(torch.tensor([[*lm.start_ids, *ids]])).logits[0].log_softmax(-1)
    places = torch.arange(begin + 1, len(ids))
    wanted = -whole[places - 1 + len(lm.start_ids), torch.tensor(ids)[places]].sum()
    behind = Patch(prefix=truncate_prefix(prefix, len(lm.start_ids) + begin))
    torch.testing.assert_close(
        answer_nll(lm, behind, [([ids[begin]], ids[begin + 1 :])])[0], wanted, atol=1e-4, rtol=1e-4
    )


def test_keys_and_values_are_those_of_full_context_and_queries_alone_change() -> None:
    lm = tiny_llama()
    trained, whole = (
        method.patch(read(method, *TEXTS), [])
        for method in (QueryTraining(lm, TINY), InContext(lm, InContextSettings()))
    )
    assert trained.prefix is not None
    assert whole.prefix is not None
    for mine, theirs in zip(trained.prefix.keys_LBHPD, whole.prefix.keys_LBHPD, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert trained.deltas
    assert all(name.endswith("q_proj") for name in trained.deltas)


def test_what_is_trained_on_becomes_likelier() -> None:
    lm = tiny_llama()
    method = QueryTraining(lm, replace(TINY, steps=40))
    state = read(method, *TEXTS)
    patch, (ids,) = method.patch(state, []), state.tensors["tokens"].tolist()
    assert patch.prefix is not None
    behind = replace(patch, prefix=truncate_prefix(patch.prefix, len(ids) // 2))
    item = (ids[len(ids) // 2 :][:1], ids[len(ids) // 2 + 1 :])
    assert answer_nll(lm, behind, [item])[0] < answer_nll(lm, replace(behind, deltas={}), [item])[0]


def test_a_base_whose_queries_come_with_keys_is_refused() -> None:
    with pytest.raises(UserError, match="q_proj"):
        QueryTraining(tiny_gpt2(), TINY)
