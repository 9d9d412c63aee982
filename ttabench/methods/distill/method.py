"""Context distillation at test time: the base with the context in its window teaches itself without it.

Snell, Klein, Zhong, "Learning by Distilling Context", arXiv 2209.15189.
Shape letters: B readers · N numbers of a reader (tokens, where hidden states are) · D width · V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Observe
from ttabench.lm.forward.patching import encoded
from ttabench.lm.forward.tokens import piece_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.lm.verbs.scoring import Item, target_hidden
from ttabench.methods.base import BaseMethod
from ttabench.methods.distill import DISTILL, DistillSettings, StudySettings
from ttabench.methods.parts.lora import Factors, shaped

BREAK = "\n\n"
"""Between texts of the context, and between it and what is read behind it."""
AT_ONCE = 32
"""Lessons that the teacher reads in one batch."""


SettingsT = TypeVar("SettingsT", bound=StudySettings)
Lesson = tuple[Item, Tensor]
"""Prompt and target ids that the student reads; and the last hidden states [N, D] of the teacher that the target is
predicted from, of which the head makes logits."""


class Student(Protocol):
    """What is trained, as one vector of numbers."""

    @property
    def layout(self) -> Mapping[str, torch.Size]:
        """Shapes of its parts by name, in their order."""
        ...

    def patch(self, parts: Mapping[str, Tensor]) -> Patch:
        """What they do to the base; differentiable."""
        ...


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


def text_again(lm: LM, length: int, group: Sequence[list[int]]) -> list[tuple[Item, Item]]:
    """The texts of a group in stretches, each behind other text and behind nothing."""
    joint = lm.encode(BREAK, follows=True)
    stretches = [text[begin : begin + length] for text in group for begin in range(0, len(text), length)]
    return [((joint, stretch), ([], stretch)) for stretch in stretches if len(stretch) > 1]


@torch.no_grad()
def taught(lm: LM, teacher: Patch, pairs: Sequence[tuple[Item, Item]], *, follows: bool = False) -> list[Lesson]:
    """The teacher's distributions over these items. `pairs`: each item behind other text, which the teacher reads, and
    behind nothing, which the student reads, unless it `follows` other text, too."""
    batches = (pairs[begin : begin + AT_ONCE] for begin in range(0, len(pairs), AT_ONCE))
    hidden = chain.from_iterable(target_hidden(lm, teacher, [behind for behind, _ in batch]) for batch in batches)
    return list(zip((behind if follows else alone for behind, alone in pairs), hidden, strict=True))


class Studying(BaseMethod[SettingsT]):
    """What learns what a teacher says. State: the student's numbers `weights` [1, N], float32."""

    reads = "run"
    one_reader = True
    student: Student
    behind = False
    """Whether the student, too, reads lessons behind other text."""

    def start(self, texts: Sequence[list[int]]) -> Tensor:
        """The student's numbers [N] before it has read anything."""
        raise NotImplementedError

    def pairs(self, before: Patch, group: Sequence[list[int]], read: int) -> list[tuple[Item, Item]]:  # noqa: ARG002
        """What the teacher reads behind these texts, and the same as it stands behind nothing. `before`: the student;
        `read`: tokens that it had read by then."""
        return text_again(self.lm, self.settings.length, group)

    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Learn what is read. What is read after a question is taught by the student of before."""
        held, pieces, (read,) = state.tensors.get("weights"), [piece for (piece,) in chunks], state.meta["tokens_read"]
        texts = [ids for ids in (piece_ids(self.lm, piece, first=True) for piece in pieces) if ids]
        before = Patch() if held is None else self._patch(held[0])
        start_N = self.start(texts) if held is None else held[0]
        vector_N = self._trained(start_N, self._lessons(before, texts, read), read)
        if vector_N is None:
            fault = f"{self.name} stopped at document {pieces[0].key or pieces[0].text[:40]!r} and those with it: "
            hint = f"Give a smaller --set lr than {self.settings.lr:g}."
            raise UserError(fault + "its loss or gradient is not finite.", hint)
        return State(1, {"weights": vector_N[None]}, {"tokens_read": [read + sum(map(len, texts))]})

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The student."""
        return self._patch(state.tensors["weights"][0]) if "weights" in state.tensors else Patch()

    def _patch(self, vector_N: Tensor) -> Patch:
        return self.student.patch(shaped(vector_N, self.student.layout))

    def _lessons(self, before: Patch, texts: Sequence[list[int]], read: int) -> list[Lesson]:
        """The teacher's lessons about these texts."""
        lm, lessons = self.lm, list[Lesson]()
        between = len(lm.encode(BREAK, follows=True))
        for number, group in enumerate(grouped(texts, self._room(before), between)):
            with torch.no_grad():
                teacher = encoded(lm, replace(before, tokens_BT=joined(lm, group)))
            lessons += taught(lm, teacher, self.pairs(before, group, read + number), follows=self.behind)
        return lessons

    def _room(self, before: Patch) -> int:
        """Tokens of context in the teacher's window, so that what it reads behind them fits the model."""
        s, lm = self.settings, self.lm
        held = len(lm.start_ids) if before.prefix is None else int(before.prefix.next_position_B.max())
        behind = len(lm.encode(BREAK, follows=True)) + s.length
        room = min(s.window, lm.max_positions - held - behind)
        if room < 2:
            fault = f"The {lm.max_positions} positions of {lm.name} have no room for a context before {behind} tokens"
            raise UserError(f"{fault} (length {s.length}).", "Give a smaller --set length=N.")
        return room

    def _trained(self, start_N: Tensor, lessons: Sequence[Lesson], read: int) -> Tensor | None:
        """The numbers after all steps; None where a step has no finite gradient."""
        s = self.settings
        vector_N = start_N.detach().clone()
        leaves = {name: part.requires_grad_() for name, part in shaped(vector_N, self.student.layout).items()}
        optimiser = torch.optim.Adam(list(leaves.values()), lr=s.lr, fused=True)
        for batch in self._batches(lessons, read):
            optimiser.zero_grad()
            with torch.enable_grad():
                self.loss(self.student.patch(leaves), batch).backward()  # type: ignore[no-untyped-call]
            if not math.isfinite(float(torch.nn.utils.clip_grad_norm_(leaves.values(), s.clip))):
                return None
            optimiser.step()
        return vector_N.detach()

    def _batches(self, lessons: Sequence[Lesson], read: int) -> Iterator[list[Lesson]]:
        """As many batches as steps, over all lessons in another order again and again."""
        s = self.settings
        drawn = torch.Generator().manual_seed(s.seed * 1_000_003 + read + 1)
        order: list[int] = []
        for _ in range(s.steps if lessons else 0):
            if not order:
                order = torch.randperm(len(lessons), generator=drawn).tolist()
            yield [lessons[number] for number in order[: s.batch]]
            del order[: s.batch]

    def loss(self, student: Patch, lessons: Sequence[Lesson]) -> Tensor:
        """KL(teacher || student) of the next token, mean over all target tokens; differentiable."""
        items, taught = zip(*lessons, strict=True)
        learned = target_hidden(self.lm, student, list(items))
        pairs = zip(taught, learned, strict=True)
        teacher_ND = torch.cat([held_ND[len(held_ND) - len(own_ND) :] for held_ND, own_ND in pairs])
        student_ND = torch.cat(list(learned))
        with torch.no_grad():
            wanted_NV = self.lm.logits(teacher_ND).float().log_softmax(-1)
        there_NV = self.lm.logits(student_ND).float().log_softmax(-1)
        return kl_div(there_NV, wanted_NV, log_target=True, reduction="none").sum(-1).mean()


class Distill(Studying[DistillSettings]):
    """A LoRA is the student."""

    spec = DISTILL

    def __init__(self, lm: LM, settings: DistillSettings) -> None:
        super().__init__(lm, settings)
        self.student = self._factors = Factors(lm, settings)

    def start(self, texts: Sequence[list[int]]) -> Tensor:  # noqa: ARG002  # as of slots
        """The base as it is."""
        return self._factors.start()
