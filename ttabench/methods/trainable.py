"""Base class for trainable methods, with a default training loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from ttabench.core.types import Choose, Episode, Query, Score
from ttabench.lm.forward.patching import continues_text, encode_patch, select_rows
from ttabench.lm.forward.tokens import choice_ids, gold_ids, prompt_ids, window_ids
from ttabench.lm.inference.scoring import answer_nll
from ttabench.lm.model import LM
from ttabench.methods.base import Method, SettingsT
from ttabench.methods.session import Session


class Trainable(Method[SettingsT]):
    """Base class for methods with parameters, see `training.loop`."""

    _is_training = False
    """True within `loss_parts`, if `adapt` and `patch` must be differentiable."""

    def prepare_training(self, first: Sequence[Episode] = ()) -> None:
        """Load pretrained parts or initialise from data.

        Called once with the episodes of the first step, unless training starts from a checkpoint.
        """

    def training_tensors(self) -> Mapping[str, Tensor]:
        """Return tensors that a resumed training needs in addition to the parameters."""
        return {}

    def accumulate_gradients(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Add the gradient of the training loss of one optimiser step to the parameters.

        A method with a closed form sets its parameters instead, and adds no gradient.

        Returns:
            Detached parts of the loss by name, their sum "loss", and any further figures to log.
        """
        parts = self.loss_parts(episodes)
        loss = torch.stack(list(parts.values())).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return {name: part.detach() for name, part in {**parts, "loss": loss}.items()}

    def validate(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Return validation figures: by default the training "loss", and its parts if several."""
        with torch.no_grad():
            parts = {name: float(part) for name, part in self.loss_parts(episodes).items()}
        return {"loss": sum(parts.values()), **(parts if len(parts) > 1 else {})}

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Return named scalars that sum to the training loss; by default only `answer_loss`."""
        self._is_training = torch.is_grad_enabled()
        try:
            return {"answer": answer_loss(self, episodes)}
        finally:
            self._is_training = False


def answer_loss(method: Method[Any], episodes: Sequence[Episode]) -> Tensor:
    """Compute the answer NLL (nats/token), each query after the chunks that precede it.

    It uses the same `adapt` and `patch` as evaluation, and is differentiable if they are. Episodes
    with the same order of chunks and queries form one batch.
    """
    by_order: dict[tuple[bool, ...], list[Episode]] = {}
    for episode in episodes:
        order = tuple(isinstance(step, Query) for step in episode.steps)
        by_order.setdefault(order, []).append(episode)
    sums: list[Tensor] = []
    count = 0
    for batch in by_order.values():
        session = Session(method.lm, method, rows=len(batch))
        batch_steps = zip(*(episode.steps for episode in batch), strict=True)
        for is_query, steps in groupby(batch_steps, lambda row: isinstance(row[0], Query)):
            rows: list[Any] = list(steps)
            if not is_query:
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
            patch = select_rows(patch, [*range(len(batch))] * len(rows))
            summed, tokens = answer_nll(method.lm, patch, items)
            sums.append(summed)
            count += tokens
    assert sums, "training episodes without a query"
    return torch.stack(sums).sum() / count


def training_item(
    lm: LM, query: Query, max_prompt: int | None = None, *, is_continuation: bool = False
) -> tuple[list[int], list[int]]:
    """Return prompt and target ids of a query, with its first gold answer or its right option.

    Args:
        max_prompt: maximum tokens of the prompt, from its end. The answer is never cut.
        is_continuation: True if other text precedes the prompt in the window.
    """
    prompt = prompt_ids(lm, query, is_continuation=is_continuation)
    want = query.want
    last = slice(None if max_prompt is None else -max_prompt, None)
    if isinstance(want, Choose):
        assert want.gold is not None, f"query {query.key} has options but no right one"
        (pairs,) = choice_ids(lm, [query], is_continuation=is_continuation)
        prompt, options = pairs[want.gold] if want.option_prefixes else pairs[0]
        return prompt[last], options[0 if want.option_prefixes else want.gold]
    assert isinstance(want, Score) or want.answers, f"query {query.key} has no answer to train on"
    return prompt[last], gold_ids(lm, query)
