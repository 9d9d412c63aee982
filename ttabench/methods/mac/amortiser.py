"""A text becomes T latent tokens: a T5 encoder-decoder whose decoder reads T learnable tokens instead of words.

    document ids --T5 encoder--> states --T5 decoder(T learnable tokens)--> T states --T separate MLPs--> phi [T, D]

The decoder stays causal over the T tokens. MAC uses one such network for documents and a smaller one for questions.
Paper: Tack et al., arXiv 2403.04317, section 3.1 and appendix A.1.

Shape letters: B rows · N text tokens · T latent tokens · E width of the T5 · D width of the base model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import T5Model

from ttabench.methods.mac.slots import SlotLinear, SlotNorm


class Amortiser(nn.Module):
    """Text to T latent tokens of the base model's width.

    Args:
        t5: the encoder-decoder, without a head; may be shared with another amortiser.
        tokens: T.
        width: D.
        mask_pads: whether the decoder is kept from seeing padding. The released code lets it see padding, so that a
            latent depends on the padded length.
    """

    def __init__(self, t5: T5Model, tokens: int, width: int, mask_pads: bool = True) -> None:
        super().__init__()
        inner = int(t5.config.d_model)
        self.t5 = t5
        self.mask_pads = mask_pads
        self.prompts = nn.Parameter(torch.randn(tokens, inner) * 0.02)
        self.norm = SlotNorm(tokens, inner)
        self.lift = SlotLinear(tokens, inner, width)
        self.mix = SlotLinear(tokens, width, width)
        self.skip = SlotLinear(tokens, inner, width) if inner != width else None

    def hidden(self, ids_BN: Tensor, mask_BN: Tensor) -> Tensor:
        """States of the T decoder tokens, [B, T, E], before the MLPs."""
        encoded_BNE = self.t5.encoder(input_ids=ids_BN, attention_mask=mask_BN).last_hidden_state
        decoded = self.t5.decoder(
            inputs_embeds=self.prompts.expand(ids_BN.shape[0], -1, -1),
            encoder_hidden_states=encoded_BNE,
            encoder_attention_mask=mask_BN if self.mask_pads else None,
            use_cache=False,
        )
        states_BTE: Tensor = decoded.last_hidden_state
        return states_BTE

    def forward(self, ids_BN: Tensor, mask_BN: Tensor) -> Tensor:
        """Latent tokens [B, T, D] of right- or left-padded ids; the mask is 1 on text and 0 on padding."""
        return self.lifted(self.hidden(ids_BN, mask_BN))

    def lifted(self, x_BTE: Tensor) -> Tensor:
        """The MLPs: states of the decoder tokens to latent tokens [B, T, D]."""
        skip_BTD = x_BTE if self.skip is None else self.skip(x_BTE)
        mixed_BTD: Tensor = self.mix(torch.tanh(self.lift(self.norm(x_BTE))))
        return skip_BTD + mixed_BTD
