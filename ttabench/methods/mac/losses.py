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
from ttabench.methods.mac import MacSettings, pooling
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
    x_RQTD: Tensor
    """The same by episode, zero where one has fewer questions."""


def loss_parts(mac: MacNetworks, episodes: Sequence[Episode]) -> dict[str, Tensor]:
    """Weighted losses by name: of the answers, and the auxiliary ones that the settings switch on."""
    s, batch = mac.settings, _batch(mac, episodes)
    whole_RQTD, upper_shares = _aggregated(mac, batch)
    parts = {"answer": _answers(mac, batch.asks, whole_RQTD[batch.episode_N, batch.slot_N])}
    known = (batch.own_N >= 0).nonzero()[:, 0]
    if known.numel() and s.retrieval_aux:
        parts["retrieval"] = s.retrieval_aux * _retrieval(batch, known, s.retrieval_temperature)
    if known.numel() and s.attention_aux:
        shares = mac.aggregator.document_shares(batch.x_RQTD, batch.bank_RKTD, batch.mask_RK)
        own_share_N = shares[batch.episode_N[known], batch.slot_N[known], batch.own_N[known]]
        parts["attention"] = -s.attention_aux * (own_share_N + SMALLEST_SHARE).log().mean()
    if upper_shares and s.attention_aux:
        parts["tree"] = -s.attention_aux * (torch.cat(upper_shares) + SMALLEST_SHARE).log().mean()
    if s.words_aux:
        parts["words"] = s.words_aux * _words(mac, batch)
    return parts


