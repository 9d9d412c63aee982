"""MAC, Memory of Amortized Contexts: document latents, aggregated into a prefix per query.

Paper: Tack et al., "Online Adaptation of Language Models with a Memory of Amortized Contexts",
arXiv 2403.04317. Training follows Algorithm 1, with optional auxiliary losses beyond the paper.

Shape letters: R sequences · K documents of a sequence or an episode · N new ones, or queries of all
episodes · P documents of both · B queries · Q queries of a sequence or an episode · M queries with
a known document · C documents that carry gradient · T latent tokens · D base width · E width of the
T5 · V its vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

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
    """Memory of Amortized Contexts.

    State: tensors `bank` [R, K, T, D], zero-padded after the entries of each sequence, and `counts`
    [R]. `meta` keeps, for each sequence: T5 tokens read, documents truncated, digests of texts
    read, and the names of the documents in each entry.
    """

    spec = MAC
    counts = ("tokens_read", "truncated_documents")
    required_capabilities = ("keys", "shape")

    def __init__(self, lm: LM, settings: MacSettings) -> None:
        super().__init__(lm, settings)
        self.growth = "constant" if settings.bank_cap else "linear"
        self.networks = MacNetworks(lm, settings)

    def modules(self) -> nn.ModuleDict:
        """Return amortiser, input_encoder, aggregator and expansion."""
        return nn.ModuleDict(dict(self.networks.named_children()))

    def prepare_training(self, first: Sequence[Episode] = ()) -> None:  # noqa: ARG002  # interface
        """Load pretrained T5s, see `MacNetworks.load_pretrained`."""
        self.networks.load_pretrained()

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Return the losses of Algorithm 1, with the auxiliary losses of the settings."""
        return loss_parts(self.networks, episodes)

    def begin(self, rows: int) -> State:
        """Return empty banks."""
        return State(
            rows, meta={**super().begin(rows).meta, "read": [[]] * rows, "members": [[]] * rows}
        )

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Append documents in order; they are amortised in batches of similar length."""
        meta = {key: list(values) for key, values in state.meta.items()}
        banks = [self._row_bank(state, row) for row in range(state.rows)]
        new_documents = [
            self._unread_documents(meta["read"][row], [chunk[row] for chunk in chunks])
            for row in range(state.rows)
        ]
        encoded = [
            self.networks.document_tokenizer.encode(
                [document.text for document in documents.values()],
                self.settings.document_tokens,
                "start",
            )
            for documents in new_documents
        ]
        latents_NTD = self.networks.encode_documents_by_length(
            [document_ids for ids, _ in encoded for document_ids in ids]
        )
        latents = torch.split(latents_NTD.to(banks[0].dtype), list(map(len, new_documents)))
        for row, (documents, (ids, lengths)) in enumerate(zip(new_documents, encoded, strict=True)):
            read, members = meta["read"][row], meta["members"][row]
            names = [document.key or digest for digest, document in documents.items()]
            banks[row], meta["members"][row] = append_to_bank(
                banks[row], members, latents[row], names, self.settings, len(read)
            )
            meta["read"][row] = [*read, *documents]
            meta["tokens_read"][row] += sum(map(len, ids))
            cut = [len(kept) < full for kept, full in zip(ids, lengths, strict=True)]
            meta["truncated_documents"][row] += sum(cut)
        return replace(state, tensors=_stack_banks(banks), meta=meta)

    def combine_states(self, state: State, other: State) -> State:
        """Concatenate both banks; documents in the first are left out of the second."""
        known_digests = set(state.meta["read"][0])
        new = [
            number
            for number, digest in enumerate(other.meta["read"][0])
            if digest not in known_digests
        ]
        if self.settings.bank_cap:
            fault = f"Banks limited by bank_cap={self.settings.bank_cap} cannot be combined."
            raise UserError(fault, "Read all texts with one command: --context A B.")
        first_KTD, second_KTD = self._row_bank(state, 0), self._row_bank(other, 0)[new]
        meta = {name: [state.meta[name][0] + other.meta[name][0]] for name in self.counts}
        for name in ("read", "members"):
            meta[name] = [[*state.meta[name][0], *(other.meta[name][0][number] for number in new)]]
        return State(1, _stack_banks([torch.cat([first_KTD, second_KTD])]), meta)

    @torch.no_grad()
    def patch(self, state: State, queries: Sequence[Query]) -> Patch:
        """Aggregate the bank for each query into a prefix with one row per query."""
        assert state.rows in (1, len(queries)), (state.rows, len(queries))
        if not queries or "counts" not in state.tensors or not state.tensors["counts"].any():
            return Patch()
        x_BTD = self.networks.encode_questions([query.question_text for query in queries])
        filled_B = state.tensors["counts"].expand(len(queries)) > 0
        return self.networks.modulate(self._aggregate(state, x_BTD), filled_B)

    def _aggregate(self, state: State, x_BTD: Tensor) -> Tensor:
        """Return phi* [B, T, D] from one bank for all queries, or from one bank per query."""
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
        """Return the entries of one sequence, [K, T, D]."""
        if "bank" in state.tensors:
            return state.tensors["bank"][row, : int(state.tensors["counts"][row])]
        shape = (0, self.settings.num_virtual_tokens, self.lm.hidden_size)
        return torch.zeros(
            shape, dtype=getattr(torch, self.settings.bank_dtype), device=self.lm.device
        )

    def _unread_documents(
        self, read: Sequence[str], documents: Sequence[Chunk]
    ) -> dict[str, Chunk]:
        """Return the documents with new texts by the digest of their text, in order."""
        known_digests, new_documents = set(read), dict[str, Chunk]()
        for document in documents:
            digest = hashlib.blake2b(document.text.encode(), digest_size=6).hexdigest()
            if digest not in known_digests:
                new_documents.setdefault(digest, document)
        return new_documents


def append_to_bank(
    bank_KTD: Tensor,
    members: list[list[str]],
    new_NTD: Tensor,
    names: Sequence[str],
    settings: MacSettings,
    read: int,
) -> tuple[Tensor, list[list[str]]]:
    """Append N entries to a bank, and return it with the document names of each entry.

    Beyond the cap, each append drops an entry or averages two (section 4.3 and Figure 7). One call
    with N entries equals N calls with one, except for ties of equally near pairs. `read`: number of
    documents this bank has read before, including dropped and averaged ones; it seeds the random
    rules.
    """
    cap, kept, pool_PTD = settings.bank_cap, len(bank_KTD), torch.cat([bank_KTD, new_NTD])
    order, members = list(range(kept)), [*map(list, members), *([name] for name in names)]
    nearest = settings.bank_reduce == "average_nearest" and cap is not None and len(pool_PTD) > cap
    if nearest:  # only pairs above the diagonal; of equal ones the first counts
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
            merged, dropped = order[first], order[second]
            pool_PTD[merged] = (
                pool_PTD[merged].float() * 0.5 + pool_PTD[dropped].float() * 0.5
            ).to(pool_PTD.dtype)
            members[merged] += members[dropped]
        if nearest:  # only the similarities of the mean change
            unit_PE[merged] = normalize(pool_PTD[merged].float().flatten(), dim=0)
            cosine_P = unit_PE @ unit_PE[merged]
            cosines_PP[:merged, merged] = cosine_P[:merged]
            cosines_PP[merged, merged + 1 :] = cosine_P[merged + 1 :]
        del order[second]
    return pool_PTD[order], [members[index] for index in order]


def _stack_banks(banks: Sequence[Tensor]) -> dict[str, Tensor]:
    """Stack banks into one zero-padded tensor [R, K, T, D], with their lengths."""
    padded = nn.utils.rnn.pad_sequence(list(banks), batch_first=True)
    return {
        "bank": padded,
        "counts": torch.tensor([len(entries) for entries in banks], device=padded.device),
    }


LOG_EPSILON = 1e-9
"""Offset before the logarithm of an attention share, which may underflow."""
RETRIEVAL_TEMPERATURE = 0.05
"""Temperature of the cosines in `retrieval_aux`."""
WORD_LOGIT_SCALE = 3.0
"""Scale of the T5's output head. States are normalised, and must predict several words at once."""


