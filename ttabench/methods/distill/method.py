"""Context distillation at test time: the base model with the context teaches itself without it.

Snell, Klein, Zhong, "Learning by Distilling Context", arXiv 2209.15189.

Shape letters: B sequences · N parameters of a student (tokens, for hidden states) · D width · V
vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from ttabench.core.errors import UserError
from ttabench.core.types import Chunk, Query
from ttabench.lm.forward.patching import encode_patch
from ttabench.lm.forward.tokens import chunk_ids
from ttabench.lm.inference.scoring import ScoringItem, target_hidden
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import Granularity, Method
from ttabench.methods.distill import DISTILL, DistillSettings, SelfDistillationSettings
from ttabench.methods.parts.lora import Factors, split_vector

SEPARATOR = "\n\n"
"""Separator between texts of the context, and between the context and a training text."""
TEACHER_BATCH_SIZE = 32
"""Training texts in one forward pass of the teacher."""


SettingsT = TypeVar("SettingsT", bound=SelfDistillationSettings)
DistillationExample = tuple[ScoringItem, Tensor]
"""Prompt and target ids that the student reads, and the teacher's last hidden states [N, D] that
predict the target; the LM head maps them to logits."""


def group_texts(
    texts: Sequence[list[int]], max_context_tokens: int, separator_tokens: int
) -> Iterator[list[list[int]]]:
    """Group texts in order, at most `max_context_tokens` tokens a group, separators included.

    A longer text is cut.
    """
    group: list[list[int]] = []
    group_tokens = 0
    for text in texts:
        for begin in range(0, len(text), max_context_tokens):
            part = text[begin : begin + max_context_tokens]
            if group and group_tokens + separator_tokens + len(part) > max_context_tokens:
                yield group
                group, group_tokens = [], 0
            group_tokens += len(part) + (separator_tokens if group else 0)
            group.append(part)
    if group:
        yield group


class SelfDistillation(Method[SettingsT]):
    """Base class of students that imitate a teacher with the context.

    The student is the base model with a LoRA, unless a subclass has another one.
    State: the student's parameters `weights` [1, N], float32.
    """

    granularity: Granularity = "segment"
    required_capabilities: tuple[str, ...] = ("gradients",)
    supports_batching = False
    layout: Mapping[str, torch.Size]
    """Shape of each part of the student's parameters by name, in storage order."""
    student_reads_prompt = False
    """True if the student also reads the prompts of training texts."""

    def __init__(self, lm: LM, settings: SettingsT) -> None:
        super().__init__(lm, settings)
        self._factors = Factors(lm, settings)
        self.layout = self._factors.layout

    def start(self, texts: Sequence[list[int]]) -> Tensor:  # noqa: ARG002
        """Return the student's initial parameters [N]; a LoRA leaves the base model unchanged."""
        return self._factors.start()

    def student_patch(self, parts: Mapping[str, Tensor]) -> Patch:
        """Return the patch that these parts of the student define; differentiable."""
        return self._factors.patch(parts)

    def openings(self) -> list[list[int]]:
        """Return the token ids between the context and a training text."""
        return [self.lm.encode(SEPARATOR, is_continuation=True)]

    def items(
        self,
        before: Patch,  # noqa: ARG002
        group: Sequence[list[int]],
        tokens_read: int,  # noqa: ARG002
    ) -> list[ScoringItem]:
        """Return the training texts for these documents; by default their own text, cut into spans.

        `before`: the patch of the student. `tokens_read`: tokens read before this group.
        """
        size, (separator_ids,) = self.settings.length, self.openings()
        spans = [
            text[begin : begin + size] for text in group for begin in range(0, len(text), size)
        ]
        return [(separator_ids, span) for span in spans if len(span) > 1]

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Train the student on new texts.

        For texts after a query, the teacher uses the student from before them.
        """
        stored_1N = state.tensors.get("weights")
        first_document = chunks[0][0]
        (tokens_read,) = state.meta["tokens_read"]
        texts = [ids for (chunk,) in chunks if (ids := chunk_ids(self.lm, chunk, first=True))]
        before = Patch() if stored_1N is None else self._patch(stored_1N[0])
        start_N = self.start(texts) if stored_1N is None else stored_1N[0]
        examples = self._teacher_examples(before, texts, tokens_read)
        vector_N = self._train_student(
            start_N, examples, tokens_read, first_document.key or first_document.text[:40]
        )
        return State(
            1, {"weights": vector_N[None]}, {"tokens_read": [tokens_read + sum(map(len, texts))]}
        )

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002  # interface
        """Return the patch of the student."""
        return self._patch(state.tensors["weights"][0]) if "weights" in state.tensors else Patch()

    def _patch(self, vector_N: Tensor) -> Patch:
        return self.student_patch(split_vector(vector_N, self.layout))

    @torch.no_grad()
    def _teacher_examples(
        self, before: Patch, texts: Sequence[list[int]], tokens_read: int
    ) -> list[DistillationExample]:
        """Return training examples for these texts.

        The teacher reads them after all texts of a group; the student reads them without context,
        or after what it keeps.
        """
        lm, size = self.lm, self.settings.length
        separator_ids = lm.encode(SEPARATOR, is_continuation=True)
        # tokens of the teacher's window
        reserved_tokens = max(map(len, self.openings())) + size
        prefix_tokens = (
            len(lm.start_ids) if before.prefix is None else int(before.prefix.next_position_B.max())
        )
        max_context_tokens = min(
            self.settings.window, lm.max_positions - prefix_tokens - reserved_tokens
        )
        if max_context_tokens < 2:
            fault = f"{lm.name} has {lm.max_positions} positions, too few for a context"
            fault = f"{fault} and {reserved_tokens} reserved tokens (length={size})."
            raise UserError(fault, "Use a smaller --set length=N.")
        examples: list[DistillationExample] = []
        for number, group in enumerate(group_texts(texts, max_context_tokens, len(separator_ids))):
            ids = [
                token
                for index, text in enumerate(group)
                for token in ([*separator_ids, *text] if index else text)
            ]
            teacher = encode_patch(
                lm, replace(before, tokens_BT=torch.tensor([ids], device=lm.device))
            )
            items = self.items(before, group, tokens_read + number)
            for begin in range(0, len(items), TEACHER_BATCH_SIZE):
                batch = items[begin : begin + TEACHER_BATCH_SIZE]
                student_items = (
                    batch if self.student_reads_prompt else [([], target) for _, target in batch]
                )
                examples += zip(student_items, target_hidden(lm, teacher, batch), strict=True)
        return examples

    def _train_student(
        self,
        start_N: Tensor,
        examples: Sequence[DistillationExample],
        tokens_read: int,
        first_document: str,
    ) -> Tensor:
        """Return the parameters after all steps.

        Raises UserError if a gradient is not finite; the error names `first_document`.
        """
        s = self.settings
        vector_N = start_N.detach().clone()
        leaves = {
            name: part.requires_grad_()
            for name, part in split_vector(vector_N, self.layout).items()
        }
        optimiser = torch.optim.Adam(list(leaves.values()), lr=s.lr, fused=True)
        for batch in self._batches(examples, tokens_read):
            optimiser.zero_grad()
            with torch.enable_grad():
                self.loss(self.student_patch(leaves), batch).backward()  # type: ignore[no-untyped-call]
            if not math.isfinite(float(torch.nn.utils.clip_grad_norm_(leaves.values(), s.clip))):
                fault = f"{self.name} stopped at the documents from {first_document!r} on"
                hint = f"Use a smaller --set lr than {s.lr:g}."
                raise UserError(f"{fault}: loss or gradient is not finite.", hint)
            optimiser.step()
        return vector_N.detach()

    def _batches(
        self, examples: Sequence[DistillationExample], tokens_read: int
    ) -> Iterator[list[DistillationExample]]:
        """Yield one batch a step, from all examples, reshuffled for each pass."""
        s = self.settings
        generator = torch.Generator().manual_seed(s.seed * 1_000_003 + tokens_read + 1)
        order: list[int] = []
        for _ in range(s.steps if examples else 0):
            if not order:
                order = torch.randperm(len(examples), generator=generator).tolist()
            yield [examples[number] for number in order[: s.batch]]
            del order[: s.batch]

    def loss(self, student: Patch, examples: Sequence[DistillationExample]) -> Tensor:
        """Return KL(teacher || student) of the next token, averaged over target tokens."""
        items, teacher_hidden = zip(*examples, strict=True)
        student_hidden = target_hidden(self.lm, student, list(items))
        pairs = zip(teacher_hidden, student_hidden, strict=True)
        teacher_ND = torch.cat(
            [longer_ND[len(longer_ND) - len(shorter_ND) :] for longer_ND, shorter_ND in pairs]
        )
        student_ND = torch.cat(list(student_hidden))
        with torch.no_grad():
            teacher_logprobs_NV = self.lm.logits(teacher_ND).float().log_softmax(-1)
        student_logprobs_NV = self.lm.logits(student_ND).float().log_softmax(-1)
        return (
            kl_div(student_logprobs_NV, teacher_logprobs_NV, log_target=True, reduction="none")
            .sum(-1)
            .mean()
        )


class Distill(SelfDistillation[DistillSettings]):
    """Context distillation into a LoRA."""

    spec = DISTILL
