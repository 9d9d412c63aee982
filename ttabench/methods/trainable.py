"""What methods that are trained have, with defaults: a training loss through the same session as in use."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from ttabench.core.types import Choose, Episode, Query, Score
from ttabench.lm.forward.patching import continues_text, encode_patch, select_rows
from ttabench.lm.forward.tokens import choice_ids, gold_ids, prompt_ids, window_ids
from ttabench.lm.inference.scoring import answer_nll
from ttabench.lm.model import LM
from ttabench.methods.base import BaseMethod, SettingsT
from ttabench.methods.session import Session


class Trainable(BaseMethod[SettingsT]):
    """Defaults of a method with parameters; see `training.loop`."""

    _is_training = False
    """Whether what `adapt` and `patch` make is differentiated, where a method lets it be: in `loss_parts` alone."""

    def prepare_training(self, first: Sequence[Episode] = ()) -> None:
        """Load pretrained parts, or begin where the data are. Called once, before training that does not start from a
        checkpoint, with the episodes of its first step."""

    def accumulate_gradients(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Add the gradient of the training loss of the episodes of an optimiser step to the parameters; returns the
        named parts of the loss, without gradients, their sum "loss", and whatever else is worth telling."""
        parts = self.loss_parts(episodes)
        loss = torch.stack(list(parts.values())).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return {name: part.detach() for name, part in {**parts, "loss": loss}.items()}

    def validate(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Validation figures of episodes that are not trained on; by default "loss", that of training, and its parts
        where it has several."""
        with torch.no_grad():
            parts = {name: float(part) for name, part in self.loss_parts(episodes).items()}
        return {"loss": sum(parts.values()), **(parts if len(parts) > 1 else {})}

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Named scalars whose sum is the training loss of these episodes; by default one part, see `answer_loss`."""
        self._is_training = torch.is_grad_enabled()
        try:
            return {"answer": answer_loss(self, episodes)}
        finally:
            self._is_training = False


def answer_loss(method: BaseMethod[Any], episodes: Sequence[Episode]) -> Tensor:
    """Mean negative log-likelihood of the target tokens, each query asked after the pieces that stand before it:
    through the same `adapt` and `patch` as in use, and differentiable as far as they are. Episodes whose pieces and
    queries stand in the same order are rows of one batch."""
    by_shape: dict[tuple[bool, ...], list[Episode]] = {}
    for episode in episodes:
        by_shape.setdefault(tuple(isinstance(step, Query) for step in episode.steps), []).append(
            episode
        )
    sums: list[Tensor] = []
    count = 0
    for alike in by_shape.values():
        session = Session(method.lm, method, rows=len(alike))
        in_turn = zip(*(episode.steps for episode in alike), strict=True)
        for asking, steps in groupby(in_turn, lambda row: isinstance(row[0], Query)):
            rows: list[Any] = list(steps)
            if not asking:
                session.read_rows(rows)
                continue
            patch = encode_patch(method.lm, method.patch(session.state, rows[0]))
            items = []
            for query in (query for row in rows for query in row):
                window = window_ids(method.lm, query, is_continuation=continues_text(patch))
                prompt, target = training_item(
                    method.lm, query, is_continuation=continues_text(patch) or bool(window)
                )
                items.append(([*window, *prompt], target))
            summed, tokens = answer_nll(
                method.lm, select_rows(patch, [*range(len(alike))] * len(rows)), items
            )
            sums.append(summed)
            count += tokens
    assert sums, "training episodes without a query"
    return torch.stack(sums).sum() / count


def training_item(
    lm: LM, query: Query, max_prompt: int | None = None, *, is_continuation: bool = False
) -> tuple[list[int], list[int]]:
    """Prompt and target ids of a query with its first gold answer, or its right option. `max_prompt`: the prompt keeps
    its last so many tokens, the answer is never cut; `is_continuation`: whether other text stands before it in the window."""
    prompt, want = prompt_ids(lm, query, is_continuation=is_continuation), query.want
    last = slice(None if max_prompt is None else -max_prompt, None)
    if isinstance(want, Choose):
        assert want.gold is not None, f"query {query.key} has options but no right one"
        (pairs,) = choice_ids(lm, [query], is_continuation=is_continuation)
        prompt, options = pairs[want.gold] if want.option_prefixes else pairs[0]
        return prompt[last], options[0 if want.option_prefixes else want.gold]
    assert isinstance(want, Score) or want.answers, f"query {query.key} has no answer to train on"
    return prompt[last], gold_ids(lm, query)
