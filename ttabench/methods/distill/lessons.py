"""What the teacher says with the context in its window: questions that it asks itself and answers, or the text again.

for group in grouped(texts, room, len(joint)):           as many texts as go into one window
    teacher = encoded(lm, replace(before, tokens_BT=[the group's tokens]))
    pairs = self_asked(...) or text_again(...)           each as it stands behind other text, and behind nothing
    lessons = taught(lm, teacher, pairs, ...)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from ttabench.lm.forward.patching import encoded
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.lm.verbs.generation import generate
from ttabench.lm.verbs.scoring import Item, target_hidden
from ttabench.methods.distill.settings import QUESTION, DistillSettings

BREAK = "\n\n"
"""Between texts of the context, and between it and what is read behind it."""
AT_ONCE = 32
"""Lessons that the teacher reads in one batch."""


@dataclass(frozen=True)
class Lesson:
    """Tokens that the student reads, and the teacher's next token at every place of the target."""

    item: Item
    """Prompt and target ids."""
    hidden_ND: Tensor
    """Last hidden states of the teacher that the target is predicted from, of which the head makes logits."""


def grouped(texts: Sequence[list[int]], room: int, between: int) -> Iterator[list[list[int]]]:
    """Texts in order, as many together as have no more than `room` tokens, those between them counted; a longer text
    is cut."""
    group: list[list[int]] = []
    taken = 0
    for text in texts:
        for begin in range(0, len(text), room):
            part = text[begin : begin + room]
            if group and taken + between + len(part) > room:
                yield group
                group, taken = [], 0
            taken += len(part) + (between if group else 0)
            group.append(part)
    if group:
        yield group


def joined(lm: LM, group: Sequence[list[int]]) -> Tensor:
    """The texts of a group as one, int64 [1, T]."""
    joint = lm.encode(BREAK, follows=True)
    ids = [token for number, text in enumerate(group) for token in ([*joint, *text] if number else text)]
    return torch.tensor([ids], device=lm.device)


def text_again(lm: LM, settings: DistillSettings, group: Sequence[list[int]]) -> list[tuple[Item, Item]]:
    """The texts of a group in stretches, each behind other text and behind nothing."""
    size, joint = settings.length, lm.encode(BREAK, follows=True)
    stretches = [text[begin : begin + size] for text in group for begin in range(0, len(text), size)]
    stretches = [stretch for stretch in stretches if len(stretch) > 1]
    return [((joint, stretch), ([], stretch)) for stretch in stretches]


def self_asked(
    lm: LM, settings: DistillSettings, before: Patch, teacher: Patch, group: Sequence[list[int]], drawn: torch.Generator
) -> list[tuple[Item, Item]]:
    """Questions that the teacher writes behind each text of a group, and answers that it writes behind all of them.

    A question that comes twice counts once; one that has no answer is left out.

    Args:
        lm: the base model.
        settings: how many, how long, in which words.
        before: what the teacher knew before this group.
        teacher: encoded: the same with the group in its window.
        group: token ids of texts.
        drawn: where the draws come from.
    """
    opening, _, closing = settings.template.partition(QUESTION)
    asking = lm.encode(BREAK + opening, follows=True)
    questions = []
    for text in group:
        alone = encoded(lm, replace(before, tokens_BT=torch.tensor([text], device=lm.device)))
        questions += _lines(lm, settings, alone, [asking] * settings.questions, drawn)
    prompts = [opening + question + closing for question in dict.fromkeys(filter(None, questions))]
    asked = [lm.encode(BREAK + prompt, follows=True) for prompt in prompts]
    answers = generate(lm, teacher, asked, max_new_tokens=settings.length, stopped=_line_ends(lm))
    return [
        ((behind, [*answer, lm.eos_id]), (lm.encode(prompt), [*answer, lm.eos_id]))
        for behind, prompt, answer in zip(asked, prompts, answers, strict=True)
        if lm.decode(answer).strip()
    ]


def _lines(
    lm: LM, settings: DistillSettings, patch: Patch, prompts: list[list[int]], drawn: torch.Generator
) -> list[str]:
    """Lines that go on behind the prompts, drawn at the temperature."""

    def pick(logits_BV: Tensor) -> Tensor:
        odds_BV = (logits_BV.float() / settings.temperature).softmax(-1)
        return torch.multinomial(odds_BV, 1, generator=drawn)[:, 0]

    chosen = pick if settings.temperature else None
    written = generate(lm, patch, prompts, max_new_tokens=settings.length, stopped=_line_ends(lm), pick=chosen)
    return [lm.decode(ids).strip().partition("\n")[0].strip() for ids in written]


def _line_ends(lm: LM) -> Callable[[int, list[int]], bool]:
    return lambda _row, ids: "\n" in lm.decode(ids).lstrip()


@torch.no_grad()
def taught(lm: LM, teacher: Patch, pairs: Sequence[tuple[Item, Item]], *, follows: bool) -> list[Lesson]:
    """The teacher's distributions over these items.

    Args:
        lm: the base model.
        teacher: encoded, with the context in its window.
        pairs: each item behind other text, and behind nothing.
        follows: whether the student reads it behind other text (a prefix), too.
    """
    batches = (pairs[begin : begin + AT_ONCE] for begin in range(0, len(pairs), AT_ONCE))
    hidden = chain.from_iterable(target_hidden(lm, teacher, [behind for behind, _ in batch]) for batch in batches)
    return [
        Lesson(behind if follows else alone, hidden_ND)
        for (behind, alone), hidden_ND in zip(pairs, hidden, strict=True)
    ]
