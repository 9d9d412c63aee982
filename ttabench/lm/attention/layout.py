"""How the tokens of one forward stand, where they do not simply follow each other.

    c1 COMP c2 COMP q      compressed memory trained in one forward: a token of c2 sees the first COMP, not c1

    ids_BT = [[.., V, .., V, ..]]                               ids from the vocabulary's size on are rows of `more_NC`
    layout = Layout(embeddings_BTC=lm.embedded(ids_BT, more_NC), positions_BT=.., sees_BTS=.., marked_BT=ids_BT >= V)
    hidden_BTC, window = hidden_states(lm, patch, ids_BT, layout)

Shape letters: B rows · T tokens of the forward · S slots, those held and these tokens · C width of the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the tokens of one forward stand; what is not given is as usual."""

    positions_BT: Tensor | None = None
    """int64 [B or 1, T]: position ids, in place of those that count on from the prefix; any number where padded."""
    sees_BTS: Tensor | None = None
    """bool [B or 1, T, T]: which of these tokens each of them sees, beside all that is held; or [B or 1, T, S] of all
    slots, those held first. Padded slots are never seen. A model's sliding window does not count."""
    embeddings_BTC: Tensor | None = None
    """Inputs of the first layer, in place of the ids' embeddings, see `LM.embedded`."""
    marked_BT: Tensor | None = None
    """bool [B or 1, T]: at which tokens the patch's low-rank deltas act; None: at all."""

    def mask(self, tokens: int, slots: int, real_BS: Tensor | None) -> Tensor:
        """bool [B or 1, 1, T, S]: `sees_BTS` of all slots; `real_BS` is false where padded."""
        assert self.sees_BTS is not None
        assert self.sees_BTS.shape[1:] in ((tokens, tokens), (tokens, slots)), f"a mask {tuple(self.sees_BTS.shape)}"
        sees_BTS = pad(self.sees_BTS.bool(), (slots - self.sees_BTS.shape[2], 0), value=True)
        if real_BS is None:
            return sees_BTS[:, None]
        own_TS = torch.eye(tokens, dtype=torch.bool, device=sees_BTS.device)
        own_TS = pad(own_TS, (slots - tokens, 0))  # padding sees itself: a softmax over nothing has no value
        padded_BT1 = ~real_BS[:, slots - tokens :, None]
        return (sees_BTS & real_BS[:, None] | own_TS & padded_BT1)[:, None]

    def positions(self, usual_BT: Tensor, count: int) -> Tensor:
        """The position ids: those given, else the usual ones; padding falls into the range of the model."""
        return usual_BT if self.positions_BT is None else self.positions_BT.to(usual_BT).clamp(0, count - 1)
