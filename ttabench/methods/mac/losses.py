"""What MAC is trained on (Algorithm 1), and auxiliary losses beyond the paper that are off by default.

Shape letters: K documents of an episode · C documents that carry gradient · Q questions of an episode · M those of them
whose document is known · N questions of all episodes · T latent tokens · D base width · E width of the T5 · V its
vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Episode, Observe
from ttabench.lm.verbs.scoring import nll
from ttabench.methods.mac import MacSettings
from ttabench.methods.mac.networks import MacNetworks
from ttabench.methods.trainable import training_item

SMALLEST_SHARE = 1e-9
"""Added before the logarithm of an attention share, which may underflow."""
TEMPERATURE = 0.05
"""Of the cosines in `retrieval_aux`."""
WORD_SCALE = 3.0
"""Sharpens the T5's head: a state is normalised, and has to name several words at once."""


@dataclass(frozen=True)
class Lesson:
    """One episode as tensors."""

    bank_KTD: Tensor
    x_QTD: Tensor
    slots_M: Tensor
    """Questions whose document is known (`Ask.source_key`)."""
    own_M: Tensor
    """Its place in the bank."""

    @classmethod
    def of(cls, bank_KTD: Tensor, x_QTD: Tensor, pieces: Sequence[Observe], asks: Sequence[Ask]) -> Lesson:
        """What was read and asked, with latents of documents and questions."""
        keys = {piece.key: place for place, piece in reversed(list(enumerate(pieces)))}
        pairs = [(at, keys[ask.source_key]) for at, ask in enumerate(asks) if ask.source_key and ask.source_key in keys]
        slots_M, own_M = torch.tensor(pairs, dtype=torch.int64, device=bank_KTD.device).view(-1, 2).unbind(1)
        return cls(bank_KTD, x_QTD, slots_M, own_M)


def loss_parts(mac: MacNetworks, episodes: Sequence[Episode]) -> dict[str, Tensor]:
    """Weighted losses by name: of the answers, and the auxiliary ones that the settings switch on."""
    s, episodes = mac.settings, [episode for episode in episodes if episode.observes()]
    if not episodes:
        raise UserError("MAC trains on documents, and no episode of a step has one.", "Give more --documents.")
    pieces = [episode.observes() for episode in episodes]
    carries = [_carrying(s, len(read)) for read in pieces]
    few = s.lite == "released" and s.backprop_dropout > 0  # as many questions as documents that carry gradient
    asks = [one.asks()[: len(carry) if few else None] for one, carry in zip(episodes, carries, strict=True)]
    flat = [ask for group in asks for ask in group]
    assert flat, "training episodes without a query"
    banks, ids_C, states_CTE = _banks(mac, pieces, carries)
    x_NTD = mac.questions([ask.question_text for ask in flat])
    questions = torch.split(x_NTD, [len(group) for group in asks])
    lessons = list(map(Lesson.of, banks, questions, pieces, asks))
    latents = [mac.aggregator(one.x_QTD[None], one.bank_KTD[None])[0] for one in lessons]
    items = [training_item(mac.lm, ask, s.question_tokens) for ask in flat]
    total, tokens = nll(mac.lm, mac.modulate(torch.cat(latents)), items)
    parts = {"answer": total / tokens}
    known = any(len(lesson.own_M) for lesson in lessons)
    if known and s.retrieval_aux:
        parts["retrieval"] = s.retrieval_aux * _retrieval(lessons)
    if known and s.attention_aux:
        look = mac.aggregator.document_shares
        own = [look(one.x_QTD[None], one.bank_KTD[None])[0, one.slots_M, one.own_M] for one in lessons]
        parts["attention"] = -s.attention_aux * (torch.cat(own) + SMALLEST_SHARE).log().mean()
    if s.words_aux:
        parts["words"] = s.words_aux * _words(mac, ids_C, states_CTE)
    return parts


def _carrying(s: MacSettings, documents: int) -> set[int]:
    """The documents of an episode that carry gradient."""
    if s.lite == "released":
        share = round(1 - s.backprop_dropout, 9)  # 1 - 0.8 falls just short of 0.2, and 10 documents of 2
        return set(range(max(1, int(share * documents))))
    count = max(1, round((1 - s.backprop_dropout) * documents))
    return set(torch.randperm(documents)[:count].tolist()) if count < documents else set(range(documents))


def _banks(
    mac: MacNetworks, pieces: Sequence[Sequence[Observe]], carries: Sequence[set[int]]
) -> tuple[list[Tensor], list[list[int]], Tensor]:
    """Latents [K, T, D] of an episode's documents; ids and states [C, T, E] of those that carry gradient."""
    texts = [piece.text for read in pieces for piece in read]
    ids, _ = mac.document_text.encode(texts, mac.settings.document_tokens, "start")
    carried = [place in carry for read, carry in zip(pieces, carries, strict=True) for place in range(len(read))]
    order = sorted(range(len(ids)), key=lambda place: not carried[place])
    split = sum(carried)
    states_CTE = mac.document_states([ids[place] for place in order[:split]])
    latents = mac.amortiser.lifted(states_CTE)
    if order[split:]:
        with torch.no_grad():
            fixed = mac.documents([ids[place] for place in order[split:]])
        latents = torch.cat([latents, fixed])[torch.tensor(order, device=latents.device).argsort()]
    return list(torch.split(latents, list(map(len, pieces)))), [ids[place] for place in order[:split]], states_CTE


def _retrieval(lessons: Sequence[Lesson]) -> Tensor:
    """Cosines of mean latents over `TEMPERATURE`; the candidates are the documents of all episodes in the batch."""
    candidates = normalize(torch.cat([lesson.bank_KTD for lesson in lessons]).mean(1), dim=-1)
    before = torch.tensor([0, *(len(lesson.bank_KTD) for lesson in lessons)]).cumsum(0).tolist()
    target = torch.cat([lesson.own_M + first for lesson, first in zip(lessons, before, strict=False)])
    questions = normalize(torch.cat([lesson.x_QTD[lesson.slots_M] for lesson in lessons]).mean(1), dim=-1)
    return cross_entropy(questions @ candidates.T / TEMPERATURE, target)


def _words(mac: MacNetworks, ids_C: Sequence[list[int]], states_CTE: Tensor) -> Tensor:
    """Documents whose decoder states tell their words: each word weighs its inverse document frequency, and the
    weights [C, V] of a document sum to 1."""
    head_VE = mac.amortiser.t5.get_input_embeddings().weight
    held_CV = torch.zeros(len(ids_C), len(head_VE))
    for row, words in zip(held_CV, ids_C, strict=True):
        row[words[:-1]] = 1
    rarity_CV = held_CV * (len(held_CV) / held_CV.sum(0).clamp(min=1)).log()
    weights_CV = (rarity_CV / rarity_CV.sum(1, keepdim=True).clamp(min=1e-6)).to(head_VE.device)
    logits_CV = states_CTE.mean(1) @ head_VE.T * WORD_SCALE * head_VE.shape[1] ** -0.5
    return -(weights_CV * logits_CV.log_softmax(-1)).sum(1).mean()
