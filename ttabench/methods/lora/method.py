"""LoRA: low-rank weight deltas trained once on a task's training split; nothing is adapted at test time.

    ttabench train --method lora --task superglue     then     ttabench eval --method lora --task superglue

Hu et al., arXiv 2106.09685; the trained baseline of StreamAdapter (arXiv 2411.09289): every linear map, r = alpha = 64.
Training prompts have no demonstrations, whatever a training episode shows. What a task keeps in the window (its
`ratio` or `window`) is read by the adapted weights, in training too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import ClassVar

import torch
from torch import Tensor, nn

from ttabench.core.types import Ask, Episode, Observe
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.lm.scoring import nll
from ttabench.lm.tokens import window_ids
from ttabench.methods.parts import lora
from ttabench.methods.recipe import Recipe
from ttabench.methods.trainable import Trainable, training_item


@dataclass(frozen=True, kw_only=True)
class LoraSettings(lora.LoraShape):
    """Settings of `lora`; the defaults are those of StreamAdapter's comparison."""


class Lora(Trainable[LoraSettings]):
    """Trained low-rank deltas. State: empty."""

    name = "lora"
    summary = "low-rank weight deltas, trained once on the task"
    paper = "2106.09685"
    Settings = LoraSettings
    presets: ClassVar[Mapping[str, LoraSettings]] = {
        # As many parameters as StreamAdapter's preset has there.
        "nano": LoraSettings(rank=43, alpha=43.0),
        "smollm2-135m": LoraSettings(rank=16, alpha=32.0),
        "tinyllama-1.1b": LoraSettings(),
        "llama-3-8b": LoraSettings(),
        "phi-3-medium": LoraSettings(),
    }
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "nano": Recipe(
            documents=(1,),
            questions=8,
            batch_documents=16,
            steps=600,
            lr=1e-3,
            warmup=50,
            schedule="cosine",
            beta2=0.98,
            clip=1.0,
        ),
        "smollm2-135m": Recipe(
            documents=(2, 4, 8),
            rounds=100,
            questions=4,
            steps=300,
            lr=5e-4,
            warmup=20,
            schedule="cosine",
            beta2=0.98,
            clip=1.0,
        ),
        "tinyllama-1.1b": Recipe(
            documents=(1,), batch_documents=16, lr=1e-4, warmup=100, schedule="cosine", beta2=0.95, decay=0.01
        ),
        "llama-3-8b": Recipe(
            documents=(1,), batch_documents=8, lr=8e-5, warmup=300, schedule="cosine", beta2=0.95, decay=0.01
        ),
        "phi-3-medium": Recipe(
            documents=(1,), batch_documents=4, lr=5e-5, warmup=500, schedule="cosine", beta2=0.95, decay=0.01
        ),
    }

    def __init__(self, lm: LM, settings: LoraSettings) -> None:
        super().__init__(lm, settings)
        started = lora.started(lm, settings)
        self.names = list(started)
        self.a = nn.ParameterList(a_RI for a_RI, _ in started.values())
        self.b = nn.ParameterList(b_OR for _, b_OR in started.values())

    def modules(self) -> nn.ModuleDict:
        """a and b, one of each a linear map."""
        return nn.ModuleDict({"a": self.a, "b": self.b})

    def adapt(self, state: State, pieces: Sequence[Sequence[Observe]]) -> State:  # noqa: ARG002  # the contract's
        """Nothing: what it knows it learned before."""
        return state

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The trained deltas."""
        pairs = zip(self.a, self.b, strict=True)
        return Patch(deltas=lora.deltas(dict(zip(self.names, pairs, strict=True)), self.settings))

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Mean negative log-likelihood of the answers, asked in one batch behind what stands in their window."""
        asks = [ask for episode in episodes for ask in episode.asks()]
        losses, count = [], 0
        for _, group in groupby(asks, key=lambda ask: ask.window):
            together = list(group)
            ids = window_ids(self.lm, together[0], follows=False)
            patch = self.patch(State(1), [])
            if ids:
                patch = replace(patch, tokens_BT=torch.tensor([ids], device=self.lm.device))
            items = [training_item(self.lm, ask, follows=bool(ids)) for ask in together]
            summed, tokens = nll(self.lm, patch, items)
            losses.append(summed)
            count += tokens
        return {"answer": torch.stack(losses).sum() / count}
