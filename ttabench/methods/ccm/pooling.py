"""Keys or values of some tokens pooled into one slot: by a convolution, their mean, or the largest of each channel.

    taps_BGR = [[[0, 1, 2], [3, 4, -1]]]        five tokens in groups of three become two slots

Shape letters: B rows · H heads · T tokens · D head size · G slots · R tokens of a slot, -1 where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ttabench.methods.ccm.settings import CompressiveSettings


def groups(settings: CompressiveSettings, tokens: int) -> list[range]:
    """Which tokens of a piece of this length become one slot each, slot by slot."""
    if settings.slots is None:
        starts = range(0, tokens, settings.ratio)
        return [range(start, min(start + settings.ratio, tokens)) for start in starts]
    count = min(settings.slots, tokens)
    ends = [-(-tokens * slot // count) for slot in range(count + 1)] if count else [0]
    return [range(start, end) for start, end in pairwise(ends)]


def taps_of(rows: Sequence[Sequence[Sequence[int]]], width: int) -> Tensor:
    """int64 [B, G, R] of the places of each slot's tokens, row by row; at least `width` of them a slot."""
    most = max((len(row) for row in rows), default=0)
    longest = max([width, *(len(places) for row in rows for places in row)])
    taps_BGR = torch.full((len(rows), most, longest), -1)
    for number, row in enumerate(rows):
        for slot, places in enumerate(row):
            taps_BGR[number, slot, : len(places)] = torch.tensor(places)
    return taps_BGR


def pooled(held_BHTD: Tensor, taps_BGR: Tensor, pool: str, kernel_RDD: Tensor | None) -> Tensor:
    """[B, H, G, D]; zero where a slot has no token. A convolution of fewer tokens than its kernel is scaled up."""
    heads, size = held_BHTD.shape[1], held_BHTD.shape[3]
    real_BGR1 = (taps_BGR >= 0)[..., None]
    places_BH1 = taps_BGR.clamp(min=0).flatten(1)[:, None, :, None].expand(-1, heads, -1, size)
    taken_BHGRD = held_BHTD.gather(2, places_BH1).view(*held_BHTD.shape[:2], *taps_BGR.shape[1:], size)
    count_BG1 = real_BGR1.sum(2)[:, None]
    if pool == "max":
        largest = taken_BHGRD.masked_fill(~real_BGR1[:, None], -torch.inf).amax(3)
        return largest.masked_fill(count_BG1 == 0, 0)
    taken_BHGRD = taken_BHGRD * real_BGR1[:, None]
    if pool == "mean":
        return taken_BHGRD.sum(3) / count_BG1.clamp(min=1)
    assert kernel_RDD is not None
    kernel = kernel_RDD.to(taken_BHGRD.dtype).flatten(0, 1)
    return (taken_BHGRD.flatten(3) @ kernel) * (len(kernel_RDD) / count_BG1.clamp(min=1))
