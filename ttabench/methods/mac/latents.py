"""What makes latent tokens of a text, and of a latent a modulation of the base model (MAC, arXiv 2403.04317).

Shape letters: B rows · N text tokens · T latent tokens · A expanded tokens · S slots · E width of the transformer, or
head size · D width of the base model · H key/value heads · P prefix positions · R rank · I/O features in and out.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers import PreTrainedModel, T5Model


class SlotLinear(nn.Module):
    """S linear maps side by side, each initialised like `nn.Linear`."""

    def __init__(self, slots: int, features_in: int, features_out: int, bias: bool = True) -> None:
        super().__init__()
        bound = features_in**-0.5
        self.weight = nn.Parameter(torch.empty(slots, features_in, features_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(slots, features_out).uniform_(-bound, bound)) if bias else None

    def forward(self, x_BSI: Tensor) -> Tensor:
        """[B, S, I] -> [B, S, O]; slot s goes through map s."""
        x_SBI = x_BSI.transpose(0, 1)
        if self.bias is None:
            return torch.bmm(x_SBI, self.weight).transpose(0, 1)
        return torch.baddbmm(self.bias[:, None], x_SBI, self.weight).transpose(0, 1)


class SlotNorm(nn.Module):
    """S layer norms side by side: one statistic, S gains and shifts."""

    def __init__(self, slots: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(slots, features))
        self.bias = nn.Parameter(torch.zeros(slots, features))

    def forward(self, x_BSI: Tensor) -> Tensor:
        """[B, S, I] -> [B, S, I]."""
        normed = nn.functional.layer_norm(x_BSI, x_BSI.shape[-1:])
        return normed * self.weight + self.bias


class Amortiser(nn.Module):
    """Text to T latent tokens of the base model's width."""

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
    """A T5 whose decoder reads the learnable tokens, and stays causal over them. `mask_pads`: whether the decoder is
    kept from seeing padding. The released code lets it see padding, so that a latent depends on the padded length."""

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
    """An encoder, or a causal LM, that reads the text and the learnable tokens as one sequence. An encoder has them
    in front of the text and a causal LM behind it, so that padding never changes a position."""

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


class TokenExpansion(nn.Module):
    """T latent tokens to A tokens, each through its own residual feed-forward network."""

    source: Tensor

    def __init__(self, tokens: int, expanded: int, width: int, width_out: int, hidden: int) -> None:
        super().__init__()
        assert expanded >= tokens, (expanded, tokens)
        copies = torch.full((tokens,), expanded // tokens)
        copies[: expanded % tokens] += 1
        self.register_buffer(
            "source", torch.arange(tokens).repeat_interleave(copies, output_size=expanded), persistent=False
        )
        self.norm = SlotNorm(expanded, width)
        self.feed_in = SlotLinear(expanded, width, hidden)
        self.feed_out = SlotLinear(expanded, hidden, width_out)
        self.project = SlotLinear(expanded, width, width_out, bias=False) if width_out != width else None

    def forward(self, latent_BTD: Tensor) -> Tensor:
        """[B, T, D] -> [B, A, width_out]."""
        x_BAD = latent_BTD[:, self.source]
        fed: Tensor = self.feed_out(gelu(self.feed_in(self.norm(x_BAD))))
        return fed + (x_BAD if self.project is None else self.project(x_BAD))


class PrefixExpansion(nn.Module):
    """Latent to keys and values of some slots in every layer (P-tuning v2).

    The token with index v * 2L + 2 * layer + (0 key | 1 value) fills slot v. Keys are raw vectors, not rotated.
    `shape`: P, layers L, H and E of the base model's cache.
    """

    def __init__(self, tokens: int, width: int, shape: tuple[int, int, int, int], hidden: int = 768) -> None:
        super().__init__()
        self.positions, self.layers, self.kv_heads, self.head_dim = shape
        expanded = 2 * self.layers * self.positions
        self.expand = TokenExpansion(tokens, expanded, width, self.kv_heads * self.head_dim, hidden)

    def forward(self, latent_BTD: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Keys and values, one [B, H, P, E] a layer."""
        x_BAO: Tensor = self.expand(latent_BTD)
        x_BPLKHE = x_BAO.view(-1, self.positions, self.layers, 2, self.kv_heads, self.head_dim)
        x_LKBHPE = x_BPLKHE.permute(2, 3, 0, 4, 1, 5)
        return tuple(layer[0] for layer in x_LKBHPE), tuple(layer[1] for layer in x_LKBHPE)


class LowRankExpansion(nn.Module):
    """Latent to one low-rank delta per named linear layer. Each expanded token is one rank of one layer: its first
    `features_in` numbers are a row of `a`, made through the feed-forward network; the column of `b` comes from a map
    that starts at zero, so training starts at the base model. `linears`: (features in, features out) by module name
    of the base model."""

    def __init__(
        self, tokens: int, width: int, linears: Mapping[str, tuple[int, int]], rank: int = 8, hidden: int = 768
    ) -> None:
        super().__init__()
        self.linears = dict(linears)
        self.rank = rank
        expanded = len(linears) * rank
        self.widest_in = max(into for into, _ in linears.values())
        widest_out = max(out for _, out in linears.values())
        self.expand = TokenExpansion(tokens, expanded, width, self.widest_in, hidden)
        self.to_b = SlotLinear(expanded, self.widest_in, widest_out, bias=False)
        nn.init.zeros_(self.to_b.weight)

    def forward(self, latent_BTD: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """By module name: a [B, R, in] and b [B, out, R], scaled by 1 / R."""
        x_BAI: Tensor = self.expand(latent_BTD)
        b_BAO: Tensor = self.to_b(nn.functional.layer_norm(x_BAI, x_BAI.shape[-1:]))
        deltas = {}
        for index, (name, (into, out)) in enumerate(self.linears.items()):
            ranks = slice(index * self.rank, (index + 1) * self.rank)
            deltas[name] = (x_BAI[:, ranks, :into], b_BAO[:, ranks, :out].transpose(1, 2) / self.rank)
        return deltas
