"""Token ids of chunks with joiners, prompts, targets and windows; padding.

A joiner goes to the front of the next chunk, and so do blanks at the end of a chunk
(`readers.base`). The concatenated ids of the chunks are then those of the whole text. Under a chat
template, a prompt ends with the end of the user turn. A text that a dataset reader split by tokens
(a book) has its own ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ttabench.core.errors import UserError
from ttabench.core.types import Choose, Chunk, Generate, Query, Score, wants_of_kind
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.lm.texts import ChatTemplate


def chunk_ids(lm: LM, chunk: Chunk, *, first: bool) -> list[int]:
    """Return the ids of a chunk, after its joiner unless it is the first text of its window."""
    if lm.chat is not None and chunk.turns is not None:
        question, answer = chunk.turns
        opening = () if first else lm.chat.next_ids
        return [*opening, *lm.encode(question), *lm.chat.answer_ids, *lm.encode(answer)]
    joiner = "" if first else chunk.joiner
    if chunk.ids:
        return [*lm.encode(joiner, is_continuation=True), *_refuse_unknown_ids(lm, chunk.ids)]
    return lm.encode(joiner + chunk.text, is_continuation=not first)


def _refuse_unknown_ids(lm: LM, ids: Sequence[int]) -> Sequence[int]:
    """Return the ids. Raises a UserError beyond the vocabulary, where methods add tokens (CCM)."""
    if ids and max(ids) >= lm.vocab_size:
        fault = f"A text has the token id {max(ids):,}, but {lm.name} has {lm.vocab_size:,} ids."
        raise UserError(fault, "Use the tokenizer of the model to split it.")
    return ids


def new_chunk_ids(lm: LM, state: State, chunks: Sequence[Sequence[Chunk]]) -> list[list[list[int]]]:
    """Return the ids of the next chunks for every row of a state."""
    read = state.meta["tokens_read"]
    return [
        [
            chunk_ids(lm, chunk[row], first=not read[row] and not number)
            for number, chunk in enumerate(chunks)
        ]
        for row in range(state.rows)
    ]


def window_ids(lm: LM, query: Query, *, is_continuation: bool) -> list[int]:
    """Return the ids of the chunks before a prompt. `is_continuation`: they follow other text."""
    return [
        token
        for number, chunk in enumerate(query.window)
        for token in chunk_ids(lm, chunk, first=not (is_continuation or number))
    ]


def prompt_ids(lm: LM, query: Query, *, is_continuation: bool) -> list[int]:
    """Return the ids of the query text, without the text start that scoring and generation add."""
    if isinstance(query.want, Score) and query.want.prompt_ids:
        return list(_refuse_unknown_ids(lm, query.want.prompt_ids))
    if lm.chat is None:
        return lm.encode(
            (query.joiner if is_continuation else "") + query.prompt,
            is_continuation=is_continuation,
        )
    opening, text = _open_turn(lm.chat, query, is_continuation)
    prefix = query.want.prefix if isinstance(query.want, Generate) else ""
    if prefix:
        assert text.endswith(prefix), (
            f"the prompt of {query.key} does not end with the prefix of its answer"
        )
        text = text.removesuffix(prefix).rstrip()
    closing = [*lm.chat.end_ids, *lm.encode(prefix, is_continuation=True)]
    return [*opening, *lm.encode(text, is_continuation=is_continuation and not opening), *closing]


def _open_turn(
    chat: ChatTemplate, query: Query, is_continuation: bool
) -> tuple[tuple[int, ...], str]:
    """Return the opening tokens and the text of a prompt: a new turn after demonstrations."""
    if is_continuation and query.after_turns:
        return chat.next_ids, query.prompt
    return (), (query.joiner if is_continuation else "") + query.prompt


def gold_ids(lm: LM, query: Query) -> list[int]:
    """Return the ids of the gold answer for scoring or training. Only `Generate` adds EOS."""
    want = query.want
    if isinstance(want, Score):
        return list(want.ids) or lm.encode(want.continuation, is_continuation=True)
    prefix, target, ends = "", want.answers[0], list[int]()
    if isinstance(want, Generate):
        prefix, target, ends = want.prefix, want.target, [lm.eos_id]
    delimiter = want.delimiter if lm.chat is None or prefix else ""
    return lm.encode(delimiter + target, is_continuation=True) + ends


PromptAndOptions: TypeAlias = tuple[list[int], list[list[int]]]
"""Ids of a prompt and of its options."""


def choice_ids(
    lm: LM, queries: Sequence[Query], *, is_continuation: bool
) -> list[list[PromptAndOptions]]:
    """Return the ids of prompts and options of `Choose` queries, split as in lm-evaluation-harness.

    Blanks at the end of a prompt move to the option. The ids of an option are those of the whole
    text after the prompt. Under a chat template, the prompt ends with the end of the user turn, and
    the option starts the next turn, without the delimiter. A query has one pair with all options,
    or one pair per option if options differ in their prefix.
    """
    pairs = []
    for query, want in zip(queries, wants_of_kind(queries, Choose), strict=True):
        # pairs of a prefix and the options that follow it
        by_prefix = zip(want.option_prefixes, ([option] for option in want.options), strict=True)
        groups = by_prefix if want.option_prefixes else [("", want.options)]
        pairs.append(
            [
                _choice_pair(lm, query, want, prefix, options, is_continuation)
                for prefix, options in groups
            ]
        )
    return pairs


def _choice_pair(
    lm: LM, query: Query, want: Choose, prefix: str, options: Sequence[str], is_continuation: bool
) -> PromptAndOptions:
    if lm.chat is None:
        text = (query.joiner if is_continuation else "") + query.prompt + prefix
        prompt = lm.encode(text.rstrip(), is_continuation=is_continuation)
        return prompt, [
            ids[len(prompt) :]
            for ids in lm.encode_many([text + o for o in options], is_continuation=is_continuation)
        ]
    opening, text = _open_turn(lm.chat, query, is_continuation)
    body = lm.encode(text + prefix, is_continuation=is_continuation and not opening)
    close = lm.chat.end.rstrip()
    words = [lm.chat.end[len(close) :] + option.removeprefix(want.delimiter) for option in options]
    return [*opening, *body, *lm.encode(close, parse_special=True)], lm.encode_many(
        words, is_continuation=True
    )


def pad(
    rows: Sequence[Sequence[int]],
    pad_id: int,
    side: Literal["left", "right"],
    device: torch.device | str = "cpu",
) -> tuple[Tensor, Tensor]:
    """Pad rows to ids_BT (int64) and mask_BT (bool, False for padding)."""
    tensors = [torch.tensor(row, dtype=torch.int64) for row in rows]
    real = [torch.ones_like(ids, dtype=torch.bool) for ids in tensors]
    ids_BT = pad_sequence(tensors, batch_first=True, padding_value=pad_id, padding_side=side)
    mask_BT = pad_sequence(real, batch_first=True, padding_side=side)
    return ids_BT.to(device), mask_BT.to(device)
