"""Question tokens gather what they need from a bank of document latents: a stack of pre-norm cross-attention blocks.

Paper: Tack et al., arXiv 2403.04317, equation 3; Algorithm 3 (hierarchy) is `latent`.
Shape letters: R readers · Q questions of a reader · K documents · T tokens of each · D width · X = Q*T · N = K*T ·
H heads · E head size · O owners of entries, one for all questions or each question · G groups · M entries of a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from ttabench.methods.mac import HierarchyBy


class BankAttention(nn.Module):
    """One block: cross-attention from question tokens to the bank, then a feed-forward network. `heads`: H; the inner
    width H * head_dim does not depend on D (8 x 96 in the paper's code)."""

    def __init__(self, width: int, heads: int = 8, head_dim: int = 96) -> None:
        super().__init__()
        inner, hidden = heads * head_dim, min(width, 768)
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.bank_norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, inner, bias=False)
        self.key = nn.Linear(width, inner, bias=False)
        self.value = nn.Linear(width, inner, bias=False)
        self.out = nn.Linear(inner, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed_in = nn.Linear(width, hidden)
        self.feed_out = nn.Linear(hidden, width)

    def forward(self, x_RXD: Tensor, bank_RND: Tensor, mask_R11N: Tensor | None) -> Tensor:
        """[R, X, D] -> [R, X, D]. The mask is true on entries."""
        normed_RND = self._normed(bank_RND)
        query, key, value = self._query(x_RXD), self._split(self.key(normed_RND)), self._split(self.value(normed_RND))
        mixed_RHXE = scaled_dot_product_attention(query, key, value, attn_mask=mask_R11N)
        x_RXD = x_RXD + self.out(mixed_RHXE.transpose(1, 2).flatten(2))
        fed_RXD: Tensor = self.feed_out(gelu(self.feed_in(self.feed_norm(x_RXD))))
        return x_RXD + fed_RXD

    def shares(self, x_RXD: Tensor, bank_RND: Tensor, mask_R11N: Tensor | None) -> Tensor:
        """Attention weights averaged over heads, [R, X, N]; for supervision and inspection."""
        query_RHXE, key_RHNE = self._query(x_RXD), self._split(self.key(self._normed(bank_RND)))
        scores_RHXN = query_RHXE @ key_RHNE.transpose(-1, -2) * query_RHXE.shape[-1] ** -0.5
        if mask_R11N is not None:
            scores_RHXN = scores_RHXN.masked_fill(~mask_R11N, -torch.inf)
        shares_RHXN: Tensor = scores_RHXN.softmax(-1)
        return shares_RHXN.mean(1)

    def _query(self, x_RXD: Tensor) -> Tensor:
        return self._split(self.query(self.norm(x_RXD)))

    def _normed(self, bank_RND: Tensor) -> Tensor:
        normed_RND: Tensor = self.bank_norm(bank_RND.to(self.bank_norm.weight.dtype))
        return normed_RND

    def _split(self, x_RXI: Tensor) -> Tensor:
        return x_RXI.view(*x_RXI.shape[:-1], self.heads, -1).transpose(1, 2)


class Aggregator(nn.Module):
    """The aggregation network h_psi: question tokens and a bank to one latent per question."""

    def __init__(self, width: int, blocks: int = 4, heads: int = 8, head_dim: int = 96) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(BankAttention(width, heads, head_dim) for _ in range(blocks))

    def forward(self, x_RQTD: Tensor, bank_RKTD: Tensor, mask_RK: Tensor | None = None) -> Tensor:
        """phi* [R, Q, T, D] of every question over all documents of its reader. `mask_RK`: true where a reader has a
        document; None when all have K."""
        x_RXD, bank_RND, mask_R11N = _flat(x_RQTD, bank_RKTD, mask_RK)
        for layer in self.blocks:
            x_RXD = layer(x_RXD, bank_RND, mask_R11N)
        return x_RXD.view(x_RQTD.shape)

    def document_shares(self, x_RQTD: Tensor, bank_RKTD: Tensor, mask_RK: Tensor | None = None) -> Tensor:
        """How much attention each question pays to each document, [R, Q, K]: mean over blocks, heads and tokens."""
        x_RXD, bank_RND, mask_R11N = _flat(x_RQTD, bank_RKTD, mask_RK)
        shares = []
        for number, layer in enumerate(self.blocks, start=1):
            assert isinstance(layer, BankAttention)
            shares.append(layer.shares(x_RXD, bank_RND, mask_R11N))
            if number < len(self.blocks):
                x_RXD = layer(x_RXD, bank_RND, mask_R11N)
        mean_RXN = torch.stack(shares).mean(0)
        return mean_RXN.view(*x_RQTD.shape[:3], *bank_RKTD.shape[1:3]).sum(-1).mean(2)


def _flat(x_RQTD: Tensor, bank_RKTD: Tensor, mask_RK: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    mask = None if mask_RK is None else mask_RK.repeat_interleave(bank_RKTD.shape[2], dim=1)[:, None, None]
    return x_RQTD.flatten(1, 2), bank_RKTD.flatten(1, 2), mask


def latent(
    aggregator: Aggregator, x_QTD: Tensor, bank_KTD: Tensor, group: int, by: HierarchyBy = "aggregated"
) -> Tensor:
    """phi* [Q, T, D] of every question over one reader's documents. `group`: M, at least 2; the last group of a level
    may be smaller."""
    if by == "attended":
        return by_group(aggregator, x_QTD, _most_attended(aggregator, x_QTD, bank_KTD, group), group)[:, 0]
    entries_OKTD = by_group(aggregator, x_QTD, bank_KTD[None], group)
    while entries_OKTD.shape[1] > 1:
        entries_OKTD = by_group(aggregator, x_QTD, entries_OKTD, group)
    return entries_OKTD[:, 0]


def _most_attended(aggregator: Aggregator, x_QTD: Tensor, bank_KTD: Tensor, group: int) -> Tensor:
    """At most `group` documents, those that the question attends to most in the groups of every level."""
    entries_OKTD = bank_KTD[None]
    while (count := entries_OKTD.shape[1]) > group:
        shares_QGM = by_group(aggregator.document_shares, x_QTD, entries_OKTD, group)
        place_QG = torch.arange(0, count, group, device=shares_QGM.device) + shares_QGM.argmax(-1)
        owner_Q1 = torch.arange(len(place_QG), device=place_QG.device)[:, None] if len(entries_OKTD) > 1 else 0
        entries_OKTD = entries_OKTD[owner_Q1, place_QG]
    return entries_OKTD


def by_group(
    run: Callable[[Tensor, Tensor, Tensor | None], Tensor], x_QTD: Tensor, entries_OKTD: Tensor, group: int
) -> Tensor:
    """What `run` (questions, entries, mask) gives of every question and group of its entries, [Q, G, ...]."""
    owners, count = entries_OKTD.shape[:2]
    groups, group = math.ceil(count / group), min(group, count)
    missing, mask_RM = groups * group - count, None
    rows_RMTD = nn.functional.pad(entries_OKTD, (0, 0, 0, 0, 0, missing)).reshape(-1, group, *entries_OKTD.shape[2:])
    if missing:
        held_GM = (torch.arange(groups * group, device=x_QTD.device) < count).view(groups, group)
        mask_RM = held_GM.repeat(owners, 1)
    if owners == 1:  # a row a group, with all questions
        return run(x_QTD.expand(groups, *x_QTD.shape), rows_RMTD, mask_RM).transpose(0, 1)
    x_R1TD = x_QTD.repeat_interleave(groups, dim=0)[:, None]
    made = run(x_R1TD, rows_RMTD, mask_RM)[:, 0]
    return made.reshape(owners, groups, *made.shape[1:])
