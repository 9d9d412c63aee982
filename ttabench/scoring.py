"""Log-probabilities under a patch: continuations, options to choose from, long texts; and the training loss.

    token_logprobs(lm, patch, [(prompt ids, target ids), ...])     one float32 tensor an item, one value a target token
    choose(lm, patch, [(prompt ids, [option ids, ...]), ...])      one float32 tensor an item, one sum an option
    rolling(lm, patch, book ids, window=1024, stride=512)          every token of a long text scored once
    nll(lm, patch, items)                                          differentiable sum and count

A patch has 1 row, shared by all items, or one row an item. The text of an item starts with BOS unless the patch holds
one. With an empty prompt and no BOS to predict it from, the first target token is not scored: one value fewer.
Items of like length share a batch; results do not depend on the batch size beyond float noise. Logits are computed
only at the positions that predict targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ttabench.lm import LM
from ttabench.patching import check_fits, deltas_applied, encoded, patch_rows, read, select_rows, text_start
from ttabench.stream import pad, windows
from ttabench.types import Patch
from ttabench.window import Window

Item = tuple[list[int], list[int]]
"""Prompt ids and target ids, without BOS."""

LOGITS_AT_ONCE = 2**26
"""Float32 logits alive at a time without gradients (256 MiB), however large vocabulary and batch are."""


@torch.no_grad()
def token_logprobs(lm: LM, patch: Patch, items: Sequence[Item], batch_size: int = 32) -> list[Tensor]:
    """Log-probability of every target token (natural log), float32 on the CPU, in the order of the items.

    Raises:
        UserError: an item is longer than the model's positions.
    """
    patch = encoded(lm, patch)
    assert patch_rows(patch) in (1, len(items)), f"patch of {patch_rows(patch)} rows for {len(items)} items"
    results: list[Tensor] = [torch.empty(0)] * len(items)
    for chosen in _batches([len(prompt) + len(target) for prompt, target in items], batch_size):
        rows = select_rows(patch, chosen)
        for index, values in zip(chosen, _logprobs(lm, rows, [items[i] for i in chosen]), strict=True):
            results[index] = values.cpu()
    return results


def nll(lm: LM, patch: Patch, items: Sequence[Item]) -> tuple[Tensor, int]:
    """Sum of the negative log-likelihoods of all target tokens, and their count; one differentiable forward.

    Returns:
        scalar float32 loss sum (divide it by the count for a token mean), number of target tokens.

    Raises:
        UserError: an item is longer than the model's positions.
    """
    values = _logprobs(lm, encoded(lm, patch), items)
    return -torch.cat(values).sum(), sum(len(value) for value in values)


@torch.no_grad()
def choose(
    lm: LM, patch: Patch, items: Sequence[tuple[list[int], list[list[int]]]], batch_size: int = 32
) -> list[Tensor]:
    """Summed log-probability of each option after its prompt, float32 on the CPU.

    Divide by the number of tokens or bytes of an option for length-normalised choices.
    """
    patch = encoded(lm, patch)
    results: list[Tensor] = [torch.empty(0)] * len(items)
    for chosen in _batches([len(prompt) for prompt, _ in items], max(1, batch_size // 2)):
        batch = [items[i] for i in chosen]
        after, heads = _read_prompts(lm, select_rows(patch, chosen), [prompt for prompt, _ in batch])
        flat = [(heads[row], option) for row, (_, options) in enumerate(batch) for option in options]
        owners = [row for row, (_, options) in enumerate(batch) for _ in options]
        values = token_logprobs(lm, select_rows(after, owners), flat, batch_size)
        sums = iter([value.sum() for value in values])
        for index, (_, options) in zip(chosen, batch, strict=True):
            results[index] = torch.stack([next(sums) for _ in options])
    return results


def _read_prompts(lm: LM, patch: Patch, prompts: Sequence[list[int]]) -> tuple[Patch, list[list[int]]]:
    """The patch extended by all of each prompt but its last token, and that token (it predicts the options)."""
    shared = patch.prefix is not None and patch.prefix.keys_LBHPD[0].shape[0] == 1
    if shared or max(map(len, prompts)) < 2:
        # Reading prompts on a shared prefix would copy it for each of them; reading them once an option costs less.
        return select_rows(patch, range(len(prompts))), list(prompts)
    ids_BT, mask_BT = pad([prompt[:-1] for prompt in prompts], lm.pad_id, "right")
    prefix = read(lm, patch, ids_BT, mask_BT)
    return Patch(prefix=prefix, deltas=patch.deltas), [prompt[-1:] for prompt in prompts]


def rolling(lm: LM, patch: Patch, ids: Sequence[int], window: int, stride: int, batch_size: int = 8) -> Tensor:
    """Log-probability of every token of a long text, each scored once, float32 [len(ids)] on the CPU.

    Args:
        lm: the base model.
        patch: of one row; every window is read on top of it.
        ids: the text, without BOS (each window starts with it unless the patch holds one).
        window: longest window in tokens, BOS and prefix not counted.
        stride: tokens a window scores; the others are its context.
        batch_size: windows at once.

    Returns:
        one value a token; one fewer when nothing precedes the first token.
    """
    assert patch_rows(patch) == 1, "a rolling score reads one text under one patch"
    pairs = windows(ids, window, stride)
    return torch.cat([torch.empty(0), *token_logprobs(lm, patch, pairs, batch_size)])


def _batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Indices in batches of like length, longest first: what does not fit fails at once."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    for begin in range(0, len(order), size):
        yield order[begin : begin + size]


def _logprobs(lm: LM, patch: Patch, items: Sequence[Item]) -> list[Tensor]:
    """One forward of right-padded rows under an encoded patch."""
    start = text_start(lm, patch)
    texts = [start + prompt + target for prompt, target in items]
    counts = [min(len(target), max(0, len(text) - 1)) for text, (_, target) in zip(texts, items, strict=True)]
    ids_BT, _ = pad([text[:-1] for text in texts], lm.pad_id, "right")
    if sum(counts) == 0:
        return [torch.zeros(0)] * len(items)
    check_fits(lm, patch.prefix, [len(text) - 1 for text in texts])
    spans = [(row, len(text) - 1 - count, count) for row, (text, count) in enumerate(zip(texts, counts, strict=True))]
    places = [row * ids_BT.shape[1] + begin + i for row, begin, count in spans for i in range(count)]
    targets = chain.from_iterable(text[len(text) - count :] for text, count in zip(texts, counts, strict=True))
    places_N, targets_N = torch.tensor(places, device=lm.device), torch.tensor(list(targets), device=lm.device)
    # Padding stands behind the text, where causal attention never looks: no mask, and the kernel keeps its fast path.
    with deltas_applied(lm, patch.deltas, len(items)):
        hidden_BTD = Window(lm, patch.prefix, len(items), retain=False).feed(ids_BT.to(lm.device))
        values_N = _target_logprobs(lm, hidden_BTD.flatten(0, 1).index_select(0, places_N), targets_N)
    return list(torch.split(values_N, counts))


def _target_logprobs(lm: LM, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
    size = len(hidden_ND) if torch.is_grad_enabled() else max(1, LOGITS_AT_ONCE // lm.vocab_size)
    parts = zip(torch.split(hidden_ND, size), torch.split(targets_N, size), strict=True)
    return torch.cat([-cross_entropy(lm.logits(h).float(), t, reduction="none") for h, t in parts])
