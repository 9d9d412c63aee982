"""Answers of the frozen LM to queries under a patch, whatever their mode: one list in, one list out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttabench.generation import generate
from ttabench.lm import LM
from ttabench.patching import select_rows
from ttabench.scoring import choose, token_logprobs
from ttabench.stream import gold_ids, option_ids, prompt_ids
from ttabench.types import Ask, Patch


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the model made of one query."""

    prediction: str
    """The generated text or the chosen option, without surrounding blanks; nothing where a given text was scored."""
    logprobs: tuple[float, ...] = ()
    """Summed log-probability (natural log) of each option (`choose`), or of the continuation (`score`)."""
    tokens: tuple[int, ...] = ()
    """Number of tokens of each of them."""
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
    prompts = [prompt_ids(lm, ask) for ask in asks]
    longest = max(ask.max_new_tokens for ask in asks)
    assert num_beams == 1 or all(ask.max_new_tokens == longest for ask in asks), "a beam search cannot be cut short"
    rows = generate(lm, patch, prompts, max_new_tokens=longest, num_beams=num_beams, batch_size=len(asks))
    texts = [lm.decode(row[: ask.max_new_tokens]) for row, ask in zip(rows, asks, strict=True)]
    return [Answer(prediction=text.strip()) for text in texts]


def _chosen(lm: LM, patch: Patch, asks: Sequence[Ask]) -> list[Answer]:
    """Blanks that end what is read are scored with the option, as lm-evaluation-harness does (`acc_norm` sees it)."""
    assert all(len(ask.heads) in (0, len(ask.options)) for ask in asks), "one head an option, or none"
    texts = [[ask.prompt + head for head in ask.heads or ("",)] for ask in asks]
    options = [_after_blanks(lm, row, ask.options) for row, ask in zip(texts, asks, strict=True)]
    owners = [row for row, each in enumerate(texts) for _ in each]
    after = [
        (lm.encode(text.rstrip()), [options[row][number]] if asks[row].heads else options[row])
        for row, each in enumerate(texts)
        for number, text in enumerate(each)
    ]
    found = choose(lm, select_rows(patch, owners), after, batch_size=len(asks))
    sums: list[list[float]] = [[] for _ in asks]
    for row, values in zip(owners, found, strict=True):
        sums[row] += values.tolist()
    blanks = _blanks(lm, patch, asks)
    return [
        Answer(
            prediction=ask.options[max(range(len(each)), key=each.__getitem__)].strip(),
            logprobs=tuple(each),
            tokens=tuple(map(len, ids)),
            blank=blank,
        )
        for ask, each, ids, blank in zip(asks, sums, options, blanks, strict=True)
    ]


def _after_blanks(lm: LM, texts: Sequence[str], options: Sequence[str]) -> list[list[int]]:
    """Ids of each option, with the blanks at the end of the text it follows: of its own text, or of the only one."""
    blanks = [text[len(text.rstrip()) :] for text in texts]
    each = blanks if len(blanks) == len(options) else blanks * len(options)
    return [lm.encode(blank + option) for blank, option in zip(each, options, strict=True)]


def _blanks(lm: LM, patch: Patch, asks: Sequence[Ask]) -> list[tuple[float, ...]]:
    """What the options are worth without the question: adapted weights, but nothing else in the window."""
    rows = [row for row, ask in enumerate(asks) if ask.blank]
    if not rows:
        return [() for _ in asks]
    bare = select_rows(Patch(deltas=patch.deltas), rows)
    items = [(lm.encode(asks[row].blank), option_ids(lm, asks[row])) for row in rows]
    values = iter(choose(lm, bare, items, batch_size=len(asks)))
    return [tuple(next(values).tolist()) if ask.blank else () for ask in asks]


def _scored(lm: LM, patch: Patch, asks: Sequence[Ask]) -> list[Answer]:
    items = [(prompt_ids(lm, ask), gold_ids(lm, ask)) for ask in asks]
    values = token_logprobs(lm, patch, items, batch_size=len(asks))
    return [Answer(prediction="", logprobs=(float(each.sum()),), tokens=(len(each),)) for each in values]