def _aggregated(mac: MacNetworks, batch: Batch) -> tuple[Tensor, list[Tensor]]:
    """phi* [R, Q, T, D], in `hierarchy_aware` of the episodes by a tree of groups of random size; and the attention
    that the questions of those pay, at each upper level, to the entry that holds their own document."""
    share, aggregator, shares = mac.settings.hierarchy_aware, mac.aggregator, list[Tensor]()
    trees = [drawn < share for drawn in torch.rand(len(batch.bank_RKTD)).tolist()]
    if not any(trees):
        return aggregator(batch.x_RQTD, batch.bank_RKTD, batch.mask_RK), shares
    latents = []
    for row, (x_QTD, bank_KTD, mask_K) in enumerate(zip(batch.x_RQTD, batch.bank_RKTD, batch.mask_RK, strict=True)):
        if not trees[row]:
            latents.append(aggregator(x_QTD[None], bank_KTD[None], mask_K[None])[0])
            continue
        mine = (batch.episode_N == row) & (batch.own_N >= 0)
        slots, own, documents = batch.slot_N[mine], batch.own_N[mine], int(mask_K.sum())
        for entries_QKTD, held in pooling.levels(aggregator, x_QTD, bank_KTD[mask_K], pooling.random_group(documents)):
            if entries_QKTD.shape[1] > 1 and len(own) and mac.settings.attention_aux:
                shares_QK = aggregator.document_shares(x_QTD[:, None], entries_QKTD)[:, 0]
                shares.append(shares_QK[slots, own // held])
        latents.append(entries_QKTD[:, 0])
    return torch.stack(latents), shares


def _batch(mac: MacNetworks, episodes: Sequence[Episode]) -> Batch:
    episodes = [episode for episode in episodes if episode.observes()]
    if not episodes:
        raise UserError("MAC trains on documents, and no episode of a step has one.", "Give more --documents.")
    observes, s, device = [episode.observes() for episode in episodes], mac.settings, mac.lm.device
    carries = [_carrying(s, len(pieces)) for pieces in observes]
    few = s.lite == "released" and s.backprop_dropout > 0  # as many questions as documents that carry gradient
    pairs = zip(episodes, carries, strict=True)
    asks = [episode.asks()[: len(carry) if few else None] for episode, carry in pairs]
    banks, ids_C, states_CTE = _banks(mac, [[piece.text for piece in pieces] for pieces in observes], carries)
    flat = [ask for group in asks for ask in group]
    assert flat, "training episodes without a query"
    keys = [[piece.key for piece in pieces] for pieces in observes]
    own = [
        keys[row].index(ask.source_key) if ask.source_key and ask.source_key in keys[row] else -1
        for row, group in enumerate(asks)
        for ask in group
    ]
    x_NTD = mac.questions([ask.question_text for ask in flat])
    x_RQTD = pad_sequence(list(torch.split(x_NTD, [len(group) for group in asks])), batch_first=True)
    lengths = torch.tensor([len(bank) for bank in banks], device=device)
    return Batch(
        bank_RKTD=pad_sequence(banks, batch_first=True),
        mask_RK=torch.arange(int(lengths.max()), device=device) < lengths[:, None],
        ids_C=ids_C,
        states_CTE=states_CTE,
        asks=flat,
        episode_N=torch.tensor([row for row, group in enumerate(asks) for _ in group], device=device),
        slot_N=torch.tensor([slot for group in asks for slot in range(len(group))], device=device),
        own_N=torch.tensor(own, device=device),
        x_NTD=x_NTD,
        x_RQTD=x_RQTD,
    )


def _carrying(s: MacSettings, documents: int) -> set[int]:
    """The documents of an episode that carry gradient."""
    if s.lite == "released":
        share = round(1 - s.backprop_dropout, 9)  # 1 - 0.8 falls just short of 0.2, and 10 documents of 2
        return set(range(max(1, int(share * documents))))
    count = max(1, round((1 - s.backprop_dropout) * documents))
    return set(torch.randperm(documents)[:count].tolist()) if count < documents else set(range(documents))


def _banks(
    mac: MacNetworks, texts: Sequence[Sequence[str]], carries: Sequence[set[int]]
) -> tuple[list[Tensor], list[list[int]], Tensor]:
    """Latents [K, T, D] of an episode's documents; ids and states [C, T, E] of those that carry gradient."""
    ids, _ = mac.document_text.encode([text for row in texts for text in row], mac.settings.document_tokens, "start")
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
    return list(torch.split(latents, [len(group) for group in texts])), [ids[place] for place in carrying], states_CTE


def _answers(mac: MacNetworks, asks: Sequence[Ask], latent_NTD: Tensor) -> Tensor:
    items = [training_item(mac.lm, ask, mac.settings.question_tokens) for ask in asks]
    patch = mac.modulate(latent_NTD)
    if mac.settings.base_dropout:
        mac.lm.model.train()
    try:
        total, tokens = nll(mac.lm, patch, items)
    finally:
        mac.lm.model.eval()
    return total / tokens


def _retrieval(batch: Batch, known: Tensor, temperature: float) -> Tensor:
    """Cosines of mean latents over a temperature; the candidates are the documents of all episodes in the batch."""
    candidates = normalize(batch.bank_RKTD[batch.mask_RK].mean(1), dim=-1)
    before_R = nn.functional.pad(batch.mask_RK.sum(1).cumsum(0), (1, 0))
    target = before_R[batch.episode_N[known]] + batch.own_N[known]
    questions = normalize(batch.x_NTD[known].mean(1), dim=-1)
    return cross_entropy(questions @ candidates.T / temperature, target)


def _words(mac: MacNetworks, batch: Batch) -> Tensor:
    """Documents whose decoder states tell their words: each word weighs its inverse document frequency, and the
    weights [C, V] of a document sum to 1."""
    head_VE = mac.amortiser.words
    held_CV = torch.zeros(len(batch.ids_C), len(head_VE))
    for row, words in zip(held_CV, batch.ids_C, strict=True):
        row[words[:-1]] = 1
    rarity_CV = held_CV * (len(held_CV) / held_CV.sum(0).clamp(min=1)).log()
    weights_CV = (rarity_CV / rarity_CV.sum(1, keepdim=True).clamp(min=1e-6)).to(head_VE.device)
    scale = WORD_SCALE * head_VE.shape[1] ** -0.5 / word_size(mac.amortiser.transformer)
    logits_CV = batch.states_CTE.mean(1) @ head_VE.T * scale
    loss: Tensor = -(weights_CV * logits_CV.log_softmax(-1)).sum(1).mean()
    return loss
