"""CCM on an endless stream: the oldest text of a full cache becomes COMP slots, and the oldest COMP slots go.

Kim et al., arXiv 2312.03414, section 4.2 and figure 8, as the released code does it: keys are stored as they were
before the model rotated them, and rotated by their slot whenever they are used.
Shape letters: L layers · B rows · H key/value heads · P slots · D head size · n COMP tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ttabench.core.errors import UserError
from ttabench.lm.forward.patching import deltas_applied
from ttabench.lm.forward.ways import ways_of
from ttabench.lm.patch import Patch, State
from ttabench.methods.ccm import CcmSettings
from ttabench.methods.ccm.comp_tokens import CompTokens
from ttabench.methods.eviction.evicting import EvictedCache, behind, extended


class Stream:
    """Reads a stream of tokens with a method's COMP tokens, for one reader."""

    def __init__(self, method: CompTokens[CcmSettings], window: int) -> None:
        self.method, self.settings, self.window, lm = method, method.settings, window, method.lm
        self.rotary = ways_of(lm).rotary
        self.first = max(1, len(lm.start_ids)) if self.settings.n_sink is None else self.settings.n_sink
        """Slots that always stay."""
        needed, most = self.first + self.settings.memory + self.settings.piece, lm.max_positions - 1
        if needed > window:
            fault = f"{self.first} first slots, a memory of {self.settings.memory} and a piece of {self.settings.piece}"
            fault = f"{fault} do not fit into a window of {window}"
            raise UserError(f"{fault}.", f"Give --set window={needed} or more.")
        if window > most:
            fault = f"A window of {window} and one token more exceed the {lm.max_positions} positions of {lm.name}"
            raise UserError(f"{fault}.", f"Give --set window={most} or less.")

    def adapt(self, state: State, pieces: Sequence[list[int]]) -> State:
        """What is held once these pieces are read; where they are cut does not matter. It is padded in front to the
        window: as many bytes whatever was read."""
        ids, kept = [token for piece in pieces for token in piece], _held(state.tensors)
        begun = ids if kept else [*self.method.lm.start_ids, *ids]
        kept, done = self.read(kept, begun, state.meta["pieces_read"][0])
        tensors = {} if kept is None else _padded(kept, self.window).tensors()
        return State(1, tensors, {"tokens_read": [state.meta["tokens_read"][0] + len(ids)], "pieces_read": [done]})

    def patch(self, state: State) -> Patch:
        """The held slots as a prefix."""
        kept = _held(state.tensors)
        return Patch(prefix=kept.prefix(self.rotary) if kept else None, deltas=self.method.outside)

    def read(self, kept: EvictedCache | None, ids: Sequence[int], done: int) -> tuple[EvictedCache | None, int]:
        """Read on. `kept`: one row without padding; None at the start of a text, whose first token is then what
        begins texts; `done`: how often was compressed before. Returns what is held, and how often was compressed by
        now."""
        s, lm, left = self.settings, self.method.lm, list(ids)
        while left:
            room = self.window + 1 - (0 if kept is None else kept.index.shape[-1])
            part, left = left[:room], left[room:]
            ids_BT = torch.tensor([part], device=lm.device)
            with deltas_applied(lm, self.method.outside, 1):
                kept = extended(lm, kept, ids_BT, torch.ones_like(ids_BT, dtype=torch.bool), self.rotary)
            if kept.index.shape[-1] > self.window:
                kept, done = self._shorter(kept, min(s.memory, done * s.comp_tokens)), done + 1
        return kept, done

    def _shorter(self, whole: EvictedCache, memory: int) -> EvictedCache:
        """The oldest piece of text compressed, or thrown away but for its newest tokens."""
        s, end = self.settings, self.first + memory + self.settings.piece
        front, rest = _slots(whole, 0, end), _slots(whole, end, whole.index.shape[-1])
        stays = min(s.memory, memory + s.comp_tokens)
        if s.compress:
            front = behind(_slots(front, 0, self.first + memory), self._compressed(front))
        slots = front.index.shape[-1]
        return behind(behind(_slots(front, 0, self.first), _slots(front, slots - stays, slots)), rest)

    def _compressed(self, front: EvictedCache) -> EvictedCache:
        """The COMP slots that read behind all of it."""
        count, prefix, place = self.settings.comp_tokens, front.prefix(self.rotary), front.index[:, :, :, -1:]
        if self.rotary is None:
            prefix = replace(prefix, next_position_B=place[0, :, 0, 0].long() + 1)
        keys, values = self.method.compressed(prefix, [[]], prefix.next_position_B)
        if self.rotary is not None:
            positions_BT = prefix.next_position_B[:, None] + torch.arange(count, device=keys.device)
            keys = self.rotary.unrotate(keys, positions_BT)
        return EvictedCache(keys, values, place.expand(-1, -1, -1, count).contiguous(), front.next)


def _held(tensors: Mapping[str, Tensor]) -> EvictedCache | None:
    """What a state holds, without padding; None before anything was read."""
    if not tensors:
        return None
    whole = EvictedCache(**tensors)
    slots = whole.index.shape[-1]
    return _slots(whole, slots - int(whole.valid.sum()), slots)


def _slots(whole: EvictedCache, start: int, end: int) -> EvictedCache:
    part = slice(start, end)
    return EvictedCache(whole.keys[..., part, :], whole.values[..., part, :], whole.index[..., part], whole.next)


def _padded(row: EvictedCache, slots: int) -> EvictedCache:
    more = slots - row.index.shape[-1]
    keys, values = (pad(tensor, (0, 0, more, 0)) for tensor in (row.keys, row.values))
    return EvictedCache(keys, values, pad(row.index, (more, 0), value=-1), row.next)
