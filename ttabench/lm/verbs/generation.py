"""Batched decoding under a patch: greedy, or plain beam search.

    generate(lm, patch, [prompt ids, ...], max_new_tokens=16)    ids after each prompt, cut before EOS

Rows are padded on the left, so that every row's next token is the last column: only its logits are computed, and greedy
decoding of a batch equals that of each row alone. An empty prompt with no BOS starts from EOS, as GPT-2's training did.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from ttabench.lm.forward.patching import check_fits, deltas_applied, encoded, patch_rows, select_rows, text_start
from ttabench.lm.forward.tokens import pad
from ttabench.lm.forward.ways import ways_of
from ttabench.lm.forward.window import Window
from ttabench.lm.loading.finite import refuse_not_finite
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch

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
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    results: list[list[int]] = [[] for _ in texts]
    ways = ways_of(lm)
    batch_size = batch_size if ways.rows and ways.same_angles is None else 1
    for begin in range(0, len(order), batch_size):
        chosen = order[begin : begin + batch_size]
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
    padded = None if bool(mask_BT.all()) else mask_BT.to(lm.device)
    with deltas_applied(lm, patch.deltas, len(texts)):
        hidden_BTD = window.feed(ids_BT.to(lm.device), padded)
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


@dataclass
class _Beams:
    """Running and finished hypotheses of B prompts, N beams each; sequences are padded with EOS up to the last step."""

    running: Tensor
    """[B, N, T] token ids."""
    scores: Tensor
    """[B, N] summed log-probabilities of the running ones."""
    finished: Tensor
    """[B, N, T] token ids, best first."""
    finished_scores: Tensor
    """[B, N] per token; `NEVER` where no hypothesis has finished yet."""
    open: Tensor
    """bool [B, 1]: whether the best running beam may still beat the worst finished one; once closed it stays closed."""

    @classmethod
    def begin(cls, rows: int, beams: int, count: int, eos_id: int) -> _Beams:
        """One live beam a prompt: the others would repeat it."""
        empty_BNT = torch.full((rows, beams, count), eos_id)
        scores_BN = torch.full((rows, beams), NEVER)
        scores_BN[:, 0] = 0.0
        open_B1 = torch.ones(rows, 1, dtype=torch.bool)
        return cls(empty_BNT, scores_BN, empty_BNT, torch.full((rows, beams), NEVER), open_B1)

    def step(self, logprobs_BNV: Tensor, position: int, ends_E: Tensor) -> Tensor:
        """Extend every beam by one token.

        Returns:
            int64 [B, N]: which running beam each new one extends.
        """
        _, beams, vocab = logprobs_BNV.shape
        total_BC = (logprobs_BNV + self.scores[..., None]).flatten(1)
        # 2N candidates: even if N of them end with EOS, N go on.
        scores_BC, flat_BC = total_BC.topk(min(2 * beams, total_BC.shape[1]))
        parents_BC, tokens_BC = flat_BC // vocab, flat_BC % vocab
        texts_BCT = _take(self.running, parents_BC)
        texts_BCT[:, :, position] = tokens_BC
        last = position + 1 == texts_BCT.shape[-1]
        ends_BC = torch.isin(tokens_BC, ends_E) | last
        self._finish(texts_BCT, scores_BC, ends_BC & self.open, position)
        self.scores, best_BN = scores_BC.masked_fill(ends_BC, NEVER).topk(beams)
        self.running = _take(texts_BCT, best_BN)
        best_B1 = self.scores[:, :1] / (position + 1)
        self.open = self.open & (best_B1 > self.finished_scores.amin(1, keepdim=True))
        return parents_BC.gather(1, best_BN)

    def _finish(self, texts_BCT: Tensor, scores_BC: Tensor, ends_BC: Tensor, position: int) -> None:
        beams = self.scores.shape[1]
        among_best_BC = ends_BC.clone()
        among_best_BC[:, beams:] = False
        ended_BC = (scores_BC / (position + 1)).masked_fill(~among_best_BC, NEVER)
        scores = torch.cat([self.finished_scores, ended_BC], dim=1)
        self.finished_scores, best_BN = scores.topk(beams)
        self.finished = _take(torch.cat([self.finished, texts_BCT], dim=1), best_BN)


def _take(texts_BNT: Tensor, rows_BM: Tensor) -> Tensor:
    return texts_BNT.gather(1, rows_BM[..., None].expand(-1, -1, texts_BNT.shape[-1]))


def _beam_search(lm: LM, patch: Patch, texts: Sequence[list[int]], count: int, beams: int) -> Tensor:
    rows = len(texts)
    window, logits_BV = _prefilled(lm, patch, texts, count)
    repeats = torch.arange(rows, device=lm.device).repeat_interleave(beams)
    window.select(repeats)
    logits_BNV = logits_BV.view(rows, 1, -1).expand(-1, beams, -1)
    with torch.device(lm.device):
        state = _Beams.begin(rows, beams, count, lm.eos_id)
        ends_E = torch.tensor(sorted(lm.eos_ids))
    offsets_B1 = torch.arange(rows, device=lm.device)[:, None] * beams
    with deltas_applied(lm, select_rows(patch, repeats).deltas, rows * beams):
        for step in range(count):
            logprobs_BNV = log_softmax(logits_BNV.float(), dim=-1)
            refuse_not_finite(logprobs_BNV.amax(-1))
            parents_BN = state.step(logprobs_BNV, step, ends_E)
            if step + 1 == count or not bool(state.open.any()):
                break
            window.select((offsets_B1 + parents_BN).flatten())
            last_M1 = state.running[:, :, step].reshape(-1, 1)
            logits_BNV = lm.logits(window.feed(last_M1)[:, -1]).view(rows, beams, -1)
    return state.finished[:, 0]
