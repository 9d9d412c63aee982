"""Answers of the frozen LM to queries under a patch, whatever their mode, in batches that fit; and greedy decoding.

    generate(lm, patch, [prompt ids, ...], max_new_tokens=16)       ids after each prompt, cut before EOS
    for samples in in_batches(asks, BatchSize(64), answer): ...     64, 64, out of memory, 32, 32 ...

Rows are padded on the left, so that every row's next token is the last column: only its logits are computed, and greedy
decoding of a batch equals that of each row alone. An empty prompt with no BOS starts from EOS, as GPT-2's training did.
A batch that does not fit into memory is run again in halves. Results do not depend on the size.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import groupby
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from ttabench.core import environment
from ttabench.core.environment import out_of_memory
from ttabench.core.errors import UserError
from ttabench.core.types import Answer, Ask, Choose, Generate, Score, wanted
from ttabench.lm.forward import patching
from ttabench.lm.forward.tokens import choice_ids, gold_ids, pad, prompt_ids
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.lm.verbs.scoring import by_length, choose, refuse_not_finite, token_logprobs


def answer(lm: LM, patch: Patch, asks: Sequence[Ask]) -> list[Answer]:
    """Answer queries of one mode in one batch; a UserError where one does not fit the model's positions, or its logits
    are not finite."""
    return _ANSWERING[type(asks[0].want)](lm, patch, asks)


def _generated(lm: LM, patch: Patch, asks: Sequence[Ask]) -> list[Answer]:
    wants, follows = wanted(asks, Generate), patching.follows_text(patch)
    prompts = [prompt_ids(lm, ask, follows=follows) for ask in asks]

    def stopped(row: int, ids: list[int]) -> bool:
        return len(ids) >= wants[row].max_new_tokens or _stop(lm.decode(ids), wants[row].stops) is not None

    longest, stops = max(want.max_new_tokens for want in wants), stopped if any(want.stops for want in wants) else None
    rows = generate(lm, patch, prompts, max_new_tokens=longest, batch_size=len(asks), stopped=stops)
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
    """The likeliest option of each query, by the sum of its log-probabilities."""
    by_query = choice_ids(lm, asks, follows=patching.follows_text(patch))
    owners = [row for row, pairs in enumerate(by_query) for _ in pairs]
    items = [pair for pairs in by_query for pair in pairs]
    scores = iter(choose(lm, patching.select_rows(patch, owners), items, batch_size=len(asks)))
    answers = []
    for want, pairs in zip(wanted(asks, Choose), by_query, strict=True):
        logprobs = torch.cat([next(scores) for _ in pairs]).tolist()
        tokens = tuple(len(option) for _, options in pairs for option in options)
        best = want.options[max(range(len(logprobs)), key=logprobs.__getitem__)]
        answers.append(Answer(prediction=best.strip(), logprobs=tuple(logprobs), tokens=tokens))
    return answers


def gold_likelihoods(lm: LM, patch: Patch, asks: Sequence[Ask]) -> list[tuple[float, int]]:
    """(summed log-probability, tokens) of the first gold answer of each query that generates, with the EOS behind.

    A measure without steps where F1 of a small model is noise; nothing that was written is looked at.
    """
    return [(answer.logprobs[0], answer.tokens[0]) for answer in _scored(lm, patch, asks)]


def _scored(lm: LM, patch: Patch, asks: Sequence[Ask]) -> list[Answer]:
    follows = patching.follows_text(patch)
    items = [(prompt_ids(lm, ask, follows=follows), gold_ids(lm, ask)) for ask in asks]
    values = token_logprobs(lm, patch, items, batch_size=len(asks))
    return [Answer(prediction="", logprobs=(float(value.sum()),), tokens=(len(value),)) for value in values]


_ANSWERING = {Generate: _generated, Choose: _chosen, Score: _scored}


Stopped: TypeAlias = Callable[[int, list[int]], bool]
Pick: TypeAlias = Callable[[Tensor], Tensor]
"""Next tokens [B] from logits [B, V]."""
LIKELIEST: Pick = partial(torch.argmax, dim=-1)


@torch.no_grad()
def generate(
    lm: LM,
    patch: Patch,
    prompts: Sequence[list[int]],
    *,
    max_new_tokens: int,
    batch_size: int = 32,
    stopped: Stopped | None = None,
    pick: Pick = LIKELIEST,
) -> list[list[int]]:
    """New tokens of each prompt, without the prompt and without the token that ends them (any of `lm.eos_ids`).

    Args:
        prompts: token ids without BOS; the patch is of 1 row, shared, or of one row a prompt.
        stopped: whether the answer to a prompt, by its number, is done with these new tokens; asked after each of them.
        pick: the next token of every row; by default the likeliest one.
    """
    assert max_new_tokens > 0, f"max_new_tokens {max_new_tokens}"
    if not prompts:
        return []
    patch = patching.encoded(lm, patch)
    assert patching.patch_rows(patch) in (1, len(prompts)), (
        f"patch of {patching.patch_rows(patch)} rows for {len(prompts)} prompts"
    )
    start = patching.text_start(lm, patch)
    texts = [start + prompt or [lm.eos_id] for prompt in prompts]
    # The last token written is never read.
    patching.check_fits(lm, patch.prefix, [len(text) + max_new_tokens - 1 for text in texts])
    results: list[list[int]] = [[] for _ in texts]
    for chosen in by_length(lm, list(map(len, texts)), batch_size):
        going = set(chosen)
        batch = greedy_tokens(lm, patching.select_rows(patch, chosen), [texts[i] for i in chosen], max_new_tokens, pick)
        with closing(batch) as tokens:
            for fresh_B in tokens:
                for index, token in zip(chosen, fresh_B.tolist(), strict=True):
                    if index not in going:
                        continue
                    results[index] += [] if token in lm.eos_ids else [token]
                    if token in lm.eos_ids or (stopped is not None and stopped(index, results[index])):
                        going.remove(index)
                if not going:
                    break
    return results


@torch.no_grad()
def greedy_tokens(
    lm: LM, patch: Patch, texts: Sequence[list[int]], count: int, pick: Pick = LIKELIEST
) -> Generator[Tensor, None, None]:
    """Greedy decoding as it happens: the next token int64 [B] of every row, `count` times, EOS or not.

    Texts are token ids with what begins a text (`patching.text_start`). A token is read only when the one after it is
    asked for. The encoded patch stays applied until the iterator is exhausted or closed.
    """
    ids_BT, mask_BT = pad(texts, lm.pad_id, "left")
    window = Window(lm, patch.prefix, len(texts), room=ids_BT.shape[1] + count)
    with patching.deltas_applied(lm, patch.deltas, len(texts)):
        logits_BV = lm.logits(window.feed(ids_BT.to(lm.device), patching.padded(lm, mask_BT))[:, -1])
        for step in range(count):
            logits_BV[:, lm.text_ids :] = -math.inf  # ids behind the tokenizer's are padding of the table
            next_B = pick(logits_BV)
            refuse_not_finite(logits_BV.gather(1, next_B[:, None]))  # the largest logit: a NaN counts as larger still
            yield next_B
            if step + 1 < count:
                logits_BV = lm.logits(window.feed(next_B[:, None])[:, -1])


AUTO = 0
"""Stands for a size that is found: the largest one that fits, from `START` downwards."""
START = {"cpu": 64, "cuda": 1024}
"""A CPU gains nothing from more rows, and runs out of memory without a word; a GPU says so."""

Row = TypeVar("Row")
Done = TypeVar("Done")


class BatchSize:
    """How many rows go together, for as long as they fit; `AUTO` begins with those of a device type."""

    def __init__(self, wanted: int, device: str = "cpu") -> None:
        self.rows = wanted if wanted != AUTO else START.get(device, START["cpu"])
        assert self.rows > 0, f"a batch of {self.rows} rows"


def in_batches(rows: Sequence[Row], size: BatchSize, work: Callable[[list[Row]], Done]) -> Iterator[Done]:
    """Do the work on all rows, batch by batch; the size shrinks where it must and stays there."""
    begin = 0
    while begin < len(rows):
        batch = list(rows[begin : begin + size.rows])
        try:
            done = work(batch)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
        else:
            yield done
            begin += len(batch)
            continue
        if len(batch) == 1:
            environment.lift_limit()
            hint = "Read less, take a smaller --model or --dtype bfloat16, or a device with more memory."
            raise UserError("One query alone does not fit into memory.", hint)
        size.rows = len(batch) // 2
        gc.collect()  # out of the handler, so that what the traceback holds is free again
        environment.called(environment.accelerator(), "empty_cache")  # of memory that torch holds and does not use


def alike(lm: LM, asks: Sequence[Ask]) -> Iterator[list[Ask]]:
    """Queries of one mode and one answer length together, those of like length side by side, the longest first.

    What does not fit the model fails at once, and a run that was killed goes on with the batches it would have had.
    """
    # a prompt is read in one row with its options
    texts = [ask.prompt + ("".join(ask.want.options) if isinstance(ask.want, Choose) else "") for ask in asks]
    lengths = {ask.key: len(ids) for ask, ids in zip(asks, lm.encode_many(texts), strict=True)}
    ordered = sorted(asks, key=lambda ask: (_kind(ask), -lengths[ask.key], ask.key))
    for _, together in groupby(ordered, key=_kind):
        yield list(together)


def _kind(ask: Ask) -> tuple[str, int]:
    """Queries of one kind may go together: they are answered in one way, with as many new tokens."""
    return ask.mode, ask.want.max_new_tokens if isinstance(ask.want, Generate) else 0
