"""Log-probabilities under a patch: continuations, options to choose from; and the training loss.

The text of an item starts with BOS unless the patch holds one; with an empty prompt and no BOS the first target is not
scored: one value fewer. Logits are computed at the positions that predict targets alone, and a prompt is read once for
all its options, which fork from it in one row:

    prompt  option 1  option 2        an option's tokens see the prompt and what stands before them in the option
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ttabench.lm.attention.layout import Layout
from ttabench.lm.forward.deltas import deltas_applied
from ttabench.lm.forward.head import logprobs_and_best, logprobs_of
from ttabench.lm.forward.patching import check_fits, encoded, padded, patch_rows, select_rows, text_start
from ttabench.lm.forward.tokens import pad
from ttabench.lm.forward.ways import ways_of
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.lm.verbs.batching import by_length

Item = tuple[list[int], list[int]]
"""Prompt ids and target ids, without BOS."""
Question = tuple[list[int], list[list[int]]]
"""Prompt ids and the ids of each option, without BOS."""

Read = Callable[[LM, Tensor, Tensor], Tensor]
"""(lm, hidden_ND of the places that predict, targets_N) to one row of values a target."""

LIKE = 0.8
"""Of the longest row of a batch: padding costs as text does."""


@dataclass(frozen=True)
class Scored:
    """A continuation under the model."""

    logprobs: Tensor
    """float32 on the CPU, one value (natural log) a token."""
    greedy: bool
    """Whether every token is the likeliest one at its place."""


@torch.no_grad()
def token_logprobs(lm: LM, patch: Patch, items: Sequence[Item], batch_size: int = 32) -> list[Tensor]:
    """Log-probability of every target token (natural log), float32 on the CPU, in the order of the items."""
    questions = [(prompt, [target]) for prompt, target in items]
    return [values for (values,) in _in_batches(lm, patch, questions, batch_size, logprobs_of)]


def nll(lm: LM, patch: Patch, items: Sequence[Item]) -> tuple[Tensor, int]:
    """(sum of the negative log-likelihoods of all target tokens, their count); one differentiable forward."""
    values = target_logprobs(lm, patch, items)
    return -torch.cat(values).sum(), sum(len(value) for value in values)


def target_logprobs(lm: LM, patch: Patch, items: Sequence[Item]) -> list[Tensor]:
    """Log-probability of every target token, one float32 tensor an item: one differentiable forward of all items."""
    return _of_targets(lm, patch, items, logprobs_of)


def target_hidden(lm: LM, patch: Patch, items: Sequence[Item]) -> list[Tensor]:
    """Last hidden states [N, D] that every target is predicted from, one tensor an item; see `target_logprobs`."""
    return _of_targets(lm, patch, items, lambda _lm, hidden_ND, _targets: hidden_ND)


def _of_targets(lm: LM, patch: Patch, items: Sequence[Item], read: Read) -> list[Tensor]:
    questions = [(prompt, [target]) for prompt, target in items]
    return [values for (values,) in _values(lm, encoded(lm, patch), questions, read)]


@torch.no_grad()
def choose(lm: LM, patch: Patch, items: Sequence[Question], batch_size: int = 32) -> list[Tensor]:
    """Summed log-probability of each option after its prompt, float32 on the CPU."""
    scores = _in_batches(lm, patch, items, batch_size, logprobs_of)
    return [torch.stack([values.sum() for values in options]) for options in scores]


@torch.no_grad()
def score_options(lm: LM, patch: Patch, items: Sequence[Question], batch_size: int = 32) -> list[list[Scored]]:
    """Log-probability of every token of each option after its prompt, and whether greedy decoding would write it."""
    scores = _in_batches(lm, patch, items, batch_size, logprobs_and_best)
    pairs = [[values_N2.view(-1, 2).unbind(1) for values_N2 in options] for options in scores]
    return [[Scored(values, bool((values >= best).all())) for values, best in options] for options in pairs]


def _in_batches(lm: LM, patch: Patch, items: Sequence[Question], batch_size: int, read: Read) -> list[list[Tensor]]:
    """For each question and option what `read` finds at its tokens, on the CPU."""
    patch = encoded(lm, patch)
    assert patch_rows(patch) in (1, len(items)), f"patch of {patch_rows(patch)} rows for {len(items)} items"
    results: list[list[Tensor]] = [[]] * len(items)
    lengths = [len(prompt) + sum(map(len, options)) for prompt, options in items]
    for chosen in by_length(lm, lengths, batch_size, LIKE):
        scores = _values(lm, select_rows(patch, chosen), [items[i] for i in chosen], read)
        for index, options in zip(chosen, scores, strict=True):
            results[index] = [values.cpu() for values in options]
    return results


@dataclass(frozen=True)
class _Row:
    """A text and the options that fork from its end, in one row."""

    owner: int
    """Which question it is of."""
    ids: list[int]
    depths: list[int]
    """Position of every token behind the prefix."""
    branches: list[int]
    """0 in the text, i in the i-th option."""
    places: list[int]
    """Which tokens predict the targets."""
    targets: list[int]
    counts: list[int]
    """Targets of each option."""

    @property
    def forks(self) -> bool:
        """Whether tokens of several options stand in it, so that causal attention would not keep them apart."""
        return len(set(self.branches) - {0}) > 1


def _row(owner: int, text: list[int], options: Sequence[list[int]]) -> _Row:
    row = _Row(owner, list(text), list(range(len(text))), [0] * len(text), [], [], [])
    last = [len(text) - 1] if text else []
    for number, option in enumerate(options, start=1):
        begin, read = len(row.ids), option[:-1]
        row.ids.extend(read)
        row.depths.extend(range(len(text), len(text) + len(read)))
        row.branches.extend([number] * len(read))
        scored = option if text else option[1:]
        row.places.extend([*last, *range(begin, len(row.ids))] if option else [])
        row.targets.extend(scored)
        row.counts.append(len(scored))
    return row


def _values(lm: LM, patch: Patch, items: Sequence[Question], read: Read) -> list[list[Tensor]]:
    """What `read` finds at every target of every option: one forward of right-padded rows under an encoded patch."""
    start = text_start(lm, patch)
    if patch.prefix is not None and patch.prefix.eviction is not None:
        if any(len(option) > 1 for _, options in items for option in options):
            of_texts = iter(_teacher_forced(lm, patch, [(start + prompt, options) for prompt, options in items], read))
            return [[next(of_texts) for _ in options] for _, options in items]
        patch = replace(patch, prefix=replace(patch.prefix, eviction=None))  # nothing is read after the prompt
    if ways_of(lm).hooked:
        rows = [_row(owner, start + prompt, options) for owner, (prompt, options) in enumerate(items)]
    else:  # which makes its own masks, and knows no forks
        rows = [_row(owner, start + prompt, [o]) for owner, (prompt, options) in enumerate(items) for o in options]
        patch = select_rows(patch, [row.owner for row in rows])
    counts = [count for row in rows for count in row.counts]
    if sum(counts) == 0:
        return [[torch.zeros(0)] * len(options) for _, options in items]
    check_fits(lm, patch.prefix, [1 + max(row.depths, default=-1) for row in rows])
    width = max(len(row.ids) for row in rows)
    places_N = torch.tensor([i * width + place for i, row in enumerate(rows) for place in row.places], device=lm.device)
    targets_N = torch.tensor([target for row in rows for target in row.targets], device=lm.device)
    with deltas_applied(lm, patch.deltas, len(rows)):
        hidden_BTD = _hidden(lm, patch, rows)
        values = read(lm, hidden_BTD.flatten(0, 1).index_select(0, places_N), targets_N)
    split = iter(torch.split(values, counts))
    return [[next(split) for _ in options] for _, options in items]


def _hidden(lm: LM, patch: Patch, rows: Sequence[_Row]) -> Tensor:
    ids_BT = pad([row.ids for row in rows], lm.pad_id, "right")[0].to(lm.device)
    window = Window(lm, patch.prefix, len(rows), retain=False)
    if not any(row.forks for row in rows):
        # Padding stands behind the text, where causal attention never looks: no mask, and a fast kernel.
        return window.feed(ids_BT)
    depths_BT, branches_BT = (
        pad(part, 0, "right")[0].to(lm.device)
        for part in ([row.depths for row in rows], [row.branches for row in rows])
    )
    # a token sees what stands before it in its own branch and in the text, whose branch is 0
    sees_BTT = (branches_BT[:, None, :] == branches_BT[:, :, None]) | (branches_BT[:, None, :] == 0)
    first_B1 = 0 if patch.prefix is None else patch.prefix.next_position_B.to(lm.device)[:, None]
    return window.feed_laid(ids_BT, Layout(positions_BT=first_B1 + depths_BT, sees_BTS=sees_BTT.tril()))


def _teacher_forced(
    lm: LM, patch: Patch, items: Sequence[tuple[list[int], list[list[int]]]], read: Read
) -> list[Tensor]:
    """What `read` finds at every target of every option, fed token by token as decoding reads its own.

    The prompts of a batch are one forward; then every option is a row, which evicts before each token is predicted.
    """
    rows: list[tuple[int, list[int], list[list[int]]]] = []
    for item, (text, options) in enumerate(items):
        if text:
            rows.append((item, text, options))
        else:  # every option begins a text with its first token, which is not predicted
            rows += [(item, option[:1], [option[1:]]) for option in options]
    texts, options = [text for _, text, _ in rows], [option for *_, continuation in rows for option in continuation]
    owner_R = torch.tensor([row for row, (*_, continuation) in enumerate(rows) for _ in continuation], device=lm.device)
    patch = select_rows(patch, [item for item, _, _ in rows])
    check_fits(lm, patch.prefix, [len(text) + max(0, *map(len, continuation)) - 1 for _, text, continuation in rows])
    ids_BT, mask_BT = pad(texts, lm.pad_id, "left")
    window = Window(lm, patch.prefix, len(rows))
    with deltas_applied(lm, patch.deltas, len(rows)):
        hidden_BTD = window.feed(ids_BT.to(lm.device), padded(lm, mask_BT))
    steps = [hidden_BTD[:, -1].index_select(0, owner_R)]
    window.select(owner_R)
    rest_RT = pad([option[:-1] for option in options], lm.pad_id, "right")[0].to(lm.device)
    with deltas_applied(lm, select_rows(patch, owner_R).deltas, len(options)):
        # Rows that are done go on with padding: nobody reads what comes of it.
        steps += [window.feed(rest_RT[:, step : step + 1])[:, 0] for step in range(rest_RT.shape[1])]
        hidden_RSD = torch.stack(steps, dim=1)
        counts = [len(option) for option in options]
        targets_N = torch.tensor([token for option in options for token in option], device=lm.device)
        scored_RS = torch.arange(len(steps)) < torch.tensor(counts)[:, None]
        return list(torch.split(read(lm, hidden_RSD[scored_RS.to(lm.device)], targets_N), counts))
