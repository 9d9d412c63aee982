"""Gisting, whole and online: step by step and in one forward the same numbers, and what the memory depends on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.methods.test_ccm import FOUR, episodes
from tests.tiny import tiny_gpt2, tiny_llama, tinyllama_shaped
from tests.tiny_methods import asks, observes
from ttabench.core.errors import UserError
from ttabench.core.types import Episode, Observe
from ttabench.lm.model import LM
from ttabench.methods import checkpoints
from ttabench.methods.ccm import CcmSettings, GistingSettings
from ttabench.methods.ccm.compressive import Compressive
from ttabench.methods.ccm.method import Ccm, Gisting, GistingOnline
from ttabench.methods.trainable import answer_loss


def trained(lm: LM, cls: type[Gisting] = Gisting, **settings: Any) -> Gisting:
    """With deltas that are not zero."""
    method = cls(lm, GistingSettings(**{"comp_tokens": 3, "rank": 2, **settings}))
    generator = torch.Generator().manual_seed(1)
    for b_OR in method.b:
        b_OR.data.copy_(torch.randn(b_OR.shape, generator=generator) * 0.3)
    return method


@pytest.mark.parametrize("base", [tiny_llama, tiny_gpt2])
@pytest.mark.parametrize("conditional", [True, False])
def test_one_forward_gives_the_loss_of_reading_and_compressing_again(base: Callable[[], LM], conditional: bool) -> None:
    method = trained(base(), conditional=conditional)
    with torch.no_grad():
        told = method.loss_parts(episodes())["answer"]
        torch.testing.assert_close(told, answer_loss(method, episodes()), atol=1e-4, rtol=1e-5)


@torch.no_grad()
def test_of_one_piece_whole_and_online_are_one_and_of_several_not() -> None:
    lm = tinyllama_shaped()
    one = [Episode(key="one", steps=(*observes(FOUR[0]), *asks("Where?", "Who is it?")))]
    several = [Episode(key="all", steps=(*observes(*FOUR), *asks("Where?")))]
    whole, online = trained(lm), trained(lm, GistingOnline)
    torch.testing.assert_close(answer_loss(whole, one), answer_loss(online, one))
    assert (answer_loss(whole, several) - answer_loss(online, several)).abs() > 1e-4
    torch.testing.assert_close(whole.loss_parts(several), online.loss_parts(several))


def keys(method: Gisting | Ccm | Compressive, texts: list[Observe]) -> Tensor:
    state = method.begin(1)
    for piece in texts:
        state = method.adapt(state, [[piece]])
    return state.tensors["keys"]


def test_reading_on_compresses_everything_again() -> None:
    lm = tinyllama_shaped()
    method, texts = trained(lm), observes(*FOUR)
    at_once = method.adapt(method.begin(1), [[piece] for piece in texts])
    torch.testing.assert_close(keys(method, texts), at_once.tensors["keys"])
    assert at_once.tensors["keys"].shape[3] == 3
    assert len(at_once.tensors["tokens"][0]) == at_once.meta["tokens_read"][0]


def test_online_is_ccm_without_recursion() -> None:
    lm = tinyllama_shaped()
    online, alone = trained(lm, GistingOnline), Ccm(lm, CcmSettings(comp_tokens=3, rank=2, recursive=False))
    for mine, theirs in zip(online.modules().parameters(), alone.modules().parameters(), strict=True):
        theirs.data.copy_(mine.data)
    assert torch.equal(keys(online, observes(*FOUR)), keys(alone, observes(*FOUR)))


def test_a_checkpoint_of_gisting_is_one_of_gisting_online_and_of_no_other(tmp_path: Path) -> None:
    lm = tiny_llama()
    whole = trained(lm)
    checkpoints.save(whole, tmp_path)
    online = checkpoints.load(GistingOnline, lm, tmp_path)
    assert isinstance(online, GistingOnline)
    assert torch.equal(keys(online, observes(FOUR[0])), keys(whole, observes(FOUR[0])))
    with pytest.raises(UserError, match="is a checkpoint of gisting, not of ccm"):
        checkpoints.load(Ccm, lm, tmp_path)
    checkpoints.save(online, tmp_path / "online")
    with pytest.raises(UserError, match="is a checkpoint of gisting_online, not of gisting"):
        checkpoints.load(Gisting, lm, tmp_path / "online")
