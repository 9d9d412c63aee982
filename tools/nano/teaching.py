"""Losses of the nano LM: cross-entropy of answers, and attention losses.

Shape letters: B rows · T tokens · D width · H heads · E head size · N answers of a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from tools.nano.lessons import Batch, Teaching

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import LlamaForCausalLM

NAMING_LAYER, TAUGHT_HEADS = 1, 4
"""Layer and number of heads with attention losses: naming in the second layer, pointing in later
ones.
"""


def losses_of(model: LlamaForCausalLM, batch: Batch, teaching: Teaching) -> tuple[Tensor, Tensor]:
    """Return (weighted mean cross-entropy, weighted teaching losses). Logits are computed for
    nonzero weights only.

    With layers of small initial outputs (`nano.new_model`), two losses on attention weights teach
    the model to distinguish entities. With full-sized initial outputs the same losses left it at
    chance. Small outputs without the losses were not tried.

    - naming: every token attends to the words that identify its own document, question or demonstration
      (heads 0, 1: the second word; heads 2, 3: the first);
    - pointing: the token that predicts an answer attends to the earlier positions that contain it.

    Both are -log of the attention weight, averaged over heads.
    """
    # Without a mask transformers treats a jump in the positions as the start of another packed sequence.
    output = model.model(
        input_ids=batch.ids_BT,
        position_ids=batch.positions_BT,
        attention_mask=torch.ones_like(batch.ids_BT),
        use_cache=False,
        output_hidden_states=teaching.naming + teaching.pointing > 0,
    )
    kept = batch.weights_BT[:, 1:] > 0
    losses = F.cross_entropy(
        model.lm_head(output.last_hidden_state[:, :-1][kept]),
        batch.ids_BT[:, 1:][kept],
        reduction="none",
    )
    weights = batch.weights_BT[:, 1:][kept]
    answer = torch.dot(losses, weights) / weights.sum()
    taught = answer.new_zeros(())
    if teaching.naming:
        taught = taught + teaching.naming * _naming(
            model, output.hidden_states[NAMING_LAYER], batch
        )
    for layer in teaching.layers if teaching.pointing and len(batch.row_N) else ():
        taught = taught + teaching.pointing * _pointing(
            model, layer, output.hidden_states[layer], batch
        )
    return answer, taught


def _taught(
    model: LlamaForCausalLM, index: int, hidden_BTD: Tensor, positions_BT: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the rotated queries (scaled) and keys [B, TAUGHT_HEADS, T, E] of a layer."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    layer, config = model.model.layers[index], model.config
    size = config.hidden_size // config.num_attention_heads
    share = config.num_attention_heads // config.num_key_value_heads
    normed_BTD = layer.input_layernorm(hidden_BTD)
    query_BHTE = layer.self_attn.q_proj(normed_BTD).unflatten(-1, (-1, size)).transpose(1, 2)
    key_BHTE = layer.self_attn.k_proj(normed_BTD).unflatten(-1, (-1, size)).transpose(1, 2)
    cos, sin = model.model.rotary_emb(normed_BTD, positions_BT)
    query_BHTE, key_BHTE = apply_rotary_pos_emb(query_BHTE, key_BHTE, cos, sin)
    return query_BHTE[:, :TAUGHT_HEADS] * size**-0.5, key_BHTE.repeat_interleave(share, 1)[
        :, :TAUGHT_HEADS
    ]


def _naming(model: LlamaForCausalLM, hidden_BTD: Tensor, batch: Batch) -> Tensor:
    query_BHTE, key_BHTE = _taught(model, NAMING_LAYER, hidden_BTD, batch.positions_BT)
    causal_TT = torch.ones(
        hidden_BTD.shape[1], hidden_BTD.shape[1], dtype=torch.bool, device=hidden_BTD.device
    ).tril()
    near_BTT = (batch.groups_BT[:, :, None] == batch.groups_BT[:, None, :]) & causal_TT
    scores_BHTT = (query_BHTE @ key_BHTE.transpose(-1, -2)).masked_fill(~causal_TT, float("-inf"))
    shares_BHTT = scores_BHTT.softmax(-1)
    parts = []
    for heads, word in ((slice(0, 2), 2), (slice(2, 4), 1)):
        wanted_BTT = near_BTT & (batch.keys_BT & word > 0)[:, None, :]
        paid_BHT = (shares_BHTT[:, heads] * wanted_BTT[:, None]).sum(-1)
        parts.append((paid_BHT.mean(1)[wanted_BTT.any(-1)] + 1e-9).log())
    return -torch.cat(parts).mean() if sum(map(len, parts)) else hidden_BTD.new_zeros(())


def _pointing(model: LlamaForCausalLM, layer: int, hidden_BTD: Tensor, batch: Batch) -> Tensor:
    """Compute the pointing loss only for the N predicting positions instead of B x T."""
    query_BHTE, key_BHTE = _taught(model, layer, hidden_BTD, batch.positions_BT)
    order_T = torch.arange(hidden_BTD.shape[1], device=hidden_BTD.device)
    parts = []
    for row in range(hidden_BTD.shape[0]):
        mine = (batch.row_N == row).nonzero()[:, 0]
        at = batch.query_N[mine]
        scores_HNT = query_BHTE[row, :, at] @ key_BHTE[row].transpose(-1, -2)
        scores_HNT = scores_HNT.masked_fill(order_T > at[:, None], float("-inf"))
        paid_HN = (scores_HNT.softmax(-1) * batch.held_NT[mine]).sum(-1)
        parts.append((paid_HN.mean(0) + 1e-9).log())
    return -torch.cat(parts).mean()
