"""Sliding windows: keep the first few tokens (attention sinks) and the last so many.

    --set n_sink=4 --set recent=512      StreamingLLM: 4 sinks and 512 recent tokens, however long the text
    --set n_sink=0                       a plain sliding window
    --set mode=postprefill               another method: read everything with full attention, then drop the middle;
                                         recent=0.2 keeps the sinks and the newest fifth
    --set mode=stride, --preset book     another one: the last tokens are read again, from position 0, for every query

Xiao et al., arXiv 2309.17453 (released code: mit-han-lab/streaming-llm). In a stream every token sees the sinks and the
last `recent` tokens with itself, at their places in the cache; memory is flat in the length of the text. It is read in
blocks under a banded mask with exactly the effect of token by token. The query reads the cache as reading left it, and
goes on from its last slot: the tokens of prompt and answer are appended and evict nothing.

`mode=stride` is the sliding window that books are scored with (StreamAdapter, arXiv 2411.09289, Table 2): windows of
`recent` tokens and the stride that comes in, each encoded anew behind BOS; it keeps token ids and no cache. The last of
the `recent` is the token that the stride is predicted from, and comes with the query.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Observe
from ttabench.lm.attention.interface import watched
from ttabench.lm.attention.layout import Layout
from ttabench.lm.forward.tokens import new_ids
from ttabench.lm.forward.ways import ways_of
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods import eviction
from ttabench.methods.base import tokens_read
from ttabench.methods.eviction.band import Band, band
from ttabench.methods.eviction.evicted_cache import EvictedCache, check_room, extended, joined, padding_first
from ttabench.methods.eviction.evicting import EvictingMethod
from ttabench.methods.eviction.scores import kept_slots, newest, oldest, tokens_of
from ttabench.methods.eviction.settings import STREAM_BLOCK, WindowSettings
from ttabench.methods.parts.newest import appended, window_of


class SlidingWindow(EvictingMethod[WindowSettings]):
    """The cache of the first and the last tokens."""

    spec = eviction.WINDOW

    def __init__(self, lm: LM, settings: WindowSettings) -> None:
        if settings.mode == "stride":
            self.needs = ()  # tokens alone are kept
        super().__init__(lm, settings)
        self.growth = "linear" if isinstance(settings.recent, float) else "constant"
        if settings.mode == "stride":
            self.own_tensors = ("tokens", "lengths")
        if settings.mode != "postprefill":
            self.reads = "pieces"
        if settings.mode != "stream":
            self.rotary = None
            return
        self.width = self._recent + (settings.evict == "after")
        self.chunk = settings.chunk or STREAM_BLOCK
        if ways_of(lm).own and settings.positions == "auto":
            self.rotary = None
        if self.rotary is not None:
            most = min(lm.max_positions, ways_of(lm).same_angles or lm.max_positions)
            room = most - settings.n_sink - self._recent
            if room < 1:
                fault = f"{settings.n_sink} sinks and {self._recent} recent tokens fill all {most} positions"
                more = "" if most == lm.max_positions else ", beyond which its angles change"
                hint = "Use --set recent=N with a smaller N" + (more and ", or --set positions=original")
                raise UserError(f"{fault} of {lm.name}{more}.", f"{hint}.")
            self.chunk = min(self.chunk, room)

    @property
    def _recent(self) -> int:
        assert isinstance(self.settings.recent, int), "a share is refused but with mode=postprefill"
        return self.settings.recent

    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Read pieces, see `EvictingMethod.adapt`; with mode=stride only their last ids stay."""
        if self.settings.mode != "stride":
            return super().adapt(state, chunks)
        new = [list(chain(*pieces)) for pieces in new_ids(self.lm, state, chunks)]
        read = [before + len(row) for before, row in zip(tokens_read(state), new, strict=True)]
        kept = appended(self.lm, state.tensors, new, self._recent - 1)
        return State(state.rows, kept, {"tokens_read": read})

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:
        """The kept cache as a prefix; with mode=stride the ids that stay, to be read again."""
        return window_of(state.tensors) if self.settings.mode == "stride" else super().patch(state, asks)

    def _room(self, read_B: Tensor) -> int:
        recent = int(tokens_of(self.settings.recent, read_B))
        return recent - 1 if self.settings.mode == "stride" else recent + self.settings.n_sink

    def _read(self, kept: EvictedCache | None, ids_BT: Tensor, mask_BT: Tensor) -> EvictedCache:
        if self.settings.mode == "postprefill":
            return self._cut(extended(self.lm, kept, ids_BT, mask_BT, None))
        return self.stream(kept, ids_BT, mask_BT)[0]

    @torch.no_grad()
    def stream(self, kept: EvictedCache | None, ids_BT: Tensor, mask_BT: Tensor) -> tuple[EvictedCache, Tensor]:
        """Read one block of a stream as if token by token.

        Args:
            kept: what stayed of the text so far; None at its start.
            ids_BT: the block.
            mask_BT: bool, false where a row is padded, in front.

        Returns:
            what stays, and the last hidden states [B, T, D] of the block.

        Raises:
            UserError: original positions run out.
        """
        check_room(self.lm, kept, mask_BT, self.rotary)
        start = None if kept is None else kept.prefix(self.rotary)
        window = Window(self.lm, start, ids_BT.shape[0], room=ids_BT.shape[1])
        real_BT = None if bool(mask_BT.all()) else mask_BT
        query_BT, key_BS = self._places(kept, mask_BT)
        if self.rotary is None:
            layout = Layout(sees_BTS=band(self.settings.n_sink, self.width, query_BT, key_BS))
            hidden_BTD = window.feed_laid(ids_BT, layout, real_BT)
        else:
            with watched(Band(self.settings.n_sink, self.width, query_BT, key_BS, self.rotary)):
                hidden_BTD = window.feed(ids_BT, real_BT)
        return self._cut(joined(kept, window.prefix(), mask_BT, self.rotary)), hidden_BTD

    def _places(self, kept: EvictedCache | None, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of the tokens of a block [B, T], and of all slots [B, S], -1 where one is padding."""
        steps_BT = mask_BT.long().cumsum(1) - 1
        if kept is None:
            query_BT, key_BS = steps_BT, steps_BT.masked_fill(~mask_BT, -1)
        else:
            moved = self.rotary is not None
            held_BP = (kept.slots() if moved else kept.index[0, :, 0].long()).masked_fill(~kept.valid, -1)
            first_B = kept.valid.sum(1) if moved else kept.next
            query_BT = first_B[:, None] + steps_BT
            key_BS = torch.cat([held_BP, query_BT.masked_fill(~mask_BT, -1)], dim=1)
        return query_BT.clamp(min=0), key_BS

    def _cut(self, whole: EvictedCache) -> EvictedCache:
        """Sinks and recent tokens only, the same ones in every layer and head."""
        order = padding_first(whole.valid)
        whole = whole if order is None else whole.take(order)
        valid_BS = whole.valid
        recent_B = tokens_of(self.settings.recent, whole.next)
        stays_BS = oldest(valid_BS, self.settings.n_sink) | newest(valid_BS, recent_B)
        scores_BS = torch.zeros(valid_BS.shape, device=valid_BS.device).masked_fill(~stays_BS, -math.inf)
        return whole.take(kept_slots(scores_BS[None, :, None], self.settings.n_sink + recent_B))
