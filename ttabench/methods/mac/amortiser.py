"""A text becomes T latent tokens: a transformer reads it together with T learnable tokens.

    encoder-decoder   T5 encoder (text) -> states; T5 decoder (T learnable tokens) sees them        the paper's
    encoder           [T learnable tokens, text] in one encoder                                     Table 7
    decoder           [text, T learnable tokens] in one causal LM                                   Table 7
    all of them       T states --T separate MLPs--> phi [T, D]

MAC uses one such network for documents and a smaller one for questions. Paper: Tack et al., arXiv 2403.04317,
section 3.1, Table 7 and appendix A.1.

Shape letters: B rows · N text tokens · T latent tokens · E width of the transformer · D width of the base model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, T5Model

from ttabench.methods.mac.slots import SlotLinear, SlotNorm


class Amortiser(nn.Module):
    """Text to T latent tokens of the base model's width.

    Args:
        inner: E.
        tokens: T.
        width: D.
    """

    def __init__(self, inner: int, tokens: int, width: int) -> None:
        super().__init__()
        self.prompts = nn.Parameter(torch.randn(tokens, inner) * 0.02)
        self.norm = SlotNorm(tokens, inner)
        self.lift = SlotLinear(tokens, inner, width)
        self.mix = SlotLinear(tokens, width, width)
        self.skip = SlotLinear(tokens, inner, width) if inner != width else None

    @property
    def transformer(self) -> PreTrainedModel:
        """The network that reads the text."""
        raise NotImplementedError

    @property
    def words(self) -> Tensor:
        """Its word embeddings, [V, E]."""
        weight_VE: Tensor = self.transformer.get_input_embeddings().weight
        return weight_VE

    def hidden(self, ids_BN: Tensor, mask_BN: Tensor) -> Tensor:
        """States of the T learnable tokens, [B, T, E], before the MLPs."""
        raise NotImplementedError

    def forward(self, ids_BN: Tensor, mask_BN: Tensor) -> Tensor:
        """Latent tokens [B, T, D] of right-padded ids; the mask is 1 on text and 0 on padding."""
        return self.lifted(self.hidden(ids_BN, mask_BN))

    def lifted(self, x_BTE: Tensor) -> Tensor:
        """The MLPs: states of the learnable tokens to latent tokens [B, T, D]."""
        skip_BTD = x_BTE if self.skip is None else self.skip(x_BTE)
        mixed_BTD: Tensor = self.mix(torch.tanh(self.lift(self.norm(x_BTE))))
        return skip_BTD + mixed_BTD


class EncoderDecoder(Amortiser):
    """A T5 whose decoder reads the learnable tokens, and stays causal over them.

    Args:
        t5: the encoder-decoder, without a head; may be shared with another amortiser.
        tokens: T.
        width: D.
        mask_pads: whether the decoder is kept from seeing padding. The released code lets it see padding, so that a
            latent depends on the padded length.
    """

    def __init__(self, t5: T5Model, tokens: int, width: int, mask_pads: bool = True) -> None:
        super().__init__(int(t5.config.d_model), tokens, width)
        self.t5 = t5
        self.mask_pads = mask_pads

    @property
    def transformer(self) -> PreTrainedModel:
        """The T5."""
        return self.t5

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


class OneStack(Amortiser):
    """An encoder, or a causal LM, that reads the text and the learnable tokens as one sequence.

    An encoder has them in front of the text and a causal LM behind it, so that padding never changes a position.

    Args:
        stack: the transformer, without a head; may be shared with another amortiser.
        tokens: T.
        width: D.
        causal: whether it is a causal LM.
    """

    def __init__(self, stack: PreTrainedModel, tokens: int, width: int, *, causal: bool) -> None:
        super().__init__(int(stack.config.hidden_size), tokens, width)
        self.stack = stack
        self.causal = causal
        # Learnable tokens begin as large as the words they stand beside.
        with torch.no_grad():
            self.prompts.mul_(float(stack.get_input_embeddings().weight.float().std()) / 0.02)

    @property
    def transformer(self) -> PreTrainedModel:
        """The one stack."""
        return self.stack

    def hidden(self, ids_BN: Tensor, mask_BN: Tensor) -> Tensor:
        """States of the T learnable tokens, [B, T, E], before the MLPs."""
        rows, tokens = len(ids_BN), len(self.prompts)
        words_BNE = self.stack.get_input_embeddings()(ids_BN)
        prompts_BTE = self.prompts.to(words_BNE.dtype).expand(rows, -1, -1)
        seen_BT = mask_BN.new_ones(rows, tokens)
        if not self.causal:
            whole = {"inputs_embeds": torch.cat([prompts_BTE, words_BNE], 1)}
            states = self.stack(**whole, attention_mask=torch.cat([seen_BT, mask_BN], 1)).last_hidden_state
            first_BTE: Tensor = states[:, :tokens]
            return first_BTE
        # Position N + t of each row is its own: padding between the text and the learnable tokens counts for nothing.
        mask = torch.cat([mask_BN, seen_BT], 1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        states = self.stack(
            inputs_embeds=torch.cat([words_BNE, prompts_BTE], 1),
            attention_mask=mask,
            position_ids=positions,
            use_cache=False,
        ).last_hidden_state
        last_BTE: Tensor = states[:, -tokens:]
        return last_BTE
