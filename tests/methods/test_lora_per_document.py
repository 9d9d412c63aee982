"""`lora_per_document`: retrieval of documents, the sum of their LoRAs, and the memory of a context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.conftest import Command, error_line
from tests.methods.reading import answer_nll_by_state, prompted, read, read_apart
from tests.tiny import tiny_llama
from tests.tiny_methods import TEXTS, make_queries
from ttabench.contract.case import query_logits
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch
from ttabench.methods.distill import DistillSettings, LoraPerDocumentSettings
from ttabench.methods.distill.lora_per_document import LoraPerDocument
from ttabench.methods.distill.method import Distill

TRAINING = {"rank": 2, "alpha": 4.0, "length": 24, "steps": 3, "batch": 2, "lr": 1e-2}
TINY = LoraPerDocumentSettings(seeds=(), top=1, **TRAINING)
ABOUT_ADA, ABOUT_BO = make_queries("Where does Ada Voss live?", "What does Bo Lind collect?")


@pytest.fixture(scope="module")
def lm() -> LM:
    return tiny_llama()


def own_lora(lm: LM, text: str) -> Patch:
    """Return the patch of `distill` after this document alone."""
    method = Distill(lm, DistillSettings(**TRAINING))
    return method.patch(read(method, text), [])


def changes(patch: Patch, row: int = 0) -> list[torch.Tensor]:
    """Return the weight changes of a row of a patch, one matrix per linear map."""
    matrices = []
    for delta in patch.deltas.values():
        assert isinstance(delta, LowRank)
        matrices.append(delta.b_BOR[row] @ delta.a_BRI[row])
    return matrices


def assert_changes(patch: Patch, expected: Sequence[Patch], row: int = 0) -> None:
    """Assert that a row of a patch changes the weights by the sum of other patches."""
    sums = map(sum, zip(*map(changes, expected), strict=True))
    for ours, theirs in zip(changes(patch, row), sums, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("reader", [read, read_apart])
def test_each_query_gets_the_lora_of_its_document(lm: LM, reader: object) -> None:
    assert callable(reader)
    method = LoraPerDocument(lm, TINY)
    state = reader(method, *TEXTS)
    patch = method.patch(state, [ABOUT_BO, ABOUT_ADA])
    for row, text in enumerate((TEXTS[1], TEXTS[0])):
        assert_changes(patch, [own_lora(lm, text)], row)


def test_loras_of_several_documents_are_added(lm: LM) -> None:
    method = LoraPerDocument(lm, replace(TINY, top=2))
    state = read(method, *TEXTS)
    (query,) = make_queries("Do Ada Voss and Bo Lind live here?")
    patch = method.patch(state, [query])
    ranks = {delta.a_BRI.shape[1] for delta in patch.deltas.values() if isinstance(delta, LowRank)}
    assert ranks == {2 * TINY.rank}
    assert_changes(patch, [own_lora(lm, text) for text in TEXTS[:2]])


def test_one_document_answers_like_its_own_lora(lm: LM) -> None:
    method = LoraPerDocument(lm, replace(TINY, top=3))
    patch = method.patch(read(method, TEXTS[0]), [ABOUT_ADA])
    expected = prompted(lm, own_lora(lm, TEXTS[0]))
    torch.testing.assert_close(prompted(lm, patch), expected, atol=1e-5, rtol=1e-4)


def test_training_does_not_depend_on_other_documents(lm: LM) -> None:
    method = LoraPerDocument(lm, replace(TINY, seeds=("Question:",), questions=2))
    states = [read(method, *texts) for texts in (TEXTS, TEXTS[::-1])]
    weights, reversed_weights = (state.tensors["weights"] for state in states)
    assert torch.equal(weights, reversed_weights.flip(1))
    ours, theirs = (query_logits(method, state, [ABOUT_ADA])[0] for state in states)
    torch.testing.assert_close(ours, theirs)


def test_documents_are_remembered(ttabench: Command, tmp_path: Path) -> None:
    ran = ttabench(
        "eval --method lora_per_document --task streamingqa --split validation",
        *"--task-set documents=4 --task-set questions=4 --swap-state --json --out".split(),
        tmp_path,
    )
    assert ran.code == 0
    nll = answer_nll_by_state(ran)
    assert nll["own"] < nll["none"] - 0.3
    assert nll["own"] < nll["other"] - 0.3


@pytest.mark.parametrize("wrong", ["--keep 0.5", "--set top=0", "--set target=deltas"])
def test_impossible_options_are_rejected(wrong: str, ttabench: Command) -> None:
    words = f"eval --method lora_per_document --task streamingqa --dry-run {wrong}"
    assert wrong.split()[-1].split("=")[0].strip("0.5") in error_line(ttabench(words))


def test_an_open_query_gets_the_lora_of_a_stored_state(tmp_path: Path, ttabench: Command) -> None:
    (tmp_path / "notes.txt").write_text("The home of Ada Voss is in Selby.")
    words = "adapt --method lora_per_document --set steps=1 --context"
    assert ttabench(words, tmp_path / "notes.txt", "--out", tmp_path / "mine").code == 0
    asked = ttabench("ask", "Where is the home of Ada Voss?", "--state", tmp_path / "mine")
    assert asked.code == 0
    assert asked.out.strip()
