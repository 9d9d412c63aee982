"""Keep a bank of document latents within a size: drop one, or average two, whenever an append exceeds it.

Paper: Tack et al., arXiv 2403.04317, section 4.3 and Figure 7 (nearest is best there).
Shape letters: K entries · T tokens · D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from ttabench.methods.mac.settings import MacSettings

Members: TypeAlias = list[list[str]]


def append(
    bank_KTD: Tensor, members: Members, new_NTD: Tensor, names: Sequence[str], settings: MacSettings, read: int
) -> tuple[Tensor, Members]:
    """The bank with N further entries, reduced to the cap, and the document names behind each entry. One call with N
    entries gives what N calls with one entry give. `read`: documents this bank has taken in before, dropped and
    averaged ones included; it seeds the random rules."""
    cap = settings.bank_cap
    if not cap or len(bank_KTD) + len(new_NTD) <= cap:
        return torch.cat([bank_KTD, new_NTD]), [*members, *([name] for name in names)]
    members = [list(entry) for entry in members]
    work = _Work(bank_KTD, settings, capacity=cap + 1)
    for index, (latent, name) in enumerate(zip(new_NTD, names, strict=True)):
        work.add(latent)
        members.append([name])
        if work.count > cap:
            first, second = work.pair(read + index)
            if settings.bank_reduce != "random":
                work.average(first, second, len(members[first]), len(members[second]))
                members[first] += members[second]
            work.drop(second)
            del members[second]
    return work.bank(), members


class _Work:
    """A bank being filled: entries as rows of one buffer, and the cosines of all pairs kept up to date."""

    def __init__(self, bank_KTD: Tensor, settings: MacSettings, capacity: int) -> None:
        self.settings = settings
        self.count = 0
        self.entries = bank_KTD.new_zeros(capacity, *bank_KTD.shape[1:])
        nearest = settings.bank_reduce == "average_nearest"
        device = bank_KTD.device
        self.unit = torch.zeros(capacity, self.entries[0].numel() if nearest else 0, device=device)
        self.cosine = torch.full((capacity, capacity) if nearest else (0, 0), -2.0, device=device)
        for entry in bank_KTD:
            self.add(entry)

    def bank(self) -> Tensor:
        return self.entries[: self.count].clone()

    def add(self, latent_TD: Tensor) -> None:
        self.count += 1
        self._set(self.count - 1, latent_TD)

    def pair(self, read: int) -> tuple[int, int]:
        """The index that keeps an average, and the index that leaves. `read` seeds the draw of this append."""
        if self.settings.bank_reduce == "average_nearest":
            flat = int(self.cosine[: self.count, : self.count].argmax())
            return flat // self.count, flat % self.count
        draw = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + read)
        order = torch.randperm(self.count, generator=draw)[:2].tolist()
        if self.settings.bank_reduce == "random":
            return order[1], order[0]
        return min(order), max(order)

    def average(self, first: int, second: int, members_first: int, members_second: int) -> None:
        share = members_first / (members_first + members_second) if self.settings.merge_weighted else 0.5
        mixed = self.entries[first].float() * share + self.entries[second].float() * (1 - share)
        self._set(first, mixed.to(self.entries.dtype))

    def drop(self, index: int) -> None:
        for table in (self.entries, self.unit, self.cosine):
            table[index : self.count - 1] = table[index + 1 : self.count].clone()
        self.cosine[:, index : self.count - 1] = self.cosine[:, index + 1 : self.count].clone()
        self.count -= 1

    def _set(self, index: int, latent_TD: Tensor) -> None:
        """Pairs stand above the diagonal only, so that the first maximum is the one with the lowest indices."""
        self.entries[index] = latent_TD
        if not self.cosine.numel():
            return
        self.unit[index] = torch.nn.functional.normalize(self.entries[index].float().flatten(), dim=0)
        cosines = self.unit[: self.count] @ self.unit[index]
        self.cosine[:index, index] = cosines[:index]
        self.cosine[index, index + 1 : self.count] = cosines[index + 1 :]
