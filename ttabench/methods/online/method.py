"""Gradient steps on the documents that are read; the base model then answers closed book.

Online finetuning: one step per document in order, as in CaMeLS (Hu et al., arXiv 2305.15076,
section 3). Continual pretraining: several passes over all documents. Salient spans, the baseline of
CaMeLS, are those of Guu et al. (REALM, arXiv 2002.08909).

Shape letters: N parameters of a sequence · T tokens of a document.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from ttabench.core.environment import isolated_rng
from ttabench.core.errors import UserError
from ttabench.core.types import Chunk, Query
from ttabench.lm.forward.patching import check_fits, weights_replaced
from ttabench.lm.forward.tokens import chunk_ids
from ttabench.lm.inference.scoring import target_logprobs
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import Method
from ttabench.methods.online import (
    CPT,
    SALIENT_SPANS,
    UNIFORM,
    CptSettings,
    OnlineSettings,
    SalientSettings,
)
from ttabench.methods.parts.lora import Weights, split_vector
from ttabench.methods.parts.settings import DescentSettings

DescentT = TypeVar("DescentT", bound=DescentSettings)
OnlineT = TypeVar("OnlineT", bound=OnlineSettings)
SHORTER_HINT = "Read less of each document (--set max_tokens=N)."
ADAM_MOMENTS = ("first_moment", "second_moment")
Document = tuple[Chunk, list[int]]
"""Document, and the ids of its first tokens, up to the maximum."""


class GradientDescent(Method[DescentT]):
    """Gradient descent on the base model's weights.

    State: the parameters `weights` [1, N], their Adam moments, and `steps` [1].
    """

    counts = ("tokens_read", "truncated_documents")
    supports_batching = False
    required_capabilities = ("gradients",)

    def __init__(self, lm: LM, settings: DescentT) -> None:
        super().__init__(lm, settings)
        self._weights = Weights(lm)

    def step_batches(self, documents: Sequence[int], steps: int) -> Iterable[list[int]]:  # noqa: ARG002  # for `Cpt`
        """Return the documents of each gradient step; by default one a step, in order.

        `documents`: numbers of the documents with a token to predict, in reading order.
        """
        return ([number] for number in documents)

    def loss(self, documents: Sequence[Document], logprobs: Sequence[Tensor]) -> Tensor:  # noqa: ARG002  # interface
        """Return the loss of a step, by default the mean over all predicted tokens; differentiable.

        `logprobs`: of the tokens of each document, without its first token if there are no start
        tokens.
        """
        return -torch.cat(list(logprobs)).mean()

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Take all gradient steps.

        Raises UserError if a loss or its gradient is not finite.
        """
        tensors = {
            name: each.clone()
            for name, each in (dict(state.tensors) or self._initial_tensors()).items()
        }
        steps, max_tokens = int(tensors["steps"]), self.settings.max_tokens
        leaves, optimiser = self._build_optimiser(tensors)
        documents = [document for (document,) in chunks]
        document_ids = [chunk_ids(self.lm, document, first=True) for document in documents]
        texts = [whole[:max_tokens] for whole in document_ids]
        start = len(self.lm.start_ids)
        trainable_documents = [number for number, text in enumerate(texts) if start + len(text) > 1]
        for numbers in self.step_batches(trainable_documents, steps):
            gradient_norm = self._backpropagate(
                leaves, optimiser, [(documents[number], texts[number]) for number in numbers], steps
            )
            if not math.isfinite(gradient_norm):
                name = documents[numbers[0]].key or documents[numbers[0]].text[:40]
                fault = f"{self.name} stopped at document {name!r}: loss or gradient is not finite."
                raise UserError(fault, f"Use a smaller --set lr than {self.settings.lr:g}.")
            optimiser.step()
            steps += 1
        tensors["steps"].fill_(steps)
        (tokens_read,), (truncated,) = state.meta["tokens_read"], state.meta["truncated_documents"]
        tokens_read += sum(map(len, texts))
        truncated += sum(len(whole) > max_tokens for whole in document_ids)
        return State(1, tensors, {"tokens_read": [tokens_read], "truncated_documents": [truncated]})

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002  # interface
        """Return the weight changes of the state as deltas."""
        if "weights" not in state.tensors:
            return Patch()
        return Patch(deltas=self._weights.deltas(state.tensors["weights"][0]))

    def _initial_tensors(self) -> dict[str, Tensor]:
        start_1N = self._weights.start()[None]
        moments = {name: torch.zeros_like(start_1N) for name in ADAM_MOMENTS}
        return {
            "weights": start_1N,
            **moments,
            "steps": torch.zeros(1, dtype=torch.int64, device=self.lm.device),
        }

    def _build_optimiser(
        self, tensors: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], torch.optim.Optimizer]:
        """Return trainable views of the parameters, and an optimiser that updates them in place."""
        s, layout = self.settings, self._weights.layout
        leaves = {
            name: part.requires_grad_()
            for name, part in split_vector(tensors["weights"][0], layout).items()
        }
        adam = torch.optim.Adam(
            list(leaves.values()), lr=s.lr, betas=(0.9, s.beta2), eps=s.eps, fused=True
        )
        first, second = (split_vector(tensors[name][0], layout) for name in ADAM_MOMENTS)
        for name, leaf in leaves.items():
            step = tensors["steps"][0].float()
            adam.state[leaf] = {"step": step, "exp_avg": first[name], "exp_avg_sq": second[name]}
        return leaves, adam

    def _backpropagate(
        self,
        leaves: Mapping[str, Tensor],
        optimiser: torch.optim.Optimizer,
        documents: Sequence[Document],
        steps: int,
    ) -> float:
        """Compute the clipped gradients of a step, and return their norm before clipping."""
        check_fits(
            self.lm, None, [len(self.lm.start_ids) + len(ids) for _, ids in documents], SHORTER_HINT
        )
        with torch.enable_grad(), isolated_rng(self.lm.device), weights_replaced(self.lm, leaves):
            torch.manual_seed(self.settings.seed * 1_000_003 + steps)
            self.lm.model.train(self.settings.dropout)  # dropout of the base model
            try:
                logprobs = target_logprobs(self.lm, Patch(), [([], ids) for _, ids in documents])
                optimiser.zero_grad()
                self.loss(documents, logprobs).backward()  # type: ignore[no-untyped-call]
            finally:
                self.lm.model.eval()
        return float(torch.nn.utils.clip_grad_norm_(leaves.values(), self.settings.clip))


