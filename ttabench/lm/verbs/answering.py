"""Answers of the frozen LM to queries under a patch, whatever their mode: one list in, one list out."""

from __future__ import annotations

from collections.abc import Sequence

from ttabench.core.types import Answer, Ask, Choose, Generate, Score, wanted
from ttabench.lm.forward.patching import follows_text, select_rows
from ttabench.lm.forward.tokens import Pair, choice_ids, gold_ids, prompt_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.lm.verbs.generation import generate
from ttabench.lm.verbs.scoring import choose, token_logprobs


def answer(lm: LM, patch: Patch, asks: Sequence[Ask]) -> list[Answer]:
    """Answer queries of one mode in one batch.

    Raises:
        UserError: a query does not fit the model's positions, or its logits are not finite.
    """
    return _ANSWERING[type(asks[0].want)](lm, patch, asks)


def _generated(lm: LM, patch: Patch, asks: Sequence[Ask]) -> list[Answer]:
    wants, follows = wanted(asks, Generate), follows_text(patch)
    prompts = [prompt_ids(lm, ask, follows=follows) for ask in asks]
    longest = max(want.max_new_tokens for want in wants)

    def stopped(row: int, ids: list[int]) -> bool:
        return len(ids) >= wants[row].max_new_tokens or _stop(lm.decode(ids), wants[row].stops) is not None

    rows = generate(
        lm,
        patch,
        prompts,
        max_new_tokens=longest,
        batch_size=len(asks),
        stopped=stopped if any(want.stops for want in wants) else None,
    )
    written = [_written(lm, want, ids) for want, ids in zip(wants, rows, strict=True)]
    return [Answer(prediction=text, ended=ended) for text, ended in written]


def _written(lm: LM, want: Generate, ids: list[int]) -> tuple[str, bool]:
    """The answer in these tokens, and whether it came to an end of its own."""
    text = lm.decode(ids[: want.max_new_tokens])
    end = _stop(text, want.stops)
    ended = end is not None or len(ids) < want.max_new_tokens
    answer = text[:end].strip()
    for lead in want.leads:
        if answer.lower().startswith(lead.lower()):
            answer = answer[len(lead) :].strip()
    return answer, ended


def _stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the first of the stop texts begins behind the blanks in front of an answer."""
    begin = len(text) - len(text.lstrip())
    places = [place for stop in stops if (place := text.find(stop, begin)) >= 0]
    return min(places, default=None)


def _chosen(lm: LM, patch: Patch, asks: Sequence[Ask]) -> list[Answer]:
    wants = wanted(asks, Choose)
    pairs = choice_ids(lm, asks, follows=follows_text(patch))
    scores = _choose(lm, patch, pairs)
    ids = [[option for _, options in pair for option in options] for pair in pairs]
    return [
        Answer(
            prediction=want.options[max(range(len(logprobs)), key=logprobs.__getitem__)].strip(),
            logprobs=tuple(logprobs),
            tokens=tuple(map(len, lengths)),
        )
        for want, logprobs, lengths in zip(wants, scores, ids, strict=True)
    ]


def _choose(lm: LM, patch: Patch, pairs: Sequence[Sequence[Pair]]) -> list[list[float]]:
    """Summed log-probabilities of the options of each query."""
    owners = [row for row, options_of in enumerate(pairs) for _ in options_of]
    logprobs_of = choose(
        lm, select_rows(patch, owners), [pair for options_of in pairs for pair in options_of], batch_size=len(pairs)
    )
    sums: list[list[float]] = [[] for _ in pairs]
    for row, values in zip(owners, logprobs_of, strict=True):
        sums[row] += values.tolist()
    return sums


def gold_likelihoods(lm: LM, patch: Patch, asks: Sequence[Ask]) -> list[tuple[float, int]]:
    """(summed log-probability, tokens) of the first gold answer of each query that generates, with the EOS behind.

    A measure without steps where F1 of a small model is noise; nothing that was written is looked at.
    """

    return [(answer.logprobs[0], answer.tokens[0]) for answer in _scored(lm, patch, asks)]


def _scored(lm: LM, patch: Patch, asks: Sequence[Ask]) -> list[Answer]:
    follows = follows_text(patch)
    items = [(prompt_ids(lm, ask, follows=follows), gold_ids(lm, ask)) for ask in asks]
    values = token_logprobs(lm, patch, items, batch_size=len(asks))
    return [Answer(prediction="", logprobs=(float(value.sum()),), tokens=(len(value),)) for value in values]


_ANSWERING = {Generate: _generated, Choose: _chosen, Score: _scored}
