"""Answers of the frozen LM to queries under a patch, whatever their mode: one list in, one list out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ttabench.core.types import Ask
from ttabench.lm.generation import generate
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.lm.patching import follows_text, select_rows
from ttabench.lm.scoring import choose, token_logprobs
from ttabench.lm.tokens import Pair, choice_ids, gold_ids, prompt_ids


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the model made of one query."""

    prediction: str
    """The generated text or the chosen option, without surrounding blanks; nothing where a given text was scored."""
    logprobs: tuple[float, ...] = ()
    """Summed log-probability (natural log) of each option (`choose`), or of the continuation (`score`)."""
    tokens: tuple[int, ...] = ()
    """Number of tokens of each of them."""
    ended: bool = True
    """Whether a generated answer came to an end of its own, within the tokens it may have."""
    blank: tuple[float, ...] = ()
    """Summed log-probability of each option after `Ask.blank` alone, where the query has one."""


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
    follows = follows_text(patch)
    prompts = [prompt_ids(lm, ask, follows=follows) for ask in asks]
    longest = max(ask.max_new_tokens for ask in asks)
    assert num_beams == 1 or all(ask.max_new_tokens == longest for ask in asks), "a beam search cannot be cut short"

    def stopped(row: int, ids: list[int]) -> bool:
        return len(ids) >= asks[row].max_new_tokens or _stop(lm.decode(ids), asks[row].stops) is not None

    rows = generate(
        lm,
        patch,
        prompts,
        max_new_tokens=longest,
        num_beams=num_beams,
        batch_size=len(asks),
        stopped=stopped if any(ask.stops for ask in asks) else None,
    )
    written = [_written(lm, ask, ids) for ask, ids in zip(asks, rows, strict=True)]
    return [Answer(prediction=text, ended=ended) for text, ended in written]


def _written(lm: LM, ask: Ask, ids: list[int]) -> tuple[str, bool]:
    """The answer in these tokens, and whether it came to an end of its own."""
    text = lm.decode(ids[: ask.max_new_tokens])
    end = _stop(text, ask.stops)
    ended = end is not None or len(ids) < ask.max_new_tokens
    answer = text[:end].strip()
    for lead in ask.leads:
        if answer.lower().startswith(lead.lower()):
            answer = answer[len(lead) :].strip()
    return answer, ended


def _stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the first of the stop texts begins behind the blanks in front of an answer."""
    begin = len(text) - len(text.lstrip())
    places = [place for stop in stops if (place := text.find(stop, begin)) >= 0]
    return min(places, default=None)


def _chosen(lm: LM, patch: Patch, asks: Sequence[Ask]) -> list[Answer]:
    assert all(len(ask.heads) in (0, len(ask.options)) for ask in asks), "one head an option, or none"
    pairs = choice_ids(lm, asks, follows=follows_text(patch))
    found = _choose(lm, patch, pairs)
    ids = [[option for _, options in each for option in options] for each in pairs]
    blanks = _blanks(lm, patch, asks)
    return [
        Answer(
            prediction=ask.options[max(range(len(each)), key=each.__getitem__)].strip(),
            logprobs=tuple(each),
            tokens=tuple(map(len, lengths)),
            blank=blank,
        )
        for ask, each, lengths, blank in zip(asks, found, ids, blanks, strict=True)
    ]


def _choose(lm: LM, patch: Patch, pairs: Sequence[Sequence[Pair]]) -> list[list[float]]:
    """Summed log-probabilities of the options of each query."""
    owners = [row for row, each in enumerate(pairs) for _ in each]
    found = choose(lm, select_rows(patch, owners), [pair for each in pairs for pair in each], batch_size=len(pairs))
    sums: list[list[float]] = [[] for _ in pairs]
    for row, values in zip(owners, found, strict=True):
        sums[row] += values.tolist()
    return sums


def _blanks(lm: LM, patch: Patch, asks: Sequence[Ask]) -> list[tuple[float, ...]]:
    """What the options are worth without the question: adapted weights, but nothing else in the window."""
    rows = [row for row, ask in enumerate(asks) if ask.blank]
    if not rows:
        return [() for _ in asks]
    bare = select_rows(Patch(deltas=patch.deltas), rows)
    pairs = choice_ids(lm, [replace(asks[row], prompt=asks[row].blank, heads=()) for row in rows], follows=False)
    values = iter(_choose(lm, bare, pairs))
    return [tuple(next(values)) if ask.blank else () for ask in asks]


def gold_likelihoods(lm: LM, patch: Patch, asks: Sequence[Ask]) -> list[tuple[float, int]]:
    """(summed log-probability, tokens) of the first gold answer of each query that generates, with the EOS behind it.

    A measure without steps where F1 of a small model is noise; nothing that was written is looked at.

    Args:
        lm: the base model.
        patch: that the queries were answered under.
        asks: of the mode `generate`.
    """
    return [(answer.logprobs[0], answer.tokens[0]) for answer in _scored(lm, patch, asks)]


def _scored(lm: LM, patch: Patch, asks: Sequence[Ask]) -> list[Answer]:
    follows = follows_text(patch)
    items = [(prompt_ids(lm, ask, follows=follows), gold_ids(lm, ask)) for ask in asks]
    values = token_logprobs(lm, patch, items, batch_size=len(asks))
    return [Answer(prediction="", logprobs=(float(each.sum()),), tokens=(len(each),)) for each in values]
