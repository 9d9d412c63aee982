"""Answers of the frozen LM to queries under a patch: greedy decoding, choices and scores.

    generate(lm, patch, [prompt ids, ...], max_new_tokens=16)       # ids after each prompt, no EOS
    for samples in run_in_batches(queries, BatchSize(64), answer):  # 64, 64, out of memory, 32, ...

Rows are padded on the left, so the next token of every row is in the last column, and only its
logits are computed. Greedy decoding of a batch equals that of single rows. An empty prompt without
BOS starts from EOS, as in GPT-2's training. A batch that does not fit into memory is repeated with
half the rows. Results do not depend on the batch size.
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
from ttabench.lm.forward.capabilities import require_capabilities
from ttabench.lm.forward.tokens import choice_ids, gold_ids, pad, prompt_ids
from ttabench.lm.forward.window import Window
from ttabench.lm.inference.scoring import (
    batches_by_length,
    option_logprobs,
    prompt_texts,
    refuse_non_finite,
    token_logprobs,
)
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch


def answer_queries(lm: LM, patch: Patch, queries: Sequence[Query]) -> list[Answer]:
    """Answer queries of one mode (`Generate`, `Choose` or `Score`) in one batch.

    Raises a UserError if a query exceeds the position limit or its logits are not finite.
    """
    return _ANSWER_FUNCTIONS[type(queries[0].want)](lm, patch, queries)


def _answer_by_generating(lm: LM, patch: Patch, queries: Sequence[Query]) -> list[Answer]:
    wants, is_continuation = wants_of_kind(queries, Generate), patching.continues_text(patch)
    prompts = [prompt_ids(lm, query, is_continuation=is_continuation) for query in queries]

    def should_stop(row: int, ids: list[int]) -> bool:
        return (
            len(ids) >= wants[row].max_new_tokens
            or _find_stop(lm.decode(ids), wants[row].stops) is not None
        )

    if lm.server is not None:
        limits = [want.max_new_tokens for want in wants]
        completions = lm.server.complete(prompt_texts(lm, patch, prompts), limits)
        return [
            _extract_answer(want, completion.text, ended=completion.ended)
            for want, completion in zip(wants, completions, strict=True)
        ]
    longest = max(want.max_new_tokens for want in wants)
    stops = should_stop if any(want.stops for want in wants) else None
    generated = generate(
        lm, patch, prompts, max_new_tokens=longest, batch_size=len(queries), should_stop=stops
    )
    return [
        _extract_answer(
            want, lm.decode(ids[: want.max_new_tokens]), ended=len(ids) < want.max_new_tokens
        )
        for want, ids in zip(wants, generated, strict=True)
    ]


def _extract_answer(want: Generate, text: str, *, ended: bool) -> Answer:
    """Return the answer in a generated text.

    The answer ends before the first stop text. `want.leads` are removed from its start.

    Args:
        ended: True if the text ended within `max_new_tokens`.
    """
    end = _find_stop(text, want.stops)
    answer = text[:end].strip()
    for lead in want.leads:
        if answer.lower().startswith(lead.lower()):
            answer = answer[len(lead) :].strip()
    return Answer(prediction=answer, ended=ended or end is not None)


def _find_stop(text: str, stops: Sequence[str]) -> int | None:
    """Return the offset of the first stop text after leading white space, or None."""
    begin = len(text) - len(text.lstrip())
    offsets = [offset for stop in stops if (offset := text.find(stop, begin)) >= 0]
    return min(offsets, default=None)


def _answer_by_choosing(lm: LM, patch: Patch, queries: Sequence[Query]) -> list[Answer]:
    """Choose the option with the highest summed log-probability."""
    # a pair is prompt ids and ids of options; a query may have several
    pairs_by_query = choice_ids(lm, queries, is_continuation=patching.continues_text(patch))
    owners = [row for row, pairs in enumerate(pairs_by_query) for _ in pairs]
    items = [pair for pairs in pairs_by_query for pair in pairs]
    scores = iter(
        option_logprobs(lm, patching.select_rows(patch, owners), items, batch_size=len(queries))
    )
    answers = []
    for want, pairs in zip(wants_of_kind(queries, Choose), pairs_by_query, strict=True):
        logprobs = torch.cat([next(scores) for _ in pairs]).tolist()
        tokens = tuple(len(option) for _, options in pairs for option in options)
        best = want.options[max(range(len(logprobs)), key=logprobs.__getitem__)]
        answers.append(Answer(prediction=best.strip(), logprobs=tuple(logprobs), tokens=tokens))
    return answers


def gold_logprobs(lm: LM, patch: Patch, queries: Sequence[Query]) -> list[tuple[float, int]]:
    """Score the first gold answer with EOS of each `Generate` query. Servers score no EOS.

    Returns (summed log-probability, number of tokens). For a small model this measure is smoother
    than F1. The generated answer is not used.
    """
    is_continuation = patching.continues_text(patch)
    items = [
        (prompt_ids(lm, query, is_continuation=is_continuation), gold_ids(lm, query))
        for query in queries
    ]
    values = token_logprobs(lm, patch, items, batch_size=len(queries))
    return [(float(value.sum()), len(value)) for value in values]


def _answer_by_scoring(lm: LM, patch: Patch, queries: Sequence[Query]) -> list[Answer]:
    require_capabilities(lm, "weights")  # perplexity counts the model's own tokens
    return [
        Answer(prediction="", logprobs=(value,), tokens=(count,))
        for value, count in gold_logprobs(lm, patch, queries)
    ]


_ANSWER_FUNCTIONS = {
    Generate: _answer_by_generating,
    Choose: _answer_by_choosing,
    Score: _answer_by_scoring,
}


StopCondition: TypeAlias = Callable[[int, list[int]], bool]
"""Function from prompt number and its new tokens to True if generation ends."""
TokenSelector: TypeAlias = Callable[[Tensor], Tensor]
"""Function from logits [B, V] to next tokens [B]."""
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
    """Generate new tokens for each prompt, without the end token (any of `lm.eos_ids`).

    Args:
        patch: patch with 1 row (shared) or one row per prompt.
        prompts: token ids without BOS.
        should_stop: called with the number of a prompt and its new tokens, after each of them.
            True ends the generation for this prompt.
        select_token: selects the next token of every row; the most likely one by default.
    """
    assert max_new_tokens > 0, f"max_new_tokens {max_new_tokens}"
    if not prompts:
        return []
    patch = patching.encode_patch(lm, patch, len(prompts))
    start = patching.text_start(lm, patch)
    texts = [start + prompt or [lm.eos_id] for prompt in prompts]
    if lm.server is not None:
        limits = [max_new_tokens] * len(prompts)
        completions = lm.server.complete(prompt_texts(lm, patch, prompts), limits)
        return lm.encode_many(
            [completion.text for completion in completions], max_new_tokens, is_continuation=True
        )
    # The last generated token is never read.
    patching.check_fits(lm, patch.prefix, [len(text) + max_new_tokens - 1 for text in texts])
    results: list[list[int]] = [[] for _ in texts]
    for indices in batches_by_length(lm, list(map(len, texts)), batch_size):
        active = set(indices)
        batch = greedy_tokens(
            lm,
            patching.select_rows(patch, indices),
            [texts[i] for i in indices],
            max_new_tokens,
            select_token,
        )
        with closing(batch) as new_tokens:
            for new_B in new_tokens:
                for index, token in zip(indices, new_B.tolist(), strict=True):
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
    """Yield the next token int64 [B] of every row, `count` times, even after EOS.

    `texts`: token ids including the text start (`patching.text_start`). `patch`: encoded; it stays
    applied until the iterator is exhausted or closed. The model reads a token only when the caller
    requests the next one.
    """
    ids_BT, mask_BT = pad(texts, lm.pad_id, "left")
    window = Window(lm, patch.prefix, len(texts), capacity=ids_BT.shape[1] + count)
    with patching.deltas_applied(lm, patch.deltas, len(texts)):
        logits_BV = lm.logits(
            window.feed(ids_BT.to(lm.device), patching.prepare_mask(lm, mask_BT))[:, -1]
        )
        for step in range(count):
            # ids beyond the tokenizer's are padding of the embedding table
            logits_BV[:, lm.text_vocab_size :] = -math.inf
            next_B = select_token(logits_BV)
            # the largest logit is enough: argmax treats NaN as largest
            refuse_non_finite(logits_BV.gather(1, next_B[:, None]))
            yield next_B
            if step + 1 < count:
                logits_BV = lm.logits(window.feed(next_B[:, None])[:, -1])


AUTO_BATCH_SIZE = 0
"""Requested batch size that stands for the largest one that fits, see `INITIAL_BATCH_SIZES`."""
INITIAL_BATCH_SIZES = {"cpu": 64, "cuda": 1024}
"""First batch sizes to try, by device type. More rows do not help a CPU, which can run out
of memory silently."""

Row = TypeVar("Row")
Result = TypeVar("Result")


class BatchSize:
    """Current batch size, which `run_in_batches` lowers when memory runs out."""

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
    """Run `work` on all rows in batches.

    If a batch runs out of memory, `size` is halved for it and for all later batches.
    """
    begin = 0
    while begin < len(rows):
        batch = list(rows[begin : begin + size.rows])
        try:
            result = work(batch)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        else:
            yield result
            begin += len(batch)
            continue
        if len(batch) == 1:
            environment.lift_memory_limit()
            hint = "Use less context, a smaller --model, --dtype bfloat16, or more device memory."
            raise UserError("A single query does not fit into memory.", hint)
        size.rows = len(batch) // 2
        gc.collect()  # after the handler, so that tensors of the traceback are freed
        # return unused memory that torch caches
        environment.call_device_function(environment.accelerator_kind(), "empty_cache")


def group_by_mode(lm: LM, queries: Sequence[Query]) -> Iterator[list[Query]]:
    """Group queries by mode and answer length, sorted by length, longest first.

    The longest queries come first, so that a query that does not fit fails at once. The order is
    deterministic, so that a resumed run gets the same batches.
    """
    # a prompt and its options are read in one row
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
    """Return the key of queries that may share a batch: mode and number of new tokens."""
    return query.mode, query.want.max_new_tokens if isinstance(query.want, Generate) else 0
