"""Continuations fed token by token, as decoding reads its own: for prefixes that evict as they go.

    prompt | evict | " Port" | evict | " Ansel" | evict ...      what predicts a token has evicted for all before it

The prompts of a batch are one forward; then every option of every prompt is a row that goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ttabench.lm.forward.patching import check_fits, deltas_applied, select_rows
from ttabench.lm.forward.tokens import pad
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch

Read = Callable[[LM, Tensor, Tensor], Tensor]
"""(lm, hidden_ND of the places that predict, targets_N) to one row of values a target."""


def teacher_forced(
    lm: LM, patch: Patch, items: Sequence[tuple[list[int], list[list[int]]]], read: Read
) -> list[Tensor]:
    """What `read` finds at every target of every option, in the order of items and options.

    Args:
        lm: the base model.
        patch: encoded, of 1 row or one an item.
        items: texts, BOS included where they have one, and the options that follow.
        read: values of hidden states and targets.

    Raises:
        UserError: a text with its option is longer than the model's positions.
    """
    rows = list(_rows(items))
    texts, options = [text for _, text, _ in rows], [option for *_, continuation in rows for option in continuation]
    owner_R = torch.tensor([row for row, (*_, continuation) in enumerate(rows) for _ in continuation], device=lm.device)
    patch = select_rows(patch, [item for item, _, _ in rows])
    check_fits(lm, patch.prefix, [len(text) + max(0, *map(len, continuation)) - 1 for _, text, continuation in rows])
    ids_BT, mask_BT = pad(texts, lm.pad_id, "left")
    window = Window(lm, patch.prefix, len(rows))
    with deltas_applied(lm, patch.deltas, len(rows)):
        hidden_BTD = window.feed(ids_BT.to(lm.device), None if bool(mask_BT.all()) else mask_BT.to(lm.device))
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


def _rows(items: Sequence[tuple[list[int], list[list[int]]]]) -> Iterator[tuple[int, list[int], list[list[int]]]]:
    """(item, text, options); where there is no text, every option begins one with its first token, not predicted."""
    for item, (text, options) in enumerate(items):
        if text:
            yield item, text, options
        else:
            yield from ((item, option[:1], [option[1:]]) for option in options)
