"""The four networks of MAC on one base model, and what they make of texts, banks and latents.

Paper: Tack et al., arXiv 2403.04317, section 3 and appendix A.1.
Shape letters: B texts or questions · K documents · T latent tokens · D base width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, T5Model

from ttabench.core.errors import UserError
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch, Prefix
from ttabench.methods.mac.latents import (
    Amortiser,
    EncoderDecoder,
    LowRankExpansion,
    OneStack,
    PrefixExpansion,
)
from ttabench.methods.mac.pooling import Aggregator
from ttabench.methods.mac.settings import MacSettings
from ttabench.methods.mac.t5 import (
    T5Text,
    config_of,
    is_scratch,
    stack_of,
    start_embeddings,
    start_from,
    start_stack,
)

TOKENS_AT_ONCE = 8192
"""Padded T5 tokens amortised in one batch of documents."""


class MacNetworks(nn.Module):
    """g_amort, g_input, h_psi and the expansion, with weights drawn from `settings.seed`; all differentiable."""

    def __init__(self, lm: LM, settings: MacSettings) -> None:
        super().__init__()
        self.lm, self.settings, s = lm, settings, settings
        self.document_text, self.question_text = self._text(s.amortiser), self._text(s.input_encoder)
        with torch.random.fork_rng():
            torch.manual_seed(s.seed)
            longest = s.document_tokens if not s.share_t5 else max(s.document_tokens, s.question_tokens)
            reader = self._transformer(s.amortiser, self.document_text, longest)
            asked = reader
            if not s.share_t5:
                asked = self._transformer(s.input_encoder, self.question_text, s.question_tokens)
            self.amortiser, self.input_encoder = self._around(reader), self._around(asked)
            self.aggregator = Aggregator(lm.hidden_size, s.blocks, s.heads, s.head_dim)
            self.expansion = _expansion(lm, s)
        self.to(lm.device).eval()

    def _transformer(self, name: str, text: T5Text, tokens: int) -> PreTrainedModel:
        vocabulary, s = self.lm.vocab_size if is_scratch(name) else len(text.tokenizer), self.settings
        if s.design == "encoder-decoder":
            return T5Model(config_of(name, vocabulary))
        positions = tokens + s.num_virtual_tokens
        return stack_of(name, causal=s.design == "decoder", vocabulary=vocabulary, positions=positions)

    def _around(self, transformer: PreTrainedModel) -> Amortiser:
        s, width = self.settings, self.lm.hidden_size
        if isinstance(transformer, T5Model):
            return EncoderDecoder(transformer, s.num_virtual_tokens, width, s.mask_pads)
        return OneStack(transformer, s.num_virtual_tokens, width, causal=s.design == "decoder")

    def _text(self, t5: str) -> T5Text:
        stand_in = is_scratch(t5) or self.lm.random_weights
        if self.settings.tokenizer == "base" or (self.settings.tokenizer == "auto" and stand_in):
            return T5Text(self.lm.tokenizer, self.lm.eos_id, self.lm.pad_id)
        return T5Text.named(t5)

    def load_pretrained(self) -> None:
        """Start what reads from its published weights, from `amortiser_init`, or from the base model's embeddings."""
        s = self.settings
        pairs = [(self.amortiser, s.amortiser), (self.input_encoder, s.input_encoder)]
        for encoder, t5 in pairs[: 1 if s.share_t5 else 2]:
            if s.embeddings_from_base and is_scratch(t5):
                start_embeddings(encoder.transformer, self.lm)
            if isinstance(encoder, EncoderDecoder) and s.amortiser_init is not None:
                start_from(encoder.t5, s.amortiser_init, must=encoder is self.amortiser)
            elif is_scratch(t5) or self.lm.random_weights:
                continue
            elif isinstance(encoder, EncoderDecoder):
                start_from(encoder.t5, t5, must=True)
            else:
                start_stack(encoder.transformer, t5)

    def questions(self, texts: Sequence[str]) -> Tensor:
        """g_input: query tokens [B, T, D]; questions beyond `question_tokens` keep their end."""
        ids, _ = self.question_text.encode(texts, self.settings.question_tokens, "end")
        ids_BN, mask_BN = self.question_text.pad(ids, self.settings.question_pad_to)
        x_BTD: Tensor = self.input_encoder(ids_BN.to(self.lm.device), mask_BN.to(self.lm.device))
        return x_BTD

    def documents(self, ids: Sequence[list[int]]) -> Tensor:
        """g_amort: latents [B, T, D] of documents given as ids of `document_text`, in one batch."""
        phi_BTD: Tensor = self.amortiser.lifted(self.document_states(ids))
        return phi_BTD

    def document_states(self, ids: Sequence[list[int]]) -> Tensor:
        """States [B, T, E] of the amortiser's learnable tokens, before its MLPs."""
        ids_BN, mask_BN = self.document_text.pad(ids, self.settings.pad_to)
        x_BTE: Tensor = self.amortiser.hidden(ids_BN.to(self.lm.device), mask_BN.to(self.lm.device))
        return x_BTE

    def documents_by_length(self, ids: Sequence[list[int]]) -> Tensor:
        """Latents [B, T, D] of any number of documents, in batches of like length, in the order given."""
        latents = torch.zeros(len(ids), self.settings.num_virtual_tokens, self.lm.hidden_size, device=self.lm.device)
        order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
        while order:
            widest = max(len(ids[order[-1]]), self.settings.pad_to)
            batch = order[-max(1, TOKENS_AT_ONCE // widest) :]
            del order[-len(batch) :]
            latents[batch] = self.documents([ids[index] for index in batch])
        return latents

    def modulate(self, latent_BTD: Tensor, filled_B: Tensor | None = None) -> Patch:
        """What a latent does to the base model: keys and values in front of the text, or weight deltas. `filled_B`:
        bool, false for questions to an empty bank, which must not change the base model; None if all are."""
        dtype, slots = self.lm.dtype, self.settings.prefix_length
        mask_B1 = None if filled_B is None or bool(filled_B.all()) else filled_B[:, None]
        if isinstance(self.expansion, LowRankExpansion):
            deltas = {}
            for name, (a_BRI, b_BOR) in self.expansion(latent_BTD).items():
                kept_BOR = b_BOR if mask_B1 is None else b_BOR * mask_B1[..., None]
                deltas[name] = LowRank(a_BRI.to(dtype), kept_BOR.to(dtype))
            return Patch(deltas=deltas)
        keys, values = self.expansion(latent_BTD)
        held_B = torch.ones(len(latent_BTD), dtype=torch.int64, device=self.lm.device)
        prefix = Prefix(
            tuple(key.to(dtype) for key in keys),
            tuple(value.to(dtype) for value in values),
            next_position_B=slots * (held_B if mask_B1 is None else mask_B1[:, 0].long()),
            mask_BP=None if mask_B1 is None else mask_B1.expand(-1, slots),
        )
        return Patch(prefix=prefix)


def _expansion(lm: LM, s: MacSettings) -> PrefixExpansion | LowRankExpansion:
    names = [name for name in lm.linear_names() if name.rpartition(".")[2] in s.lora_targets]
    made = 2 * lm.layers * s.prefix_length if s.modulation == "prefix" else len(names) * s.lora_rank
    if made < s.num_virtual_tokens:
        raise UserError(
            f"MAC on {lm.name} makes {made} modulation tokens from {s.num_virtual_tokens} latent tokens.",
            f"Set num_virtual_tokens to at most {made}, or prefix_length (lora_rank, lora_targets) higher.",
        )
    if s.modulation == "prefix":
        shape = s.prefix_length, lm.layers, lm.kv_heads, lm.head_dim
        return PrefixExpansion(s.num_virtual_tokens, lm.hidden_size, shape, s.expansion_hidden)
    linears = {name: lm.linear_shape(name) for name in names}
    return LowRankExpansion(s.num_virtual_tokens, lm.hidden_size, linears, s.lora_rank, s.expansion_hidden)
