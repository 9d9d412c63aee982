"""Batched decoding under a patch: greedy, or plain beam search.

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
from torch.nn.functional import log_softmax

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
NEVER = -1.0e9
"""Score of a beam that must not win."""


@torch.no_grad()
def generate(
    lm: LM,
    patch: Patch,
    prompts: Sequence[list[int]],
    *,
    max_new_tokens: int,
    num_beams: int = 1,
    batch_size: int = 32,
    stopped: Stopped | None = None,
    pick: Pick | None = None,
) -> list[list[int]]:
    """New tokens of each prompt, without the prompt and without the token that ends them (any of `lm.eos_ids`).

    Args:
        prompts: token ids without BOS; the patch is of 1 row, shared, or of one row a prompt.
        num_beams: 1 is greedy; more is beam search with scores divided by length, as in transformers' defaults.
        stopped: whether the answer to a prompt, by its number, is done with these new tokens; asked after each of them
            (greedy decoding only).
        pick: the next token of every row, in place of the likeliest one (not for beams); rows that are done go on.
    """
    assert min(max_new_tokens, num_beams) > 0, f"max_new_tokens {max_new_tokens}, num_beams {num_beams}"
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
        if num_beams == 1:
            done = None if stopped is None else partial(lambda of, row, ids: stopped(of[row], ids), chosen)
            written_BN = _greedy(lm, rows, batch, max_new_tokens, done, pick)
        else:
            written_BN = _beam_search(lm, rows, batch, max_new_tokens, num_beams)
        for index, ids in zip(chosen, written_BN.tolist(), strict=True):
            results[index] = list(takewhile(lambda token: token not in lm.eos_ids, ids))
    return results


def _prefilled(lm: LM, patch: Patch, texts: Sequence[list[int]], room: int) -> tuple[Window, Tensor]:
    """A window that has read the prompts, and the logits [B, V] of what comes next."""
    ids_BT, mask_BT = pad(texts, lm.pad_id, "left")
    window = Window(lm, patch.prefix, len(texts), room=ids_BT.shape[1] + room)
    with deltas_applied(lm, patch.deltas, len(texts)):
        hidden_BTD = window.feed(ids_BT.to(lm.device), padded(lm, mask_BT))
        return window, lm.logits(hidden_BTD[:, -1])


@torch.no_grad()
def greedy_tokens(
    lm: LM, patch: Patch, texts: Sequence[list[int]], count: int, pick: Pick | None = None
) -> Generator[Tensor, None, None]:
    """Greedy decoding as it happens: the next token int64 [B] of every row, `count` times, EOS or not.

    Texts are token ids with what begins a text (`patching.text_start`). A token is read only when the one after it is
    asked for. The encoded patch stays applied until the iterator is exhausted or closed.
    """
    window, logits_BV = _prefilled(lm, patch, texts, count)
    with deltas_applied(lm, patch.deltas, len(texts)):
        for step in range(count):
            next_B = logits_BV.argmax(-1) if pick is None else pick(logits_BV)
            refuse_not_finite(logits_BV.gather(1, next_B[:, None]))  # the largest logit: a NaN counts as larger still
            yield next_B
            if step + 1 < count:
                logits_BV = lm.logits(window.feed(next_B[:, None])[:, -1])


def _greedy(
    lm: LM, patch: Patch, texts: Sequence[list[int]], count: int, stopped: Stopped | None, pick: Pick | None
) -> Tensor:
    """Tokens [B, N]; rows that are done go on with EOS."""
    written: list[list[int]] = [[] for _ in texts]
    done = [False] * len(texts)
    with closing(greedy_tokens(lm, patch, texts, count, pick)) as tokens:
        for fresh_B in tokens:
            for row, token in enumerate(fresh_B.tolist()):
                written[row].append(lm.eos_id if done[row] else token)
                done[row] = done[row] or token in lm.eos_ids or (stopped is not None and stopped(row, written[row]))
            if all(done):
                break
    return torch.tensor(written)


def _take(texts_BNT: Tensor, rows_BM: Tensor) -> Tensor:
    return texts_BNT.gather(1, rows_BM[..., None].expand(-1, -1, texts_BNT.shape[-1]))


def _beam_search(lm: LM, patch: Patch, texts: Sequence[list[int]], count: int, beams: int) -> Tensor:
    """Tokens [B, T] of the best hypothesis of each prompt, padded with EOS.

    Shape letters: N beams a prompt · C = 2 N candidates: even if N of them end with EOS, N go on.
    """
    rows = len(texts)
    window, logits_BV = _prefilled(lm, patch, texts, count)
    repeats = torch.arange(rows, device=lm.device).repeat_interleave(beams)
    window.select(repeats)
    logits_BNV = logits_BV.view(rows, 1, -1).expand(-1, beams, -1)
    with torch.device(lm.device):
        running_BNT = finished_BNT = torch.full((rows, beams, count), lm.eos_id)
        sums_BN = torch.full((rows, beams), NEVER)
        sums_BN[:, 0] = 0.0  # one live beam a prompt: the others would repeat it
        finished_BN = torch.full((rows, beams), NEVER)  # per token; NEVER where no hypothesis has finished yet
        # whether the best running beam may still beat the worst finished one; once closed it stays closed
        open_B1 = torch.ones(rows, 1, dtype=torch.bool)
        ends_E = torch.tensor(sorted(lm.eos_ids))
    offsets_B1 = torch.arange(rows, device=lm.device)[:, None] * beams
    with deltas_applied(lm, select_rows(patch, repeats).deltas, rows * beams):
        for step in range(count):
            logprobs_BNV = log_softmax(logits_BNV.float(), dim=-1)
            refuse_not_finite(logprobs_BNV.amax(-1))
            total_BX = (logprobs_BNV + sums_BN[..., None]).flatten(1)
            sums_BC, flat_BC = total_BX.topk(min(2 * beams, total_BX.shape[1]))
            parents_BC, tokens_BC = flat_BC // logits_BV.shape[1], flat_BC % logits_BV.shape[1]
            texts_BCT = _take(running_BNT, parents_BC)
            texts_BCT[:, :, step] = tokens_BC
            ends_BC = torch.isin(tokens_BC, ends_E) | (step + 1 == count)
            ended_BC = (sums_BC / (step + 1)).masked_fill(~(ends_BC & open_B1), NEVER)
            ended_BC[:, beams:] = NEVER  # what ends counts among the N best alone
            finished_BN, best_BN = torch.cat([finished_BN, ended_BC], dim=1).topk(beams)
            finished_BNT = _take(torch.cat([finished_BNT, texts_BCT], dim=1), best_BN)
            sums_BN, best_BN = sums_BC.masked_fill(ends_BC, NEVER).topk(beams)
            running_BNT = _take(texts_BCT, best_BN)
            open_B1 = open_B1 & (sums_BN[:, :1] / (step + 1) > finished_BN.amin(1, keepdim=True))
            if step + 1 == count or not bool(open_B1.any()):
                break
            window.select((offsets_B1 + parents_BC.gather(1, best_BN)).flatten())
            last_M1 = running_BNT[:, :, step].reshape(-1, 1)
            logits_BNV = lm.logits(window.feed(last_M1)[:, -1]).view(rows, beams, -1)
    return finished_BNT[:, 0]
