"""A bank aggregated by a tree of groups of documents, one tree a question: no aggregation sees more than a group.

Paper: Tack et al., arXiv 2403.04317, section 3.3 and Algorithm 3.

Shape letters: Q questions · K documents or entries of a level · O owners of a level's entries: 1 for all questions, or
Q · T tokens of an entry · D width · G groups · M documents of a group · R groups aggregated at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ttabench.methods.mac.pooling import Aggregator
from ttabench.methods.mac.settings import HierarchyBy


def latent(
    aggregator: Aggregator, x_QTD: Tensor, bank_KTD: Tensor, group: int, block: int, by: HierarchyBy = "aggregated"
) -> Tensor:
    """phi* [Q, T, D] of every question over one reader's documents.

    Args:
        group: M, at least 2; the last group of a level may be smaller.
        block: about how many tokens of entries are read at a time.
    """
    if by == "attended":
        entries_OKTD = _most_attended(aggregator, x_QTD, bank_KTD, group, block)
        return level(aggregator, x_QTD, entries_OKTD, group, block)[:, 0]
    *_, (last_Q1TD, _) = levels(aggregator, x_QTD, bank_KTD, group, block)
    return last_Q1TD[:, 0]


def levels(
    aggregator: Aggregator, x_QTD: Tensor, bank_KTD: Tensor, group: int, block: int
) -> Iterator[tuple[Tensor, int]]:
    """Entries [Q, K, T, D] of each level above the bank, down to one, with how many documents an entry stands for."""
    assert group >= 2, group
    assert len(bank_KTD), "an empty bank has no tree"
    entries_OKTD, documents = bank_KTD[None], 1
    while True:
        entries_OKTD, documents = level(aggregator, x_QTD, entries_OKTD, group, block), documents * group
        yield entries_OKTD, documents
        if entries_OKTD.shape[1] == 1:
            return


def random_group(documents: int) -> int:
    """A size of groups, by torch's randomness, with which so many documents make a tree of two or three levels."""
    fewest = max(2, round(documents ** (1 / 3)))
    return int(torch.randint(fewest, max(fewest, math.ceil(documents / 2)) + 1, ()))


def level(aggregator: Aggregator, x_QTD: Tensor, entries_OKTD: Tensor, group: int, block: int) -> Tensor:
    """The latent [Q, G, T, D] aggregated from each group of consecutive entries, for every question."""
    return _by_group(aggregator, x_QTD, entries_OKTD, group, block)


def _most_attended(aggregator: Aggregator, x_QTD: Tensor, bank_KTD: Tensor, group: int, block: int) -> Tensor:
    """At most `group` documents, those that the question attends to most in the groups of every level."""
    entries_OKTD = bank_KTD[None]
    while (count := entries_OKTD.shape[1]) > group:
        shares_QGM = _by_group(aggregator.document_shares, x_QTD, entries_OKTD, group, block)
        first_G = torch.arange(0, count, group, device=shares_QGM.device)
        place_QG = first_G + shares_QGM.argmax(-1)
        owner_Q1 = torch.arange(len(place_QG), device=place_QG.device)[:, None] if len(entries_OKTD) > 1 else 0
        entries_OKTD = entries_OKTD[owner_Q1, place_QG]
    return entries_OKTD


def _by_group(
    run: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    x_QTD: Tensor,
    entries_OKTD: Tensor,
    group: int,
    block: int,
) -> Tensor:
    """What `run` (questions, entries, mask) gives of every question and group, [Q, G, ...], some groups at a time."""
    owners, count, tokens, _ = entries_OKTD.shape
    groups, group = math.ceil(count / group), min(group, count)
    at_once = max(1, block // (group * tokens))
    parts = []
    for first in range(0, groups, at_once):
        rows = min(at_once, groups - first)
        part_RMTD, mask_RM = _grouped(entries_OKTD, first, rows, group)
        if owners == 1:
            parts.append(run(x_QTD.expand(rows, *x_QTD.shape), part_RMTD, mask_RM).transpose(0, 1))
        else:
            x_RTD = x_QTD[:, None].expand(-1, rows, -1, -1).flatten(0, 1)
            made = run(x_RTD[:, None], part_RMTD, mask_RM)[:, 0]
            parts.append(made.reshape(owners, rows, *made.shape[1:]))
    return torch.cat(parts, dim=1)


def _grouped(entries_OKTD: Tensor, first: int, count: int, group: int) -> tuple[Tensor, Tensor | None]:
    """`count` groups from group `first` on, as rows [O*count, M, T, D]; a mask if the last one is smaller."""
    cut = entries_OKTD[:, first * group : (first + count) * group]
    missing = count * group - cut.shape[1]
    if not missing:
        return cut.reshape(-1, group, *cut.shape[2:]), None
    padded = torch.cat([cut, cut.new_zeros(cut.shape[0], missing, *cut.shape[2:])], dim=1)
    mask = (torch.arange(count * group, device=cut.device) < cut.shape[1]).view(count, group)
    return padded.view(-1, group, *cut.shape[2:]), mask.repeat(cut.shape[0], 1)