def weighted_loss(settings: OnlineSettings, logprobs: Tensor, weights_T: Tensor) -> Tensor:
    """Return the weighted sum of a document's token losses over the normaliser; differentiable.

    `logprobs`: of the document's tokens, without the first if there are no start tokens.
    `weights_T`: of all its tokens.
    """
    weights = weights_T[len(weights_T) - len(logprobs) :].to(logprobs)
    total = -(logprobs * weights).sum()
    return total / (settings.pad_len - 1 if settings.normaliser == "padded" else len(logprobs))


class OnlineFinetuning(GradientDescent[OnlineT]):
    """One step per document, by default with equal token weights."""

    def token_weights(self, document: Chunk, ids: Sequence[int]) -> Tensor:  # noqa: ARG002  # interface
        """Return the loss weights of the first tokens of a document: float32 [T], not negative."""
        return torch.ones(len(ids), device=self.lm.device)

    def loss(self, documents: Sequence[Document], logprobs: Sequence[Tensor]) -> Tensor:
        """Return the weighted loss of the only document."""
        ((document, ids),), (values,) = documents, logprobs
        return weighted_loss(self.settings, values, self.token_weights(document, ids))


class Uniform(OnlineFinetuning[OnlineSettings]):
    """Online finetuning with equal token weights."""

    spec = UNIFORM


class Cpt(GradientDescent[CptSettings]):
    """Continual pretraining: several passes over the text read between two queries."""

    spec = CPT
    granularity = "segment"

    def step_batches(self, documents: Sequence[int], steps: int) -> Iterable[list[int]]:
        """Yield batches, reshuffled for each pass from the seed and the number of steps."""
        size = self.settings.batch
        generator = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + steps)
        for _ in range(self.settings.epochs):
            order = [
                documents[index]
                for index in torch.randperm(len(documents), generator=generator).tolist()
            ]
            yield from (order[begin : begin + size] for begin in range(0, len(order), size))


Span: TypeAlias = tuple[int, int]

CAPITALISED_RUN = re.compile(r"\b[A-Z][\w'-]*(?:[ ]+[A-Z][\w'-]*)*")
"""Runs of words with initial capitals."""
YEAR_PATTERN = re.compile(r"\b(?:1\d|20)\d\d\b")
SENTENCE_START = re.compile(r"(?:^|[.!?:\n][\"')\]]*\s*|[\"(\[])$")
"""End of the text before a word that begins a sentence."""


def find_entities(text: str) -> list[Span]:
    """Return the spans of runs of capitalised words and of years (1000 to 2099), in order.

    A single capitalised word at the start of a sentence does not count.
    """
    spans = [match.span() for match in YEAR_PATTERN.finditer(text)]
    for match in CAPITALISED_RUN.finditer(text):
        begins = SENTENCE_START.search(text[max(0, match.start() - 8) : match.start()]) is not None
        if not begins or " " in match[0]:
            spans.append(match.span())
    return sorted(spans)


def tokens_in_spans(text: str, starts: Sequence[int], spans: Sequence[Span]) -> list[bool]:
    """Return True for each token with a non-blank character of a span.

    `starts`: first character of each token.
    """
    marked = {
        index for start, end in spans for index in range(start, end) if not text[index].isspace()
    }
    ends = [*starts[1:], len(text)]
    # tokens that share a character all start there
    return [
        not marked.isdisjoint(range(start, max(end, start + 1)))
        for start, end in zip(starts, ends, strict=True)
    ]


class SalientSpans(OnlineFinetuning[SalientSettings]):
    """Online finetuning on the tokens of named entities only."""

    spec = SALIENT_SPANS

    def token_weights(self, document: Chunk, ids: Sequence[int]) -> Tensor:
        """Return 1 for tokens with a character of a named entity, else 0.

        If the document was tokenised as part of another text (chat turns, a book), its decoded
        tokens are searched, without special tokens.
        """
        text = document.text
        token_ids, starts = self.lm.encode_with_starts(text)
        if token_ids[: len(ids)] != list(ids):
            text = self.lm.decode(ids)
            starts = [len(self.lm.decode(ids[:index])) for index in range(len(ids))]
        marked = tokens_in_spans(text, starts, find_entities(text))
        return torch.tensor(marked[: len(ids)], dtype=torch.float32, device=self.lm.device)
