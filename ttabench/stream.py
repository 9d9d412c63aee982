"""Text to token ids: pieces with their joiners, prompts and targets, windows over long texts, padding.

    piece_ids(lm, Observe(text="Ada Voss lives in Port Ansel."))    ids of the text and of the "\\n\\n" after it
    prompt_ids(lm, ask), target_ids(lm, " ", "Port Ansel")          the query; " Port Ansel" + EOS

Every part is tokenised apart, so the ids of a piece never depend on its neighbours: a stream is read piece by piece.
A text that a reader cut by tokens (a book) was tokenised once, as a whole: its pieces bring their ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ttabench.lm import LM
from ttabench.types import Ask, Observe


def piece_ids(lm: LM, piece: Observe, max_tokens: int | None = None) -> list[int]:
    """Ids of a piece and its joiner. With `max_tokens` the text is cut at its end; the joiner stays.

    Ids that the piece brings are taken as they are.
    """
    ids = [*piece.ids, *lm.encode(piece.joiner)] if piece.ids else lm.encode(piece.text + piece.joiner)
    if max_tokens is None or len(ids) <= max_tokens:
        return ids
    joiner = lm.encode(piece.joiner)
    room = max(0, max_tokens - len(joiner))
    return (list(piece.ids[:room]) if piece.ids else lm.encode(piece.text, room)) + joiner


def prompt_ids(lm: LM, ask: Ask) -> list[int]:
    """Ids of the query text, without BOS (scoring and generation put it where the window starts)."""
    return list(ask.prompt_ids) or lm.encode(ask.prompt)


def target_ids(lm: LM, delimiter: str, answer: str, *, eos: bool = True) -> list[int]:
    """Ids of `delimiter + answer`, and EOS unless `eos` is false (a book's continuation does not end)."""
    return lm.encode(delimiter + answer) + ([lm.eos_id] if eos else [])


def gold_ids(lm: LM, ask: Ask) -> list[int]:
    """Ids of the first gold answer of a query: what is scored, or trained on. A continuation (`score`) has no EOS."""
    if ask.ids:
        return list(ask.ids)
    return target_ids(lm, ask.delimiter, ask.answers[0], eos=ask.mode == "generate")


def option_ids(lm: LM, ask: Ask) -> list[list[int]]:
    """Ids of each option of a `choose` query; options carry their own delimiter."""
    return [lm.encode(option) for option in ask.options]


def windows(ids: Sequence[int], length: int, stride: int) -> list[tuple[list[int], list[int]]]:
    """Overlapping windows that together score every token once.

    Args:
        ids: a long text.
        length: longest window, context and targets together.
        stride: new tokens a window scores; the others are context. `stride == length` gives disjoint windows.

    Returns:
        (context, targets) pairs: the first scores up to `length` tokens without context, the next ones `stride` each.
    """
    assert 0 < stride <= length, f"stride {stride} must lie in 1..{length}"
    text = list(ids)
    pairs: list[tuple[list[int], list[int]]] = [([], text[:length])] if text else []
    for start in range(length, len(text), stride):
        end = min(start + stride, len(text))
        pairs.append((text[max(0, end - length) : start], text[start:end]))
    return pairs


def pad(rows: Sequence[Sequence[int]], pad_id: int, side: Literal["left", "right"]) -> tuple[Tensor, Tensor]:
    """Rows of unequal length as one tensor.

    Returns:
        ids_BT (int64) and mask_BT (bool, false where padded), on the CPU.
    """
    width = max((len(row) for row in rows), default=0)
    gaps = [[pad_id] * (width - len(row)) for row in rows]
    pairs = zip(rows, gaps, strict=True)
    table = [[*gap, *row] if side == "left" else [*row, *gap] for row, gap in pairs]
    lengths_B1 = torch.tensor([len(row) for row in rows], dtype=torch.int64).view(-1, 1)
    slots_1T = torch.arange(width).view(1, -1)
    mask_BT = slots_1T >= width - lengths_B1 if side == "left" else slots_1T < lengths_B1
    return torch.tensor(table, dtype=torch.int64).view(len(rows), width), mask_BT
