"""Networks of MAC: amortiser, query encoder, aggregator and prefix expansion.

The amortiser encodes a document as latent tokens. A bank is the latents of all documents read. The
aggregator combines the bank into one latent per query. The expansion turns it into a prefix.

Paper: Tack et al., arXiv 2403.04317, section 3 and appendix A.1. Equation 3: query tokens attend to
a bank of document latents, in pre-norm cross-attention blocks. Algorithm 3 (hierarchy) is
`aggregate_hierarchy`.

Shape letters: B texts or queries · K documents · N text tokens, or K*T · T latent tokens · A
expanded tokens · S slots · E width of the T5, or head size · D base width · H heads · P prefix
positions · I/O features in and out · R sequences · Q queries of a sequence · X = Q*T · O owners of
entries, one for all queries or each query · G groups · M entries of a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention
from transformers import T5Model

from ttabench.core.errors import UserError
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, Prefix
from ttabench.methods.mac import MacSettings
from ttabench.methods.mac.t5 import (
    T5_HINT,
    TextTokenizer,
    copy_embeddings,
    hub_id,
    is_scratch,
    t5_config,
)
from ttabench.methods.parts.stored import load_pretrained_model, load_pretrained_tokenizer

MAX_BATCH_TOKENS = 8192
"""Padded T5 tokens of one batch of documents."""


class SlotLinear(nn.Module):
    """S parallel linear maps, each initialised like `nn.Linear`."""

    def __init__(self, slots: int, features_in: int, features_out: int, bias: bool = True) -> None:
        super().__init__()
        bound = features_in**-0.5
        self.weight = nn.Parameter(
            torch.empty(slots, features_in, features_out).uniform_(-bound, bound)
        )
        self.bias = (
            nn.Parameter(torch.empty(slots, features_out).uniform_(-bound, bound)) if bias else None
        )

    def forward(self, x_BSI: Tensor) -> Tensor:
        """Map [B, S, I] to [B, S, O]; slot s uses map s."""
        x_SBI = x_BSI.transpose(0, 1)
        if self.bias is None:
            return torch.bmm(x_SBI, self.weight).transpose(0, 1)
        return torch.baddbmm(self.bias[:, None], x_SBI, self.weight).transpose(0, 1)


class SlotNorm(nn.Module):
    """S parallel layer norms, each with its own weight and bias."""

    def __init__(self, slots: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(slots, features))
        self.bias = nn.Parameter(torch.zeros(slots, features))

    def forward(self, x_BSI: Tensor) -> Tensor:
        """Normalise [B, S, I]."""
        return layer_norm(x_BSI, x_BSI.shape[-1:]) * self.weight + self.bias


class Amortiser(nn.Module):
    """T5 that maps a text to T latent tokens of the base model's width D.

    Its decoder reads T learnable tokens with causal attention. The released code also attends to
    padding, so a latent depends on the padded length. `settings.mask_pads` masks the padding.
    """

    def __init__(self, t5: T5Model, width: int, settings: MacSettings) -> None:
        super().__init__()
        inner, tokens = int(t5.config.hidden_size), settings.num_virtual_tokens
        self.mask_pads = settings.mask_pads
        self.prompts = nn.Parameter(torch.randn(tokens, inner) * 0.02)
        self.norm = SlotNorm(tokens, inner)
        self.lift = SlotLinear(tokens, inner, width)
        self.mix = SlotLinear(tokens, width, width)
        self.skip = SlotLinear(tokens, inner, width) if inner != width else None
        self.t5 = t5

    def forward(self, ids_BN: Tensor, mask_BN: Tensor) -> Tensor:
        """Return latent tokens [B, T, D] of right-padded ids; the mask is 0 on padding."""
        return self.lift_states(self.hidden(ids_BN, mask_BN))

    def lift_states(self, x_BTE: Tensor) -> Tensor:
        """Map states of the learnable tokens to latent tokens [B, T, D] with the MLPs."""
        skip_BTD = x_BTE if self.skip is None else self.skip(x_BTE)
        return skip_BTD + self.mix(torch.tanh(self.lift(self.norm(x_BTE))))

    def hidden(self, ids_BN: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the states of the T learnable tokens, [B, T, E], before the MLPs."""
        encoded_BNE = self.t5.encoder(input_ids=ids_BN, attention_mask=mask_BN).last_hidden_state
        return self.t5.decoder(
            inputs_embeds=self.prompts.expand(len(ids_BN), -1, -1),
            encoder_hidden_states=encoded_BNE,
            encoder_attention_mask=mask_BN if self.mask_pads else None,
            use_cache=False,
        ).last_hidden_state


