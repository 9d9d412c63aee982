"""What a small LM says the tokens of a document weigh.

CaMeLS (Hu et al., arXiv 2305.15076, section 3.2): all weights of the decoder are trained, W2 starts at zero, so that
every token weighs ln 2 / 3 = 0.231.

Shape letters: B documents · T tokens · C width.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, softplus

from ttabench.core.errors import UserError
from ttabench.lm.model import LM, load

HIDDEN = 128
BETA = 3.0


class TokenWeights(nn.Module):
    """The decoder of a small LM, and a head that makes one number of each of its states."""

    def __init__(self, proxy: LM, seed: int = 0) -> None:
        super().__init__()
        self.decoder = deepcopy(proxy.decoder).float().requires_grad_(True)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.lift, self.mix = nn.Linear(proxy.hidden_size, HIDDEN), nn.Linear(HIDDEN, 1)
        nn.init.zeros_(self.mix.weight)
        nn.init.zeros_(self.mix.bias)

    def forward(self, ids_BT: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """Weights [B, T] of these tokens, 0 where padded; padding stands behind the text, which never sees it."""
        hidden_BTC: Tensor = self.decoder(input_ids=ids_BT, use_cache=False).last_hidden_state
        weights_BT = softplus(self.mix(gelu(self.lift(hidden_BTC)))[..., 0], beta=BETA)
        return weights_BT if mask_BT is None else weights_BT * mask_BT


def proxy_of(lm: LM, name: str) -> LM:
    """The LM whose decoder weighs the tokens that a base model reads."""
    if not name or name == lm.name:
        return lm
    proxy = load(name, device=str(lm.device), dtype="float32")
    if proxy.tokenizer.get_vocab() != lm.tokenizer.get_vocab() or proxy.start_ids != lm.bos_ids:
        fault = f"The proxy {name} has another tokenizer than {lm.name}, whose tokens it is to weigh."
        raise UserError(fault, "Give --set proxy=NAME of a small model of the same tokenizer.")
    return proxy


@torch.no_grad()
def written_texts(lm: LM, count: int, tokens: int, seed: int) -> list[list[int]]:
    """Token ids of texts that the base model itself writes, drawn from the seed: texts of no document.

    Args:
        tokens: of each, what begins it included.
    """
    draw = torch.Generator(lm.device).manual_seed(seed)
    first = list(lm.bos_ids) or [lm.eos_id]
    ids_BT = torch.tensor([first] * count, device=lm.device)
    while ids_BT.shape[1] < tokens:
        logits_BV = lm.logits(lm.decoder(input_ids=ids_BT, use_cache=False).last_hidden_state[:, -1])
        next_B1 = torch.multinomial(logits_BV.float().softmax(-1), 1, generator=draw)
        ids_BT = torch.cat([ids_BT, next_B1], dim=1)
    rows: list[list[int]] = ids_BT.tolist()
    return rows
