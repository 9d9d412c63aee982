"""What MAC is trained on (Algorithm 1), and auxiliary losses beyond the paper that are off by default.

Shape letters: R episodes · K documents · C documents that carry gradient · Q questions · N questions of all episodes ·
T latent tokens · D base width · E width of the T5 · V its vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.utils.rnn import pad_sequence

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Episode
from ttabench.lm.verbs.scoring import nll
from ttabench.methods.mac import pooling
from ttabench.methods.mac.networks import MacNetworks
from ttabench.methods.mac.t5 import word_size
from ttabench.methods.trainable import training_item

SMALLEST_SHARE = 1e-9
"""Added before the logarithm of an attention share, which may underflow."""
WORD_SCALE = 3.0
"""Sharpens the T5's head: a state is normalised, and has to name several words at once."""


@dataclass(frozen=True)
class Batch:
    """Episodes as tensors; questions of all episodes lie one after the other."""

    bank_RKTD: Tensor
    mask_RK: Tensor
    ids_C: list[list[int]]
    """T5 ids of the documents that carry gradient."""
    states_CTE: Tensor
    """Their decoder states, before the MLPs."""
    asks: list[Ask]
    episode_N: Tensor
    """The episode of each question."""
    slot_N: Tensor
    """Its place among the questions of that episode."""
    own_N: Tensor
    """Index of the document with its answer in the episode's bank; -1 where `Ask.source_key` names none."""
    x_NTD: Tensor

    def by_episode(self) -> Tensor:
        """Query tokens [R, Q, T, D], zero where an episode has fewer questions."""
        questions = int(self.slot_N.max()) + 1
        x_RQTD = self.x_NTD.new_zeros(self.bank_RKTD.shape[0], questions, *self.x_NTD.shape[1:])
        return x_RQTD.index_put((self.episode_N, self.slot_N), self.x_NTD)