class TokenExpansion(nn.Module):
    """Expansion of T latent tokens to A tokens.

    Each of the A tokens has its own residual feed-forward network.
    """

    source: Tensor

    def __init__(self, tokens: int, expanded: int, width: int, width_out: int, hidden: int) -> None:
        super().__init__()
        copies = torch.full((tokens,), expanded // tokens)
        copies[: expanded % tokens] += 1
        source_A = torch.arange(tokens).repeat_interleave(copies, output_size=expanded)
        self.register_buffer("source", source_A, persistent=False)
        self.norm = SlotNorm(expanded, width)
        self.feed_in = SlotLinear(expanded, width, hidden)
        self.feed_out = SlotLinear(expanded, hidden, width_out)
        self.project = (
            SlotLinear(expanded, width, width_out, bias=False) if width_out != width else None
        )

    def forward(self, latent_BTD: Tensor) -> Tensor:
        """Map [B, T, D] to [B, A, width_out]."""
        x_BAD = latent_BTD[:, self.source]
        fed_BAD = self.feed_out(gelu(self.feed_in(self.norm(x_BAD))))
        return fed_BAD + (x_BAD if self.project is None else self.project(x_BAD))


class PrefixExpansion(nn.Module):
    """Expansion of a latent to the keys and values of slots in every layer (P-tuning v2).

    The token with index v * 2L + 2 * layer + (0 key | 1 value) fills slot v. Keys are raw vectors,
    not rotated. `shape`: P prefix positions, L layers, H heads and head size E of the base model.
    """

    def __init__(
        self, tokens: int, width: int, shape: tuple[int, int, int, int], hidden: int = 768
    ) -> None:
        super().__init__()
        self.shape, (positions, layers, heads, size) = shape, shape
        self.expand = TokenExpansion(tokens, 2 * layers * positions, width, heads * size, hidden)

    def forward(self, latent_BTD: Tensor) -> Tensor:
        """Return keys and values [2, L, B, H, P, E]."""
        positions, layers, heads, size = self.shape
        x_BPLKHE = self.expand(latent_BTD).view(-1, positions, layers, 2, heads, size)
        return x_BPLKHE.permute(3, 2, 0, 4, 1, 5)


class MacNetworks(nn.Module):
    """All networks of MAC: g_amort, g_input and h_psi of the paper, and the expansion.

    Initial weights are drawn from `settings.seed`.
    """

    def __init__(self, lm: LM, settings: MacSettings) -> None:
        super().__init__()
        self.lm, self.settings, s = lm, settings, settings
        self.document_tokenizer = self._build_tokenizer(s.amortiser)
        self.question_tokenizer = self._build_tokenizer(s.input_encoder)
        t5_configs = [
            t5_config(name, lm.vocab_size if is_scratch(name) else len(text.tokenizer))
            for name, text in (
                (s.amortiser, self.document_tokenizer),
                (s.input_encoder, self.question_tokenizer),
            )
        ]
        with torch.random.fork_rng():
            torch.manual_seed(s.seed)
            t5s = [T5Model(config) for config in t5_configs]
            self.amortiser, self.input_encoder = (Amortiser(t5, lm.hidden_size, s) for t5 in t5s)
            self.aggregator = Aggregator(lm.hidden_size, s.blocks, s.heads, s.head_dim)
            prefix_tokens = 2 * lm.layers * s.prefix_length
            if prefix_tokens < s.num_virtual_tokens:
                setting = f"num_virtual_tokens={s.num_virtual_tokens}"
                fault = f"{setting} exceeds the {prefix_tokens} prefix tokens of {lm.name}."
                raise UserError(
                    fault,
                    f"Use --set num_virtual_tokens={prefix_tokens}, or a larger prefix_length.",
                )
            shape = s.prefix_length, lm.layers, lm.kv_heads, lm.head_dim
            self.expansion = PrefixExpansion(
                s.num_virtual_tokens, lm.hidden_size, shape, s.expansion_hidden
            )
        self.to(lm.device).eval()

    def _build_tokenizer(self, name: str) -> TextTokenizer:
        if is_scratch(name) or self.lm.random_weights:
            return TextTokenizer(self.lm.tokenizer, self.lm.eos_id, self.lm.pad_id)
        hint = "Use a folder with a T5, or --random-weights for a profile."
        tokenizer = load_pretrained_tokenizer(hub_id(name), "T5", hint)
        return TextTokenizer(tokenizer, int(tokenizer.eos_token_id), int(tokenizer.pad_token_id))

    def load_pretrained(self) -> None:
        """Load the published weights of the T5s, or copy embeddings from the base model.

        Scratch T5s have no published weights. `settings.embeddings_from_base` sets whether they
        start with the embeddings of the base model.
        """
        s = self.settings
        for amortiser, name in (
            (self.amortiser, s.amortiser),
            (self.input_encoder, s.input_encoder),
        ):
            if is_scratch(name):
                if s.embeddings_from_base:
                    copy_embeddings(amortiser.t5, self.lm)
            elif not self.lm.random_weights:
                amortiser.t5.load_state_dict(
                    load_pretrained_model(T5Model, hub_id(name), "T5", T5_HINT).state_dict()
                )

    def encode_questions(self, texts: Sequence[str]) -> Tensor:
        """Encode queries (g_input) to tokens [B, T, D]; long queries are truncated at the front."""
        ids, _ = self.question_tokenizer.encode(texts, self.settings.question_tokens, "end")
        return self.input_encoder(*self.question_tokenizer.pad(ids, self.lm.device))

    def encode_documents(self, ids: Sequence[list[int]]) -> Tensor:
        """Encode documents (g_amort), given as ids, to latents [B, T, D] in one batch."""
        return self.amortiser.lift_states(self.encode_document_states(ids))

    def encode_document_states(self, ids: Sequence[list[int]]) -> Tensor:
        """Return states [B, T, E] of the amortiser's learnable tokens, before its MLPs."""
        return self.amortiser.hidden(*self.document_tokenizer.pad(ids, self.lm.device))

    def encode_documents_by_length(self, ids: Sequence[list[int]]) -> Tensor:
        """Return latents [B, T, D] in input order, encoded in batches of similar length."""
        latents = torch.zeros(
            len(ids), self.settings.num_virtual_tokens, self.lm.hidden_size, device=self.lm.device
        )
        order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
        while order:
            batch = order[-max(1, MAX_BATCH_TOKENS // len(ids[order[-1]])) :]
            del order[-len(batch) :]
            latents[batch] = self.encode_documents([ids[index] for index in batch])
        return latents

    def modulate(self, latent_BTD: Tensor, filled_B: Tensor | None = None) -> Patch:
        """Expand latents to a prefix.

        `filled_B`: bool, false if the bank of a query is empty; its prefix is masked, so that it
        does not change the base model. None if all banks have entries.
        """
        if filled_B is None:
            filled_B = latent_BTD.new_ones(len(latent_BTD), dtype=torch.bool)
        positions = self.settings.prefix_length
        keys, values = map(tuple, self.expansion(latent_BTD).to(self.lm.dtype))
        mask_BP = None if bool(filled_B.all()) else filled_B[:, None].expand(-1, positions)
        return Patch(prefix=Prefix(keys, values, positions * filled_B.long(), mask_BP))


class BankAttention(nn.Module):
    """Cross-attention from query tokens to the bank, and a feed-forward network.

    The inner width H * head_dim does not depend on D (8 x 96 in the paper's code).
    """

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
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

    def forward(
        self,
        x_RXD: Tensor,
        bank_RND: Tensor,
        mask_R11N: Tensor | None,
        attention_weights: list[Tensor] | None = None,
    ) -> Tensor:
        """Update query tokens [R, X, D] from the bank; the mask is false on padding of the bank.

        `attention_weights`: gets the weights [R, X, N], averaged over heads. None: not stored.
        """
        normed_RND = self.bank_norm(bank_RND.to(self.bank_norm.weight.dtype))
        query_RHXE, key_RHNE, value_RHNE = map(
            self._split_heads,
            (self.query(self.norm(x_RXD)), self.key(normed_RND), self.value(normed_RND)),
        )
        if attention_weights is None:
            mixed_RHXE = scaled_dot_product_attention(
                query_RHXE, key_RHNE, value_RHNE, attn_mask=mask_R11N
            )
        else:
            scores_RHXN = query_RHXE * query_RHXE.shape[-1] ** -0.5 @ key_RHNE.mT
            if mask_R11N is not None:
                scores_RHXN = scores_RHXN.masked_fill(~mask_R11N, -torch.inf)
            weights_RHXN = scores_RHXN.softmax(-1)
            attention_weights.append(weights_RHXN.sum(1) / self.heads)
            mixed_RHXE = weights_RHXN @ value_RHNE
        x_RXD = x_RXD + self.out(mixed_RHXE.transpose(1, 2).flatten(2))
        return x_RXD + self.feed_out(gelu(self.feed_in(self.feed_norm(x_RXD))))

    def _split_heads(self, x_RXI: Tensor) -> Tensor:
        return x_RXI.view(*x_RXI.shape[:-1], self.heads, -1).transpose(1, 2)


class Aggregator(nn.Module):
    """Aggregation network h_psi, from query tokens and a bank to one latent per query."""

    def __init__(self, width: int, blocks: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(BankAttention(width, heads, head_dim) for _ in range(blocks))

    def forward(self, x_RQTD: Tensor, bank_RKTD: Tensor, mask_RK: Tensor | None = None) -> Tensor:
        """Return the latent phi* [R, Q, T, D] of every query, from all documents of its sequence.

        `mask_RK`: true where a sequence has a document; None if all have K.
        """
        return self._run(x_RQTD, bank_RKTD, mask_RK, None)

    def with_document_attention(
        self, x_RQTD: Tensor, bank_RKTD: Tensor, mask_RK: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the latents, and attention to each document [R, Q, K].

        Attention is averaged over blocks, heads and tokens.
        """
        attention_weights: list[Tensor] = []
        latents_RQTD = self._run(x_RQTD, bank_RKTD, mask_RK, attention_weights)
        mean_RXN = torch.stack(attention_weights).mean(0)
        by_document = mean_RXN.view(*x_RQTD.shape[:3], *bank_RKTD.shape[1:3])
        return latents_RQTD, by_document.sum(-1).mean(2)

    def _run(
        self,
        x_RQTD: Tensor,
        bank_RKTD: Tensor,
        mask_RK: Tensor | None,
        attention_weights: list[Tensor] | None,
    ) -> Tensor:
        if mask_RK is not None:
            mask_RK = mask_RK.repeat_interleave(bank_RKTD.shape[2], dim=1)[:, None, None]
        x_RXD, bank_RND = x_RQTD.flatten(1, 2), bank_RKTD.flatten(1, 2)
        for layer in self.blocks:
            x_RXD = layer(x_RXD, bank_RND, mask_RK, attention_weights)
        return x_RXD.view(x_RQTD.shape)


def aggregate_hierarchy(
    aggregator: Aggregator, x_QTD: Tensor, bank_KTD: Tensor, group: int, by: str = "aggregated"
) -> Tensor:
    """Aggregate the documents of one sequence in levels of groups, to phi* [Q, T, D] of each query.

    `group`: maximum group size, at least 2. `by`: how a group becomes one entry of the next level,
    see `MacSettings.hierarchy_by`.
    """
    if by == "attended":
        return apply_by_group(
            aggregator, x_QTD, _select_most_attended(aggregator, x_QTD, bank_KTD, group), group
        )[:, 0]
    entries_OKTD = apply_by_group(aggregator, x_QTD, bank_KTD[None], group)
    while entries_OKTD.shape[1] > 1:
        entries_OKTD = apply_by_group(aggregator, x_QTD, entries_OKTD, group)
    return entries_OKTD[:, 0]


def _select_most_attended(
    aggregator: Aggregator, x_QTD: Tensor, bank_KTD: Tensor, group: int
) -> Tensor:
    """Select at most `group` documents for each query, [O, M, T, D].

    At every level, each group passes on only the document with the most attention.
    """
    entries_OKTD = bank_KTD[None]
    while (count := entries_OKTD.shape[1]) > group:
        attention_QGM = apply_by_group(
            lambda *inputs: aggregator.with_document_attention(*inputs)[1],
            x_QTD,
            entries_OKTD,
            group,
        )
        index_QG = torch.arange(
            0, count, group, device=attention_QGM.device
        ) + attention_QGM.argmax(-1)
        owners_O1 = torch.arange(len(entries_OKTD), device=index_QG.device)[:, None]
        entries_OKTD = entries_OKTD[owners_O1, index_QG]
    return entries_OKTD


def apply_by_group(
    function: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    x_QTD: Tensor,
    entries_OKTD: Tensor,
    group: int,
) -> Tensor:
    """Apply `function` to every pair of a query and a group of entries, [Q, G, ...].

    Arguments of `function`: query tokens, entries of the group, and a mask that is false on padding
    of the last group, or None.
    """
    owners, count = entries_OKTD.shape[:2]
    groups, group = math.ceil(count / group), min(group, count)
    padding, mask_RM = groups * group - count, None
    groups_RMTD = nn.functional.pad(entries_OKTD, (0, 0, 0, 0, 0, padding)).reshape(
        -1, group, *entries_OKTD.shape[2:]
    )
    if padding:
        filled_GM = (torch.arange(groups * group, device=x_QTD.device) < count).view(groups, group)
        mask_RM = filled_GM.repeat(owners, 1)
    if owners == 1:  # one row per group, with all queries
        return function(x_QTD.expand(groups, *x_QTD.shape), groups_RMTD, mask_RM).transpose(0, 1)
    x_R1TD = x_QTD.repeat_interleave(groups, dim=0)[:, None]
    outputs = function(x_R1TD, groups_RMTD, mask_RM)[:, 0]
    return outputs.reshape(owners, groups, *outputs.shape[1:])
