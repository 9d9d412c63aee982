"""Context distillation at test time: the base with the context in its window teaches itself without it.

Snell, Klein, Zhong, "Learning by Distilling Context", arXiv 2209.15189.
Shape letters: B readers · N numbers of a reader (tokens, where hidden states are) · D width · V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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


class Student(Protocol):
    """What is trained, as one vector of numbers."""

    @property
    def layout(self) -> Mapping[str, torch.Size]:
        """Shapes of its parts by name, in their order."""
        ...

    def patch(self, parts: Mapping[str, Tensor]) -> Patch:
        """What they do to the base; differentiable."""
        ...


class Studying(BaseMethod[SettingsT]):
    """What learns what a teacher says that has the context. State: the student's numbers `weights` [1, N], float32."""

    reads = "run"
    one_reader = True
    student: Student
    behind = False
    """Whether the student, too, reads lessons behind other text."""

    def start(self, texts: Sequence[list[int]]) -> Tensor:
        """The student's numbers [N] before it has read anything."""
        raise NotImplementedError

    def opening(self) -> int:
        """Tokens between the context and a lesson, at most."""
        return len(self.lm.encode(BREAK, follows=True))

    def items(self, before: Patch, group: Sequence[list[int]], read: int) -> list[Item]:  # noqa: ARG002
        """What the teacher reads behind these texts: by default each once more, in stretches. `before`: the student;
        `read`: tokens that it had read by then."""
        size, joint = self.settings.length, self.lm.encode(BREAK, follows=True)
        stretches = [text[begin : begin + size] for text in group for begin in range(0, len(text), size)]
        return [(joint, stretch) for stretch in stretches if len(stretch) > 1]

    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Learn what is read. What is read after a question is taught by the student of before."""
        held, pieces, (read,) = state.tensors.get("weights"), [piece for (piece,) in chunks], state.meta["tokens_read"]
        texts = [ids for ids in (piece_ids(self.lm, piece, first=True) for piece in pieces) if ids]
        before = Patch() if held is None else self._patch(held[0])
        start_N = self.start(texts) if held is None else held[0]
        lessons = self._lessons(before, texts, read)
        vector_N = self._trained(start_N, lessons, read, pieces[0].key or pieces[0].text[:40])
        return State(1, {"weights": vector_N[None]}, {"tokens_read": [read + sum(map(len, texts))]})

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The student."""
        return self._patch(state.tensors["weights"][0]) if "weights" in state.tensors else Patch()

    def _patch(self, vector_N: Tensor) -> Patch:
        return self.student.patch(shaped(vector_N, self.student.layout))

    @torch.no_grad()
    def _lessons(self, before: Patch, texts: Sequence[list[int]], read: int) -> list[Lesson]:
        """Lessons about these texts, which the teacher reads behind all of a group, the student behind nothing, or
        behind what it keeps."""
        lm, size, joint = self.lm, self.settings.length, self.lm.encode(BREAK, follows=True)
        behind = self.opening() + size  # of the teacher's window
        held = len(lm.start_ids) if before.prefix is None else int(before.prefix.next_position_B.max())
        room = min(self.settings.window, lm.max_positions - held - behind)
        if room < 2:
            fault = f"The {lm.max_positions} positions of {lm.name} have no room for a context before {behind} tokens"
            raise UserError(f"{fault} (length {size}).", "Give a smaller --set length=N.")
        lessons: list[Lesson] = []
        for number, group in enumerate(grouped(texts, room, len(joint))):
            ids = [token for place, text in enumerate(group) for token in ([*joint, *text] if place else text)]
            teacher = encoded(lm, replace(before, tokens_BT=torch.tensor([ids], device=lm.device)))
            items = self.items(before, group, read + number)
            for begin in range(0, len(items), AT_ONCE):
                batch = items[begin : begin + AT_ONCE]
                asked = batch if self.behind else [([], target) for _, target in batch]
                lessons += zip(asked, target_hidden(lm, teacher, batch), strict=True)
        return lessons

    def _trained(self, start_N: Tensor, lessons: Sequence[Lesson], read: int, first: str) -> Tensor:
        """The numbers after all steps; a UserError where a step has no finite gradient, which names the `first`
        document of the lessons."""
        s = self.settings
        vector_N = start_N.detach().clone()
        leaves = {name: part.requires_grad_() for name, part in shaped(vector_N, self.student.layout).items()}
        optimiser = torch.optim.Adam(list(leaves.values()), lr=s.lr, fused=True)
        for batch in self._batches(lessons, read):
            optimiser.zero_grad()
            with torch.enable_grad():
                self.loss(self.student.patch(leaves), batch).backward()  # type: ignore[no-untyped-call]
            if not math.isfinite(float(torch.nn.utils.clip_grad_norm_(leaves.values(), s.clip))):
                fault = f"{self.name} stopped at document {first!r} and those with it"
                hint = f"Give a smaller --set lr than {s.lr:g}."
                raise UserError(f"{fault}: its loss or gradient is not finite.", hint)
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