class Objective:
    """The training loss of MAC's networks."""

    def __init__(self, mac: MacNetworks) -> None:
        self.mac = mac

    def parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Weighted losses by name, see the module's text."""
        mac, s = self.mac, self.mac.settings
        batch = self._batch(episodes)
        whole_RQTD, upper_shares = self._aggregated(batch)
        parts = {"answer": self._answers(batch.asks, whole_RQTD[batch.episode_N, batch.slot_N])}
        known = (batch.own_N >= 0).nonzero()[:, 0]
        if known.numel() and s.own_aux:
            own_N1TD = batch.bank_RKTD[batch.episode_N[known], batch.own_N[known]][:, None]
            latent = mac.aggregator(batch.x_NTD[known][:, None], own_N1TD)[:, 0]
            parts["own"] = s.own_aux * self._answers([batch.asks[index] for index in known.tolist()], latent)
        if known.numel() and s.retrieval_aux:
            parts["retrieval"] = s.retrieval_aux * self._retrieval(batch, known)
        if known.numel() and s.attention_aux:
            shares = mac.aggregator.document_shares(batch.by_episode(), batch.bank_RKTD, batch.mask_RK)
            own_share_N = shares[batch.episode_N[known], batch.slot_N[known], batch.own_N[known]]
            parts["attention"] = -s.attention_aux * (own_share_N + SMALLEST_SHARE).log().mean()
        if upper_shares and s.attention_aux:
            parts["tree"] = -s.attention_aux * (torch.cat(upper_shares) + SMALLEST_SHARE).log().mean()
        if s.words_aux:
            parts["words"] = s.words_aux * self._words(batch)
        return parts

    def _aggregated(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """phi* [R, Q, T, D], in `hierarchy_aware` of the episodes by a tree; and the attention that the questions of
        those pay, at each upper level, to the entry that holds their own document."""
        x_RQTD, bank_RKTD, mask_RK = batch.by_episode(), batch.bank_RKTD, batch.mask_RK
        share, rows = self.mac.settings.hierarchy_aware, range(len(x_RQTD))
        trees = [row for row, drawn in zip(rows, torch.rand(len(rows)).tolist(), strict=True) if drawn < share]
        if not share or not trees:
            return self.mac.aggregator(x_RQTD, bank_RKTD, mask_RK), []
        flat = [row for row in rows if row not in trees]
        latents: dict[int, Tensor] = {}
        if flat:
            latents.update(zip(flat, self.mac.aggregator(x_RQTD[flat], bank_RKTD[flat], mask_RK[flat]), strict=True))
        shares: list[Tensor] = []
        for row in trees:
            asked_N = batch.episode_N == row
            own_Q = torch.full((x_RQTD.shape[1],), -1, device=x_RQTD.device)
            own_Q[batch.slot_N[asked_N]] = batch.own_N[asked_N]
            latents[row], upper = self._by_tree(x_RQTD[row], bank_RKTD[row, mask_RK[row]], own_Q)
            shares += upper
        return torch.stack([latents[row] for row in rows]), shares

    def _by_tree(self, x_QTD: Tensor, bank_KTD: Tensor, own_Q: Tensor) -> tuple[Tensor, list[Tensor]]:
        """phi* [Q, T, D] of an episode by a tree of groups of random size, and attention as `_aggregated` gives it."""
        aggregator, shares, entries_QKTD = self.mac.aggregator, list[Tensor](), bank_KTD[None]
        known = (own_Q >= 0).nonzero()[:, 0]
        group = pooling.random_group(len(bank_KTD))
        for entries_QKTD, documents in pooling.levels(
            aggregator, x_QTD, bank_KTD, group, len(bank_KTD) * x_QTD.shape[1]
        ):
            if entries_QKTD.shape[1] > 1 and known.numel() and self.mac.settings.attention_aux:
                shares_QK = aggregator.document_shares(x_QTD[:, None], entries_QKTD)[:, 0]
                shares.append(shares_QK[known, own_Q[known] // documents])
        return entries_QKTD[:, 0], shares

    def _batch(self, episodes: Sequence[Episode]) -> Batch:
        mac = self.mac
        episodes = [episode for episode in episodes if episode.observes()]
        if not episodes:
            raise UserError("MAC trains on documents, and no episode of a step has one.", "Give more --documents.")
        observes = [episode.observes() for episode in episodes]
        carries = [self._carrying(len(pieces)) for pieces in observes]
        asks = [self._asked(episode, carry) for episode, carry in zip(episodes, carries, strict=True)]
        banks, ids_C, states_CTE = self._banks([[piece.text for piece in pieces] for pieces in observes], carries)
        lengths = torch.tensor([len(bank) for bank in banks], device=mac.lm.device)
        bank_RKTD = pad_sequence(banks, batch_first=True)
        own = [_own(ask, [piece.key for piece in observes[row]]) for row, group in enumerate(asks) for ask in group]
        flat = [ask for group in asks for ask in group]
        assert flat, "training episodes without a query"
        return Batch(
            bank_RKTD,
            torch.arange(bank_RKTD.shape[1], device=mac.lm.device) < lengths[:, None],
            ids_C,
            states_CTE,
            flat,
            torch.tensor([row for row, group in enumerate(asks) for _ in group], device=mac.lm.device),
            torch.tensor([slot for group in asks for slot in range(len(group))], device=mac.lm.device),
            torch.tensor(own, device=mac.lm.device),
            mac.questions([ask.question_text for ask in flat]),
        )

    def _carrying(self, documents: int) -> set[int]:
        """The documents of an episode that carry gradient."""
        s = self.mac.settings
        if s.lite == "released":
            share = round(1 - s.backprop_dropout, 9)  # 1 - 0.8 falls just short of 0.2, and 10 documents of 2
            return set(range(max(1, int(share * documents))))
        count = max(1, round((1 - s.backprop_dropout) * documents))
        return set(torch.randperm(documents)[:count].tolist()) if count < documents else set(range(documents))

    def _asked(self, episode: Episode, carrying: set[int]) -> list[Ask]:
        """All questions; with `lite=released` and dropout only the first ones, as many as documents carry gradient."""
        s = self.mac.settings
        asks = episode.asks()
        return asks[: len(carrying)] if s.lite == "released" and s.backprop_dropout else asks

    def _banks(
        self, texts: Sequence[Sequence[str]], carries: Sequence[set[int]]
    ) -> tuple[list[Tensor], list[list[int]], Tensor]:
        """Latents [K, T, D] of an episode's documents; ids and states [C, T, E] of those that carry gradient."""
        mac = self.mac
        flat = [text for row in texts for text in row]
        ids, _ = mac.document_text.encode(flat, mac.settings.document_tokens, "start")
        pairs = [(row, index) for row, group in enumerate(texts) for index in range(len(group))]
        carrying = [place for place, (row, index) in enumerate(pairs) if index in carries[row]]
        rest = [place for place, (row, index) in enumerate(pairs) if index not in carries[row]]
        states_CTE = mac.document_states([ids[place] for place in carrying])
        latents = mac.amortiser.lifted(states_CTE)
        if rest:
            with torch.no_grad():
                fixed = mac.documents([ids[place] for place in rest])
            order = torch.tensor(carrying + rest, device=latents.device).argsort()
            latents = torch.cat([latents, fixed])[order]
        banks = list(torch.split(latents, [len(group) for group in texts]))
        return banks, [ids[place] for place in carrying], states_CTE

    def _answers(self, asks: Sequence[Ask], latent_NTD: Tensor) -> Tensor:
        mac = self.mac
        items = [training_item(mac.lm, ask, mac.settings.question_tokens) for ask in asks]
        patch = mac.modulate(latent_NTD)
        if mac.settings.base_dropout:
            mac.lm.model.train()
        try:
            total, tokens = nll(mac.lm, patch, items)
        finally:
            mac.lm.model.eval()
        return total / tokens

    def _retrieval(self, batch: Batch, known: Tensor) -> Tensor:
        """Cosines of mean latents over a temperature; the candidates are the documents of all episodes in the batch."""
        candidates = normalize(batch.bank_RKTD[batch.mask_RK].mean(1), dim=-1)
        before_R = nn.functional.pad(batch.mask_RK.sum(1).cumsum(0), (1, 0))
        target = before_R[batch.episode_N[known]] + batch.own_N[known]
        questions = normalize(batch.x_NTD[known].mean(1), dim=-1)
        return cross_entropy(questions @ candidates.T / self.mac.settings.retrieval_temperature, target)

    def _words(self, batch: Batch) -> Tensor:
        """Documents whose decoder states tell their words, see the module's text."""
        head_VE = self.mac.amortiser.words
        ids = [row[:-1] for row in batch.ids_C]
        weights_CV = telling(ids, len(head_VE)).to(head_VE.device)
        scale = WORD_SCALE * head_VE.shape[1] ** -0.5 / word_size(self.mac.amortiser.transformer)
        logits_CV = batch.states_CTE.mean(1) @ head_VE.T * scale
        loss: Tensor = -(weights_CV * logits_CV.log_softmax(-1)).sum(1).mean()
        return loss


def telling(ids: Sequence[list[int]], vocabulary: int) -> Tensor:
    """Per document, how much each word tells it from the others: inverse document frequency, rows sum to 1, [N, V]."""
    held_NV = torch.zeros(len(ids), vocabulary)
    for row, words in zip(held_NV, ids, strict=True):
        row[words] = 1
    rarity_NV = held_NV * (len(ids) / held_NV.sum(0).clamp(min=1)).log()
    return rarity_NV / rarity_NV.sum(1, keepdim=True).clamp(min=1e-6)


def _own(ask: Ask, keys: Sequence[str]) -> int:
    return keys.index(ask.source_key) if ask.source_key and ask.source_key in keys else -1