def _source_pairs(documents: Sequence[Chunk], queries: Sequence[Query]) -> Tensor:
    """Return the index of each query with a known document (`source_key`) and of it, [2, M]."""
    keys = {document.key: index for index, document in reversed(list(enumerate(documents)))}
    pairs = [
        (index, keys[query.source_key])
        for index, query in enumerate(queries)
        if query.source_key and query.source_key in keys
    ]
    return torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T


def loss_parts(mac: MacNetworks, episodes: Sequence[Episode]) -> dict[str, Tensor]:
    """Return the weighted losses by name: answer loss, and auxiliary losses of the settings."""
    s, episodes = mac.settings, [episode for episode in episodes if episode.chunks()]
    if not episodes:
        raise UserError(
            "MAC trains on documents, but no episode of the step has one.", "Use more --documents."
        )
    documents = [episode.chunks() for episode in episodes]
    gradient_documents = [_gradient_documents(s, len(read)) for read in documents]
    # as many queries as documents with a gradient
    limits_questions = s.lite == "released" and s.backprop_dropout > 0
    queries = [
        each.queries()[: len(selected) if limits_questions else None]
        for each, selected in zip(episodes, gradient_documents, strict=True)
    ]
    flat_queries = [query for group in queries for query in group]
    assert flat_queries, "training episodes without a query"
    banks, ids_C, states_CTE = _encode_banks(mac, documents, gradient_documents)
    x_NTD = mac.encode_questions([query.question_text for query in flat_queries])
    questions = torch.split(x_NTD, [len(group) for group in queries])
    sources = [
        _source_pairs(read, group).to(x_NTD.device)
        for read, group in zip(documents, queries, strict=True)
    ]
    has_sources = any(pairs_2M.numel() for pairs_2M in sources)
    latents, source_attention = list[Tensor](), list[Tensor]()
    for x_QTD, bank_KTD, pairs_2M in zip(questions, banks, sources, strict=True):
        if has_sources and s.attention_aux:
            latent_1QTD, attention_1QK = mac.aggregator.with_document_attention(
                x_QTD[None], bank_KTD[None]
            )
            source_attention.append(attention_1QK[0, *pairs_2M])
        else:
            latent_1QTD = mac.aggregator(x_QTD[None], bank_KTD[None])
        latents.append(latent_1QTD[0])
    items = [training_item(mac.lm, query, s.question_tokens) for query in flat_queries]
    total, tokens = answer_nll(mac.lm, mac.modulate(torch.cat(latents)), items)
    parts = {"answer": total / tokens}
    if has_sources and s.retrieval_aux:
        parts["retrieval"] = s.retrieval_aux * _retrieval_loss(banks, questions, sources)
    if source_attention:
        parts["attention"] = (
            -s.attention_aux * (torch.cat(source_attention) + LOG_EPSILON).log().mean()
        )
    if s.words_aux:
        parts["words"] = s.words_aux * _word_loss(mac, ids_C, states_CTE)
    return parts


