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
from ttabench.core.environment import is_out_of_memory
from ttabench.core.errors import UserError
from ttabench.core.types import Answer, Choose, Generate, Query, Score, wants_of_kind
from ttabench.lm.forward import patching
from ttabench.lm.forward.tokens import choice_ids, gold_ids, pad, prompt_ids
from ttabench.lm.forward.window import Window
from ttabench.lm.inference.scoring import (
    batches_by_length,
    option_logprobs,
    refuse_non_finite,
    token_logprobs,
)
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch


def answer_queries(lm: LM, patch: Patch, queries: Sequence[Query]) -> list[Answer]:
    """Answer queries of one mode in one batch; a UserError where one does not fit the model's positions, or its logits
    are not finite."""
    return _ANSWER_FUNCTIONS[type(queries[0].want)](lm, patch, queries)


def _answer_by_generating(lm: LM, patch: Patch, queries: Sequence[Query]) -> list[Answer]:
    wants, is_continuation = wants_of_kind(queries, Generate), patching.continues_text(patch)
    prompts = [prompt_ids(lm, query, is_continuation=is_continuation) for query in queries]

    def should_stop(row: int, ids: list[int]) -> bool:
        return (
            len(ids) >= wants[row].max_new_tokens
            or _find_stop(lm.decode(ids), wants[row].stops) is not None
        )

    longest, stops = (
        max(want.max_new_tokens for want in wants),
        should_stop if any(want.stops for want in wants) else None,
    )
    rows = generate(
        lm, patch, prompts, max_new_tokens=longest, batch_size=len(queries), should_stop=stops
    )
    written = [_extract_answer(lm, want, ids) for want, ids in zip(wants, rows, strict=True)]
    return [Answer(prediction=text, ended=ended) for text, ended in written]


def _extract_answer(lm: LM, want: Generate, ids: list[int]) -> tuple[str, bool]:
    """The answer in these tokens, and whether it came to an end of its own."""
    text = lm.decode(ids[: want.max_new_tokens])
    end = _find_stop(text, want.stops)
    ended = end is not None or len(ids) < want.max_new_tokens
    answer = text[:end].strip()
    for lead in want.leads:
        if answer.lower().startswith(lead.lower()):
            answer = answer[len(lead) :].strip()
    return answer, ended


