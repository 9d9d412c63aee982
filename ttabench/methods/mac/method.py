"""MAC, Memory of Amortized Contexts: a bank of document latents, and per question a prefix aggregated from it.

Paper: Tack et al., "Online Adaptation of Language Models with a Memory of Amortized Contexts", arXiv 2403.04317.
What it is trained on is Algorithm 1, and auxiliary losses beyond the paper that are off by default.
Shape letters: R readers · K documents of a reader or an episode · N new ones, or questions of all episodes ·
P documents of both · B questions · Q questions of a reader or an episode · M those whose document is known ·
C documents that carry gradient · T latent tokens · D base width · E width of the T5 · V its vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from ttabench.core.errors import UserError
from ttabench.core.types import Chunk, Episode, Query
from ttabench.lm.inference.scoring import answer_nll
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.mac import MAC, MacSettings
from ttabench.methods.mac.networks import MacNetworks, aggregate_hierarchy
from ttabench.methods.trainable import Trainable, training_item


class Mac(Trainable[MacSettings]):
    """Memory of Amortized Contexts. State: tensors `bank` [R, K, T, D] (each reader's entries first, zeros after)
    and `counts` [R]. Its `meta` keeps, per reader: T5 tokens read, documents truncated, digests of texts read, names
    of the documents behind each entry."""

    spec = MAC
    counts = ("tokens_read", "truncated_documents")
    required_capabilities = ("cache", "shape")

    def __init__(self, lm: LM, settings: MacSettings) -> None:
        super().__init__(lm, settings)
        self.growth = "constant" if settings.bank_cap else "linear"
        self.networks = MacNetworks(lm, settings)

    def modules(self) -> nn.ModuleDict:
        """amortiser, input_encoder, aggregator, expansion."""
        return nn.ModuleDict(dict(self.networks.named_children()))

    def prepare_training(self, first: Sequence[Episode] = ()) -> None:  # noqa: ARG002  # the contract's arguments
        """Load pretrained T5s, see `MacNetworks.load_pretrained`."""
        self.networks.load_pretrained()

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Algorithm 1, with the auxiliary losses that the settings switch on."""
        return loss_parts(self.networks, episodes)

    def begin(self, rows: int) -> State:
        """Empty banks."""
        return State(
            rows, meta={**super().begin(rows).meta, "read": [[]] * rows, "members": [[]] * rows}
        )

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Append documents in order; all of them are amortised in batches of like length."""
        meta = {key: list(values) for key, values in state.meta.items()}
        banks = [self._row_bank(state, row) for row in range(state.rows)]
        new_documents = [
            self._unread_documents(meta["read"][row], [chunk[row] for chunk in chunks])
            for row in range(state.rows)
        ]
        texts = [document.text for documents in new_documents for _, document in documents]
        ids, lengths = self.networks.document_tokenizer.encode(
            texts, self.settings.document_tokens, "start"
        )
        latents_NTD = self.networks.encode_documents_by_length(ids).to(banks[0].dtype)
        start = 0
        for row, documents in enumerate(new_documents):
            span, read, members = (
                slice(start, start + len(documents)),
                meta["read"][row],
                meta["members"][row],
            )
            names = [document.key or digest for digest, document in documents]
            added = append_to_bank(
                banks[row], members, latents_NTD[span], names, self.settings, len(read)
            )
            banks[row], meta["members"][row] = added
            meta["read"][row] = [*read, *(digest for digest, _ in documents)]
            meta["tokens_read"][row] += sum(map(len, ids[span]))
            cut = [len(kept) < full for kept, full in zip(ids[span], lengths[span], strict=True)]
            meta["truncated_documents"][row] += sum(cut)
            start = span.stop
        return replace(state, tensors=_stack_banks(banks), meta=meta)

    def combine_states(self, state: State, other: State) -> State:
        """Both banks, one behind the other; documents that stand in the first are left out of the second."""
        known_digests = set(state.meta["read"][0])
        new = [
            number
            for number, digest in enumerate(other.meta["read"][0])
            if digest not in known_digests
        ]
        if self.settings.bank_cap:
            fault = f"Banks that hold no more than bank_cap={self.settings.bank_cap} entries cannot be put together."
            raise UserError(fault, "Read all texts with one command: --context A B.")
        first_KTD, second_KTD = self._row_bank(state, 0), self._row_bank(other, 0)[new]
        meta = {name: [state.meta[name][0] + other.meta[name][0]] for name in self.counts}
        for name in ("read", "members"):
            meta[name] = [[*state.meta[name][0], *(other.meta[name][0][number] for number in new)]]
        return State(1, _stack_banks([torch.cat([first_KTD, second_KTD])]), meta)

    @torch.no_grad()
    def patch(self, state: State, queries: Sequence[Query]) -> Patch:
        """Aggregate the bank for each question: a prefix with one row per question."""
        assert state.rows in (1, len(queries)), (state.rows, len(queries))
        if not queries or "counts" not in state.tensors or not state.tensors["counts"].any():
            return Patch()
        x_BTD = self.networks.encode_questions([query.question_text for query in queries])
        filled_B = state.tensors["counts"].expand(len(queries)) > 0
        return self.networks.modulate(self._aggregate(state, x_BTD), filled_B)

    def _aggregate(self, state: State, x_BTD: Tensor) -> Tensor:
        """phi* [B, T, D]: one reader's bank serves all questions, or each question has its own reader."""
        s, aggregator = self.settings, self.networks.aggregator
        bank_RKTD, counts_R = state.tensors["bank"], state.tensors["counts"]
        x_RQTD = x_BTD[None] if state.rows == 1 else x_BTD[:, None]
        if s.hierarchy is None:
            filled_RK = (
                torch.arange(bank_RKTD.shape[1], device=bank_RKTD.device) < counts_R[:, None]
            )
            mask = None if bool(filled_RK.all()) else filled_RK
            return aggregator(x_RQTD, bank_RKTD, mask).flatten(0, 1)
        rows = []
        for row, x_QTD in enumerate(x_RQTD):
            bank_KTD = self._row_bank(state, row)
            tree = (x_QTD, bank_KTD, s.hierarchy, s.hierarchy_by)
            rows.append(aggregate_hierarchy(aggregator, *tree) if len(bank_KTD) else x_QTD)
        return torch.cat(rows)

    def _row_bank(self, state: State, row: int) -> Tensor:
        """Entries of one reader, [K, T, D]."""
        if "bank" in state.tensors:
            return state.tensors["bank"][row, : int(state.tensors["counts"][row])]
        shape = (0, self.settings.num_virtual_tokens, self.lm.hidden_size)
        return torch.zeros(
            shape, dtype=getattr(torch, self.settings.bank_dtype), device=self.lm.device
        )

    def _unread_documents(
        self, read: Sequence[str], documents: Sequence[Chunk]
    ) -> list[tuple[str, Chunk]]:
        """The pieces whose texts are new, in order, with digests of their texts."""
        new_documents: dict[str, Chunk] = {}
        for document in documents:
            new_documents.setdefault(
                hashlib.blake2b(document.text.encode(), digest_size=6).hexdigest(), document
            )
        before = set(read)
        return [
            (digest, document) for digest, document in new_documents.items() if digest not in before
        ]


def append_to_bank(
    bank_KTD: Tensor,
    members: list[list[str]],
    new_NTD: Tensor,
    names: Sequence[str],
    settings: MacSettings,
    read: int,
) -> tuple[Tensor, list[list[str]]]:
    """The bank with N further entries, and the document names behind each entry. Whenever an append exceeds the cap, an
    entry is dropped or two are averaged (section 4.3 and Figure 7). One call with N entries gives what N calls with one
    entry give, but where two pairs are equally near. `read`: documents this bank has taken in before, dropped and
    averaged ones included; it seeds the random rules."""
    cap, kept, pool_PTD = settings.bank_cap, len(bank_KTD), torch.cat([bank_KTD, new_NTD])
    order, members = list(range(kept)), [*map(list, members), *([name] for name in names)]
    nearest = settings.bank_reduce == "average_nearest" and cap is not None and len(pool_PTD) > cap
    if nearest:  # pairs stand above the diagonal only: of equal ones those count that stand first
        unit_PE = normalize(pool_PTD.float().flatten(1), dim=1)
        cosines_PP = unit_PE @ unit_PE.T
        cosines_PP.masked_fill_(torch.ones_like(cosines_PP).tril().bool(), -2.0)
    for added in range(len(new_NTD)):
        order.append(kept + added)
        if not cap or len(order) <= cap:
            continue
        if nearest:
            first, second = divmod(int(cosines_PP[order][:, order].argmax()), len(order))
        else:
            draw = torch.Generator().manual_seed(settings.seed * 1_000_003 + read + added)
            second, first = torch.randperm(len(order), generator=draw)[:2].tolist()
        if settings.bank_reduce != "random":
            first, second = min(first, second), max(first, second)
            place, dropped = order[first], order[second]
            pool_PTD[place] = (pool_PTD[place].float() * 0.5 + pool_PTD[dropped].float() * 0.5).to(
                pool_PTD.dtype
            )
            members[place] += members[dropped]
        if nearest:  # the mean's alone are others
            unit_PE[place] = normalize(pool_PTD[place].float().flatten(), dim=0)
            cosine_P = unit_PE @ unit_PE[place]
            cosines_PP[:place, place], cosines_PP[place, place + 1 :] = (
                cosine_P[:place],
                cosine_P[place + 1 :],
            )
        del order[second]
    return pool_PTD[order], [members[place] for place in order]


def _stack_banks(banks: Sequence[Tensor]) -> dict[str, Tensor]:
    """Banks of unequal length as one zero-padded tensor [R, K, T, D], and their lengths."""
    padded = nn.utils.rnn.pad_sequence(list(banks), batch_first=True)
    return {
        "bank": padded,
        "counts": torch.tensor([len(entries) for entries in banks], device=padded.device),
    }


LOG_EPSILON = 1e-9
"""Added before the logarithm of an attention share, which may underflow."""
RETRIEVAL_TEMPERATURE = 0.05
"""Of the cosines in `retrieval_aux`."""
WORD_LOGIT_SCALE = 3.0
"""Sharpens the T5's head: a state is normalised, and has to name several words at once."""


@dataclass(frozen=True)
class EpisodeTensors:
    """One episode as tensors."""

    bank_KTD: Tensor
    x_QTD: Tensor
    question_M: Tensor
    """Questions whose document is known (`Ask.source_key`)."""
    document_M: Tensor
    """Its place in the bank."""

    @classmethod
    def from_documents(
        cls, bank_KTD: Tensor, x_QTD: Tensor, documents: Sequence[Chunk], queries: Sequence[Query]
    ) -> EpisodeTensors:
        """What was read and asked, with latents of documents and questions."""
        keys = {document.key: place for place, document in reversed(list(enumerate(documents)))}
        pairs = [
            (at, keys[query.source_key])
            for at, query in enumerate(queries)
            if query.source_key and query.source_key in keys
        ]
        question_M, document_M = (
            torch.tensor(pairs, dtype=torch.int64, device=bank_KTD.device).view(-1, 2).unbind(1)
        )
        return cls(bank_KTD, x_QTD, question_M, document_M)


def loss_parts(mac: MacNetworks, episodes: Sequence[Episode]) -> dict[str, Tensor]:
    """Weighted losses by name: of the answers, and the auxiliary ones that the settings switch on."""
    s, episodes = mac.settings, [episode for episode in episodes if episode.chunks()]
    if not episodes:
        raise UserError(
            "MAC trains on documents, and no episode of a step has one.", "Give more --documents."
        )
    documents = [episode.chunks() for episode in episodes]
    gradient_documents = [_gradient_documents(s, len(read)) for read in documents]
    limits_questions = (
        s.lite == "released" and s.backprop_dropout > 0
    )  # as many questions as documents that carry gradient
    queries = [
        each.queries()[: len(selected) if limits_questions else None]
        for each, selected in zip(episodes, gradient_documents, strict=True)
    ]
    flat_queries = [query for group in queries for query in group]
    assert flat_queries, "training episodes without a query"
    banks, ids_C, states_CTE = _encode_banks(mac, documents, gradient_documents)
    x_NTD = mac.encode_questions([query.question_text for query in flat_queries])
    questions = torch.split(x_NTD, [len(group) for group in queries])
    episode_tensors = list(map(EpisodeTensors.from_documents, banks, questions, documents, queries))
    latents = [mac.aggregator(each.x_QTD[None], each.bank_KTD[None])[0] for each in episode_tensors]
    items = [training_item(mac.lm, query, s.question_tokens) for query in flat_queries]
    total, tokens = answer_nll(mac.lm, mac.modulate(torch.cat(latents)), items)
    parts = {"answer": total / tokens}
    has_sources = any(len(each.document_M) for each in episode_tensors)
    if has_sources and s.retrieval_aux:
        parts["retrieval"] = s.retrieval_aux * _retrieval_loss(episode_tensors)
    if has_sources and s.attention_aux:
        document_attention = mac.aggregator.document_attention
        source_attention = [
            document_attention(each.x_QTD[None], each.bank_KTD[None])[
                0, each.question_M, each.document_M
            ]
            for each in episode_tensors
        ]
        parts["attention"] = (
            -s.attention_aux * (torch.cat(source_attention) + LOG_EPSILON).log().mean()
        )
    if s.words_aux:
        parts["words"] = s.words_aux * _word_loss(mac, ids_C, states_CTE)
    return parts


def _gradient_documents(s: MacSettings, documents: int) -> set[int]:
    """The documents of an episode that carry gradient."""
    if s.lite == "released":
        share = round(
            1 - s.backprop_dropout, 9
        )  # 1 - 0.8 falls just short of 0.2, and 10 documents of 2
        return set(range(max(1, int(share * documents))))
    count = max(1, round((1 - s.backprop_dropout) * documents))
    return (
        set(torch.randperm(documents)[:count].tolist())
        if count < documents
        else set(range(documents))
    )


def _encode_banks(
    mac: MacNetworks, documents: Sequence[Sequence[Chunk]], gradient_documents: Sequence[set[int]]
) -> tuple[list[Tensor], list[list[int]], Tensor]:
    """Latents [K, T, D] of an episode's documents; ids and states [C, T, E] of those that carry gradient."""
    texts = [document.text for read in documents for document in read]
    ids, _ = mac.document_tokenizer.encode(texts, mac.settings.document_tokens, "start")
    has_gradient = [
        place in selected
        for read, selected in zip(documents, gradient_documents, strict=True)
        for place in range(len(read))
    ]
    order = sorted(range(len(ids)), key=lambda place: not has_gradient[place])
    split = sum(has_gradient)
    states_CTE = mac.encode_document_states([ids[place] for place in order[:split]])
    latents = mac.amortiser.lift_states(states_CTE)
    if order[split:]:
        with torch.no_grad():
            fixed = mac.encode_documents([ids[place] for place in order[split:]])
        latents = torch.cat([latents, fixed])[torch.tensor(order, device=latents.device).argsort()]
    return (
        list(torch.split(latents, list(map(len, documents)))),
        [ids[place] for place in order[:split]],
        states_CTE,
    )


def _retrieval_loss(episode_tensors: Sequence[EpisodeTensors]) -> Tensor:
    """Cosines of mean latents over `RETRIEVAL_TEMPERATURE`; the candidates are the documents of all episodes in the batch."""
    candidates = normalize(torch.cat([each.bank_KTD for each in episode_tensors]).mean(1), dim=-1)
    before = torch.tensor([0, *(len(each.bank_KTD) for each in episode_tensors)]).cumsum(0).tolist()
    target = torch.cat(
        [each.document_M + first for each, first in zip(episode_tensors, before, strict=False)]
    )
    questions = normalize(
        torch.cat([each.x_QTD[each.question_M] for each in episode_tensors]).mean(1), dim=-1
    )
    return cross_entropy(questions @ candidates.T / RETRIEVAL_TEMPERATURE, target)


def _word_loss(mac: MacNetworks, ids_C: Sequence[list[int]], states_CTE: Tensor) -> Tensor:
    """Documents whose decoder states tell their words: each word weighs its inverse document frequency, and the
    weights [C, V] of a document sum to 1."""
    head_VE = mac.amortiser.t5.get_input_embeddings().weight
    present_CV = torch.zeros(len(ids_C), len(head_VE))
    for row, words in zip(present_CV, ids_C, strict=True):
        row[words[:-1]] = 1
    idf_CV = present_CV * (len(present_CV) / present_CV.sum(0).clamp(min=1)).log()
    weights_CV = (idf_CV / idf_CV.sum(1, keepdim=True).clamp(min=1e-6)).to(head_VE.device)
    logits_CV = states_CTE.mean(1) @ head_VE.T * WORD_LOGIT_SCALE * head_VE.shape[1] ** -0.5
    return -(weights_CV * logits_CV.log_softmax(-1)).sum(1).mean()