def _gradient_documents(s: MacSettings, documents: int) -> set[int]:
    """Return the documents of an episode that carry gradient."""
    if s.lite == "released":
        # avoid 1 - 0.8 < 0.2, which would select 1 of 10 documents
        share = round(1 - s.backprop_dropout, 9)
        return set(range(max(1, int(share * documents))))
    count = max(1, round((1 - s.backprop_dropout) * documents))
    if count == documents:
        return set(range(documents))
    return set(torch.randperm(documents)[:count].tolist())


def _encode_banks(
    mac: MacNetworks, documents: Sequence[Sequence[Chunk]], gradient_documents: Sequence[set[int]]
) -> tuple[list[Tensor], list[list[int]], Tensor]:
    """Encode documents as latents [K, T, D]; return ids and states [C, T, E] with gradient, too."""
    texts = [document.text for read in documents for document in read]
    ids, _ = mac.document_tokenizer.encode(texts, mac.settings.document_tokens, "start")
    has_gradient = [
        index in selected
        for read, selected in zip(documents, gradient_documents, strict=True)
        for index in range(len(read))
    ]
    order = sorted(range(len(ids)), key=lambda index: not has_gradient[index])
    split = sum(has_gradient)
    ids_C = [ids[index] for index in order[:split]]
    states_CTE = mac.encode_document_states(ids_C)
    latents = mac.amortiser.lift_states(states_CTE)
    if order[split:]:
        with torch.no_grad():
            fixed = mac.encode_documents([ids[index] for index in order[split:]])
        latents = torch.cat([latents, fixed])[torch.tensor(order, device=latents.device).argsort()]
    return list(torch.split(latents, list(map(len, documents)))), ids_C, states_CTE


def _retrieval_loss(
    banks: Sequence[Tensor], questions: Sequence[Tensor], sources: Sequence[Tensor]
) -> Tensor:
    """Return the contrastive loss of mean latents, over the documents of the whole batch."""
    first_documents = accumulate(map(len, banks), initial=0)
    targets = [
        pairs_2M[1] + first for pairs_2M, first in zip(sources, first_documents, strict=False)
    ]
    asked = [x_QTD[pairs_2M[0]] for x_QTD, pairs_2M in zip(questions, sources, strict=True)]
    candidates = normalize(torch.cat(list(banks)).mean(1), dim=-1)
    cosines = normalize(torch.cat(asked).mean(1), dim=-1) @ candidates.T
    return cross_entropy(cosines / RETRIEVAL_TEMPERATURE, torch.cat(targets))


def _word_loss(mac: MacNetworks, ids_C: Sequence[list[int]], states_CTE: Tensor) -> Tensor:
    """Return the loss of predicting a document's words from its decoder states.

    Words are weighted by inverse document frequency; the weights [C, V] of a document sum to 1.
    """
    head_VE = mac.amortiser.t5.get_input_embeddings().weight
    present_CV = torch.zeros(len(ids_C), len(head_VE))
    for row, words in zip(present_CV, ids_C, strict=True):
        row[words[:-1]] = 1
    idf_CV = present_CV * (len(present_CV) / present_CV.sum(0).clamp(min=1)).log()
    weights_CV = (idf_CV / idf_CV.sum(1, keepdim=True).clamp(min=1e-6)).to(head_VE.device)
    logits_CV = states_CTE.mean(1) @ head_VE.T * WORD_LOGIT_SCALE * head_VE.shape[1] ** -0.5
    return -(weights_CV * logits_CV.log_softmax(-1)).sum(1).mean()