def _find_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the first of the stop texts begins behind the blanks in front of an answer."""
    begin = len(text) - len(text.lstrip())
    places = [place for stop in stops if (place := text.find(stop, begin)) >= 0]
    return min(places, default=None)


def _answer_by_choosing(lm: LM, patch: Patch, queries: Sequence[Query]) -> list[Answer]:
    """The likeliest option of each query, by the sum of its log-probabilities."""
    by_query = choice_ids(lm, queries, is_continuation=patching.continues_text(patch))
    owners = [row for row, pairs in enumerate(by_query) for _ in pairs]
    items = [pair for pairs in by_query for pair in pairs]
    scores = iter(
        option_logprobs(lm, patching.select_rows(patch, owners), items, batch_size=len(queries))
    )
    answers = []
    for want, pairs in zip(wants_of_kind(queries, Choose), by_query, strict=True):
        logprobs = torch.cat([next(scores) for _ in pairs]).tolist()
        tokens = tuple(len(option) for _, options in pairs for option in options)
        best = want.options[max(range(len(logprobs)), key=logprobs.__getitem__)]
        answers.append(Answer(prediction=best.strip(), logprobs=tuple(logprobs), tokens=tokens))
    return answers


def gold_logprobs(lm: LM, patch: Patch, queries: Sequence[Query]) -> list[tuple[float, int]]:
    """(summed log-probability, tokens) of the first gold answer of each query that generates, with the EOS behind.

    A measure without steps where F1 of a small model is noise; nothing that was written is looked at.
    """
    return [
        (answer.logprobs[0], answer.tokens[0]) for answer in _answer_by_scoring(lm, patch, queries)
    ]


def _answer_by_scoring(lm: LM, patch: Patch, queries: Sequence[Query]) -> list[Answer]:
    is_continuation = patching.continues_text(patch)
    items = [
        (prompt_ids(lm, query, is_continuation=is_continuation), gold_ids(lm, query))
        for query in queries
    ]
    values = token_logprobs(lm, patch, items, batch_size=len(queries))
    return [
        Answer(prediction="", logprobs=(float(value.sum()),), tokens=(len(value),))
        for value in values
    ]


_ANSWER_FUNCTIONS = {
    Generate: _answer_by_generating,
    Choose: _answer_by_choosing,
    Score: _answer_by_scoring,
}


StopCondition: TypeAlias = Callable[[int, list[int]], bool]
TokenSelector: TypeAlias = Callable[[Tensor], Tensor]
"""Next tokens [B] from logits [B, V]."""
GREEDY: TokenSelector = partial(torch.argmax, dim=-1)


@torch.no_grad()
def generate(
    lm: LM,
    patch: Patch,
    prompts: Sequence[list[int]],
    *,
    max_new_tokens: int,
    batch_size: int = 32,
    should_stop: StopCondition | None = None,
    select_token: TokenSelector = GREEDY,
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
    patch = patching.encode_patch(lm, patch)
    assert patching.patch_batch_size(patch) in (1, len(prompts)), (
        f"patch of {patching.patch_batch_size(patch)} rows for {len(prompts)} prompts"
    )
    start = patching.text_start(lm, patch)
    texts = [start + prompt or [lm.eos_id] for prompt in prompts]
    # The last token written is never read.
    patching.check_fits(lm, patch.prefix, [len(text) + max_new_tokens - 1 for text in texts])
    results: list[list[int]] = [[] for _ in texts]
    for chosen in batches_by_length(lm, list(map(len, texts)), batch_size):
        active = set(chosen)
        batch = greedy_tokens(
            lm,
            patching.select_rows(patch, chosen),
            [texts[i] for i in chosen],
            max_new_tokens,
            select_token,
        )
        with closing(batch) as tokens:
            for fresh_B in tokens:
                for index, token in zip(chosen, fresh_B.tolist(), strict=True):
                    if index not in active:
                        continue
                    results[index] += [] if token in lm.eos_ids else [token]
                    if token in lm.eos_ids or (
                        should_stop is not None and should_stop(index, results[index])
                    ):
                        active.remove(index)
                if not active:
                    break
    return results


@torch.no_grad()
def greedy_tokens(
    lm: LM,
    patch: Patch,
    texts: Sequence[list[int]],
    count: int,
    select_token: TokenSelector = GREEDY,
) -> Generator[Tensor, None, None]:
    """Greedy decoding as it happens: the next token int64 [B] of every row, `count` times, EOS or not.

    Texts are token ids with what begins a text (`patching.text_start`). A token is read only when the one after it is
    asked for. The encoded patch stays applied until the iterator is exhausted or closed.
    """
    ids_BT, mask_BT = pad(texts, lm.pad_id, "left")
    window = Window(lm, patch.prefix, len(texts), capacity=ids_BT.shape[1] + count)
    with patching.deltas_applied(lm, patch.deltas, len(texts)):
        logits_BV = lm.logits(
            window.feed(ids_BT.to(lm.device), patching.prepare_mask(lm, mask_BT))[:, -1]
        )
        for step in range(count):
            logits_BV[
                :, lm.text_vocab_size :
            ] = -math.inf  # ids behind the tokenizer's are padding of the table
            next_B = select_token(logits_BV)
            refuse_non_finite(
                logits_BV.gather(1, next_B[:, None])
            )  # the largest logit: a NaN counts as larger still
            yield next_B
            if step + 1 < count:
                logits_BV = lm.logits(window.feed(next_B[:, None])[:, -1])


AUTO_BATCH_SIZE = 0
"""Stands for a size that is found: the largest one that fits, from `START` downwards."""
INITIAL_BATCH_SIZES = {"cpu": 64, "cuda": 1024}
"""A CPU gains nothing from more rows, and runs out of memory without a word; a GPU says so."""

Row = TypeVar("Row")
Result = TypeVar("Result")


class BatchSize:
    """How many rows go together, for as long as they fit; `AUTO` begins with those of a device type."""

    def __init__(self, requested: int, device: str = "cpu") -> None:
        self.rows = (
            requested
            if requested != AUTO_BATCH_SIZE
            else INITIAL_BATCH_SIZES.get(device, INITIAL_BATCH_SIZES["cpu"])
        )
        assert self.rows > 0, f"a batch of {self.rows} rows"


def run_in_batches(
    rows: Sequence[Row], size: BatchSize, work: Callable[[list[Row]], Result]
) -> Iterator[Result]:
    """Do the work on all rows, batch by batch; the size shrinks where it must and stays there."""
    begin = 0
    while begin < len(rows):
        batch = list(rows[begin : begin + size.rows])
        try:
            done = work(batch)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        else:
            yield done
            begin += len(batch)
            continue
        if len(batch) == 1:
            environment.lift_memory_limit()
            hint = "Read less, take a smaller --model or --dtype bfloat16, or a device with more memory."
            raise UserError("One query alone does not fit into memory.", hint)
        size.rows = len(batch) // 2
        gc.collect()  # out of the handler, so that what the traceback holds is free again
        environment.call_device_function(
            environment.accelerator_kind(), "empty_cache"
        )  # of memory that torch holds and does not use


def group_by_mode(lm: LM, queries: Sequence[Query]) -> Iterator[list[Query]]:
    """Queries of one mode and one answer length together, those of like length side by side, the longest first.

    What does not fit the model fails at once, and a run that was killed goes on with the batches it would have had.
    """
    # a prompt is read in one row with its options
    texts = [
        query.prompt + ("".join(query.want.options) if isinstance(query.want, Choose) else "")
        for query in queries
    ]
    lengths = {
        query.key: len(ids) for query, ids in zip(queries, lm.encode_many(texts), strict=True)
    }
    ordered = sorted(
        queries, key=lambda query: (_batching_key(query), -lengths[query.key], query.key)
    )
    for _, group in groupby(ordered, key=_batching_key):
        yield list(group)


def _batching_key(query: Query) -> tuple[str, int]:
    """Queries of one kind may go together: they are answered in one way, with as many new tokens."""
    return query.mode, query.want.max_new_tokens if isinstance(query.want, Generate) else 0
