"""A model of the hub is the commit that is loaded: it stands in a run's id, and its weights are those that are read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from tests.tiny import tiny_llama
from ttabench.lm.loading import hub, model_reader
from ttabench.lm.loading.model_reader import Source
from ttabench.run.plan import make_plan
from ttabench.run.request import RunRequest

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub's cache with two commits of a model, the newer one its main branch."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder, lm = tmp_path / "models--me--mine", tiny_llama()
    for commit in (OLD, NEW):
        snapshot = folder / "snapshots" / commit
        lm.model.save_pretrained(snapshot)
        lm.tokenizer.save_pretrained(snapshot)
        with torch.no_grad():
            lm.model.lm_head.weight.add_(1.0)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(NEW)
    return folder


def run_id() -> str:
    words = {"method": "icl", "task": "streamingqa", "task_options": ("documents=2",), "source": "mini"}
    return make_plan(RunRequest(model="me/mine", **words), 0).config.identity()


def test_another_commit_is_another_run(repository: Path) -> None:
    before = run_id()
    assert hub.digest_of("me/mine") == NEW
    assert run_id() == before
    (repository / "refs" / "main").write_text(OLD)
    assert hub.digest_of("me/mine") == OLD
    assert run_id() != before


def test_the_commit_is_what_is_read(repository: Path) -> None:
    """Whatever the main branch is by then."""
    weights = {
        commit: model_reader.read(Source("me/mine", "me/mine", revision=commit), None, torch.device("cpu"))[
            0
        ].lm_head.weight
        for commit in (OLD, NEW)
    }
    assert torch.allclose(weights[OLD] + 1.0, weights[NEW])
    assert torch.equal(hub.pretrained("me/mine", None, torch.device("cpu"))[0].lm_head.weight, weights[NEW])
