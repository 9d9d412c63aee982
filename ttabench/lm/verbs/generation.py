"""Batched greedy decoding under a patch.

    generate(lm, patch, [prompt ids, ...], max_new_tokens=16)    ids after each prompt, cut before EOS

Rows are padded on the left, so that every row's next token is the last column: only its logits are computed, and greedy
decoding of a batch equals that of each row alone. An empty prompt with no BOS starts from EOS, as GPT-2's training did.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from itertools import takewhile
from typing import TypeAlias

import torch
from torch import Tensor

from ttabench.lm.forward.deltas import deltas_applied
from ttabench.lm.forward.patching import check_fits, encoded, padded, patch_rows, select_rows, text_start
from ttabench.lm.forward.tokens import pad
from ttabench.lm.forward.window import Window
from ttabench.lm.loading.finite import refuse_not_finite
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.lm.verbs.batching import by_length

Stopped: TypeAlias = Callable[[int, list[int]], bool]
Pick: TypeAlias = Callable[[Tensor], Tensor]
"""Next tokens [B] from logits [B, V]."""


@torch.no_grad()
def generate(
    lm: LM,
    patch: Patch,
    prompts: Sequence[list[int]],
    *,
    max_new_tokens: int,
    batch_size: int = 32,
    stopped: Stopped | None = None,
    pick: Pick | None = None,
) -> list[list[int]]:
    """New tokens of each prompt, without the prompt and without the token that ends them (any of `lm.eos_ids`).

    Args:
        prompts: token ids without BOS; the patch is of 1 row, shared, or of one row a prompt.
        stopped: whether the answer to a prompt, by its number, is done with these new tokens; asked after each of them.
        pick: the next token of every row, in place of the likeliest one; rows that are done go on.
    """
    assert max_new_tokens > 0, f"max_new_tokens {max_new_tokens}"
    if not prompts:
        return []
    patch = encoded(lm, patch)
    assert patch_rows(patch) in (1, len(prompts)), f"patch of {patch_rows(patch)} rows for {len(prompts)} prompts"
    start = text_start(lm, patch)
    texts = [start + prompt or [lm.eos_id] for prompt in prompts]
    # The last token written is never read.
    check_fits(lm, patch.prefix, [len(text) + max_new_tokens - 1 for text in texts])
    results: list[list[int]] = [[] for _ in texts]
    for chosen in by_length(lm, list(map(len, texts)), batch_size):
        batch, rows = [texts[i] for i in chosen], select_rows(patch, chosen)
        done = None if stopped is None else partial(lambda of, row, ids: stopped(of[row], ids), chosen)
        for index, ids in zip(chosen, _greedy(lm, rows, batch, max_new_tokens, done, pick), strict=True):
            results[index] = list(takewhile(lambda token: token not in lm.eos_ids, ids))
    return results


@torch.no_grad()
def greedy_tokens(
    lm: LM, patch: Patch, texts: Sequence[list[int]], count: int, pick: Pick | None = None
) -> Generator[Tensor, None, None]:
    """Greedy decoding as it happens: the next token int64 [B] of every row, `count` times, EOS or not.

    Texts are token ids with what begins a text (`patching.text_start`). A token is read only when the one after it is
    asked for. The encoded patch stays applied until the iterator is exhausted or closed.
    """
    ids_BT, mask_BT = pad(texts, lm.pad_id, "left")
    window = Window(lm, patch.prefix, len(texts), room=ids_BT.shape[1] + count)
    with deltas_applied(lm, patch.deltas, len(texts)):
        logits_BV = lm.logits(window.feed(ids_BT.to(lm.device), padded(lm, mask_BT))[:, -1])
        for step in range(count):
            next_B = logits_BV.argmax(-1) if pick is None else pick(logits_BV)
            refuse_not_finite(logits_BV.gather(1, next_B[:, None]))  # the largest logit: a NaN counts as larger still
            yield next_B
            if step + 1 < count:
                logits_BV = lm.logits(window.feed(next_B[:, None])[:, -1])


def _greedy(
    lm: LM, patch: Patch, texts: Sequence[list[int]], count: int, stopped: Stopped | None, pick: Pick | None
) -> list[list[int]]:
    """Tokens of every row; rows that are done go on with EOS."""
    written: list[list[int]] = [[] for _ in texts]
    done = [False] * len(texts)
    with closing(greedy_tokens(lm, patch, texts, count, pick)) as tokens:
        for fresh_B in tokens:
            for row, token in enumerate(fresh_B.tolist()):
                written[row].append(lm.eos_id if done[row] else token)
                done[row] = done[row] or token in lm.eos_ids or (stopped is not None and stopped(row, written[row]))
            if all(done):
                break
    return written
