"""Context distillation: its loss is that of plain forwards, vanishes where student and teacher agree, and falls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.methods.reading import read
from tests.tiny import tiny_gpt2, tiny_llama
from tests.tiny_methods import PROMPTS, TEXTS, make_chunks
from ttabench.lm.forward.patching import encode_patch
from ttabench.lm.inference.scoring import ScoringItem, target_hidden
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.methods.distill import DistillSettings
from ttabench.methods.distill.method import SEPARATOR, Distill, DistillationExample
from ttabench.methods.parts.lora import split_vector

TINY = DistillSettings(rank=2, alpha=2.0, length=32, steps=4, batch=2, lr=1e-2)


def started(method: Distill, *, trained: bool = False) -> tuple[Patch, dict[str, Tensor]]:
    """The student before training, and its parts; `trained`: as leaves."""
    parts = split_vector(method.start([]), method.layout)
    leaves = {name: part.clone().requires_grad_(trained) for name, part in parts.items()}
    return method.student_patch(leaves), leaves


def plain(lm: LM, *texts: list[int]) -> Tensor:
    """Log-probabilities [N, V] of what follows every token of the last of these texts, by the model itself; the last
    token aside."""
    ids = [*lm.start_ids, *(token for text in texts for token in text)]
    with torch.no_grad():
        logprobs: Tensor = lm.model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return logprobs[len(ids) - len(texts[-1]) - (len(ids) > len(texts[-1])) : -1]


@torch.no_grad()
def taught(lm: LM, teacher: Patch, item: ScoringItem) -> list[DistillationExample]:
    """The lesson of an item that teacher and student read alike."""
    return [(item, *target_hidden(lm, teacher, [item]))]


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_the_loss_is_that_of_plain_forwards(make: Any) -> None:
    lm = make()
    method = Distill(lm, replace(TINY, length=64))
    texts, separator_ids = (
        [lm.encode(text) for text in TEXTS[:2]],
        lm.encode(SEPARATOR, is_continuation=True),
    )
    context = [*texts[0], *separator_ids, *texts[1]]
    examples = method._teacher_examples(Patch(), texts, 0)
    wanted = []
    for text in texts:
        teacher = plain(lm, context, separator_ids, text)
        student = plain(lm, text)
        teacher = teacher[len(teacher) - len(student) :]
        wanted.append((teacher.exp() * (teacher - student)).sum(-1))
    found = method.loss(started(method)[0], examples)
    torch.testing.assert_close(found, torch.cat(wanted).mean(), atol=1e-5, rtol=1e-4)
    assert float(found.detach()) > 1e-4


def test_nothing_moves_where_student_and_teacher_agree() -> None:
    lm = tiny_llama()
    method = Distill(lm, TINY)
    student, leaves = started(method, trained=True)
    item = (lm.encode(PROMPTS[0]), lm.encode(" Port Ansel"))
    examples = taught(lm, Patch(), item)
    loss = method.loss(student, examples)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
    assert all(part.grad is None or float(part.grad.abs().max()) < 1e-5 for part in leaves.values())
    other = taught(lm, encode_patch(lm, Patch(tokens_BT=torch.tensor([lm.encode(TEXTS[1])]))), item)
    method.loss(student, other).backward()  # type: ignore[no-untyped-call]
    assert (
        max(float(part.grad.abs().max()) for part in leaves.values() if part.grad is not None)
        > 1e-4
    )


def test_training_brings_the_student_to_its_teacher() -> None:
    lm = tiny_llama()
    method = Distill(lm, replace(TINY, steps=24))
    texts = [lm.encode(text) for text in TEXTS]
    examples = method._teacher_examples(Patch(), texts, 0)
    before = method.loss(started(method)[0], examples)
    after = method.loss(method.patch(read(method, *TEXTS), []), examples)
    assert float(after.detach()) < 0.8 * float(before.detach())


def test_what_is_read_later_is_taught_by_the_student_of_before() -> None:
    method = Distill(tiny_llama(), TINY)
    state = read(method, *TEXTS[:2])
    later = method.adapt(state, [make_chunks(TEXTS[2])])
    apart = Distill(tiny_llama(), replace(TINY, lr=0.0)).adapt(state, [make_chunks(TEXTS[2])])
    assert torch.equal(apart.tensors["weights"], state.tensors["weights"])
    assert not torch.equal(later.tensors["weights"], state.tensors["weights"])
