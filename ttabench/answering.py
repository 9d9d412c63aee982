"""Answers of the frozen LM to queries under a patch, whatever their mode: one list in, one list out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttabench.generation import generate
from ttabench.lm import LM
from ttabench.scoring import choose, token_logprobs
from ttabench.stream import option_ids, prompt_ids, target_ids
from ttabench.types import Ask, Patch


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the model made of one query."""

    prediction: str
    """The generated text, the chosen option, or the continuation that was scored; without surrounding blanks."""
    logprobs: tuple[float, ...] = ()
    """Summed log-probability (natural log) of each option (`choose`), or of the continuation (`score`)."""


def answer(lm: LM, patch: Patch, asks: Sequence[Ask], num_beams: int = 1) -> list[Answer]:
    """Answer queries of one mode in one batch.

    Args:
        lm: the base model.
        patch: of one row, shared, or one row a query.
        asks: queries of one mode; generated answers are cut to each query's own `max_new_tokens`.
        num_beams: beams of generation, 1 is greedy.

    Raises:
        UserError: a query does not fit the model's positions.
    """
    modes = {ask.mode for ask in asks}
    assert len(modes) == 1, f"a batch mixes modes {modes}"
    if modes == {"generate"}:
        return _generated(lm, patch, asks, num_beams)
    return (_chosen if modes == {"choose"} else _scored)(lm, patch, asks)


def _generated(lm: LM, patch: Patch, asks: Sequence[Ask], num_beams: int) -> list[Answer]:
    prompts = [prompt_ids(lm, ask) for ask in asks]
    longest = max(ask.max_new_tokens for ask in asks)
    assert num_beams == 1 or all(ask.max_new_tokens == longest for ask in asks), "a beam search cannot be cut short"
    rows = generate(lm, patch, prompts, max_new_tokens=longest, num_beams=num_beams, batch_size=len(asks))
    texts = [lm.decode(row[: ask.max_new_tokens]) for row, ask in zip(rows, asks, strict=True)]
    return [Answer(prediction=text.strip()) for text in texts]


def _chosen(lm: LM, patch: Patch, asks: Sequence[Ask]) -> list[Answer]:
    items = [(prompt_ids(lm, ask), option_ids(lm, ask)) for ask in asks]
    sums = choose(lm, patch, items, batch_size=len(asks))
    return [
        Answer(prediction=ask.options[int(each.argmax())].strip(), logprobs=tuple(each.tolist()))
        for ask, each in zip(asks, sums, strict=True)
    ]


def _scored(lm: LM, patch: Patch, asks: Sequence[Ask]) -> list[Answer]:
    items = [(prompt_ids(lm, ask), target_ids(lm, ask.delimiter, ask.answers[0], eos=False)) for ask in asks]
    values = token_logprobs(lm, patch, items, batch_size=len(asks))
    return [
        Answer(prediction=ask.answers[0].strip(), logprobs=(float(each.sum()),))
        for ask, each in zip(asks, values, strict=True)
    ]
