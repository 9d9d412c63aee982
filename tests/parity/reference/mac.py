"""MAC as its paper and the description of its released code have it, from ids to losses.

Tack et al., arXiv 2403.04317, section 3, appendix A.1 and Algorithm 3. The T5s are those of transformers, as in the
released code; all else is written out. Weights have the names of the fixture.

Shape letters: B questions · K documents · T latent tokens · E width of a T5 · D base width · A tokens after expansion ·
L layers · H heads · V virtual positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy, gelu, layer_norm
from transformers import T5Config, T5Model

from tests.parity.reference.decoders import Weights, gpt2, llama, mixed, rotated

HEADS = 8
"""Of the aggregator, whatever the width."""


def below(w: Weights, folder: str) -> Weights:
    return {name.removeprefix(f"{folder}."): t for name, t in w.items() if name.startswith(f"{folder}.")}


def norm(w: Weights, name: str, x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", torch.zeros((), dtype=x.dtype))


class Mac:
    """The four networks and the frozen base models.

    Args:
        config: the fixture's.
        state: trained weights, by their names under `state/`.
        bases: weights of the base models.
    """

    def __init__(self, config: dict[str, Any], state: Weights, bases: dict[str, Weights]) -> None:
        self.config, self.w, self.bases = config, state, bases

    def decoder_states(self, kind: str, ids: Tensor, mask: Tensor, *, masked: bool = False) -> Tensor:
        """What the T5 decoder makes of its learnable tokens, [B, T, E]; padding is visible to it unless masked."""
        folder = "enc_decoder" if kind == "t5" else "aggregator.question_encoder"
        weights = below(self.w, folder)
        tokens = weights.pop("learnable_prompts").expand(len(ids), -1, -1)
        weights.update({f"{part}.embed_tokens.weight": weights["shared.weight"] for part in ("encoder", "decoder")})
        t5 = T5Model(T5Config(**self.config[kind])).double().eval()
        encoded = functional_call(t5.encoder, below(weights, "encoder"), (), {"input_ids": ids, "attention_mask": mask})
        inputs = {"inputs_embeds": tokens, "encoder_hidden_states": encoded.last_hidden_state, "use_cache": False}
        inputs["encoder_attention_mask"] = mask if masked else torch.ones_like(mask)
        states: Tensor = functional_call(t5.decoder, below(weights, "decoder"), (), inputs).last_hidden_state
        return states

    def lifted(self, folder: str, states: Tensor) -> Tensor:
        """One MLP a slot, [B, T, E] -> [B, T, D]."""
        slots = []
        for slot in range(states.shape[1]):
            w, x = below(self.w, f"{folder}.{slot}"), states[:, slot]
            skip = linear(w, "skip", x) if "skip.weight" in w else x
            slots.append(skip + linear(w, "mlp.3", torch.tanh(linear(w, "mlp.1", norm(w, "mlp.0", x)))))
        return torch.stack(slots, dim=1)

    def aggregated(self, x_BTD: Tensor, bank_KTD: Tensor) -> list[Tensor]:
        """Question tokens before the first block and after each; the last is the latent."""
        context, states = bank_KTD.flatten(0, 1), [x_BTD]
        for block in range(self.config["mac"]["num_cross_attention_blocks"]):
            w, x = below(self.w, f"aggregator.cross_attention_list.{block}"), states[-1]
            read = norm(w, "norm_context", context)
            q = linear(w, "attn.to_q", norm(w, "norm1", x)).unflatten(-1, (HEADS, -1))
            k, v = (linear(w, f"attn.to_{part}", read).unflatten(-1, (HEADS, -1)) for part in "kv")
            weights = (torch.einsum("bthe,nhe->bhtn", q, k) * q.shape[-1] ** -0.5).softmax(-1)
            x = x + linear(w, "attn.to_out.0", torch.einsum("bhtn,nhe->bthe", weights, v).flatten(2))
            states.append(x + linear(w, "mlp.net.3", gelu(linear(w, "mlp.net.0", norm(w, "norm2", x)))))
        return states

    def tree(self, x_1TD: Tensor, bank_KTD: Tensor) -> list[Tensor]:
        """Algorithm 3 for one question: entries of every level, the last being its latent."""
        levels, most = [bank_KTD], self.config["hier_window"]
        while len(levels[-1]) > 1:
            levels.append(torch.cat([self.aggregated(x_1TD, group)[-1] for group in levels[-1].split(most)]))
        return levels[1:]

    def expanded(self, latent_BTD: Tensor) -> Tensor:
        """[B, A, D]: every latent token several times in a row, the first ones once more, and a network for each."""
        made = 2 * self.config["gpt2"]["n_layer"] * self.config["mac"]["layer_num_virtual_tokens"]
        each, more = divmod(made, latent_BTD.shape[1])
        source = [token for token in range(latent_BTD.shape[1]) for _ in range(each + (token < more))]
        out = []
        for place, token in enumerate(source):
            w, x = below(self.w, f"token_SA.mlp_layers.{place}"), latent_BTD[:, token]
            out.append(x + linear(w, "net.4", gelu(linear(w, "net.1", norm(w, "net.0", x)))))
        return torch.stack(out, dim=1)

    def prompts(self, actual_BAD: Tensor) -> Tensor:
        """[L, 2 (key, value), B, H, V, D/H]."""
        layers, heads = self.config["gpt2"]["n_layer"], self.config["gpt2"]["n_head"]
        return actual_BAD.unflatten(-1, (heads, -1)).unflatten(1, (-1, layers, 2)).permute(2, 3, 0, 4, 1, 5)

    def logits(self, kind: str, ids: Tensor, mask: Tensor, prompts: Tensor) -> Tensor:
        """Logits of right-padded ids; the text stands behind the prefix, whose keys are taken as they are."""
        slots, tokens = prompts.shape[4], ids.shape[1]
        places, theta = slots + torch.arange(tokens), self.config["llama"]["rope_theta"]
        causal = torch.ones(tokens, tokens).tril().bool() & mask[:, None].bool()
        seen = torch.cat([torch.ones(len(ids), tokens, slots).bool(), causal], dim=-1)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if kind == "llama":
                q, k = rotated(q, places, theta), rotated(k, places, theta)
            return mixed(q, torch.cat([prompts[layer, 0], k], 2), torch.cat([prompts[layer, 1], v], 2), seen)

        if kind == "llama":
            return llama(self.bases["llama"], self.config["llama"], ids, attend)
        return gpt2(self.bases["gpt2"], self.config["gpt2"], ids, places, attend)

    def loss(self, inputs: Weights, carrying: int | None) -> Tensor:
        """Loss of an answer token; with a limit, only so many documents carry gradient and as many questions count."""
        states = self.decoder_states("t5", inputs["text_ids_amort"], inputs["text_attention_amort"])
        bank, count = self.lifted("mlps", states), len(states) if carrying is None else carrying
        bank = torch.cat([bank[:count], bank[count:].detach()])
        x = self.decoder_states("t5_q", inputs["gen_q_ids_amort"][:count], inputs["gen_q_attn_mask_amort"][:count])
        latent = self.aggregated(self.lifted("aggregator.mlps", x), bank)[-1]
        ids, mask, targets = (inputs[f"qa_{name}"][:count] for name in ("ids", "attention", "target_ids"))
        logits = self.logits("gpt2", ids, mask, self.prompts(self.expanded(latent)))
        return cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())
