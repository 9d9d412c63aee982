"""Question tokens gather what they need from a bank of document latents: a stack of pre-norm cross-attention blocks.

Paper: Tack et al., arXiv 2403.04317, equation 3; Algorithm 3 (hierarchy) is `latent`.
Shape letters: R readers · Q questions of a reader · K documents · T tokens of each · D width · X = Q*T · N = K*T ·
H heads · E head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from ttabench.methods.mac.settings import HierarchyBy

LOWEST = -1e30
"""Score of a masked entry: finite, so that a wholly masked block leaves no NaN and is wiped by the next real one."""


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

    def forward(self, x_RXD: Tensor, bank_RND: Tensor, mask_RN: Tensor | None, block: int | None) -> Tensor:
        """[R, X, D] -> [R, X, D]; `block` bank tokens at a time, all at once if None. The mask is true on entries."""
        query_RHXE = self._split(self.query(self.norm(x_RXD)))
        if block is None:
            key_RHNE, value_RHNE = self._keys_values(bank_RND)
            mask = None if mask_RN is None else mask_RN[:, None, None, :]
            mixed_RHXE = scaled_dot_product_attention(query_RHXE, key_RHNE, value_RHNE, attn_mask=mask)
        else:
            mixed_RHXE = self._streamed(query_RHXE, bank_RND, mask_RN, block)
        x_RXD = x_RXD + self.out(mixed_RHXE.transpose(1, 2).flatten(2))
        fed_RXD: Tensor = self.feed_out(gelu(self.feed_in(self.feed_norm(x_RXD))))
        return x_RXD + fed_RXD

    def _split(self, x_RXI: Tensor) -> Tensor:
        return x_RXI.view(*x_RXI.shape[:-1], self.heads, -1).transpose(1, 2)

    def _keys_values(self, bank_RND: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.bank_norm(bank_RND.to(self.bank_norm.weight.dtype))
        return self._split(self.key(normed)), self._split(self.value(normed))

    def _streamed(self, query_RHXE: Tensor, bank_RND: Tensor, mask_RN: Tensor | None, block: int) -> Tensor:
        query_RHXE = query_RHXE * query_RHXE.shape[-1] ** -0.5
        top = query_RHXE.new_full((*query_RHXE.shape[:-1], 1), LOWEST)
        total = torch.zeros_like(top)
        mixed = torch.zeros_like(query_RHXE)
        for start in range(0, bank_RND.shape[1], block):
            key_RHNE, value_RHNE = self._keys_values(bank_RND[:, start : start + block])
            scores_RHXN = query_RHXE @ key_RHNE.transpose(-1, -2)
            if mask_RN is not None:
                scores_RHXN = scores_RHXN.masked_fill(~mask_RN[:, None, None, start : start + block], LOWEST)
            new_top = torch.maximum(top, scores_RHXN.amax(-1, keepdim=True))
            weights_RHXN = (scores_RHXN - new_top).exp()
            old = (top - new_top).exp()
            total = total * old + weights_RHXN.sum(-1, keepdim=True)
            mixed = mixed * old + weights_RHXN @ value_RHNE
            top = new_top
        return mixed / total

    def shares(self, x_RXD: Tensor, bank_RND: Tensor, mask_RN: Tensor | None) -> Tensor:
        """Attention weights averaged over heads, [R, X, N]; for supervision and inspection."""
        query_RHXE = self._split(self.query(self.norm(x_RXD)))
        key_RHNE, _ = self._keys_values(bank_RND)
        scores_RHXN = query_RHXE @ key_RHNE.transpose(-1, -2) * query_RHXE.shape[-1] ** -0.5
        if mask_RN is not None:
            scores_RHXN = scores_RHXN.masked_fill(~mask_RN[:, None, None, :], LOWEST)
        shares_RHXN: Tensor = scores_RHXN.softmax(-1)
        return shares_RHXN.mean(1)


class Aggregator(nn.Module):
    """The aggregation network h_psi: question tokens and a bank to one latent per question."""

    def __init__(self, width: int, blocks: int = 4, heads: int = 8, head_dim: int = 96) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(BankAttention(width, heads, head_dim) for _ in range(blocks))

    def forward(
        self, x_RQTD: Tensor, bank_RKTD: Tensor, mask_RK: Tensor | None = None, block: int | None = None
    ) -> Tensor:
        """phi* [R, Q, T, D] of every question over all documents of its reader. `mask_RK`: true where a reader has a
        document; None when all have K; `block`: bank tokens read at a time; None reads all at once (training)."""
        x_RXD, bank_RND, mask_RN = _flat(x_RQTD, bank_RKTD, mask_RK)
        for layer in self.blocks:
            x_RXD = layer(x_RXD, bank_RND, mask_RN, block)
        return x_RXD.view(x_RQTD.shape)

    def document_shares(self, x_RQTD: Tensor, bank_RKTD: Tensor, mask_RK: Tensor | None = None) -> Tensor:
        """How much attention each question pays to each document, [R, Q, K]: mean over blocks, heads and tokens."""
        x_RXD, bank_RND, mask_RN = _flat(x_RQTD, bank_RKTD, mask_RK)
        shares = []
        for number, layer in enumerate(self.blocks, start=1):
            assert isinstance(layer, BankAttention)
            shares.append(layer.shares(x_RXD, bank_RND, mask_RN))
            if number < len(self.blocks):
                x_RXD = layer(x_RXD, bank_RND, mask_RN, None)
        readers, questions, tokens, _ = x_RQTD.shape
        documents, per_document = bank_RKTD.shape[1:3]
        mean_RXN = torch.stack(shares).mean(0)
        return mean_RXN.view(readers, questions, tokens, documents, per_document).sum(-1).mean(2)


def _flat(x_RQTD: Tensor, bank_RKTD: Tensor, mask_RK: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    mask_RN = None if mask_RK is None else mask_RK.repeat_interleave(bank_RKTD.shape[2], dim=1)
    return x_RQTD.flatten(1, 2), bank_RKTD.flatten(1, 2), mask_RN


def latent(
    aggregator: Aggregator, x_QTD: Tensor, bank_KTD: Tensor, group: int, block: int, by: HierarchyBy = "aggregated"
) -> Tensor:
    """phi* [Q, T, D] of every question over one reader's documents. `group`: M, at least 2; the last group of a level
    may be smaller; `block`: about how many tokens of entries are read at a time."""
    if by == "attended":
        entries_OKTD = _most_attended(aggregator, x_QTD, bank_KTD, group, block)
        return by_group(aggregator, x_QTD, entries_OKTD, group, block)[:, 0]
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
        entries_OKTD, documents = by_group(aggregator, x_QTD, entries_OKTD, group, block), documents * group
        yield entries_OKTD, documents
        if entries_OKTD.shape[1] == 1:
            return


def random_group(documents: int) -> int:
    """A size of groups, by torch's randomness, with which so many documents make a tree of two or three levels."""
    fewest = max(2, round(documents ** (1 / 3)))
    return int(torch.randint(fewest, max(fewest, math.ceil(documents / 2)) + 1, ()))


def _most_attended(aggregator: Aggregator, x_QTD: Tensor, bank_KTD: Tensor, group: int, block: int) -> Tensor:
    """At most `group` documents, those that the question attends to most in the groups of every level."""
    entries_OKTD = bank_KTD[None]
    while (count := entries_OKTD.shape[1]) > group:
        shares_QGM = by_group(aggregator.document_shares, x_QTD, entries_OKTD, group, block)
        first_G = torch.arange(0, count, group, device=shares_QGM.device)
        place_QG = first_G + shares_QGM.argmax(-1)
        owner_Q1 = torch.arange(len(place_QG), device=place_QG.device)[:, None] if len(entries_OKTD) > 1 else 0
        entries_OKTD = entries_OKTD[owner_Q1, place_QG]
    return entries_OKTD


def by_group(
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
