"""Context distillation at test time: the base with the context in its window teaches itself without it.

    adapt   teacher = what was known before, and the context in the window; lessons = what it says there
            `steps` times: student <- step(student, mean KL(teacher || student) of the next token)
    patch   the student: low-rank deltas, or keys and values in front of the text       the same for every question

Snell, Klein, Zhong, "Learning by Distilling Context", arXiv 2209.15189; the prefix, its start, and questions that the
teacher asks itself are those of Cartridges (Eyuboglu et al., arXiv 2506.06266).

Shape letters: B readers · N numbers of a reader (tokens, where hidden states are) · D width · V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Observe
from ttabench.lm.forward.patching import encoded
from ttabench.lm.forward.tokens import piece_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.lm.verbs.scoring import target_hidden
from ttabench.methods.base import TRAINED_APART, BaseMethod, Stopped, labelled
from ttabench.methods.distill import DISTILL
from ttabench.methods.distill.lessons import BREAK, Lesson, grouped, joined, self_asked, taught, text_again
from ttabench.methods.distill.settings import QUESTION, DistillSettings
from ttabench.methods.distill.students import student_of
from ttabench.methods.parts.trained import shaped


class Distill(BaseMethod[DistillSettings]):
    """State: a reader's numbers `weights` [B, N], float32."""

    spec = DISTILL
    label_notes = TRAINED_APART
    reads = "run"

    def __init__(self, lm: LM, settings: DistillSettings) -> None:
        super().__init__(lm, settings)
        self.prefix_for_peft = settings.target == "prefix"
        self._student = student_of(lm, settings)

    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Distil what is read, reader by reader. What is read after a question is taught by the student of before.

        Raises:
            Stopped: a loss or its gradient is not finite; nothing of this call is then read.
            UserError: the model has no room for a question behind the least of a context.
        """
        rows, read = [], list(state.meta["tokens_read"])
        for row in range(state.rows):
            pieces = [chunk[row] for chunk in chunks]
            texts = [ids for ids in (piece_ids(self.lm, piece, first=True) for piece in pieces) if ids]
            held = state.tensors["weights"][row : row + 1] if "weights" in state.tensors else None
            before = Patch() if held is None else self._patch(held)
            start = self._student.start([token for text in texts for token in text]) if held is None else held[0]
            lessons = self._lessons(before, texts, read[row])
            rows.append(self._trained(start, lessons, read[row]))
            if rows[-1] is None:
                fault = f"{self.name} stopped at document {pieces[0].key or pieces[0].text[:40]!r} and those with it: "
                hint = f"Give a smaller --set lr than {self.settings.lr:g}."
                raise Stopped(fault + "its loss or gradient is not finite.", hint, state, 0)
            read[row] += sum(map(len, texts))
        label = labelled(state, "passes_over_parts", any(state.meta["tokens_read"]))
        weights_BN = torch.stack([row_of_pieces for row_of_pieces in rows if row_of_pieces is not None])
        return State(state.rows, {"weights": weights_BN}, {"tokens_read": read, **label})

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The student."""
        return self._patch(state.tensors["weights"]) if "weights" in state.tensors else Patch()

    def _patch(self, vectors_BN: Tensor) -> Patch:
        rows = [shaped(vector_N, self._student.layout) for vector_N in vectors_BN]
        return self._student.patch({name: torch.stack([row[name] for row in rows]) for name in self._student.layout})

    def _lessons(self, before: Patch, texts: Sequence[list[int]], read: int) -> list[Lesson]:
        """The teacher's lessons about these texts."""
        s, lm = self.settings, self.lm
        drawn = torch.Generator(lm.device).manual_seed(s.seed * 1_000_003 + read)
        lessons = []
        between = len(lm.encode(BREAK, follows=True))
        for group in grouped(texts, self._room(before), between):
            with torch.no_grad():
                teacher = encoded(lm, replace(before, tokens_BT=joined(lm, group)))
            again = s.ask == "text"
            pairs = text_again(lm, s, group) if again else self_asked(lm, s, before, teacher, group, drawn)
            lessons += taught(lm, teacher, pairs, follows=s.target == "prefix")
        return lessons

    def _room(self, before: Patch) -> int:
        """Tokens of context in the teacher's window, so that what it reads behind them fits the model."""
        s, lm = self.settings, self.lm
        around = BREAK if s.ask == "text" else BREAK + s.template.replace(QUESTION, "")
        held = 0 if before.prefix is None else int(before.prefix.next_position_B.max())
        behind = len(lm.encode(around, follows=True)) + (1 if s.ask == "text" else 2) * s.length
        room = min(s.window, lm.max_positions - len(lm.start_ids) - held - behind)
        if room < 2:
            fault = f"The {lm.max_positions} positions of {lm.name} have no room for a context before {behind} tokens"
            raise UserError(f"{fault} (length {s.length}).", "Give a smaller --set length=N.")
        return room

    def _trained(self, start_N: Tensor, lessons: Sequence[Lesson], read: int) -> Tensor | None:
        """The numbers after all steps; None where a step has no finite gradient."""
        s = self.settings
        vector_N = start_N.detach().clone()
        leaves = {name: part.requires_grad_() for name, part in shaped(vector_N, self._student.layout).items()}
        optimiser = torch.optim.Adam(list(leaves.values()), lr=s.lr, fused=True)
        for batch in self._batches(lessons, read):
            optimiser.zero_grad()
            with torch.enable_grad():
                patch = self._student.patch({name: part[None] for name, part in leaves.items()})
                self.loss(patch, batch).backward()  # type: ignore[no-untyped-call]
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
        hidden = target_hidden(self.lm, student, [lesson.item for lesson in lessons])
        pairs = [(lesson.hidden_ND[len(lesson.hidden_ND) - len(hidden_TD) :], hidden_TD)
                 for lesson, hidden_TD in zip(lessons, hidden, strict=True)]  # fmt: skip
        teacher_ND, student_ND = (torch.cat(list(hidden_TD)) for hidden_TD in zip(*pairs, strict=True))
        with torch.no_grad():
            wanted_NV = self.lm.logits(teacher_ND).float().log_softmax(-1)
        there_NV = self.lm.logits(student_ND).float().log_softmax(-1)
        return kl_div(there_NV, wanted_NV, log_target=True, reduction="none").sum(-1).mean()
